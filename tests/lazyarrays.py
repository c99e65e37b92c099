"""Lazy arrays over bytes, equal numpy arrays, and strategies for keys."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from xr_tensorfmt.core.elements import Plain
from xr_tensorfmt.core.extents import Extents
from xr_tensorfmt.core.layout import Dense, Layout, column_major
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.datasets.lazy_array import LazyTensor, TensorArray
from xr_tensorfmt.sources import find_source
from xr_tensorfmt.sources.local import FileObject, LocalFile

SOURCES = ["auto", "mmap", "read", "bytes", "file object"]
NEW_SIZES = {"p": 3, "q": 2}
"""Dimensions of vectorized indexers."""


def locate(layout: Layout, source: Source, selection: Selection) -> list[Extents]:
    """Return the byte ranges that are read at once."""
    return [fetch.extents for fetch in layout.plan(source, selection).iterate_fetches()]


def some_dims(sizes: dict[str, int]) -> st.SearchStrategy[list[str]]:
    """Some dimensions in any order."""
    return st.lists(st.sampled_from(list(sizes)), min_size=1, unique=True)


def indices(size: int, shape: Any) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(np.int64, shape, elements=st.integers(-size, size - 1))


@st.composite
def basic_indexers(draw: st.DrawFn, sizes: dict[str, int]) -> dict[str, Any]:
    """Integers and slices."""
    return {
        dim: draw(
            st.slices(sizes[dim]) | st.integers(-sizes[dim], sizes[dim] - 1)
            if sizes[dim]
            else st.slices(0)
        )
        for dim in draw(some_dims(sizes))
    }


@st.composite
def outer_indexers(draw: st.DrawFn, sizes: dict[str, int]) -> dict[str, Any]:
    """Vectors of integers, one per dimension."""
    lengths = st.integers(0, 6)
    return {
        dim: draw(lengths.flatmap(lambda n, dim=dim: indices(sizes[dim], n if sizes[dim] else 0)))
        for dim in draw(some_dims(sizes))
    }


@st.composite
def vectorized_indexers(draw: st.DrawFn, sizes: dict[str, int]) -> dict[str, Any]:
    """Arrays of integers with common dimensions."""
    key = {}
    for dim in draw(some_dims(sizes)):
        dims = draw(st.lists(st.sampled_from(list(NEW_SIZES)), unique=True))
        shape = tuple(NEW_SIZES[new] for new in dims)
        key[dim] = xr.DataArray(draw(indices(sizes[dim], shape)), dims=dims)
    return key


INDEXERS = {"basic": basic_indexers, "outer": outer_indexers, "vectorized": vectorized_indexers}


def make_numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return (np.arange(int(np.prod(shape))) % 251).astype(dtype).reshape(shape)


def make_stored(values: np.ndarray, order: str, offset: int) -> tuple[bytes, Layout]:
    content = bytes(offset) + values.tobytes(order)
    lengths = values.shape[::-1] if order == "F" else values.shape
    layout = Dense(lengths, Plain(values.dtype), offset)
    return content, column_major(layout) if order == "F" else layout


def make_source(kind: str, content: bytes, path: Path) -> Source:
    match kind:
        case "bytes":
            return find_source(content)[0]
        case "file object":
            return FileObject(io.BytesIO(content))
        case _:
            path.write_bytes(content)
            return LocalFile.open_head(path, kind)[0]


def make_pair(
    source: Source, layout: Layout, values: np.ndarray
) -> tuple[xr.DataArray, xr.DataArray]:
    dims = tuple("abcdef"[: values.ndim])
    native = values.astype(values.dtype.newbyteorder("="))
    lazy = xr.DataArray(xr.Variable(dims, LazyTensor(TensorArray(source, layout))))
    return lazy, xr.DataArray(xr.Variable(dims, native))


def assert_same(lazy: xr.DataArray, eager: xr.DataArray) -> None:
    assert lazy.dims == eager.dims
    loaded = lazy.values
    assert loaded.dtype == eager.dtype
    assert loaded.flags.writeable or not loaded.ndim
    np.testing.assert_array_equal(loaded, eager.values, strict=True)
