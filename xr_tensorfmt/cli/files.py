"""Opening and writing tensor files, zarr stores and netCDF for commands."""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import xarray as xr

from xr_tensorfmt.cli.options import STORES, ZARR, KeyValues, get_storage_options, store_format
from xr_tensorfmt.core.chunk_grid import DEFAULT_CHUNK_BYTES
from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.elements import Array, ElementError
from xr_tensorfmt.core.extents import Bytes, Extents, gather_uniform
from xr_tensorfmt.core.layout import BATCH_BYTES, Dense, InMemory
from xr_tensorfmt.core.open_options import name_dims
from xr_tensorfmt.core.reading import read
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.value_checks import iterate_selections
from xr_tensorfmt.datasets.groups import get_group_path
from xr_tensorfmt.errors import did_you_mean, shorten
from xr_tensorfmt.sources import is_url
from xr_tensorfmt.sources.local import Memory
from xr_tensorfmt.sources.locations import Location, exists
from xr_tensorfmt.writing.atomic_file import build_atomic_file, check_writable

OpenedData = xr.Dataset | xr.DataTree

_ZARR_METADATA = ("zarr.json", ".zgroup", ".zmetadata")


def open_input(
    file: str,
    content: str | BinaryIO,
    format: str | None,
    *,
    group: str | None,
    separator: str,
    storage_options: KeyValues,
    tree: bool = False,
    **options: Any,
) -> OpenedData:
    """Open a file of any format with keywords. Return a tree for `tree`, or a store with groups."""
    url_options = get_storage_options(file, storage_options)
    store = format or store_format(file)
    if store in STORES:
        if content is not file:
            raise ValueError(f"{store} is not read from standard input; pass a path")
        return _open_store(file, store, get_group_path(group, separator), url_options)
    options |= {"format": format, "group": group, "separator": separator}
    open_any = xr.open_datatree if tree else xr.open_dataset
    return open_any(content, engine="tensorfmt", storage_options=url_options, **options)


def _open_store(file: str, format: str, group: str | None, storage_options: Any) -> OpenedData:
    """Open zarr in chunks, or netCDF without. Return a tree if there are groups."""
    options: dict[str, Any] = {"engine": ZARR, "chunks": {}, "storage_options": storage_options}
    if format != ZARR:
        # h5netcdf, if it is installed, reads complex numbers in netCDF-4.
        h5netcdf = xr.backends.list_engines().get("h5netcdf")
        is_hdf5 = h5netcdf is not None and h5netcdf.guess_can_open(file)
        options = {"engine": "h5netcdf" if is_hdf5 else None}
    tree = xr.open_datatree(file, group=group, **options)
    return tree if any(node.data_vars for node in tree.descendants) else tree.to_dataset()


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
        ds = ds.drop_encoding()
        return ds.drop_attrs() if "attrs" in drop else ds

    data = strip(data) if isinstance(data, xr.Dataset) else data.map_over_datasets(strip)
    if format == ZARR:
        _check_replaceable(target, location)
        for name in data.variables if isinstance(data, xr.Dataset) else ():
            if "/" in str(name):
                raise ValueError(
                    f"the name {name!r} has a slash, which separates groups in zarr; pass --tree "
                    "to convert it to groups, or rename the variable"
                )
        store = location.path if location.is_local else target
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
            _consolidate(store, storage_options)
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


def _consolidate(target: str, storage_options: dict[str, Any] | None) -> None:
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
    file = build_atomic_file(path, 0, overwrite=replace)
    file.create()
    try:
        data.to_netcdf(file.path, engine="h5netcdf" if is_complex else None, encoding=encoding)
        file.complete(())
        file.publish()
    finally:
        file.discard()


