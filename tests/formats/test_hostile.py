"""Named limits refuse files that would exhaust memory or time."""

from __future__ import annotations

import json
import os
import pickle
from io import BytesIO
from math import prod
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest
import xarray as xr
from dask.base import tokenize

from tests import cc4sfiles as cf
from tests import magfiles as mf
from tests import pycausetfiles as pf
from tests import tensfiles as tf
from tests import vespafiles as vf
from tests.opening import open_lazily, open_tensor
from tests.pycausetblocks import make_manifest, make_metadata
from tests.work import limit_calls, limit_memory
from xr_tensorfmt import TensorFormatError, TensorFormatWarning, to_file, validate, vespa
from xr_tensorfmt.core.embedded_metadata import MAX_LEVELS
from xr_tensorfmt.core.extents import MAX_CHUNKS, Bytes, Extents
from xr_tensorfmt.sources.local import LocalFile

MIB = 1 << 20


def make_implied(
    rows: int, columns: int, matrix_type: str = "IDENTITY", *, without: str = "", **more: object
) -> memoryview:
    """Return a matrix of PyCauset without stored elements."""
    keys = pf.make_metadata(matrix_type, "FLOAT64", rows, columns, **more)
    keys.pop(without, None)
    return memoryview(pf.r1(keys))


HUGE = {
    "identity": make_implied(1 << 25, 1 << 25),
    "identity before R1": memoryview(pf.v2("IDENTITY", "FLOAT64", 1 << 25, 1 << 25, b"")),
    "unit vector": make_implied(1 << 57, 1, "UNIT_VECTOR"),
}


