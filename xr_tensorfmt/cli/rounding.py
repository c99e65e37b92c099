"""Rounding to the dtypes that a user wants in zarr and netCDF."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from xr_tensorfmt.cli.kinds import TITLES
from xr_tensorfmt.core.elements import Plain
from xr_tensorfmt.writing.conversion import Conversion, is_convertible


def converted(ds: xr.Dataset, path: str, kind: str, dtypes: Mapping[str, str]) -> xr.Dataset:
    """Round to the dtypes that are wanted; integers never become others."""
    for name, wanted in dtypes.items():
        dtype = _dtype(wanted, path, kind)
        _check_convertible(name, ds[name].dtype, dtype, path)
        apply = Conversion(name, Plain(dtype), exact=False).apply
        values = mapped(ds[name].variable, apply, dtype)
        ds = ds.assign({name: (ds[name].dims, values, ds[name].attrs)})
    return ds


def mapped(variable: xr.Variable, apply: Callable[[Any], Any], dtype: np.dtype[Any]) -> Any:
    """Values of which a function has made others."""
    if variable.chunks is None:
        return apply(variable.values)
    return variable.data.map_blocks(apply, dtype=dtype)


def _dtype(name: str, path: str, kind: str) -> np.dtype[Any]:
    """A dtype of numpy's own, whatever other packages have added to them."""
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "biufc":
        raise ValueError(f"{path}: {TITLES[kind]} holds no {name}; give a dtype of numpy")
    return dtype


def _check_convertible(name: str, dtype: Any, wanted: np.dtype[Any], path: str) -> None:
    if is_convertible(dtype, wanted):
        return
    if getattr(dtype, "kind", "") == "c":
        raise ValueError(
            f"{path}: {name!r} is {dtype}, and {wanted} has no place for imaginary parts; make the "
            "real and the imaginary part variables of their own, or choose a complex dtype"
        )
    raise ValueError(
        f"{path}: {name!r} is {dtype}, which holds no numbers that could become {wanted}; leave "
        "out --dtype for it"
    )