@dataclass(frozen=True, eq=False)
class VariableValues(InMemory):
    """The values of a variable of xarray, such as one of a zarr store."""

    values: Any  # a Variable

    def batch_size(self, source: Source, selection: Selection) -> int:
        """Read a selection at once."""
        return selection.size

    def decode(self, packed: Bytes, selection: Selection, out: Array | None = None) -> Array:
        """Read the values of a selection."""
        slices = (slice(indices[0], indices[-1] + 1) for indices in selection.indices)
        return np.asarray(self.values[tuple(slices)].values)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return the shape of the stored chunks, or of contiguous ones."""
        chunks = self.values.encoding.get("preferred_chunks") or {}
        if set(chunks) != set(self.values.dims) or self.values.nbytes <= target:
            return super().chunk_shape(target)
        return tuple(int(np.max(chunks[dim])) for dim in self.values.dims)


OpenedFile = tuple[Source, Container]
"""The source of the tensors without a source of their own, and the tensors."""


def wrap_dataset(ds: xr.Dataset) -> OpenedFile:
    """Return the variables of a Dataset as tensors."""
    tensors = {
        name: Tensor(str(name), tuple(map(str, var.dims)), VariableValues(var), {}, var.encoding)
        for name, var in ds.variables.items()
    }
    data, coordinates = (tuple(map(tensors.__getitem__, x)) for x in (ds.data_vars, ds.coords))
    return Memory(b""), Container(data, coordinates)


def list_tensors(opened: OpenedFile) -> dict[str, Tensor]:
    """Return all tensors by name."""
    _, container = opened
    return {tensor.name: tensor for tensor in (*container.tensors, *container.coordinates)}


Row = tuple[Tensor, ...]  # a tensor of each file
_Block = tuple[Sequence[str], Sequence[int], list[Array]]


def group_rows(*columns: Iterable[Tensor]) -> list[list[Row]]:
    """Group the tensors of each file by their kinds."""
    groups = defaultdict[Any, list[Row]](list)
    for row in zip(*columns, strict=True):
        groups[tuple(map(find_kind, row))].append(row)
    return list(groups.values())


def find_kind(tensor: Tensor) -> tuple[Any, ...]:
    """Return window, file, shape and dtype. Small dense tensors of one kind are read at once."""
    layout = tensor.layout
    if not isinstance(layout, Dense):
        return (id(layout),)
    window, stored = layout.offset // DEFAULT_CHUNK_BYTES, tensor.encoding.get("dtype")
    return window, id(tensor.source), layout.lengths, id(layout.element), id(stored)


def read_blocks(sources: Sequence[Source], groups: Iterable[Sequence[Row]]) -> Iterator[_Block]:
    """Read groups of rows chunk by chunk, and small tensors together.

    Yield the names of tensors, the first index of their chunk, and the values in each file, with a
    new first axis for the tensors.
    """
    windows = defaultdict[Any, list[Any]](list)
    for group in groups:
        layouts = [tensor.layout for tensor in group[0]]
        if all(isinstance(x, Dense) and 0 < x.stop - x.offset <= BATCH_BYTES for x in layouts):
            windows[tuple(find_kind(tensor)[:2] for tensor in group[0])].append(group)
        else:
            for row in group:
                yield from _read_chunks(sources, row)
    for window in windows.values():
        stacks = []
        for file, source in enumerate(sources):
            parts = [[row[file].layout for row in group] for group in window]
            stacks.append(read_stacks(window[0][0][file].source or source, parts))
        for group, *values in zip(window, *stacks, strict=True):
            yield [row[0].name for row in group], [0] * (values[0].ndim - 1), values


def read_stacks(source: Source, groups: Sequence[Sequence[Dense]]) -> Iterator[Array]:
    """Read whole tensors with few requests. Yield each group, of one shape and element, at once."""
    starts = [np.array([layout.offset for layout in group]) for group in groups]
    sizes = [group[0].stop - group[0].offset for group in groups]
    extents = Extents.union(list(map(Extents.uniform, starts, sizes)))
    shifts = np.cumsum(extents.lengths) - extents.lengths - extents.starts
    packed = source.read(extents)
    for group, firsts, size in zip(groups, starts, sizes, strict=True):
        stack = Dense((len(group), *group[0].lengths), group[0].element, 0)
        positions = firsts + shifts[np.searchsorted(extents.starts, firsts, side="right") - 1]
        rows = gather_uniform(packed, positions, size)
        try:
            yield stack.decode(rows, Selection.everything(stack.shape))
        except ElementError:  # the error of a single tensor names its offset
            yield np.stack([read(x, source, Selection.everything(x.shape)) for x in group])


def _read_chunks(sources: Sequence[Source], row: Row) -> Iterator[_Block]:
    """Read a tensor of each file."""
    for block in iterate_selections(row[0].layout, DEFAULT_CHUNK_BYTES):
        values = [
            read(tensor.layout, tensor.source or source, block)[np.newaxis]
            for source, tensor in zip(sources, row, strict=True)
        ]
        yield [row[0].name], [int(indices[0]) for indices in block.indices], values
