"""Opening tensor files, zarr stores and netCDF as Datasets, and writing stores."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, BinaryIO

import numpy as np
import xarray as xr

from xr_tensorfmt.cli import common
from xr_tensorfmt.core.extents import DEFAULT_CHUNK_BYTES, contiguous_chunk, iterate_chunks
from xr_tensorfmt.core.open_options import name_dims
from xr_tensorfmt.datasets.groups import get_group_path
from xr_tensorfmt.errors import did_you_mean, shorten
from xr_tensorfmt.sources import is_url
from xr_tensorfmt.sources.locations import Location, exists
from xr_tensorfmt.writing.atomic_file import build_atomic_file, check_writable

OpenedData = xr.Dataset | xr.DataTree

STORED_VALUES: dict[str, Any] = dict.fromkeys(
    ("mask_and_scale", "decode_times", "decode_timedelta"), False
)
"""Keywords to open values as they are in the file."""

_ZARR_METADATA = ("zarr.json", ".zgroup", ".zmetadata")


def open_input(
    file: str,
    content: str | BinaryIO,
    format: str | None,
    *,
    group: str | None,
    separator: str,
    storage_options: common.KeyValues,
    tree: bool = False,
    **options: Any,
) -> OpenedData:
    """Open a file of any format with keywords. Return a tree for `tree`, or a store with groups."""
    url_options = common.get_storage_options(file, storage_options)
    store = format or common.get_store_format(file)
    if store in common.STORES:
        if content is not file:
            raise ValueError(f"{store} is not read from standard input; pass a path")
        return _open_store(file, store, get_group_path(group, separator), url_options)
    options |= {"format": format, "group": group, "separator": separator}
    open_any = xr.open_datatree if tree else xr.open_dataset
    return open_any(content, engine="tensorfmt", storage_options=url_options, **options)


def _open_store(file: str, format: str, group: str | None, storage_options: Any) -> OpenedData:
    """Open zarr in chunks, or netCDF without. Return a tree if there are groups."""
    options: dict[str, Any] = {
        "engine": common.ZARR,
        "chunks": {},
        "storage_options": storage_options,
    }
    if format != common.ZARR:
        engine = _find_complex_engine()
        can_open = engine and xr.backends.list_engines()[engine].guess_can_open(file)
        options = {"engine": engine if can_open else None, "cache": False}
    path = file if is_url(file) else os.path.abspath(os.path.expanduser(file))
    store: Any = _get_zarr_store(path) if format == common.ZARR else path
    tree = xr.open_datatree(store, group=group, **options)
    for node in tree.subtree:
        for name, variable in node.variables.items():
            if variable.dtype.names is not None:
                raise ValueError(
                    f"{name!r} has the structured dtype {variable.dtype}, as complex numbers in "
                    "netCDF-4 have; install h5netcdf and h5py to read them"
                )
    return tree if any(node.data_vars for node in tree.descendants) else tree.to_dataset()


def _find_complex_engine() -> str | None:
    """Return the engine that supports complex numbers in netCDF-4, if it can be imported."""
    return "h5netcdf" if find_spec("h5netcdf") and find_spec("h5py") else None


def select_variable(
    ds: xr.Dataset,
    variable: str | None = None,
    dims: Sequence[str] | None = None,
    name: str | None = None,
) -> xr.Dataset:
    """Select and rename a variable of a Dataset."""
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
            f"--name and --dims are for a single variable, but there are {listed}; "
            "choose one with --variable"
        )
    (only,) = ds.data_vars.values()
    old = (*map(str, only.dims), str(only.name))
    new = (*name_dims(dims, old[-1], old[:-1]), old[-1] if name is None else name)
    return ds.rename({a: b for a, b in zip(old, new, strict=True) if a != b})


def iterate_blocks(variable: xr.Variable) -> Iterator[tuple[slice, ...]]:
    """Yield the keys of the chunks of a variable, or of contiguous blocks if it has none."""
    chunk = contiguous_chunk(variable.shape, variable.dtype.itemsize, DEFAULT_CHUNK_BYTES)
    chunks = variable.encoding.get("preferred_chunks") or {}
    if variable.nbytes > DEFAULT_CHUNK_BYTES and chunks.keys() & set(variable.dims):
        chunk = tuple(int(np.max(chunks.get(dim, n))) for dim, n in variable.sizes.items())
    for block in iterate_chunks(variable.shape, chunk):
        yield tuple(slice(indices.start, indices.stop) for indices in block)


def write_store(
    data: OpenedData,
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

    def strip(ds: xr.Dataset) -> xr.Dataset:
        return ds.drop_encoding().drop_attrs() if "attrs" in drop else ds.drop_encoding()

    data = strip(data) if isinstance(data, xr.Dataset) else data.map_over_datasets(strip)
    if format == common.ZARR:
        _check_replaceable(target, location)
        for name in data.variables if isinstance(data, xr.Dataset) else ():
            if "/" in str(name):
                raise ValueError(
                    f"the name {name!r} has a slash, which separates groups in zarr; pass --tree "
                    "to convert it to groups, or rename the variable"
                )
        store = _get_zarr_store(location.path if location.is_local else target)
        is_tree = isinstance(data, xr.DataTree)
        options: Any = {"consolidated": False} if is_tree else {}
        data.to_zarr(
            store,
            mode="w" if overwrite else "w-",
            encoding=encoding,
            storage_options=storage_options,
            write_empty_chunks=True,  # -0.0 equals the fill value, and would become 0.0
            **options,
        )
        if is_tree:
            _consolidate(target if is_url(target) else store, storage_options)
    elif location.is_local:
        _write_netcdf(data, location.path, encoding, replace=overwrite)
    else:
        raise ValueError("netCDF can only be written to local paths; write zarr instead")


def _check_replaceable(target: str, location: Location) -> None:
    """Raise an error if an existing target is not a zarr store, or is write-protected."""
    if not exists(location.fs, location.path):
        return
    metadata = [name for name in _ZARR_METADATA if exists(location.fs, f"{location.path}/{name}")]
    if not metadata:
        raise ValueError(
            f"{target} exists and is not a zarr store, so it is not replaced; choose another target"
        )
    for name in ("", *metadata) if location.is_local else ():
        check_writable(os.path.join(location.path, name))


def _get_zarr_store(path: str) -> Any:
    """Return the store of a local path that zarr would take for a chain of URLs, or the path."""
    if is_url(path) or "::" not in path:
        return path
    import zarr  # noqa: PLC0415  # an optional package

    return zarr.storage.LocalStore(path)


def _consolidate(target: Any, storage_options: dict[str, Any] | None) -> None:
    """Collect the metadata of all groups of a zarr store, which xarray does after each group."""
    import zarr  # noqa: PLC0415  # an optional package

    store: Any = target
    if is_url(target):
        store = zarr.storage.FsspecStore.from_url(target, storage_options=storage_options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr warns that version 3 does not specify it
        zarr.consolidate_metadata(store)


def _write_netcdf(
    data: OpenedData, path: str, encoding: Mapping[Any, Any], *, replace: bool
) -> None:
    """Write a temporary file, and rename it when it is complete."""
    groups = [data] if isinstance(data, xr.Dataset) else data.to_dict().values()
    is_complex = any(v.dtype.kind == "c" for ds in groups for v in ds.variables.values())
    engine: Any = _find_complex_engine() if is_complex else None
    file = build_atomic_file(path, 0, overwrite=replace)
    file.create()
    try:
        data.to_netcdf(file.path, engine=engine, encoding=encoding)
        file.complete(())
        file.publish()
    finally:
        file.discard()
