"""What zarr and netCDF can hold of a Dataset: names, labels and attributes."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from xr_tensorfmt.cli.attributes import fits, is_netcdf_text
from xr_tensorfmt.cli.decoding import Entry, misread
from xr_tensorfmt.cli.kinds import NETCDF, TITLES, ZARR
from xr_tensorfmt.cli.naming import can_be_named, is_netcdf_name
from xr_tensorfmt.cli.rounding import mapped
from xr_tensorfmt.errors import shortened
from xr_tensorfmt.writing.checked_input import check_name, check_variable


def fitting(ds: xr.Dataset, path: str, kind: str, drop: Collection[str]) -> xr.Dataset:
    """The same without the attributes that must be left out, if that is allowed."""
    ds = ds.copy()
    for name, variable in ds.variables.items():
        _check_variable(ds, name, variable, path, kind)
    for dim in ds.dims:
        _check_dim(dim, path, kind)
    left_out = partial(_leave_out, path=path, kind=kind, drop=drop)
    for owner, attrs in ((None, ds.attrs), *((k, v.attrs) for k, v in ds.variables.items())):
        for attr, value in tuple(attrs.items()):
            if not fits(kind, attr, value):
                left_out(attrs, (owner, attr, value))
    for entry in misread(ds, kind):
        attrs = ds.attrs if entry[0] is None else ds.variables[entry[0]].attrs
        left_out(attrs, entry, "xarray would take it for a part of how values are encoded; ")
    return _with_checked_labels(ds, path) if kind == NETCDF else ds


def _check_dim(name: Hashable, path: str, kind: str) -> None:
    check_name(path, name)
    if kind == NETCDF and not is_netcdf_name(str(name)):
        raise ValueError(
            f"{path}: {name!r} cannot be the name of a dimension of netCDF; convert to zarr or "
            "MAG, or choose a variable by --variable and rename its dimensions by --dims"
        )


def _check_variable(
    ds: xr.Dataset, name: Hashable, variable: xr.Variable, path: str, kind: str
) -> None:
    check_name(path, name)
    check_variable(path, str(name), variable, labels=name in ds.coords)
    if not can_be_named(kind, name):
        # zarr would make groups of some, which no one reads back.
        raise ValueError(
            f"{path}: {shortened(repr(name))} cannot be the name of a variable of {TITLES[kind]}; "
            "convert to MAG, or choose it by --variable and rename it by --name"
        )
    if name in ds.coords and name not in ds.dims and len(str(name).split()) > 1:
        raise ValueError(
            f"{path}: the coordinate {name!r} has a space in its name, for which xarray would not "
            "take it for one any more; convert to MAG, or rename it before"
        )
    if kind == NETCDF and variable.dtype == np.float16:
        raise ValueError(
            f"{path}: {name!r} is float16, which netCDF lacks; convert to zarr, or pass "
            f"--dtype '{name}=float32'"
        )


def _leave_out(
    attrs: dict[Any, Any], entry: Entry, why: str = "", *, path: str, kind: str, drop: Any
) -> None:
    owner, attr, value = entry
    if "attrs" in drop:
        del attrs[attr]
        return
    whose = "the Dataset" if owner is None else repr(owner)
    elsewhere = "convert to zarr, or " if not why and fits(ZARR, attr, value) else ""
    raise ValueError(
        f"{path}: {TITLES[kind]} has no place for the attribute {shortened(repr(attr))} of "
        f"{whose}, which is {shortened(repr(value), 60)}; {why}{elsewhere}pass --drop attrs to "
        "leave such out"
    )


def _with_checked_labels(ds: xr.Dataset, path: str) -> xr.Dataset:
    texts = {
        name: each
        for name, each in ds.variables.items()
        if not isinstance(each.dtype, np.dtype) or each.dtype.kind in "OUT"
    }
    for name, each in texts.items():
        checked = mapped(each, partial(_check_labels, name=name, path=path), each.dtype)
        if each.chunks is not None:
            ds = ds.assign({name: (each.dims, checked, each.attrs)})
    return ds


def _check_labels(labels: Any, *, name: Hashable, path: str) -> Any:
    for each in np.asarray(labels).flat:
        if isinstance(each, str) and not is_netcdf_text(each):
            raise ValueError(
                f"{path}: {name!r} holds {shortened(repr(each), 60)}, and netCDF cannot hold such "
                "a text; convert to zarr"
            )
    return labels
