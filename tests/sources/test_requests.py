"""The bytes that a Source fetches for a key."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from tests.lazyarrays import assert_same, make_numbers, make_pair, make_stored
from tests.recording import HollowSource, RecordingSource
from tests.tensfiles import pack_header
from xr_tensorfmt.core.elements import Plain
from xr_tensorfmt.core.layout import Dense, column_major
from xr_tensorfmt.datasets.lazy_array import LazyTensor, TensorArray
from xr_tensorfmt.sources.local import LocalFile

MIB = 1 << 20

counts_memory = pytest.mark.skipif(sys.platform != "linux", reason="counts memory as Linux does")


@pytest.mark.parametrize("axes", list(itertools.permutations("abc")))
def test_lazy_transpose_reads_each_byte_once_in_one_request(axes: tuple[str, ...]) -> None:
    values = make_numbers((40, 30, 50), "<f8")
    content, layout = make_stored(values, "F", 96)
    source = RecordingSource(content)
    lazy, eager = make_pair(source, layout, values)
    assert_same(lazy.transpose(*axes), eager.transpose(*axes))
    assert source.requests == [(96, values.nbytes)]


def test_vectorized_outer_key_is_read_as_outer() -> None:
    values = make_numbers((40, 30, 50), "<f8")
    content, layout = make_stored(values, "C", 0)
    source = RecordingSource(content)
    lazy, eager = make_pair(source, layout, values)
    key = {
        "a": xr.DataArray(np.arange(40), dims="x"),
        "b": xr.DataArray(np.arange(30), dims="y"),
        "c": xr.DataArray(np.arange(50), dims="z"),
    }
    assert_same(lazy.isel(key).transpose("z", "x", "y"), eager.isel(key).transpose("z", "x", "y"))
    assert source.requests == [(0, values.nbytes)]


def test_points_of_large_tensor_are_fetched_without_neighbours() -> None:
    lengths = (8192, 4096)  # 256 MiB
    source = HollowSource(pack_header(lengths), 48 + 8192 * 4096 * 8)
    layout = column_major(Dense(lengths[::-1], Plain(np.dtype("<f8")), 48))
    lazy = xr.DataArray(xr.Variable(("a", "b"), LazyTensor(TensorArray(source, layout))))
    points = {
        "a": xr.DataArray([0, 5000, 8191], dims="p"),
        "b": xr.DataArray([0, 77, 4095], dims="p"),
    }
    assert lazy.isel(points).values.tolist() == [0.0, 0.0, 0.0]
    assert source.fetched == 3 * 8


def test_opening_and_indexing_read_nothing() -> None:
    values = make_numbers((40, 30), "<f8")
    content, layout = make_stored(values, "C", 0)
    source = RecordingSource(content)
    lazy, _ = make_pair(source, layout, values)
    chosen = lazy.isel(a=slice(3, 9)).T.isel(b=[1, 5])
    repr(chosen)
    assert source.requests == []
    assert chosen.shape == (2, 6)


def write_hole(path: Path, lengths: tuple[int, ...], dtype: str = "<f8") -> xr.DataArray:
    """Write a column-major tensor to a sparse file."""
    element = Plain(np.dtype(dtype))
    with path.open("wb") as file:
        file.truncate(96 + int(np.prod(lengths, dtype=object)) * element.stored.itemsize)
    layout = column_major(Dense(lengths[::-1], element, 96))
    dims = tuple("abcdef"[: len(lengths)])
    array = TensorArray(LocalFile.open_head(path)[0], layout)
    return xr.DataArray(xr.Variable(dims, LazyTensor(array)))


def measure_memory(what: str) -> int:
    """Return the memory of this process, with mapped files: VmRSS now, VmHWM at most."""
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(what))
    return int(line.split()[1]) * 1024


@contextlib.contextmanager
def needs_less_than(limit: int) -> Iterator[None]:
    """Fail if the block uses this much more memory at any time."""
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak to the present use
    before = measure_memory("VmRSS")
    yield
    assert measure_memory("VmHWM") - before < limit


@counts_memory
def test_memory_limit_detects_allocations() -> None:
    with pytest.raises(AssertionError), needs_less_than(50 * MIB):
        np.ones(100 * MIB, dtype=np.uint8)
    with needs_less_than(50 * MIB):
        np.ones(10 * MIB, dtype=np.uint8)


@counts_memory
@pytest.mark.parametrize(
    "key",
    [
        pytest.param({"a": 7}, id="one-index-of-the-fast-axis"),
        pytest.param({"a": [1, 2500, 4999]}, id="a-few-indices-of-the-fast-axis"),
        pytest.param({"a": slice(None, None, 2500)}, id="a-long-step"),
        pytest.param({"b": slice(None, None, 100), "a": slice(0, 10)}, id="two-steps"),
    ],
)
def test_scattered_keys_need_memory_only_for_the_result(tmp_path: Path, key: dict) -> None:
    tensor = write_hole(tmp_path / "hole", (5000, 250, 40))  # 400 MB
    with needs_less_than(150 * MIB):
        values = tensor.isel(key).values
    assert not values.any()


@counts_memory
def test_scattered_points_need_memory_only_for_the_result(tmp_path: Path) -> None:
    tensor = write_hole(tmp_path / "hole", (5000, 1000, 100))
    rng = np.random.default_rng(0)
    points = {
        dim: xr.DataArray(rng.integers(0, size, 4000), dims="p")
        for dim, size in tensor.sizes.items()
    }
    with needs_less_than(150 * MIB):
        values = tensor.isel(points).values
    assert not values.any()


@counts_memory
def test_values_of_another_byte_order_need_memory_once(tmp_path: Path) -> None:
    tensor = write_hole(tmp_path / "hole", (1 << 15, 1 << 10), ">f8")  # 256 MiB
    with needs_less_than((256 + 150) * MIB):
        values = tensor.values
    assert values.shape == tensor.shape
