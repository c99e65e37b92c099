"""Files that commands open and write by xarray: tensor files, zarr stores and netCDF."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, BinaryIO, Literal

import xarray as xr

from xr_tensorfmt.cli.options import STORES, ZARR, Pairs, options_for, store_format
from xr_tensorfmt.core.container import name_dims
from xr_tensorfmt.datasets.groups import get_group_path
from xr_tensorfmt.errors import did_you_mean, shorten
from xr_tensorfmt.sources.locations import Location, exists
from xr_tensorfmt.writing.atomic_file import build_atomic_file, check_writable
from xr_tensorfmt.writing.tree import flatten_tree, iterate_keys

Opened = xr.Dataset | xr.DataTree

_ZARR_METADATA = ("zarr.json", ".zgroup", ".zmetadata")


def opened(
    file: str,
    content: str | BinaryIO,
    format: str | None,
    *,
    group: str | None,
    separator: str,
    storage_options: Pairs,
    tree: bool = False,
    **options: Any,
) -> Opened:
    """Open a file of any format; a tree where one is asked for, or where a store has groups.

    `options` are those of the engine alone.
    """
    of_url = options_for(file, storage_options)
    store = format or store_format(file)
    if store in STORES:
        if content is not file:
            raise ValueError(f"{store} is not read from standard input; pass a path")
        return _open_store(file, store, get_group_path(group, separator), of_url)
    options |= {"format": format, "group": group, "separator": separator, "storage_options": of_url}
    if tree:
        return xr.open_datatree(content, engine="tensorfmt", **options)
    return open_tensors(content, **options)


def open_tensors(content: str | BinaryIO, **options: Any) -> xr.Dataset:
    """Open a tensor file; `options` are those of the engine."""
    return xr.open_dataset(content, engine="tensorfmt", **options)


def flat(file: str, data: Opened, separator: str, drop: Collection[str]) -> xr.Dataset:
    """A Dataset, in which names of groups are a part of the names of variables."""
    return data if isinstance(data, xr.Dataset) else flatten_tree(file, data, separator, drop)


def _open_store(
    file: str, format: str, group: str | None, storage_options: dict[str, Any] | None
) -> Opened:
    """Open zarr in chunks, or netCDF without."""
    options: dict[str, Any] = {"engine": ZARR, "chunks": {}, "storage_options": storage_options}
    if format != ZARR:
        # For netCDF-4 h5netcdf where it is installed, as it reads complex numbers.
        h5netcdf = xr.backends.list_engines().get("h5netcdf")
        is_hdf5 = h5netcdf is not None and h5netcdf.guess_can_open(file)
        options = {"engine": "h5netcdf" if is_hdf5 else None}
    tree = xr.open_datatree(file, group=group, **options)
    return tree if any(node.data_vars for node in tree.descendants) else tree.to_dataset()


def part_of(
    ds: xr.Dataset,
    variable: str | None = None,
    dims: Sequence[str] | None = None,
    name: str | None = None,
) -> xr.Dataset:
    """One variable of a Dataset, under other names."""
    listed = shorten(", ".join(map(repr, ds.data_vars))) or "none"
    if variable is not None:
        if variable not in ds:
            hint = did_you_mean(variable, ds.variables)
            raise ValueError(f"there is no variable {variable!r}{hint}; it has {listed}")
        ds = ds[[variable]]
    if dims is None and name is None:
        return ds
    if len(ds.data_vars) != 1:
        raise ValueError(
            f"--name and --dims are for a sole variable, and there are {listed}; "
            "choose one by --variable"
        )
    (only,) = ds.data_vars.values()
    old = (*map(str, only.dims), str(only.name))
    new = (*name_dims(dims, old[-1], old[:-1]), old[-1] if name is None else name)
    return ds.rename({a: b for a, b in zip(old, new, strict=True) if a != b})


def encoding_by_group(
    tree: xr.DataTree, separator: str, encoding: Mapping[Any, Any]
) -> dict[str, dict[Any, Any]]:
    """The encoding of a tree; in `encoding` variables have the names of a tensor file."""
    by_group: dict[str, dict[Any, Any]] = defaultdict(dict)
    for path, name, key in iterate_keys(tree, separator):
        if key in encoding:
            by_group[path][name] = encoding[key]
    return by_group


def write_store(
    data: Opened,
    target: str,
    location: Location,
    format: str,
    *,
    encoding: Mapping[Any, Any],
    drop: Collection[str],
    overwrite: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Write zarr in place, or a netCDF file that appears when it is complete."""

    def plain(ds: xr.Dataset) -> xr.Dataset:
        return ds.drop_encoding().drop_attrs() if "attrs" in drop else ds.drop_encoding()

    data = plain(data) if isinstance(data, xr.Dataset) else data.map_over_datasets(plain)
    if format == ZARR:
        _check_replaceable(target, location)
        mode: Literal["w", "w-"] = "w" if overwrite else "w-"
        options: dict[str, Any] = {
            "storage_options": storage_options,
            "write_empty_chunks": True,  # else -0.0, which equals the fill value, becomes 0.0
        }
        where = location.path if location.is_local else target
        data.to_zarr(where, mode=mode, encoding=encoding, **options)
    elif location.is_local:
        _write_netcdf(data, location.path, encoding, replace=overwrite)
    else:
        raise ValueError("netCDF is only written to local paths; write zarr there")


def _check_replaceable(target: str, location: Location) -> None:
    """Refuse to replace by zarr what is no zarr store, or one that is write-protected."""
    if not exists(location.fs, location.path):
        return
    found = [name for name in _ZARR_METADATA if exists(location.fs, f"{location.path}/{name}")]
    if not found:
        raise ValueError(
            f"{target} exists and is not a zarr store, so that it is not replaced by one; write to "
            "another place"
        )
    for name in ("", *found) if location.is_local else ():
        check_writable(os.path.join(location.path, name))


def _write_netcdf(data: Opened, path: str, encoding: Mapping[Any, Any], *, replace: bool) -> None:
    """Write a file of another name, which is renamed when it is complete."""
    groups = [data] if isinstance(data, xr.Dataset) else data.to_dict().values()
    is_complex = any(each.dtype.kind == "c" for ds in groups for each in ds.variables.values())
    file = build_atomic_file(path, 0, replace=replace).begin()
    try:
        data.to_netcdf(file.path, engine="h5netcdf" if is_complex else None, encoding=encoding)
        file.complete(())
        file.publish()
    except BaseException:
        file.discard()
        raise
