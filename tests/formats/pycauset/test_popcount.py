"""Counts of packed bits equal sums of unpacked bits, and read no more bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests import pycausetfiles as pf
from tests.opening import open_tensor
from tests.packedbits import make_causal, make_dense_bits
from tests.recording import RecordingSource
from tests.work import limit_calls
from xr_tensorfmt import pycauset
from xr_tensorfmt.core.elements import Boolean
from xr_tensorfmt.datasets.lazy_array import find_undecoded_tensor
from xr_tensorfmt.formats.pycauset.packed import Packed
from xr_tensorfmt.pycauset import _count_columns, _count_rows, popcount
from xr_tensorfmt.sources.local import LocalFile

RNG = np.random.default_rng(1)
ORDER = 333
CAUSAL = np.triu(RNG.random((ORDER, ORDER)) < 0.5, 1)
DENSE = RNG.random((70, 530)) < 0.5
VECTOR = RNG.random(201) < 0.5
FILES = {
    "v2 causal": (
        pf.v2("CAUSAL", "BIT", ORDER, ORDER, pf.pack_triangle(CAUSAL, dirty=True)),
        CAUSAL,
    ),
    "transposed": (
        pf.v2("CAUSAL", "BIT", ORDER, ORDER, pf.pack_triangle(CAUSAL, dirty=True), transposed=1),
        CAUSAL.T,
    ),
    "r1 dense": (
        pf.r1(pf.make_metadata("DENSE_FLOAT", "BIT", 70, 530), pf.pack_bits(DENSE, 64, dirty=True)),
        DENSE,
    ),
    "r1 dense, whole words": (
        pf.r1(pf.make_metadata("DENSE_FLOAT", "BIT", 70, 512), pf.pack_bits(DENSE[:, :512], 64)),
        DENSE[:, :512],
    ),
    "vector": (
        pf.v2("VECTOR", "BIT", 201, 1, pf.pack_bits(VECTOR, 8, dirty=True)),
        VECTOR,
    ),
    "no rows": (pf.v2("CAUSAL", "BIT", 0, 0, bytes(8)), np.zeros((0, 0), bool)),
    "one row": (pf.v2("CAUSAL", "BIT", 1, 1, bytes(8)), np.zeros((1, 1), bool)),
    "no columns": (pf.r1(pf.make_metadata("DENSE_FLOAT", "BIT", 3, 0)), np.zeros((3, 0), bool)),
}
SELECTIONS: list[dict[str, Any]] = [
    {},
    {"row": slice(3, 60)},
    {"row": slice(None, None, -3)},
    {"row": [60, 2, 2, 9]},
    {"col": slice(65, 300)},
    {"col": slice(0, 64)},
    {"row": slice(5, 69, 2), "col": slice(7, 8)},
    {"row": slice(0, 40), "col": slice(None, None, -1)},
    {"row": slice(50, 60), "col": slice(0, 20)},
    {"row": 4},
    {"col": 300},
    {"row": slice(0, 0)},
    {"col": slice(4, 4)},
]


@pytest.fixture(params=FILES)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, np.ndarray]:
    content, values = FILES[request.param]
    path = tmp_path / "file"
    path.write_bytes(content)
    return path, values


@pytest.mark.parametrize("options", [{}, {"io": "read"}, {"chunks": {}, "chunk_bytes": 5000}])
def test_counts_along_each_dimension(file: tuple[Path, np.ndarray], options: dict) -> None:
    path, values = file
    for dims in (None, *open_tensor(path).dims, list(open_tensor(path).dims)):
        array = open_tensor(path, **options)
        counts = popcount(array, dims)
        expected = xr.DataArray(values, dims=array.dims).sum(dims).astype("i8")
        assert counts.chunks is None
        xr.testing.assert_identical(counts.compute().rename(None), expected)
        assert counts.dtype == np.int64


@pytest.fixture
def counts_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    count = pycauset._count_packed

    def check(*args: Any) -> Any:
        counts = count(*args)
        assert counts is not None
        return counts

    monkeypatch.setattr(pycauset, "_count_packed", check)


@pytest.mark.parametrize("key", SELECTIONS, ids=str)
@pytest.mark.parametrize("name", ["v2 causal", "transposed", "r1 dense"])
def test_selections_are_counted_packed(
    name: str, key: dict, tmp_path: Path, counts_are_packed: None
) -> None:
    content, values = FILES[name]
    if name == "transposed":
        key = {{"row": "col", "col": "row"}[dim]: item for dim, item in key.items()}
    (tmp_path / "file").write_bytes(content)
    expected = xr.DataArray(values, dims=("row", "col")).isel(key)
    for dims in (*expected.dims, None):
        lazy = open_tensor(tmp_path / "file").isel(key)
        repeated = any(isinstance(key.get(dim), list) for dim in np.atleast_1d(dims or lazy.dims))
        if repeated:
            continue
        xr.testing.assert_equal(popcount(lazy, dims), expected.sum(dims))
        xr.testing.assert_equal(popcount(lazy.T, dims), expected.sum(dims))


@pytest.mark.parametrize(
    "key",
    [
        {"row": [60, 2, 2, 9]},
        {"col": [7, 99, 100]},
        {"col": slice(None, None, 2)},
        {"row": xr.DataArray([3, 4], dims="p"), "col": xr.DataArray([9, 8], dims="p")},
    ],
    ids=str,
)
def test_other_selections_are_counted_all_same(key: dict, tmp_path: Path) -> None:
    content, values = FILES["r1 dense"]
    (tmp_path / "file").write_bytes(content)
    eager = xr.DataArray(values, dims=("row", "col"))
    for options in ({}, {"chunks": {}}):
        lazy = open_tensor(tmp_path / "file", **options).isel(key)
        for dims in (*lazy.dims, None):
            xr.testing.assert_equal(popcount(lazy, dims).compute(), eager.isel(key).sum(dims))


def test_arrays_that_were_computed_on_are_summed(tmp_path: Path) -> None:
    content, values = FILES["v2 causal"]
    (tmp_path / "file").write_bytes(content)
    eager = xr.DataArray(values, dims=("row", "col"))
    array = open_tensor(tmp_path / "file", chunks={})
    for lazy, expected in (
        (~array, ~eager),
        (array[::-1], eager[::-1]),
        (array[5:50, :9], eager[5:50, :9]),
        (array.T, eager.T),
        (array.persist(), eager),
        (array.load(), eager),
        (eager, eager),
    ):
        assert find_undecoded_tensor(lazy.variable) is None
        for dim in ("row", "col"):
            xr.testing.assert_equal(popcount(lazy, dim).compute(), expected.sum(dim))


def test_array_that_was_written_to_is_summed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(FILES["v2 causal"][0])
    array = open_tensor(tmp_path / "file")
    array[5, 0] = True
    assert int(popcount(array, "col")[5]) == CAUSAL[5].sum() + 1


def test_chunked_later_is_counted_packed(tmp_path: Path, counts_are_packed: None) -> None:
    (tmp_path / "file").write_bytes(FILES["v2 causal"][0])
    part = open_tensor(tmp_path / "file")[10:90].chunk(row=7)
    np.testing.assert_array_equal(popcount(part, "col"), CAUSAL[10:90].sum(1))


def test_matching_coordinates_and_names_are_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(FILES["v2 causal"][0])
    array = open_tensor(tmp_path / "file").assign_coords(
        row=np.arange(ORDER) * 2, age=("col", CAUSAL[0])
    )
    counts = popcount(array, "col")
    assert list(counts.coords) == ["row"]
    assert (counts.name, counts.attrs) == ("tensor", {})
    assert int(counts.sel(row=8)) == CAUSAL[4].sum()


def test_only_bool_can_be_counted() -> None:
    with pytest.raises(TypeError, match=r"DataArray of bool, such as ds\[name\], not ndarray of"):
        popcount(CAUSAL)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"of bool, .* not DataArray of float64"):
        popcount(xr.DataArray([1.0]))
    with pytest.raises(ValueError, match="'x' not found in array dimensions"):
        popcount(xr.DataArray([True], dims="a"), "x")


def test_row_counts_of_some_columns_read_only_their_words() -> None:
    content, layout, values = make_dense_bits(50, 6400)
    source = RecordingSource(content)
    counts = _count_rows(source, layout, np.array([20]), range(640, 1280))  # type: ignore[arg-type]
    assert counts.tolist() == [values[20, 640:1280].sum()]
    assert source.requests == [(16 + 20 * 800 + 80, 80)]


def test_rows_are_counted_in_batches(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(make_causal(2000)[0])
    source, layout = LocalFile.open_head(tmp_path / "file")[0], make_causal(2000)[1]
    assert isinstance(layout, Packed)
    with limit_calls(1000):
        counts = _count_rows(source, layout, np.arange(2000), range(2000))
    assert counts.sum() == make_causal(2000)[2].sum()


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 1000, 1 << 20])
@pytest.mark.parametrize("order", [128, 129, 200])
def test_parts_of_triangle_are_counted_in_blocks_of_any_size(
    order: int, limit: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, always_mapped: None
) -> None:
    monkeypatch.setattr("xr_tensorfmt.pycauset._CACHED_BYTES", limit)
    content, layout, values = make_causal(order)
    assert isinstance(layout, Packed)
    (tmp_path / "file").write_bytes(content)
    # Words between rows are not counted.
    for source in (LocalFile.open_head(tmp_path / "file")[0], RecordingSource(content)):
        for first, stop in ((0, order), (3, order - 70), (order // 2, order), (64, order - 1)):
            for begin, end in ((0, order), (1, 65), (63, 127), (order - 66, order)):
                part, rows = values[begin:end, first:stop], np.arange(begin, end)
                for axis, count in enumerate((_count_columns, _count_rows)):
                    counts = count(source, layout, rows, range(first, stop))
                    np.testing.assert_array_equal(counts, part.sum(axis))


@pytest.mark.parametrize("limit", [1 << 10, 16 << 20])
@pytest.mark.parametrize("rows", [1, 254, 255, 256, 600])
@pytest.mark.parametrize("width", [1, 64, 65, 530])
def test_column_counts_of_more_rows_than_byte_can_count(
    rows: int, width: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xr_tensorfmt.pycauset._CACHED_BYTES", limit)
    values = np.ones((rows, width), bool)
    values[::3, ::2] = False
    layout = Packed(rows, width, Boolean(), 64, 0)
    source = RecordingSource(pf.pack_bits(values, 64, dirty=True))
    counts = _count_columns(source, layout, np.arange(rows), range(width))
    np.testing.assert_array_equal(counts, values.sum(0))


def test_ellipsis_means_all_dimensions(tmp_path: Path) -> None:
    path = tmp_path / "m.pycauset"
    path.write_bytes(
        pf.r1(
            pf.make_metadata("CAUSAL", "BIT", 3, 3),
            pf.pack_triangle(np.triu(np.ones((3, 3), bool), 1)),
        )
    )
    assert int(popcount(xr.open_dataset(path).tensor, ...)) == 3
