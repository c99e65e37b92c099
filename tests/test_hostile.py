"""Files that are made to exhaust memory, or to keep readers busy, are refused by named limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import pycausetfiles as pf
from tests.opening import opened, tensor_of
from tests.pycausetblocks import facts, manifest
from tests.work import calls_below, memory_below
from xr_tensorfmt import TensorFormatError, validate
from xr_tensorfmt.core.chunk_grid import MOST_CHUNKS

MIB = 1 << 20


def implied(
    rows: int, columns: int, matrix_type: str = "IDENTITY", *, without: str = "", **more: object
) -> memoryview:
    """A matrix of PyCauset without any stored element."""
    keys = pf.metadata(matrix_type, "FLOAT64", rows, columns, **more)
    keys.pop(without, None)
    return memoryview(pf.r1(keys))


HUGE = {
    "identity": implied(1 << 25, 1 << 25),
    "identity before R1": memoryview(pf.v2("IDENTITY", "FLOAT64", 1 << 25, 1 << 25, b"")),
    "unit vector": implied(1 << 57, 1, "UNIT_VECTOR"),
}


@pytest.mark.parametrize("name", HUGE)
class TestImpliedElements:
    """Of matrices whose few bytes stand for more elements than any program can compute."""

    def test_are_refused_unless_they_are_asked_for(self, name: str) -> None:
        with pytest.raises(TensorFormatError, match=r"at most 1099511627776 .*sparse='dense'"):
            opened(HUGE[name], chunks={})

    def test_are_computed_in_part(self, name: str) -> None:
        with memory_below(64 * MIB):
            tensor = tensor_of(HUGE[name], sparse="dense")
            part = tensor[(slice(3),) * tensor.ndim].values
            tensor[(0,) * tensor.ndim].load()
        assert part.flat[0] == 1
        assert part.sum() in (1, 3)

    def test_are_not_cut_into_too_many_chunks(self, name: str) -> None:
        with (
            memory_below(64 * MIB),
            pytest.raises(ValueError, match=f"more than {MOST_CHUNKS} chunks; open it without"),
        ):
            opened(HUGE[name], sparse="dense", chunks={})
        tensor = tensor_of(HUGE[name], sparse="dense")
        part = tensor[(slice(3),) * tensor.ndim].chunk()
        assert part.chunks == tuple((length,) for length in part.shape)

    def test_are_validated_without_computing_them(self, name: str) -> None:
        with memory_below(64 * MIB), calls_below(100_000):
            assert validate(HUGE[name]) == []


@pytest.mark.parametrize("shape", [(1 << 50, 0), (0, 1 << 50)])
class TestWithoutElements:
    """Of matrices of which one side is empty and the other one is long."""

    @pytest.mark.parametrize("chunks", [None, {}])
    def test_open_as_empty(self, shape: tuple[int, int], chunks: object) -> None:
        with memory_below(64 * MIB):
            tensor = tensor_of(implied(*shape), chunks=chunks)
            assert tensor.values.shape == shape
            assert tensor[:3, :3].values.size == 0
            assert tensor.isel(row=slice(None, None, -2)).values.size == 0
            assert validate(implied(*shape)) == []

    def test_open_as_empty_before_r1(self, shape: tuple[int, int]) -> None:
        content = memoryview(pf.v2("IDENTITY", "FLOAT64", *shape, b""))
        assert tensor_of(content).values.shape == shape

    def test_without_a_uuid_are_refused(self, shape: tuple[int, int]) -> None:
        content = implied(*shape, without="payload_uuid")
        with pytest.raises(TensorFormatError, match="'payload_uuid' at byte 4096: missing"):
            opened(content)
        assert len(validate(content)) == 1


def test_cached_results_without_a_uuid_are_refused() -> None:
    signature = {"view_signature": "t=0;c=0;sr=1.0;si=0.0", "payload_uuid": "u" * 32}
    content = implied(
        1, 1, without="payload_uuid", cached={"trace": {"value": 1.0, "signature": signature}}
    )
    with pytest.raises(TensorFormatError, match="'payload_uuid' at byte 4096: missing"):
        opened(content)
    assert len(validate(content)) == 1


def test_claims_of_implied_elements_are_not_checked_one_by_one() -> None:
    claims = {"is_symmetric": True, "is_identity": True}
    content = implied(1 << 20, 1 << 20, properties=claims)
    with memory_below(64 * MIB):
        (finding,) = validate(content)
    assert finding.severity == "warning"
    assert "not checked, as the matrix has 1099511627776 elements" in finding.message
    assert validate(implied(100, 100, properties=claims)) == []
    assert len(validate(implied(100, 100, properties={"is_zero": True}))) == 1


def test_of_blocks_only_what_they_store_is_checked(tmp_path: Path) -> None:
    length = 1 << 27
    blocks = tmp_path / "a.pycauset.blocks"
    blocks.mkdir()
    (blocks / "b.pycauset").write_bytes(pf.r1(facts("IDENTITY", "FLOAT64", length, length, "b")))
    path = tmp_path / "a.pycauset"
    path.write_bytes(pf.r1(manifest([0, length], [0, length], [["b"]], "m")))
    with calls_below(100_000):
        assert validate(path) == []
    with pytest.raises(TensorFormatError, match="the shape of a BLOCK"):
        opened(path)
