"""Ways to open the files of `benchmark.files` as a DataArray named ``tensor``."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray, BackendEntrypoint
from xarray.core.indexing import LazilyIndexedArray

from benchmark.files import ROW
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Plain
from xr_tensorfmt.datasets.lazy_array import lazy_array
from xr_tensorfmt.sources.local import LocalFile

Opener = Callable[[], xr.DataArray]


class RowMajor(BackendEntrypoint):
    """The data of a TENS file as a row-major tensor, by the Layout that such families use."""

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: Any = None,
        offset: int = 0,
        chunk_bytes: int = 32 << 20,
    ) -> xr.Dataset:
        """Do what the engine does, without a header to parse."""
        rows = (os.stat(filename_or_obj).st_size - offset) // (8 * ROW)
        layout = Dense((rows, ROW), Plain(np.dtype("<f8")), offset)
        chunk = dict(zip(("row", "col"), layout.chunk_shape(chunk_bytes), strict=True))
        data = lazy_array(LocalFile.from_path(filename_or_obj), layout)
        encoding = {"preferred_chunks": chunk}
        return xr.Dataset({"tensor": xr.Variable(("row", "col"), data, encoding=encoding)})


class _Slices(BackendArray):
    def __init__(self, mapped: np.memmap[Any, Any]) -> None:
        self.mapped, self.shape, self.dtype = mapped, mapped.shape, mapped.dtype

    def __getitem__(self, key: Any) -> Any:
        return self.mapped[key.tuple]


class Minimal(BackendEntrypoint):
    """Slices of one np.memmap: the least that an engine can do, and what dask itself costs."""

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: Any = None,
        offset: int = 0,
        rows: int = 0,
    ) -> xr.Dataset:
        """Map the whole file."""
        flat = np.memmap(filename_or_obj, np.float64, "r", offset)
        mapped = np.memmap(filename_or_obj, np.float64, "r", offset, shape=(flat.size // ROW, ROW))
        encoding = {"preferred_chunks": {"row": rows, "col": ROW}}
        data = LazilyIndexedArray(_Slices(mapped))
        return xr.Dataset({"tensor": xr.Variable(("row", "col"), data, encoding=encoding)})


def minimal(path: Path, offset: int, rows: int) -> xr.DataArray:
    """The same bytes by the least engine there can be."""
    keywords = {"offset": offset, "rows": rows}
    return xr.open_dataset(path, engine=Minimal, chunks={}, **keywords)["tensor"]  # type: ignore[arg-type]


def tens(path: Path, **keywords: Any) -> xr.DataArray:
    """A TENS file by the engine: column-major, dims a (fast) and b."""
    return xr.open_dataset(path, engine="tensorfmt", **keywords)["tensor"]


def row_major(path: Path, offset: int, **keywords: Any) -> xr.DataArray:
    """The same bytes as a row-major tensor, dims row and col (fast)."""
    return xr.open_dataset(path, engine=RowMajor, offset=offset, **keywords)["tensor"]


def zarr(path: Path, **keywords: Any) -> xr.DataArray:
    """A zarr store; it has no consolidated metadata to look for."""
    return xr.open_dataset(path, engine="zarr", consolidated=False, **keywords)["tensor"]


def hdf(path: Path, engine: str, rows: int = 0) -> xr.DataArray:
    """A netCDF file by one of its engines, in chunks of `rows` if there are any."""
    chunks = {"row": rows} if rows else None
    return xr.open_dataset(path, engine=engine, chunks=chunks)["tensor"]


def nansum_of(opener: Opener, _: None = None) -> float:
    """What xarray's ``.sum()`` does."""
    return float(opener().sum())


def sum_of(opener: Opener, _: None = None) -> float:
    """What ``.sum(skipna=False)`` does."""
    return float(opener().sum(skipna=False))


def touched(opener: Opener, _: None = None) -> float:
    """Take the values, then add them up, so that a mapped file has to be read."""
    return float(opener().values.sum())


def handed_out(opener: Opener, _: None = None) -> None:
    """Take the values and look at none."""
    assert opener().values.size


def job(
    what: Callable[[Opener, None], Any],
    opener: Callable[..., xr.DataArray],
    *args: Any,
    **keywords: Any,
) -> Callable[[Any], Any]:
    """Bind a job to an opener and the opener to its arguments."""
    return partial(what, partial(opener, *args, **keywords))
