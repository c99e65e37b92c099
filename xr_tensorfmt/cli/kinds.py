"""What the name of a file says of its kind, among all that can be converted."""

from __future__ import annotations

import os

from xr_tensorfmt.cli.options import FAMILIES

ZARR, NETCDF = "zarr", "netcdf"
KINDS = (*FAMILIES, ZARR, NETCDF)

_FOREIGN = {
    ".zarr": ZARR,
    ".nc": NETCDF,
    ".nc4": NETCDF,
    ".cdf": NETCDF,
    ".h5": NETCDF,
    ".hdf5": NETCDF,
}
_OWN = {".tens": "tens", ".bin": "tens", ".tbf": "vespa", ".pycauset": "pycauset", ".mag": "mag"}


def foreign_kind(file: str) -> str | None:
    """Whether a name is that of a zarr store or a netCDF file; the content of others decides.

    Parameters
    ----------
    file : str
        A path or URL.

    Returns
    -------
    str or None
    """
    return _FOREIGN.get(_suffix(file))


def kind_to_write(file: str) -> str:
    """What the end of a name asks for.

    Parameters
    ----------
    file : str
        A path or URL.

    Returns
    -------
    str

    Raises
    ------
    ValueError
        It asks for nothing that is known.
    """
    suffixes = _FOREIGN | _OWN
    if _suffix(file) not in suffixes:
        raise ValueError(
            f"{file}: the end of the name tells no format; give one by --to, one of "
            f"{', '.join(KINDS)}, or end it in one of {', '.join(suffixes)}"
        )
    return suffixes[_suffix(file)]


def _suffix(file: str) -> str:
    return os.path.splitext(file.rstrip("/").casefold())[1]
