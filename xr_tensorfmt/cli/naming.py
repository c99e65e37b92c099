"""Names that zarr and netCDF can hold."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from xr_tensorfmt.cli.kinds import NETCDF

_LONGEST = {"zarr": 255, "netcdf": 256}
_PREFIX = "_nc4_non_coord_"  # libraries of netCDF take it off when they read
_WIDE = "\x80-\ud7ff\ue000-\U0010ffff"
_NETCDF = re.compile(f"[A-Za-z0-9_{_WIDE}]([ -.0-~{_WIDE}]*[!-.0-~{_WIDE}])?")


def can_be_named(kind: str, name: Any) -> bool:
    """Whether a name can be that of a variable: one file in a folder, and no group."""
    if not isinstance(name, str) or not name or {"/", "\\", "\0"} & set(name):
        return False
    if name in (".", "..", "zarr.json") or name.startswith((".z", "__")):
        return False
    if kind == NETCDF:
        return is_netcdf_name(name) and not name.startswith(_PREFIX)
    return _is_short(kind, name)


def is_netcdf_name(name: str) -> bool:
    """Whether netCDF can hold a name of anything, and gives it back as it is."""
    plain = _NETCDF.fullmatch(name) is not None
    return plain and unicodedata.is_normalized("NFC", name) and _is_short(NETCDF, name)


def _is_short(kind: str, name: str) -> bool:
    return len(name.encode(errors="replace")) <= _LONGEST[kind]
