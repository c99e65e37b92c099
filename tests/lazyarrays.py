"""Lazy arrays over bytes, the arrays of numpy that they must equal, and strategies for keys."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import xarray as xr
import xarray.testing.strategies as xrst

from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Plain
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import column_major
from xr_tensorfmt.datasets.lazy_array import lazy_array
from xr_tensorfmt.sources.local import LocalFile
from xr_tensorfmt.sources.memory import FileObject, Memory

SOURCES = ["mmap", "read", "bytes", "file object"]
INDEXERS = {
    "basic": xrst.basic_indexers,
    "outer": xrst.outer_array_indexers,
    "vectorized": xrst.vectorized_indexers,
}


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return (np.arange(int(np.prod(shape))) % 251).astype(dtype).reshape(shape)


def stored(values: np.ndarray, order: str, offset: int) -> tuple[bytes, Layout]:
    content = bytes(offset) + values.tobytes(order)
    lengths = values.shape[::-1] if order == "F" else values.shape
    layout = Dense(lengths, Plain(values.dtype), offset)
    return content, column_major(layout) if order == "F" else layout


def source_of(kind: str, content: bytes, path: Path) -> Source:
    path.write_bytes(content)
    match kind:
        case "bytes":
            return Memory(content)
        case "file object":
            return FileObject(io.BytesIO(content))
        case _:
            return LocalFile.from_path(path, mapped=kind == "mmap")


def pair_of(
    source: Source, layout: Layout, values: np.ndarray
) -> tuple[xr.DataArray, xr.DataArray]:
    dims = tuple("abcdef"[: values.ndim])
    native = values.astype(values.dtype.newbyteorder("="))
    lazy = xr.DataArray(xr.Variable(dims, lazy_array(source, layout)))
    return lazy, xr.DataArray(xr.Variable(dims, native))


def assert_same(lazy: xr.DataArray, eager: xr.DataArray) -> None:
    assert lazy.dims == eager.dims
    loaded = lazy.values
    assert loaded.dtype == eager.dtype
    assert loaded.flags.writeable or not loaded.ndim
    np.testing.assert_array_equal(loaded, eager.values, strict=True)
