"""zarr stores and netCDF files, which xarray opens and writes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import xarray as xr

from xr_tensorfmt.cli.options import ZARR
from xr_tensorfmt.datasets.groups import group_path
from xr_tensorfmt.sources.remote import Place
from xr_tensorfmt.writing.atomic_file import atomic_file_for, check_writable
from xr_tensorfmt.writing.tree import keys_of

_ZARR_METADATA = ("zarr.json", ".zgroup", ".zmetadata")


def open_store(
    file: Any,
    format: str,
    *,
    storage_options: dict[str, Any] | None,
    group: str | None,
    separator: str,
) -> xr.Dataset | xr.DataTree:
    """Open zarr in chunks, or netCDF without; a tree where groups have variables."""
    options: dict[str, Any] = {"engine": _netcdf_engine(file)}
    if format == ZARR:
        options = {"engine": ZARR, "chunks": {}, "storage_options": storage_options}
    tree = xr.open_datatree(file, group=group_path(group, separator), **options)
    return tree if any(node.data_vars for node in tree.descendants) else tree.to_dataset()


def _netcdf_engine(file: Any) -> Literal["h5netcdf"] | None:
    """For netCDF-4 h5netcdf, as it reads complex numbers, where it is installed."""
    h5netcdf = xr.backends.list_engines().get("h5netcdf")
    return "h5netcdf" if h5netcdf is not None and h5netcdf.guess_can_open(file) else None


def encoding_by_group(
    tree: xr.DataTree, separator: str, encoding: Mapping[Any, Any]
) -> dict[str, dict[Any, Any]]:
    """The encoding of a tree; in `encoding` variables have the names of a tensor file."""
    by_group: dict[str, dict[Any, Any]] = {}
    for path, name, key in keys_of(tree, separator):
        if key in encoding:
            by_group.setdefault(path, {})[name] = encoding[key]
    return by_group


def check_replaceable(target: str, place: Place) -> None:
    """Refuse to replace by zarr what is no zarr store, or one that is write-protected."""
    found = [name for name in _ZARR_METADATA if place.fs.exists(f"{place.path}/{name}")]
    if not found:
        raise ValueError(
            f"{target} exists and is not a zarr store, so that it is not replaced by one; write to "
            "another place"
        )
    for name in ("", *found) if place.is_local else ():
        check_writable(os.path.join(place.path, name))


def write_store(
    data: xr.Dataset | xr.DataTree,
    target: str,
    format: str,
    encoding: Any,
    mode: Literal["w", "w-"],
    storage_options: dict[str, Any] | None,
    *,
    drop_attrs: bool,
) -> None:
    """Write zarr in place, or a netCDF file that appears when it is complete."""

    def plain(ds: xr.Dataset) -> xr.Dataset:
        return ds.drop_encoding().drop_attrs() if drop_attrs else ds.drop_encoding()

    data = plain(data) if isinstance(data, xr.Dataset) else data.map_over_datasets(plain)
    if format == ZARR:
        data.to_zarr(
            target,
            mode=mode,
            encoding=encoding,
            storage_options=storage_options,
            write_empty_chunks=True,  # else -0.0, which equals the fill value, would become 0.0
        )
        return
    groups = [data] if isinstance(data, xr.Dataset) else data.to_dict().values()
    is_complex = any(each.dtype.kind == "c" for ds in groups for each in ds.variables.values())
    file = atomic_file_for(target, 0, replace=mode == "w").begin()
    try:
        data.to_netcdf(file.path, engine="h5netcdf" if is_complex else None, encoding=encoding)
        file.complete(())
        file.publish()
    except BaseException:
        file.discard()
        raise
