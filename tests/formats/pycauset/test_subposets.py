"""Subsets of causal matrices by lists of elements: reading and writing."""

from __future__ import annotations

from pathlib import Path

import fsspec
import numpy as np
import pytest
import xarray as xr

from tests import pycausetfiles as pf
from tests.recording import RecordingSource
from xr_tensorfmt.core.elements import Boolean
from xr_tensorfmt.core.selection import plan_key
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.formats.pycauset.packed import Packed
from xr_tensorfmt.sources import find_source


def make_causal(order: int) -> np.ndarray:
    return np.triu(np.random.default_rng(order).random((order, order)) < 0.5, 1)


def make_causal_file(values: np.ndarray) -> bytes:
    return pf.r1(pf.make_metadata("CAUSAL", "BIT", *values.shape), pf.pack_triangle(values))


def open_tensor(content: bytes | Path) -> xr.DataArray:
    return xr.open_dataset(content, engine="tensorfmt").tensor


@pytest.mark.parametrize(
    ("order", "limit"),
    # One element at once is slow.
    [(order, 1) for order in (1, 7, 8, 65)]
    + [(order, limit) for order in (1, 7, 8, 65, 150) for limit in (500, 1 << 20)],
)
@pytest.mark.parametrize("diagonal", [None, 1])
def test_columns_of_bits_are_taken_some_rows_at_once(
    order: int, limit: int, diagonal: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Source, "batch_bytes", limit)
    values = np.random.default_rng(1).random((order, order)) < 0.5
    values = values if diagonal is None else np.triu(values, 1)
    content = pf.pack_bits(values, 8) if diagonal is None else pf.pack_triangle(values)
    layout = Packed(order, order, Boolean(), 8, 0, diagonal)
    rng = np.random.default_rng(order)
    for count in {1, order // 2 or 1, order - order // 10}:
        rows, columns = (np.sort(rng.permutation(order)[:count]) for _ in range(2))
        actual = plan_key(layout, find_source(content)[0], (rows, columns)).read()
        np.testing.assert_array_equal(actual, values[np.ix_(rows, columns)], strict=True)


def test_elements_in_any_order_are_read_once() -> None:
    values = make_causal(100)
    content = make_causal_file(values)
    data = open_tensor(content)
    rng = np.random.default_rng(3)
    for some in (rng.permutation(100), rng.permutation(100)[:90], rng.integers(0, 100, 130)):
        expected = values[np.ix_(some, some)]
        np.testing.assert_array_equal(data.isel(row=some, col=some), expected, strict=True)
        np.testing.assert_array_equal(
            data.isel(row=some, col=slice(9, 2, -1)), values[some, 9:2:-1]
        )
        np.testing.assert_array_equal(data.isel(row=some, col=5), values[some, 5])
        source = RecordingSource(pf.pack_triangle(values))
        layout = Packed(100, 100, Boolean(), 8, 0, 1)
        actual = plan_key(layout, source, (some, some)).read()
        np.testing.assert_array_equal(actual, expected, strict=True)
        assert source.fetched <= len(pf.pack_triangle(values))


def test_any_number_of_axes_is_reordered(tmp_path: Path) -> None:
    cube = xr.DataArray(np.arange(4 * 5 * 6).reshape(4, 5, 6), dims=("x", "y", "z"))
    cube.to_dataset(name="cube").tensorfmt.to_file(tmp_path / "cube.mag")
    lazy = xr.open_dataset(tmp_path / "cube.mag", engine="tensorfmt").cube
    for key in (
        {"x": [3, 1, 1], "y": [4, 0], "z": [2, 2, 5, 0]},
        {"x": [2, 0, 1], "y": 3, "z": [1, 0]},
        {"x": [2, 0, 1], "y": slice(None, None, -2), "z": [1, 0]},
        {"x": [2, 0, 1], "y": [], "z": [1, 0]},
    ):
        xr.testing.assert_equal(lazy.isel(key), cube.isel(key))


@pytest.mark.parametrize("matrix", ["CAUSAL", "DENSE_FLOAT"])
def test_elements_in_any_order_equal_numpy_at_every_size_of_blocks(
    matrix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = make_causal(100)
    payload = pf.pack_triangle(values) if matrix == "CAUSAL" else pf.pack_bits(values, 64)
    data = open_tensor(pf.r1(pf.make_metadata(matrix, "BIT", 100, 100), payload))
    expected = xr.DataArray(values, dims=("row", "col"))
    some = np.random.default_rng(4).permutation(100)[:86]
    keys = (some, np.sort(some), slice(3, 75), slice(None, None, -1), 5, [9, 9, 0])
    for limit in (500, 1 << 20):
        monkeypatch.setattr(Source, "batch_bytes", limit)
        for rows in keys:
            for columns in keys:
                for array in (data, data.transpose()):
                    part = array.isel(row=rows, col=columns)
                    plain = expected.transpose(*array.dims).isel(row=rows, col=columns)
                    xr.testing.assert_equal(part, plain)


# Written as what they are.


def chunk_and_count(data: xr.DataArray) -> tuple[xr.DataArray, list[int]]:
    """Return the array in chunks of rows, and a list that counts computed elements."""
    sizes: list[int] = []

    def count(values: np.ndarray) -> np.ndarray:
        sizes.append(values.size)
        return values

    array = data.data.map_blocks(count, dtype=data.dtype, meta=np.zeros((0, 0), data.dtype))
    return data.copy(data=array), sizes


def read_types(path: Path) -> tuple[str, str]:
    actual = open_tensor(path).encoding["tensorfmt"]
    return actual["matrix_type"], actual["data_type"]


@pytest.mark.parametrize("rows", [None, 7, 900])
@pytest.mark.parametrize("compute", [True, False])
def test_subposet_is_causal_and_half_as_large_as_all_bits(
    tmp_path: Path, rows: int | None, compute: bool
) -> None:
    values, path = make_causal(900), tmp_path / "part.pycauset"
    some = np.sort(np.random.default_rng(2).permutation(900)[:800])
    data = open_tensor(make_causal_file(values))
    part = (data.chunk(row=rows) if rows else data).isel(row=some, col=some)
    matrix_type = "CAUSAL" if rows else None  # chunks are not computed to choose a type
    task = part.tensorfmt.to_file(path, compute=compute, matrix_type=matrix_type)
    if not compute:
        assert not path.exists()
        task.compute(scheduler="threads")
    assert read_types(path) == ("CAUSAL", "BIT")
    expected = part.load().drop_attrs().to_dataset()
    xr.testing.assert_identical(open_tensor(path).load().to_dataset(), expected)
    part.tensorfmt.to_file(tmp_path / "whole", "pycauset", matrix_type="DENSE_FLOAT")
    assert path.stat().st_size < 0.6 * (tmp_path / "whole").stat().st_size


def test_each_value_of_subposet_is_computed_once(tmp_path: Path) -> None:
    data, sizes = chunk_and_count(open_tensor(make_causal_file(make_causal(100))).chunk(row=9))
    data.tensorfmt.to_file(tmp_path / "causal.pycauset")
    assert sum(sizes) == 100 * 100
    assert read_types(tmp_path / "causal.pycauset") == ("CAUSAL", "BIT")


@pytest.mark.parametrize("change", ["reversed", "transposed", "diagonal", "last"])
@pytest.mark.parametrize("compute", [True, False])
def test_bools_that_are_not_causal_are_dense_bits(
    tmp_path: Path, change: str, compute: bool
) -> None:
    values, path = make_causal(100), tmp_path / "part.pycauset"
    data = open_tensor(make_causal_file(values)).chunk(row=9)
    if change == "reversed":
        data = data[::-1, ::-1].drop_encoding()
    elif change == "transposed":
        data = data.transpose("col", "row").drop_encoding()
    else:
        places = np.zeros((100, 100), bool)
        places[(np.arange(100),) * 2 if change == "diagonal" else (99, 0)] = True
        data = (data | xr.DataArray(places, dims=data.dims)).drop_encoding()
    task = data.tensorfmt.to_file(path, compute=compute)
    if not compute:
        task.compute()
    assert read_types(path) == ("DENSE_FLOAT", "BIT")
    np.testing.assert_array_equal(open_tensor(path), data, strict=True)
    assert [path.name for path in tmp_path.iterdir()] == ["part.pycauset"]


def test_old_file_remains_until_second_plan_completes(tmp_path: Path) -> None:
    path = tmp_path / "part.pycauset"
    path.write_bytes(b"what was there")

    def fail(values: np.ndarray, block_id: tuple[int, int] = (0, 0)) -> np.ndarray:
        if block_id == (9, 0):
            raise ArithmeticError("the last chunk")
        return values

    data = xr.DataArray(np.ones((100, 100), bool), dims=("row", "col")).chunk(row=10)
    wrong = data.copy(data=data.data.map_blocks(fail, dtype=bool, meta=np.zeros((0, 0), bool)))
    with pytest.raises(ArithmeticError, match="the last chunk"):
        wrong.tensorfmt.to_file(path)
    assert path.read_bytes() == b"what was there"
    with pytest.raises(FileExistsError):
        data.tensorfmt.to_file(path, mode="x")
    data.tensorfmt.to_file(path)
    assert read_types(path) == ("DENSE_FLOAT", "BIT")
    assert [path.name for path in tmp_path.iterdir()] == ["part.pycauset"]


def test_objects_in_stores_are_recognised_like_files() -> None:
    fs = fsspec.filesystem("memory")
    values = make_causal(200)
    for matrix, matrix_type in ((values, "CAUSAL"), (values.T, "DENSE_FLOAT")):
        data = xr.DataArray(matrix, dims=("row", "col"))
        data.tensorfmt.to_file("memory://subposets/part.pycauset")
        actual = open_tensor(fs.cat_file("subposets/part.pycauset"))
        assert actual.encoding["tensorfmt"]["matrix_type"] == matrix_type
        np.testing.assert_array_equal(actual, matrix)
    fs.rm("subposets", recursive=True)