@pytest.mark.parametrize("name", HUGE)
class TestImpliedElements:
    """Small files that describe matrices with too many elements to compute."""

    def test_implied_elements_raise_without_request(self, name: str) -> None:
        with pytest.raises(TensorFormatError, match=r"at most 1099511627776 .*sparse='dense'"):
            open_lazily(HUGE[name], chunks={})

    def test_implied_elements_are_computed_in_part(self, name: str) -> None:
        with limit_memory(64 * MIB):
            tensor = open_tensor(HUGE[name], sparse="dense")
            part = tensor[(slice(3),) * tensor.ndim].values
            tensor[(0,) * tensor.ndim].load()
        assert part.flat[0] == 1
        assert part.sum() in (1, 3)

    def test_implied_elements_have_larger_chunks(self, name: str) -> None:
        with limit_memory(64 * MIB):
            full = open_tensor(HUGE[name], sparse="dense", chunks=-1)
            assert full.data.npartitions == 1
            chunks = full.encoding["preferred_chunks"]
        count = prod(-(-size // chunks.get(dim, size)) for dim, size in full.sizes.items())
        assert MAX_CHUNKS // 4 <= count <= MAX_CHUNKS
        tensor = open_tensor(HUGE[name], sparse="dense")
        part = tensor[(slice(3),) * tensor.ndim].chunk()
        assert part.chunks == tuple((length,) for length in part.shape)

    def test_implied_elements_are_validated_without_computing(self, name: str) -> None:
        with limit_memory(64 * MIB), limit_calls(100_000):
            assert validate(HUGE[name]) == []


@pytest.mark.parametrize("shape", [(1 << 50, 0), (0, 1 << 50)])
class TestWithoutElements:
    """Matrices with one empty and one long side."""

    @pytest.mark.parametrize("chunks", [None, {}])
    def test_empty_tensors_open(self, shape: tuple[int, int], chunks: object) -> None:
        with limit_memory(64 * MIB):
            tensor = open_tensor(make_implied(*shape), chunks=chunks)
            assert tensor.values.shape == shape
            assert tensor[:3, :3].values.size == 0
            assert tensor.isel(row=slice(None, None, -2)).values.size == 0
            assert validate(make_implied(*shape)) == []

    def test_empty_matrices_before_r1_open(self, shape: tuple[int, int]) -> None:
        content = memoryview(pf.v2("IDENTITY", "FLOAT64", *shape, b""))
        assert open_tensor(content).values.shape == shape

    def test_blocks_without_uuid_raise(self, shape: tuple[int, int]) -> None:
        content = make_implied(*shape, without="payload_uuid")
        with pytest.raises(TensorFormatError, match="payload_uuid at byte 4096: no such key"):
            open_lazily(content)
        assert len(validate(content)) == 1


def test_only_stored_elements_of_blocks_are_checked(tmp_path: Path) -> None:
    length = 1 << 27
    blocks = tmp_path / "a.pycauset.blocks"
    blocks.mkdir()
    (blocks / "b.pycauset").write_bytes(
        pf.r1(make_metadata("IDENTITY", "FLOAT64", length, length, "b"))
    )
    path = tmp_path / "a.pycauset"
    path.write_bytes(pf.r1(make_manifest([0, length], [0, length], [["b"]], "m")))
    with limit_calls(100_000):
        assert validate(path) == []
    with pytest.raises(TensorFormatError, match="the shape of a BLOCK"):
        open_lazily(path)


def nest(levels: int, *, is_dict: bool = False) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value} if is_dict else [value]
    return value


def make_mag(metadata: Any) -> bytes:
    return mf.make_document({"w": mf.put(np.ones(2, "f4"))}, metadata)


def make_safetensors(header: str) -> bytes:
    return len(header).to_bytes(8, "little") + header.encode()


def format_embedded(attrs: Any) -> str:
    return json.dumps({"version": 1, "tensors": {}, "coordinates": {}, "attrs": {"deep": attrs}})


DEEP = json.dumps(nest(900))

REFUSED_NESTING = {
    "mag": (make_mag({"deep": nest(900)}), "the document at byte 44: lists or objects"),
    "mag of objects": (make_mag({"a": nest(900, is_dict=True)}), "the document at byte 44"),
    "safetensors": (make_safetensors(f'{{"a":{DEEP}}}'), "the header at byte 8: lists or objects"),
    "pycauset": (
        bytes(make_implied(1, 1, deep=nest(33))),
        "expected at most 524288 values in 32 levels",
    ),
    "pycauset zip": (pf.make_zip(f'{{"rows": {DEEP}}}'.encode(), b""), "metadata.json at byte 43"),
}
UNUSED_NESTING = {
    "mag": make_mag({"xr_tensorfmt": format_embedded(nest(900))}),
    "mag of objects": make_mag({"xr_tensorfmt": format_embedded(nest(900, is_dict=True))}),
    "tens": tf.make_1_0(
        np.ones(2), tf.pack_chunk(b"XRTENSOR", format_embedded(nest(900)).encode()), names="a"
    ),
    "safetensors": make_safetensors(
        json.dumps({"__metadata__": {"xr_tensorfmt": format_embedded(nest(900))}})
    ),
    "pycauset": bytes(make_implied(1, 1, xr_tensorfmt=format_embedded(nest(900)))),
}


class TestNesting:
    """Metadata are not nested so deeply that pickling and dask's tokens fail."""

    @pytest.mark.parametrize("name", REFUSED_NESTING)
    def test_deep_nesting_raises(self, name: str) -> None:
        content, message = REFUSED_NESTING[name]
        with pytest.raises(TensorFormatError, match=message):
            open_lazily(content, format=name.split(maxsplit=1)[0])
        assert validate(content, format=name.split(maxsplit=1)[0])

    @pytest.mark.parametrize("name", UNUSED_NESTING)
    def test_deep_nesting_in_embedded_metadata_is_ignored(self, name: str) -> None:
        with pytest.warns(TensorFormatWarning, match="are ignored .*nested deeper than 40 levels"):
            actual = open_lazily(UNUSED_NESTING[name], format=name.split(maxsplit=1)[0])
        assert "deep" not in actual.attrs

    @pytest.mark.parametrize(
        ("levels", "message"),
        [(50, "at most 40 within each other"), (900, "nested deeply|nesting depth")],
    )
    def test_deep_nesting_in_yaml_raises(self, tmp_path: Path, levels: int, message: str) -> None:
        (tmp_path / "a.elements").write_bytes(bytes(8))
        deep = json.dumps(nest(levels))
        (tmp_path / "a.yaml").write_text(cf.format_yaml((1,), more=f"metaData:\n  deep: {deep}\n"))
        with pytest.raises(TensorFormatError, match=message):
            open_lazily(tmp_path / "a.yaml")

    def test_deep_nesting_in_index_raises(self, tmp_path: Path) -> None:
        path = tmp_path / "model.safetensors.index.json"
        path.write_text(f'{{"metadata": {{"a": {DEEP}}}, "weight_map": {{}}}}')
        with pytest.raises(TensorFormatError, match="the index at byte 0: lists or objects"):
            open_lazily(path)

    @pytest.mark.parametrize("is_dict", [False, True])
    @pytest.mark.parametrize("suffix", ["mag", "tens", "pycauset", "safetensors", "yaml"])
    def test_nesting_limit_of_writer_equals_reader(
        self, tmp_path: Path, suffix: str, is_dict: bool
    ) -> None:
        path = tmp_path / f"a.{suffix}"

        def dataset(levels: int) -> xr.Dataset:
            deep = {"deep": nest(levels, is_dict=is_dict)}
            ones = np.ones((2, 2), "f4" if suffix == "mag" else "f8")
            values = xr.DataArray(ones, dims=("p", "q"), attrs=deep)
            return xr.Dataset({"w": values}, attrs={} if suffix == "yaml" else deep)

        to_file(dataset(MAX_LEVELS - 1), path)
        actual = open_lazily(path, chunks={})
        assert actual.w.attrs["deep"] == dataset(MAX_LEVELS - 1).w.attrs["deep"]
        pickle.loads(pickle.dumps(actual))
        assert tokenize(actual) == tokenize(open_lazily(path, chunks={}))
        with pytest.raises((TypeError, ValueError), match="nested deeper than 32 levels"):
            to_file(dataset(MAX_LEVELS), path)

    def test_deepest_nesting_pickles_and_tokenizes(self) -> None:
        actual = open_lazily(memoryview(make_mag({"a": nest(38, is_dict=True)})), chunks={})
        pickle.loads(pickle.dumps(actual))
        tokenize(actual)


REFUSED_VALUES = {
    "mag": mf.parse_document(b'{"a":[' + b"[]," * (10 * MIB) + b"0]}", b""),
    "safetensors": make_safetensors('{"a":[' + "[]," * (10 * MIB) + "0]}"),
}


@pytest.mark.parametrize("name", REFUSED_VALUES)
def test_metadata_of_too_many_values_raise(name: str) -> None:
    content = memoryview(REFUSED_VALUES[name])
    with (
        limit_memory(300 * MIB),
        pytest.raises(TensorFormatError, match=r"\d+ values, more than 4194304"),
    ):
        open_lazily(content, format=name)


def test_metadata_of_too_many_values_raise_in_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(make_implied(1, 1, many=[[]] * 1000))
    monkeypatch.setattr("xr_tensorfmt.formats.pycauset.MAX_METADATA_VALUES", 1020)
    assert open_lazily(content).sizes == {"row": 1, "col": 1}
    monkeypatch.setattr("xr_tensorfmt.formats.pycauset.MAX_METADATA_VALUES", 1000)
    with pytest.raises(TensorFormatError, match="more values or levels, expected at most 1000"):
        open_lazily(content)


def test_separators_within_strings_are_no_values() -> None:
    text = open_lazily(memoryview(make_mag({"a": "[,:" * (2 * MIB)}))).attrs["a"]
    assert text.startswith("[,:")


def write_hollow(path: Path, head: bytes, size: int) -> Path:
    """Write a sparse file of zeros after its first bytes."""
    path.write_bytes(head)
    os.truncate(path, size)
    return path


def record_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that collects the sizes of all reads of local files."""
    read, sizes = LocalFile.read, []

    def recorded(source: LocalFile, extents: Extents) -> Bytes:
        sizes.append(extents.nbytes)
        return read(source, extents)

    monkeypatch.setattr(LocalFile, "read", recorded)
    return sizes


@pytest.mark.parametrize(("every", "count"), [(False, 1), (True, 20)])
def test_repeated_pairs_are_found_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: bool, count: int
) -> None:
    pairs = 1 << 36
    head = tf.make_index_value((1 << 20, 1 << 19), [], np.ones(0))[:-8] + pairs.to_bytes(
        8, "little"
    )
    path = write_hollow(tmp_path / "a.tens", head, len(head) + 16 * pairs)
    sizes = record_reads(monkeypatch)
    findings = validate(path, all=every)
    assert len(findings) == 1
    assert "0, as in another pair, expected an index that occurs once" in findings[0].message
    assert sum(sizes) < 64 * MIB


def test_repeated_pairs_raise_on_first_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = 1 << 36
    head = tf.make_index_value((1 << 20, 1 << 19), [], np.ones(0))[:-8] + pairs.to_bytes(
        8, "little"
    )
    path = write_hollow(tmp_path / "a.tens", head, len(head) + 16 * pairs)
    sizes = record_reads(monkeypatch)
    with pytest.raises(TensorFormatError, match=r"the index of pair 1 at byte .* as in another"):
        open_tensor(path)[5, 5].load()
    assert sum(sizes) < 64 * MIB


def write_labels(path: Path, count: int, first: bytes = b"\0\0") -> Path:
    """Return a Vespa tensor of blocks with an empty label and a zero cell."""
    head = vf.pack_header("int8", ["x"], None, count)
    return write_hollow(path, head + first, len(head) + len(first) + 2 * count - 2)


@pytest.mark.slow
class TestManyLabels:
    """Vespa files with more labels than fit in memory."""

    def test_many_labels_are_opened_lazily(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Measuring memory makes a scan 20 times as slow.
        monkeypatch.setattr("xr_tensorfmt.formats.vespa.read.MAX_INDEXED_LABELS", 400_000)
        monkeypatch.setattr("xr_tensorfmt.datasets.lazy_array.MAX_LOADED_LABELS", 400_000)
        count = 500_000
        path = write_labels(tmp_path / "a.tbf", count)
        with pytest.raises(
            TensorFormatError, match=r"500000, expected at most 400000; open .*stored"
        ):
            open_lazily(path)
        with limit_memory(32 * count):
            actual = open_lazily(path, chunks={}, sparse="stored")
            assert actual.tensor.dims == ("block",)
            assert actual.x[10**5 : 10**5 + 3].values.tolist() == ["", "", ""]
            assert actual.tensor[-3:].values.tolist() == [0, 0, 0]

    def test_too_many_labels_raise_before_allocation(self, tmp_path: Path) -> None:
        path = write_labels(tmp_path / "a.tbf", 1 << 27)
        with (
            limit_memory(16 * MIB),
            pytest.raises(TensorFormatError, match="134217728, expected at most 67108864"),
        ):
            open_lazily(path, sparse="stored")
        assert len(validate(path)) == 1

    def test_many_labels_prevent_outer_product(self, tmp_path: Path) -> None:
        with pytest.raises(TensorFormatError, match=r"at most 8388608; .* sparse='stored'"):
            open_lazily(write_labels(tmp_path / "a.tbf", 9 * 10**6), sparse="dense", fill_value=0)


def make_npy(header: str, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + data


@pytest.mark.parametrize(
    ("header", "message"),
    [
        pytest.param("-" * 9000 + "1", "the header of the array .* not readable", id="signs"),
        pytest.param("(" * 9000, "the header of the array .* not readable", id="parentheses"),
        pytest.param(
            "{'descr': '|S2147483647', 'fortran_order': False, 'shape': (0,), }",
            "an element of the array .* 2147483647 bytes, expected at most 16777216",
            id="long strings",
        ),
        pytest.param(
            "{'descr': '<U536870911', 'fortran_order': False, 'shape': (0,), }",
            "an element of the array .* 2147483644 bytes, expected at most 16777216",
            id="long characters",
        ),
    ],
)
def test_headers_of_arrays(header: str, message: str) -> None:
    with pytest.raises(TensorFormatError, match=message):
        open_lazily(memoryview(make_npy(header)), chunks={})


def test_directory_of_zip_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    content = BytesIO()
    np.savez(content, a=np.ones(3))
    size, directory = 1 << 40, 1 << 39
    offset = size - 98
    end = b"PK\x06\x06" + pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 1, 1, directory, offset - directory)
    end += b"PK\x06\x07" + pack("<IQI", 0, offset, 1)
    end += b"PK\x05\x06" + pack("<4H2IH", 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0)
    path = write_hollow(tmp_path / "a.npz", content.getvalue()[:60], size)
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(end)
    with pytest.raises(TensorFormatError, match="549755813888 bytes, expected at most 8388608"):
        open_lazily(path)


@pytest.mark.parametrize("name", [".", "..", "x" * 300, "\ud800", "a\0b", "../a", "", 1, None])
def test_index_names_sibling_files(tmp_path: Path, name: object) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(
        TensorFormatError, match="expected paths of files in the directory of the index"
    ):
        open_lazily(path)
    assert len(validate(path)) == 1


def test_json_that_lists_few_cells_of_large_block_raises() -> None:
    cells = [{"address": {"x": "a", "y": "5"}, "value": 1}]
    content = {"type": f"tensor(x{{}},y[{(1 << 24) + 1}])", "cells": cells}
    with (
        limit_memory(16 * MIB),
        pytest.raises(ValueError, match="more than 4194304 cells, but lists"),
    ):
        vespa.from_json(json.dumps(content))
