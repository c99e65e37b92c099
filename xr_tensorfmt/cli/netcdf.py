"""Writing netCDF files: they take their names when they are complete."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

import xarray as xr

from xr_tensorfmt.cli.opening import require
from xr_tensorfmt.cli.troubles import said_of
from xr_tensorfmt.writing.atomic_file import Piece, draft_for


def write_netcdf(ds: xr.Dataset, path: str, source: str, *, overwrite: bool) -> None:
    """Write a Dataset to a local file.

    Parameters
    ----------
    ds : Dataset
        What to write.
    path : str
        Where to.
    source : str
        What it is made of, for errors.
    overwrite : bool
        Whether it may take the place of a file.

    Raises
    ------
    ValueError, OSError
        Something cannot be held, or the system refuses.
    """
    is_complex = any(each.dtype.kind == "c" for each in ds.variables.values())
    engine: Literal["netcdf4", "h5netcdf"] = "netcdf4"
    if is_complex or not find_spec("netCDF4"):
        require("h5netcdf", path)
        engine = "h5netcdf"
    draft = draft_for(path, 0, replace=overwrite)
    with said_of(path, source, "what was there before is unchanged", draft=draft.path):
        try:
            ds.to_netcdf(draft.begin().path, engine=engine)
            draft.finish([Piece(0, b"")])
        except BaseException:
            draft.discard()
            raise
