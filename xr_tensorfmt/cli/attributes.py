"""Which attributes zarr and netCDF have a place for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from xr_tensorfmt.cli.kinds import NETCDF
from xr_tensorfmt.cli.naming import is_netcdf_name

_INT64 = np.iinfo(np.int64)
_FLOATS = (np.float32, np.float64)

# The C library keeps these for itself, or takes them for something else.
_RESERVED = {
    "CLASS",
    "DIMENSION_LIST",
    "NAME",
    "REFERENCE_LIST",
    "_ARRAY_DIMENSIONS",
    "_Codecs",
    "_Format",
    "_IsNetcdf4",
    "_NCProperties",
    "_Netcdf4Coordinates",
    "_Netcdf4Dimid",
    "_SuperblockVersion",
    "_nc3_strict",
    "least_significant_digit",
}
_RESERVED_BEGINNINGS = ("_nczarr", "_NCZARR", "_Quantize")


def fits(kind: str, name: Any, value: Any) -> bool:
    """Whether a format has a place for an attribute, and gives it back as it is."""
    if not isinstance(name, str):
        return False
    if kind == NETCDF:
        reserved = name in _RESERVED or name.startswith(_RESERVED_BEGINNINGS)
        numeric = name in ("_FillValue", "missing_value")  # texts would become bytes
        plain = is_netcdf_name(name) and not reserved and not (numeric and isinstance(value, str))
        return plain and _fits_netcdf(value)
    # xarray hides these in zarr, as netCDF and zarr of version 2 have them.
    hidden = name == "_ARRAY_DIMENSIONS" or name.lower().startswith("_nc")
    return not hidden and _fits_json(value)


def _fits_netcdf(value: Any) -> bool:
    """Texts, numbers, and lists of several of one of them; a list of one becomes what is in it."""
    if isinstance(value, str):
        return is_netcdf_text(value)
    if isinstance(value, list | tuple):
        if len(value) < 2:
            return False
        if all(isinstance(each, str) for each in value):
            return all(map(is_netcdf_text, value))
        return all(map(_is_number, value)) and _is_exact(np.asarray(value), value)
    if isinstance(value, np.ndarray):
        return value.ndim < 2 and (value.ndim == 0 or value.size > 1) and _holds_numbers(value)
    return _is_number(value)


def is_netcdf_text(text: str) -> bool:
    """Whether netCDF can hold a text, which ends there at the first NUL."""
    return "\0" not in text and not any("\ud800" <= each <= "\udfff" for each in text)


def _is_exact(array: np.ndarray[Any, Any], values: Any) -> bool:
    """Whether an array has the very numbers of a list, which may mix integers with others."""
    if not _holds_numbers(array):
        return False
    return all(a == b or (a != a and b != b) for a, b in zip(array.tolist(), values, strict=True))


def _holds_numbers(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.kind in "iu" or array.dtype in _FLOATS


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return False
    if isinstance(value, int):
        return bool(_INT64.min <= value <= _INT64.max)
    return isinstance(value, float | np.integer | np.float32)


def _fits_json(value: Any) -> bool:
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufU"
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _fits_json(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return all(map(_fits_json, value))
    return value is None or isinstance(value, bool | int | float | str)
