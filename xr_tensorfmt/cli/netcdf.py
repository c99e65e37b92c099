"""Writing netCDF files: they take their names when they are complete."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

import xarray as xr

from xr_tensorfmt.cli.opening import require
from xr_tensorfmt.cli.troubles import said_of
from xr_tensorfmt.writing.atomic_file import Piece, atomic_file_for


def write_netcdf(ds: xr.Dataset, path: str, source: str, *, overwrite: bool) -> None:
    """Write a Dataset to a local file."""
    is_complex = any(each.dtype.kind == "c" for each in ds.variables.values())
    engine: Literal["netcdf4", "h5netcdf"] = "netcdf4"
    if is_complex or not find_spec("netCDF4"):
        require("h5netcdf", path)
        engine = "h5netcdf"
    atomic_file = atomic_file_for(path, 0, replace=overwrite)
    with said_of(path, source, "what was there before is unchanged", atomic_file=atomic_file.path):
        try:
            ds.to_netcdf(atomic_file.begin().path, engine=engine)
            atomic_file.finish([Piece(0, b"")])
        except BaseException:
            atomic_file.discard()
            raise
