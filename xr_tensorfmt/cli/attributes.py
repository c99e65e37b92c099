"""Which attributes zarr and netCDF have a place for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from xr_tensorfmt.cli.kinds import NETCDF

_INT64 = np.iinfo(np.int64)


def fits(kind: str, name: Any, value: Any) -> bool:
    """Whether a format has a place for an attribute.

    Parameters
    ----------
    kind : {"zarr", "netcdf"}
        The format.
    name, value : object
        The attribute.

    Returns
    -------
    bool
    """
    if not isinstance(name, str):
        return False
    if kind == NETCDF:
        return bool(name) and "/" not in name and _fits_netcdf(value)
    return _fits_json(value)


def _fits_netcdf(value: Any) -> bool:
    """Texts, numbers, and lists of one of them."""
    if isinstance(value, str | bytes):
        return True
    if isinstance(value, list | tuple) and value and all(isinstance(each, str) for each in value):
        return True
    if isinstance(value, list | tuple) and not all(map(_is_number, value)):
        return False
    if not isinstance(value, list | tuple | np.ndarray) and not _is_number(value):
        return False
    array = np.asarray(value)
    return array.ndim < 2 and array.size > 0 and array.dtype.kind in "iuf"


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return False
    if isinstance(value, int):
        return bool(_INT64.min <= value <= _INT64.max)
    return isinstance(value, float | np.integer | np.floating)


def _fits_json(value: Any) -> bool:
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufU"
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _fits_json(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return all(map(_fits_json, value))
    return value is None or isinstance(value, bool | int | float | str)
