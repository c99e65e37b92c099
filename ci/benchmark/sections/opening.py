"""Opening a small file: what is left of the time when there is nothing to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray, BackendEntrypoint
from xarray.core.indexing import LazilyIndexedArray

from benchmark import opened
from benchmark.case import Aim, Case, Results, Section, Table
from benchmark.files import ROW, write_netcdf, write_tens, write_zarr

_ROWS = 64
_ROUNDS = 51

_INTRO = """\
A file of one 64 x 16384 tensor, opened and not read. The limit is xarray's own floor: the same
Dataset by an engine that looks at no file."""


class _Nothing(BackendArray):
    dtype = np.dtype(np.float64)
    shape = (_ROWS, ROW)

    def __getitem__(self, key: Any) -> Any:
        raise NotImplementedError


class _Floor(BackendEntrypoint):
    def open_dataset(self, filename_or_obj: Any, *, drop_variables: Any = None) -> xr.Dataset:
        variable = xr.Variable(("row", "col"), LazilyIndexedArray(_Nothing()))
        return xr.Dataset({"tensor": variable})


def _write(folder: Path, _: int) -> None:
    write_tens(folder / "small.tens", _ROWS)
    write_netcdf(folder / "small.nc", _ROWS)
    write_zarr(folder / "small.zarr", _ROWS, 8 << 20)


def _cases(folder: Path, keywords: dict[str, Any], label: str) -> Iterator[Case]:
    def floor() -> xr.DataArray:
        return xr.open_dataset("nothing", engine=_Floor, **keywords)["tensor"]

    openers: dict[str, opened.Opener] = {
        "xarray's floor": floor,
        "tensorfmt": partial(opened.tens, folder / "small.tens", **keywords),
        "zarr": partial(opened.zarr, folder / "small.zarr", **{"chunks": None, **keywords}),
        "h5netcdf": partial(_netcdf, folder, "h5netcdf", keywords),
        "netcdf4": partial(_netcdf, folder, "netcdf4", keywords),
    }
    roles = {"xarray's floor": "limit", "tensorfmt": "ours"}
    for name, opener in openers.items():
        role: Any = roles.get(name, "peer")
        yield Case(f"{name}{label}", partial(_open, opener), role, rounds=_ROUNDS)


def _netcdf(folder: Path, engine: Any, keywords: dict[str, Any]) -> xr.DataArray:
    return xr.open_dataset(folder / "small.nc", engine=engine, **keywords)["tensor"]


def _open(opener: opened.Opener, _: None) -> None:
    # Closing belongs to it: a netCDF file that stays open would not be opened again.
    opener().close()


def _tables(folder: Path) -> Sequence[Table]:
    note = "`open_dataset`{}, then `.close()`."
    plain, dask = tuple(_cases(folder, {}, "")), tuple(_cases(folder, {"chunks": {}}, ", dask"))
    return (
        Table("Open", note.format(""), plain, memory=False),
        Table("Open with `chunks={}`", note.format(" with `chunks={}`"), dask, memory=False),
    )


def _aims(_: Results) -> Sequence[Aim]:
    return ()


SECTION = Section("opening", "Opening", _INTRO, lambda _: 64 << 20, _write, _tables, _aims)
