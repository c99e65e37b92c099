"""What the name of a file says of its kind, among all that can be converted."""

from __future__ import annotations

import os

from xr_tensorfmt.cli.options import FAMILIES

ZARR, NETCDF = "zarr", "netcdf"
KINDS = (*FAMILIES, ZARR, NETCDF)

TITLES = {ZARR: "zarr", NETCDF: "netCDF"}
"""What their makers call them."""

FOREIGN = {
    ".zarr": ZARR,
    ".nc": NETCDF,
    ".nc4": NETCDF,
    ".cdf": NETCDF,
    ".h5": NETCDF,
    ".hdf5": NETCDF,
}
"""What the names of others end in."""


def foreign_kind(file: str) -> str | None:
    """Whether a name is that of a zarr store or a netCDF file; the content of others decides."""
    return FOREIGN.get(os.path.splitext(file.rstrip("/").casefold())[1])
