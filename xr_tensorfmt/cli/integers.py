"""Integers that xarray makes floats of, as some of them stand for missing values."""

from __future__ import annotations

from functools import partial

import numpy as np
import xarray as xr

from xr_tensorfmt.core.elements import Array

_FIRST_INEXACT = 2**53


def checked_integers(ds: xr.Dataset, file: str) -> xr.Dataset:
    """Have large integers looked at, so that none becomes another number in silence."""
    for name, variable in ds.variables.items():
        if variable.chunks is not None and _were_integers(variable):
            check = partial(_check, f"{file}: {name!r}")
            variable.data = variable.data.map_blocks(check, dtype=variable.dtype)
    return ds


def _were_integers(variable: xr.Variable) -> bool:
    stored = variable.encoding.get("dtype")
    scaled = {"scale_factor", "add_offset"} & set(variable.encoding)
    is_long = isinstance(stored, np.dtype) and stored.kind in "iu" and stored.itemsize == 8
    return is_long and not scaled and variable.dtype.kind == "f"


def _check(owner: str, values: Array) -> Array:
    if (np.abs(values) >= _FIRST_INEXACT).any():
        raise ValueError(
            f"{owner} has integers from 2**53 on beside missing values, and xarray makes float64 "
            "of all, which cannot hold such; open it in xarray with mask_and_scale=False and write "
            "it from there"
        )
    return values
