"""Writing zarr stores and netCDF files: what they can hold, and a name when they are complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import xarray as xr

from xr_tensorfmt.cli.attributes import fits
from xr_tensorfmt.cli.kinds import NETCDF, ZARR
from xr_tensorfmt.cli.opening import require
from xr_tensorfmt.elements import Plain
from xr_tensorfmt.errors import shortened
from xr_tensorfmt.sources import is_url
from xr_tensorfmt.write.absent import check_absent
from xr_tensorfmt.write.conversion import Conversion
from xr_tensorfmt.write.draft import Piece, draft_for
from xr_tensorfmt.write.targets import beside

_TITLES = {ZARR: "zarr", NETCDF: "netCDF"}
_ROOTS = ("zarr.json", ".zgroup", ".zmetadata")


def write_foreign(
    ds: xr.Dataset,
    path: str,
    kind: str,
    *,
    overwrite: bool,
    drop: Collection[str],
    dtypes: Mapping[str, str],
    storage_options: dict[str, Any] | None,
) -> None:
    """Write a Dataset in chunks to zarr or netCDF.

    Parameters
    ----------
    ds : Dataset
        What to write.
    path : str
        Where to.
    kind : {"zarr", "netcdf"}
        As what.
    overwrite : bool
        Whether it may take the place of what is there.
    drop : collection of str
        What may be left out: of its words only attrs means something here.
    dtypes : mapping of str to str
        What variables are rounded to.
    storage_options : dict or None
        How to reach a URL.

    Raises
    ------
    ValueError, OSError
        Something cannot be held, or the system refuses.
    """
    ds = _fitting(_converted(ds, path, kind, dtypes), path, kind, drop).drop_encoding()
    if kind == NETCDF:
        _write_netcdf(ds, path, overwrite)
    elif is_url(path):
        require("zarr", path)
        ds.to_zarr(path, mode="w" if overwrite else "w-", storage_options=storage_options)
    else:
        require("zarr", path)
        _in_place(path, overwrite, partial(ds.to_zarr, mode="w-"))


def _converted(ds: xr.Dataset, path: str, kind: str, dtypes: Mapping[str, str]) -> xr.Dataset:
    """Round to the dtypes that are wanted; integers never become others."""
    for name, dtype in dtypes.items():
        element = Plain(_dtype(dtype, path, kind))
        apply = Conversion(name, element, exact=False).apply
        values = ds[name].chunk().data.map_blocks(apply, dtype=element.dtype)
        ds = ds.assign({name: (ds[name].dims, values, ds[name].attrs)})
    return ds


def _dtype(name: str, path: str, kind: str) -> np.dtype[Any]:
    """A dtype of numpy's own, whatever other packages have added to them."""
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "biufc":
        raise ValueError(f"{path}: {_TITLES[kind]} holds no {name}; give a dtype of numpy")
    return dtype


def _fitting(ds: xr.Dataset, path: str, kind: str, drop: Collection[str]) -> xr.Dataset:
    """The same without the attributes that must be left out, if that is allowed."""
    ds = ds.copy()
    ds.attrs = _kept(ds.attrs, "the Dataset", path, kind, drop)
    for name, variable in ds.variables.items():
        _check_variable(name, variable.dtype, path, kind)
        variable.attrs = _kept(variable.attrs, repr(name), path, kind, drop)
    return ds


def _check_variable(name: Any, dtype: np.dtype[Any], path: str, kind: str) -> None:
    if not _can_be_named(name):
        # zarr would make groups of some, which no one reads back.
        raise ValueError(
            f"{path}: {name!r} cannot be the name of a variable of {_TITLES[kind]}; convert to "
            "MAG, or choose it by --variable and rename it by --name"
        )
    if kind == NETCDF and dtype == np.float16:
        raise ValueError(
            f"{path}: {name!r} is float16, which netCDF lacks; convert to zarr, or pass "
            f"--dtype '{name}=float32'"
        )


def _can_be_named(name: Any) -> bool:
    """Whether a name can be that of one file in a folder, and of no group."""
    reserved = name in (".", "..", "zarr.json") or str(name).startswith((".z", "__"))
    return bool(name) and not reserved and not {"/", "\\", "\0"} & set(name)


def _kept(
    attrs: Mapping[Any, Any], owner: str, path: str, kind: str, drop: Collection[str]
) -> dict[Any, Any]:
    kept = {name: value for name, value in attrs.items() if fits(kind, name, value)}
    lost = next((name for name in attrs if name not in kept), None)
    if lost is not None and "attrs" not in drop:
        value = attrs[lost]
        elsewhere = "convert to zarr, or " if kind == NETCDF and fits(ZARR, lost, value) else ""
        raise ValueError(
            f"{path}: {_TITLES[kind]} has no place for the attribute {lost!r} of {owner}, which is "
            f"{shortened(repr(value), 60)}; {elsewhere}pass --drop attrs to leave such out"
        )
    return kept


def _write_netcdf(ds: xr.Dataset, path: str, overwrite: bool) -> None:
    if is_url(path):
        raise ValueError(f"{path}: netCDF is written to local paths alone; convert to zarr there")
    is_complex = any(each.dtype.kind == "c" for each in ds.variables.values())
    engine: Literal["netcdf4", "h5netcdf"] = "netcdf4"
    if is_complex or not find_spec("netCDF4"):
        require("h5netcdf", path)
        engine = "h5netcdf"
    draft = draft_for(os.path.abspath(path), 0, replace=overwrite)
    try:
        ds.to_netcdf(draft.path, engine=engine)
        draft.finish([Piece(0, b"")])
    except BaseException:
        draft.discard()
        raise


def _in_place(path: str, overwrite: bool, write: Callable[[str], object]) -> None:
    """Write a folder under another name beside its own, which it takes when it is complete."""
    target = os.path.realpath(os.path.abspath(path))
    folder = os.path.dirname(target)
    if not overwrite:
        check_absent(target)
    elif os.path.lexists(target) and not _is_store(target):
        raise FileExistsError(f"{path} is there and no zarr store, so that it is not replaced")
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{path}: there is no folder {folder}; make it first")
    draft = beside(target)
    try:
        write(draft)
        _publish(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _is_store(path: str) -> bool:
    return any(os.path.exists(os.path.join(path, root)) for root in _ROOTS)


def _publish(draft: str, target: str) -> None:
    """A folder cannot take the place of another at once: for a moment there is none."""
    if not os.path.lexists(target):
        os.rename(draft, target)
        return
    old = f"{draft}.old"
    os.rename(target, old)
    os.rename(draft, target)
    shutil.rmtree(old)
