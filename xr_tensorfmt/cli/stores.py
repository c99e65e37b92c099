"""Opening tensor files, zarr stores and netCDF as Datasets, and writing stores."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

import xarray as xr

from xr_tensorfmt.cli import common
from xr_tensorfmt.datasets.groups import get_group_path
from xr_tensorfmt.sources import is_url
from xr_tensorfmt.sources.locations import Location, exists
from xr_tensorfmt.writing.atomic_file import build_atomic_file

OpenedData = xr.Dataset | xr.DataTree

STORED_VALUES: dict[str, Any] = dict.fromkeys(
    ("mask_and_scale", "decode_times", "decode_timedelta"), False
)
"""Keywords to open values as they are in the file."""

_ZARR_METADATA = ("zarr.json", ".zgroup", ".zmetadata")


def open_input(
    file: str,
    *,
    format: str | None,
    group: str | None,
    separator: str,
    storage_options: common.KeyValues,
    tensor_options: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> OpenedData:
    """Open a file of any format with keywords, or a store with groups as a tree.

    Stores ignore `options`, and raise an error for `tensor_options`.
    """
    url_options = common.get_storage_options(file, storage_options)
    store = format or common.get_store_format(file)
    if store in common.STORES:
        if tensor_options:
            named = ", ".join(tensor_options)
            raise ValueError(f"{file} is {store}, and {named} applies only to tensor files")
        return _open_store(file, store, get_group_path(group, separator), url_options)
    options |= {"format": format, "group": group, "separator": separator, **tensor_options}
    return xr.open_dataset(file, engine="tensorfmt", storage_options=url_options, **options)


def _open_store(
    file: str, format: str, group: str | None, storage_options: common.KeyValues | None
) -> OpenedData:
    """Open zarr in chunks, or netCDF without. Return a tree if there are groups."""
    path = file if is_url(file) else os.path.abspath(os.path.expanduser(file))
    if format == common.ZARR:
        store = _get_zarr_store(path, storage_options)
        tree = xr.open_datatree(store, engine=common.ZARR, group=group, chunks={})
    else:
        engine = _find_complex_engine()
        can_open = engine and xr.backends.list_engines()[engine].guess_can_open(file)
        engine = engine if can_open else None
        tree = xr.open_datatree(path, engine=engine, group=group, cache=False)
    for node in tree.subtree:
        for name, variable in node.variables.items():
            if variable.dtype.names is not None:
                raise ValueError(
                    f"{name!r} has the structured dtype {variable.dtype}, as complex numbers in "
                    "netCDF-4 have; install h5netcdf and h5py to read them"
                )
    return tree if any(node.data_vars for node in tree.descendants) else tree.to_dataset()


def _find_complex_engine() -> Any:
    """Return the engine that supports complex numbers in netCDF-4, if it can be imported."""
    return "h5netcdf" if find_spec("h5netcdf") and find_spec("h5py") else None


def _get_zarr_store(path: str, storage_options: common.KeyValues | None) -> Any:
    """Return the store of a URL or path. zarr would take a path with "::" for a chain of URLs."""
    from zarr.storage import FsspecStore, LocalStore  # noqa: PLC0415  # an optional package

    return FsspecStore.from_url(path, storage_options) if is_url(path) else LocalStore(path)


def write_store(
    ds: xr.Dataset,
    target: str,
    location: Location,
    format: str,
    *,
    encoding: Mapping[Any, Any],
    drop: Collection[str],
    overwrite: bool,
    storage_options: common.KeyValues | None,
) -> None:
    """Write zarr in place, or a netCDF file that appears when it is complete."""
    ds = ds.drop_encoding().drop_attrs() if "attrs" in drop else ds.drop_encoding()
    if format == common.ZARR:
        _check_replaceable(target, location)
        for name in ds.variables:
            if "/" in str(name):
                raise ValueError(
                    f"the name {name!r} has a slash, which separates groups in zarr; rename the "
                    "variable, or write the tree of xarray.open_datatree with to_zarr"
                )
        path = location.path if location.is_local else target
        # Otherwise -0.0 would become the fill value 0.0.
        options: Any = {"mode": "w" if overwrite else "w-", "write_empty_chunks": True}
        ds.to_zarr(_get_zarr_store(path, storage_options), encoding=encoding, **options)
    elif location.is_local:
        _write_netcdf(ds, location.path, encoding, overwrite=overwrite)
    else:
        raise ValueError("netCDF can only be written to local paths; write zarr instead")


def _check_replaceable(target: str, location: Location) -> None:
    """Raise an error if an existing target is not a zarr store."""
    names = ("", *(f"/{name}" for name in _ZARR_METADATA))
    is_there, *has_metadata = (exists(location.fs, f"{location.path}{name}") for name in names)
    if is_there and not any(has_metadata):
        raise ValueError(
            f"{target} exists and is not a zarr store, so it is not replaced; choose another target"
        )


def _write_netcdf(
    ds: xr.Dataset, path: str, encoding: Mapping[Any, Any], *, overwrite: bool
) -> None:
    """Write a temporary file, and rename it when it is complete."""
    is_complex = any(variable.dtype.kind == "c" for variable in ds.variables.values())
    engine = _find_complex_engine() if is_complex else None
    file = build_atomic_file(path, 0, overwrite=overwrite)
    try:
        file.create()
        ds.to_netcdf(file.path, engine=engine, encoding=encoding)
        file.complete(())
        file.publish()
    finally:
        file.discard()
