"""What zarr and netCDF can hold of a Dataset: dtypes, names, labels and attributes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from xr_tensorfmt.cli.attributes import fits, is_netcdf_text
from xr_tensorfmt.cli.decoding import Entry, misread
from xr_tensorfmt.cli.kinds import NETCDF, ZARR
from xr_tensorfmt.cli.naming import can_be_named, is_netcdf_name
from xr_tensorfmt.elements import Plain
from xr_tensorfmt.errors import shortened
from xr_tensorfmt.write.checks import check_name, check_variable
from xr_tensorfmt.write.conversion import Conversion, is_convertible

_TITLES = {ZARR: "zarr", NETCDF: "netCDF"}


def converted(ds: xr.Dataset, path: str, kind: str, dtypes: Mapping[str, str]) -> xr.Dataset:
    """Round to the dtypes that are wanted; integers never become others.

    Parameters
    ----------
    ds : Dataset
        What is to be written.
    path : str
        Where to, for errors.
    kind : {"zarr", "netcdf"}
        As what.
    dtypes : mapping of str to str
        What variables are rounded to.

    Returns
    -------
    Dataset

    Raises
    ------
    ValueError
        There is no such dtype, or values cannot become of it.
    """
    for name, wanted in dtypes.items():
        dtype = _dtype(wanted, path, kind)
        _check_convertible(name, ds[name].dtype, dtype, path)
        apply = Conversion(name, Plain(dtype), exact=False).apply
        values = _mapped(ds[name].variable, apply, dtype)
        ds = ds.assign({name: (ds[name].dims, values, ds[name].attrs)})
    return ds


def fitting(ds: xr.Dataset, path: str, kind: str, drop: Collection[str]) -> xr.Dataset:
    """The same without the attributes that must be left out, if that is allowed.

    Parameters
    ----------
    ds : Dataset
        What is to be written.
    path : str
        Where to, for errors.
    kind : {"zarr", "netcdf"}
        As what.
    drop : collection of str
        What may be left out: of its words only attrs means something here.

    Returns
    -------
    Dataset
        One that looks over its labels while they are written.

    Raises
    ------
    TypeError, ValueError
        A name, a dtype or an attribute cannot be held.
    """
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
    for entry in misread(ds):
        attrs = ds.attrs if entry[0] is None else ds.variables[entry[0]].attrs
        left_out(attrs, entry, "xarray would take it for a part of how values are encoded; ")
    return _with_checked_labels(ds, path) if kind == NETCDF else ds


def _mapped(variable: xr.Variable, apply: Callable[[Any], Any], dtype: np.dtype[Any]) -> Any:
    """Values of which a function has made others: those of an index now, others when computed."""
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
        raise ValueError(f"{path}: {_TITLES[kind]} holds no {name}; give a dtype of numpy")
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
            f"{path}: {shortened(repr(name))} cannot be the name of a variable of {_TITLES[kind]}; "
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
        f"{path}: {_TITLES[kind]} has no place for the attribute {shortened(repr(attr))} of "
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
        checked = _mapped(each, partial(_check_labels, name=name, path=path), each.dtype)
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
