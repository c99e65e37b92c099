"""Values that a user holds do not change when their file does."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests.workflows.formats import SHAPE, WRITABLE, make_array, open_array, write
from xr_tensorfmt import to_file

POINTS = xr.DataArray(np.arange(40_000) % SHAPE[0], dims="point")

SELECTIONS: dict[str, Callable[[xr.DataArray], Any]] = {
    "load": lambda array: array.load(),
    "values": lambda array: array.values,
    "copy": lambda array: array.copy(deep=True),
    "one chunk": lambda array: array.chunk().compute(),
    "persist one chunk": lambda array: array.chunk().persist(),
    "rows": lambda array: array[50:250].values,
    "load rows": lambda array: array[50:250].load(),
    "columns": lambda array: array[:, 100:400].values,
    "every second": lambda array: array[::2].values,
    "reversed": lambda array: array[::-1, ::-1].values,
    "list": lambda array: array[[0, 5, 290]].values,
    "points": lambda array: array[POINTS, POINTS].values,
    "transposed": lambda array: array.T.values,
}


def open_like(path: Path, name: str, **keywords: Any) -> xr.DataArray:
    """Open the array of `write` with the axes of `make_array`."""
    array = open_array(path, **keywords)
    return array if array.shape == SHAPE else array.transpose()


def find_map(values: Any) -> type[mmap.mmap] | None:
    """Return the type of the memory map that holds the values, if there is one."""
    while isinstance(values, np.ndarray | memoryview):
        values = values.obj if isinstance(values, memoryview) else values.base
    return mmap.mmap if isinstance(values, mmap.mmap) else None


def write_two(tmp_path: Path, name: str) -> tuple[Path, Path]:
    """Write two files of the same size."""
    first = write(make_array(), tmp_path, name)
    (tmp_path / "other").mkdir()
    return first, write(make_array(offset=1000), tmp_path / "other", name)


def find_data(path: Path) -> Path:
    """Return the file with the values, which is not the file to open for cc4s."""
    elements = path.with_suffix(".elements")
    return elements if elements.exists() else path


def overwrite(path: Path, content: bytes) -> None:
    """Write bytes as another program does: into the same file."""
    with find_data(path).open("r+b") as file:
        file.write(content)
        file.truncate()


@pytest.mark.parametrize("name", WRITABLE)
@pytest.mark.parametrize("selection", SELECTIONS)
def test_values_stay_when_file_is_overwritten(tmp_path: Path, name: str, selection: str) -> None:
    path, other = write_two(tmp_path, name)
    held = SELECTIONS[selection](open_like(path, name))
    expected = SELECTIONS[selection](make_array())
    assert find_map(getattr(held, "values", held)) is None
    for content in (find_data(other).read_bytes(), b""):  # an empty file has no pages
        overwrite(path, content)
        np.testing.assert_array_equal(held, expected)


@pytest.mark.parametrize("name", WRITABLE)
def test_values_are_saved_over_their_own_file(tmp_path: Path, name: str) -> None:
    path = write(make_array(), tmp_path, name)
    values = open_like(path, name).load().values
    with find_data(path).open("wb") as file:  # as np.save, which truncates first
        file.write(values.tobytes())
    assert find_data(path).read_bytes() == make_array().astype(values.dtype).values.tobytes()


@pytest.mark.parametrize("chunks", [None, {}, {"x": 100}], ids=str)
@pytest.mark.parametrize("name", WRITABLE)
def test_file_is_written_over_itself(tmp_path: Path, name: str, chunks: Any) -> None:
    path = write(make_array(), tmp_path, name)
    array = open_like(path, name)
    if chunks is not None:
        array = array.chunk({array.dims[0]: 100} if chunks else {})
    write(array.rename("tensor") + 1, tmp_path, name)
    np.testing.assert_array_equal(open_like(path, name), make_array() + 1)


@pytest.mark.parametrize("suffix", [".mag", ".safetensors"])
def test_coordinates_stay_when_file_is_overwritten(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"file{suffix}"
    x = np.arange(30_000, dtype="f4")
    to_file(xr.Dataset({"v": ("x", x + 1)}, {"x": x, "y": ("x", x + 2)}), path)
    ds = xr.open_dataset(path, engine="tensorfmt").load()
    assert {"x", "y"} == set(ds.coords)
    overwrite(path, bytes(os.path.getsize(path)))
    for offset, values in enumerate([ds.indexes["x"].values, ds.v.values, ds.y.values]):
        assert find_map(values) is None
        np.testing.assert_array_equal(values, x + offset)


@pytest.mark.parametrize("name", WRITABLE)
def test_results_of_chunks_stay_when_file_is_overwritten(tmp_path: Path, name: str) -> None:
    path, other = write_two(tmp_path, name)
    array = open_like(path, name, chunks={}, chunk_bytes="80KiB")
    held = [array.compute(), (array * 2).persist(), array.max(array.dims[0]).compute()]
    overwrite(path, find_data(other).read_bytes())
    expected = make_array().values
    for result, values in zip(held, (expected, expected * 2, expected.max(0)), strict=True):
        np.testing.assert_array_equal(result, values)


@pytest.mark.parametrize("name", WRITABLE)
def test_io_read_copies_persisted_chunks(tmp_path: Path, name: str) -> None:
    path, other = write_two(tmp_path, name)
    held = open_like(path, name, chunks={}, chunk_bytes="80KiB", io="read").persist()
    overwrite(path, find_data(other).read_bytes())
    np.testing.assert_array_equal(held, make_array())


def test_only_chunks_and_io_mmap_are_mapped(tmp_path: Path) -> None:
    path = write(make_array(), tmp_path, "npy")
    for io, in_chunks, at_once in [
        ("auto", True, False),
        ("mmap", True, True),
        ("read", False, False),
    ]:
        array = open_array(path, io=io)
        persisted = array.chunk({array.dims[0]: 150}).persist().data
        chunk = persisted.dask[persisted.name, 0, 0]
        assert [find_map(chunk), find_map(array.values)] == [
            mmap.mmap if in_chunks else None,
            mmap.mmap if at_once else None,
        ]
