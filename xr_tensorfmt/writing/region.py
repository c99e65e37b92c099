"""Writing to a region of an existing local file, in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal

import dask.array
import numpy as np
from dask.delayed import Delayed
from xarray import DataArray, Variable

from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.core.file_format import Container, Tensor
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import WHOLE, Dense, EncodedBatch, file_order
from xr_tensorfmt.core.reading import read as read_selection
from xr_tensorfmt.core.selection import Indices, Selection, array_to_indices
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.datasets import cf
from xr_tensorfmt.datasets.explanation import find_sources, find_values
from xr_tensorfmt.datasets.lazy_array import get_lazy_data
from xr_tensorfmt.errors import SourceChangedError, did_you_mean, shorten
from xr_tensorfmt.sources.local import LocalFile, find_mapped_file
from xr_tensorfmt.sources.locations import Location
from xr_tensorfmt.writing.atomic_file import check_writable, open_descriptor, write_batches
from xr_tensorfmt.writing.blocks import divide_variables, keep_values, plan_tasks, write_blocks
from xr_tensorfmt.writing.checked_input import CheckedInput
from xr_tensorfmt.writing.encoding import format_dtype, is_numeric
from xr_tensorfmt.writing.file_plan import PlannedVariable

Region = Mapping[Any, Any] | Literal["auto"]
"""A slice, positions or "auto" by dimension."""

Positions = Mapping[str, Indices]
"""The positions in the file by dimension of a region, ascending."""


def _find_header(source: Source, container: Container) -> dict[str, int]:
    """Return the number of bytes before the first value of a file and its siblings."""
    stops = {source.name: source.size}
    for tensor in (*container.tensors, *container.coordinates):
        owner = tensor.source or source
        start = _find_first_byte(tensor)
        stop = owner.size if start is None else start  # which is 0 without a header
        stops[owner.name] = min(stops.get(owner.name, owner.size), stop)
    return stops


def _compute_fingerprint(stops: Mapping[str, int]) -> bytes:
    """Hash the inodes, sizes and first bytes of files."""
    checksum = blake2b()
    for path, stop in stops.items():
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())  # without st_dev, which differs between machines
            checksum.update(f"{status.st_ino} {status.st_size} ".encode())
            checksum.update(file.read(stop))
    return checksum.digest()


def _find_first_byte(tensor: Tensor) -> int | None:
    """Return the offset of the values of a tensor, or None if it can only be read."""
    try:
        layout, _ = file_order(tensor.layout)
    except TypeError:  # such as labels
        return None
    if isinstance(layout, Dense):
        return layout.offset
    everything = Selection.everything(layout.shape)
    return layout.locate(everything).bounds[0] if everything.size else None


@dataclass(frozen=True)
class _ExistingFile:
    """A file that is changed in place. Parts of the header may be in other files."""

    path: str
    stops: Mapping[str, int]
    fingerprint: bytes

    def write(self, batches: Iterator[EncodedBatch]) -> int:
        """Write bytes at their offsets. Raise SourceChangedError if the header has changed."""
        if _compute_fingerprint(self.stops) != self.fingerprint:
            raise SourceChangedError(
                self.path,
                field="the file",
                actual="replaced",
                expected="the file whose header was read",
                hint="call the writer again",
            )
        with open_descriptor(self.path) as descriptor:
            write_batches(descriptor, batches)
            return os.fstat(descriptor).st_ino


def _flush(files: Sequence[_ExistingFile], _inodes: Sequence[int] = ()) -> None:
    """Wait until the disk has all bytes."""
    for file in files:
        with open_descriptor(file.path) as descriptor:
            os.fsync(descriptor)


def write_region(
    checked: CheckedInput,
    location: Location,
    region: Region,
    read: Callable[[HeaderReader], Container],
    *,
    compute: bool,
) -> Delayed | None:
    """Write to a region of a file, in place. `read` parses the header."""
    if not location.is_local:
        raise ValueError(
            f"{location.name}: no store can change a part of an object; write all of it, "
            "without region="
        )
    # Other programs may change values while the header is read.
    source, _ = LocalFile.open_head(checked.path, "mmap", verify_unchanged=False)
    container = read(HeaderReader(source))
    tensors = {tensor.name: tensor for tensor in (*container.tensors, *container.coordinates)}
    if container.derived:
        raise ValueError(
            f"{checked.path} has {' and '.join(container.derived)}, which region= would make "
            "stale; rewrite the whole file without region="
        )
    checked = _change_each(
        checked, lambda n, v: _encode_like(checked, n, v, tensors[n]) if n in tensors else v
    )
    _check_names(checked, tensors)
    if isinstance(region, str):
        region = _find_labelled(checked, tensors)
    _check_region(checked, tensors, region)
    checked, positions = _find_positions(checked, source, tensors, region)
    stops = _find_header(source, container)
    fingerprint = _compute_fingerprint(stops)
    planned: dict[str, list[PlannedVariable]] = {}
    for name, variable in checked.variables.items():
        path = (tensors[name].source or source).name
        copied = _copy_mapped(checked.path, name, variable, path)
        plan = _plan_variable(checked, name, copied, tensors[name], positions)
        planned.setdefault(path, []).append(plan)
    for path in planned:
        check_writable(path)
    _check_coordinates(checked, source, tensors, positions)
    files = [_ExistingFile(path, stops, fingerprint) for path in planned]
    kept = [items if compute else keep_values(items) for items in planned.values()]
    pairs = list(zip(files, map(divide_variables, kept), strict=True))
    if not compute:
        return plan_tasks(pairs, _flush)
    write_blocks(pairs)
    _flush(files)
    return None


def _find_labelled(checked: CheckedInput, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the region "auto": dimensions with labels, or all if none has labels."""
    names = {str(dim): None for v in checked.variables.values() for dim in v.dims}
    labelled = [name for name in names if name in checked.coordinates or name in tensors]
    return dict.fromkeys(labelled or names, "auto")


def _check_names(checked: CheckedInput, tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError if variables have other names or dimensions than those in the file."""
    for name, variable in checked.variables.items():
        if name not in tensors:
            raise ValueError(
                f"{checked.path} has no variable {name!r}{did_you_mean(name, tensors)}, only "
                f"{shorten(', '.join(map(repr, tensors)))}; rename the variable (if the data were "
                "opened with group=, open them without it)"
            )
        dims, stored = tuple(map(str, variable.dims)), tensors[name].dims
        if set(dims) != set(stored):
            renamed = {a: b for a, b in zip(dims, stored, strict=False) if a != b}
            hint = f"rename them by ds.rename({renamed}), also in region="
            if len(dims) != len(stored):
                hint = "select with a list, as in ds.isel(x=[0]), which keeps the dimension"
            raise ValueError(f"{name!r} has dims {dims}, but {checked.path} has {stored}; {hint}")


def _check_region(
    checked: CheckedInput, tensors: Mapping[str, Tensor], region: Mapping[Any, Any]
) -> None:
    """Raise ValueError if a dimension or a variable does not belong to the region."""
    dims = {dim for name in checked.variables for dim in tensors[name].dims}
    for dim in region:
        if dim not in dims:
            raise ValueError(
                f"region={region!r} names {dim!r}{did_you_mean(dim, dims)}, which is not one of "
                f"the dimensions {', '.join(map(repr, sorted(dims)))} of the written variables"
            )
    for name in checked.variables:
        if region and region.keys().isdisjoint(tensors[name].dims):
            raise ValueError(
                f"{name!r} has none of the dimensions of region={region!r}, so other writers would "
                f"write it, too; call drop_vars({name!r}), or write it alone with region={{}}"
            )


def _change_each(
    checked: CheckedInput, change: Callable[[str, Variable], Variable]
) -> CheckedInput:
    variables, coordinates = (
        {name: change(name, variable) for name, variable in group.items()}
        for group in (checked.variables, checked.coordinates)
    )
    return replace(checked, variables=variables, coordinates=coordinates)


def _encode_like(checked: CheckedInput, name: str, variable: Variable, tensor: Tensor) -> Variable:
    """Encode a variable by the attributes of a tensor, unless it has such attributes itself."""
    dtype = tensor.layout.dtype

    def encode(copied: Variable) -> Variable:
        single = replace(checked, variables={name: copied}, coordinates={})
        return single.encode([dtype.name]).variables[name]

    subject = f"{checked.path}: values of {name!r}"
    return cf.encode_like(subject, variable, tensor.attrs, dtype, encode)


def _find_positions(
    checked: CheckedInput, source: Source, tensors: Mapping[str, Tensor], region: Mapping[Any, Any]
) -> tuple[CheckedInput, Positions]:
    """Return the positions of the region in the file, and the data in their order."""
    lengths: dict[str, int] = {}
    for name in checked.variables:
        lengths |= zip(tensors[name].dims, tensors[name].layout.shape, strict=True)
    coordinates = {name: tensors[name] for name in tensors if name not in checked.variables}
    positions: dict[str, Indices] = {}
    orders: dict[str, Integers] = {}
    for dim, requested in region.items():
        if isinstance(requested, slice):
            positions[dim] = _find_range(dim, requested, lengths[dim])
            continue
        if isinstance(requested, str) and requested == "auto":
            found = _find_labels(checked, source, tensors.get(dim), dim)
        else:
            found = _normalize_positions(dim, requested, coordinates)
        found = np.where(found < 0, found + lengths[dim], found)
        order = np.argsort(found, kind="stable")
        ascending = found[order]
        bounds = np.concatenate([[-1], ascending, [lengths[dim]]])
        if (np.diff(bounds) < 1).any():
            raise ValueError(
                f"region= has positions {shorten(str(found.tolist()))} for {dim!r}, expected "
                f"different ones from {-lengths[dim]} to {lengths[dim] - 1}"
            )
        if (np.diff(order) != 1).any():
            orders[dim] = order
        positions[dim] = array_to_indices(ascending)
    return _change_each(checked, lambda _, v: v.isel(orders, "ignore")), positions


def _find_range(dim: str, requested: slice, length: int) -> range:
    with suppress(TypeError):
        found = range(length)[requested]
        if found.step == 1:
            return found
    raise ValueError(
        f"region= has {requested!r} for {dim!r}; pass a slice of positions with step 1, such as "
        f"ds.indexes[{dim!r}].slice_indexer(first_label, last_label)"
    )


def _normalize_positions(dim: str, requested: Any, coordinates: Mapping[str, Tensor]) -> Integers:
    """Return a list of positions as an array."""
    found = None if isinstance(requested, str) else np.asarray(requested)
    if found is None or found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        labels = [name for name, tensor in coordinates.items() if tensor.dims == (dim,) != (name,)]
        index = f"ds.set_index({dim}={labels})" if len(labels) > 1 else "ds"
        raise ValueError(
            f"region= has {shorten(repr(requested))} for {dim!r}; pass a slice, a list of "
            f"positions such as {index}.indexes[{dim!r}].get_indexer(labels), or 'auto' for the "
            "labels of the data"
        )
    return found.astype(np.int64)


def _find_labels(
    checked: CheckedInput, source: Source, tensor: Tensor | None, dim: str
) -> Integers:
    """Return the positions of the labels of the data. Raise ValueError if one is not unique."""
    labels = checked.coordinates.get(dim)
    if labels is None or tensor is None:
        owner = "the data have" if labels is None else f"{checked.path} has"
        raise ValueError(
            f"region= finds positions by labels, but {owner} no coordinate {dim!r}; pass "
            f"positions such as region={{{dim!r}: slice(0, 10)}}"
        )
    index, stored = labels.to_index(), _read_region(tensor, source, {}).to_index()
    single = np.flatnonzero(~stored.duplicated(keep=False))
    found = np.append(single, -1)[stored[single].get_indexer(index)]
    is_wrong, problem = found < 0, f"do not occur once in {checked.path}; select labels of the file"
    if not is_wrong.any():
        is_wrong, problem = index.duplicated(), "occur again in the region; select each label once"
    if is_wrong.any():
        wrong = _list_values(labels[is_wrong])
        raise ValueError(f"region=: the labels {wrong} of {dim!r} {problem}, or pass positions")
    return np.asarray(found, dtype=np.int64)


def _check_coordinates(
    checked: CheckedInput, source: Source, tensors: Mapping[str, Tensor], positions: Positions
) -> None:
    """Raise an error if coordinates differ from the file, because they are not written."""
    for name, coordinate in checked.coordinates.items():
        if name not in tensors:
            raise ValueError(
                f"{checked.path} has no coordinate {name!r}{did_you_mean(name, tensors)}, and "
                f"region= does not add one; call drop_vars({name!r}) first"
            )
        stored = _read_region(tensors[name], source, positions)
        if not coordinate.equals(stored):  # type: ignore[no-untyped-call]
            raise ValueError(
                f"the coordinate {name!r} is {_list_values(coordinate)}, but the region of "
                f"{checked.path} has {_list_values(stored)}; correct region= ('auto' finds "
                "the labels of the data), or rewrite the whole file to change coordinates"
            )


def _list_values(variable: Variable) -> str:
    return shorten(", ".join(map(str, variable.values.ravel()[:20].tolist())))


def _read_region(tensor: Tensor, source: Source, positions: Positions) -> Variable:
    """Read a region of a coordinate."""
    selection = _select(tensor, positions)
    return Variable(tensor.dims, read_selection(tensor.layout, tensor.source or source, selection))


def _select(tensor: Tensor, positions: Positions) -> Selection:
    """Return the selection of a region."""
    shape = tensor.layout.shape
    sizes = zip(tensor.dims, shape, strict=True)
    return Selection(shape, tuple(positions.get(dim, range(length)) for dim, length in sizes))


def _copy_mapped(path: str, name: str, variable: Variable, target: str) -> Variable:
    """Copy values in a map of an unknown file. Raise ValueError if values are of `target`."""
    read = {source.name for source in find_sources(variable)}
    data = get_lazy_data(variable)
    while hasattr(data, "array"):
        data = data.array  # xarray has wrapped the values
    arrays = list(find_values(data)) if isinstance(data, dask.array.Array) else [data]
    mapped = [_find_mapped_file(array) for array in arrays]
    for file in (*read, *filter(None, mapped)):
        with suppress(OSError):  # a URL, or a name of something without a path
            if os.path.samefile(file, target):
                hint = "copy(deep=True)" if variable.chunks is None and not read else "load()"
                found = "is lazy and reads from" if file in read else "is mapped to"
                raise ValueError(
                    f"{name!r} {found} {path}, which region= changes in place; call {hint} first, "
                    "or write another file"
                )
    if "" in mapped:
        return variable.copy(data=variable.values.copy())
    return variable


def _find_mapped_file(values: object) -> str | None:
    """Return the file whose map holds an array, "" if it is unknown, or None without a map."""
    if not isinstance(values, np.ndarray):
        return None
    if (file := find_mapped_file(values)) is not None:
        return file
    base: Any = values
    while isinstance(base, np.ndarray | memoryview):
        if isinstance(base, np.memmap) and isinstance(base.filename, str | os.PathLike):
            return os.fspath(base.filename)
        base = base.obj if isinstance(base, memoryview) else base.base
    # Arrays of other libraries may be maps.
    return None if base is None or isinstance(base, bytes | bytearray) else ""


def _plan_variable(
    checked: CheckedInput, name: str, variable: Variable, tensor: Tensor, positions: Positions
) -> PlannedVariable:
    """Plan a variable, with the layout of its region in file order."""
    _check_attrs(checked, name, variable, tensor)
    try:
        layout, axes = file_order(tensor.layout)
        element = layout.element
    except TypeError as error:
        raise ValueError(
            f"{checked.path}: {name!r} cannot be written in part: {error}; write the whole file"
        ) from None
    variable = variable.transpose(*(tensor.dims[axis] for axis in axes))
    indices = []
    sizes = zip(variable.dims, layout.shape, variable.shape, layout.write_units, strict=True)
    for dim, whole, length, unit in sizes:
        part = positions.get(str(dim), range(whole))
        if len(part) != length:
            raise ValueError(
                f"region= selects {len(part)} of {whole} elements along {dim!r}, but the data have "
                f"length {length}; pass a region of the same length, which cannot extend the file"
            )
        _check_unit(name, str(dim), unit, part, whole)
        indices.append(part)
    requested = {"dtype": element.name, **checked.encoding.get(name, {})}
    if len(requested) > 1 or format_dtype(requested["dtype"]) != element.name:
        raise ValueError(
            f"encoding= requests {requested} for {name!r}, but {checked.path} stores it as "
            f"{element.name}, which region= cannot change; rewrite the whole file"
        )
    dtype = element.name if is_numeric(variable.dtype) else variable.dtype.name
    # Values are rounded only if encoding= names the dtype, or to pack them.
    exact = name not in checked.encoding and "scale_factor" not in tensor.attrs
    conversion = replace(checked, format=f"{name!r} in the file").build_conversion(
        name, variable, dtype, {element.name: element}, exact=exact
    )
    return PlannedVariable(variable, layout, replace(conversion, is_fixed=True), tuple(indices))


def _check_attrs(checked: CheckedInput, name: str, variable: Variable, tensor: Tensor) -> None:
    """Raise an error if attributes of the file would give the values another meaning."""
    required = cf.list_required(tensor.attrs, variable)
    for attribute, expected in tensor.attrs.items():
        if attribute not in (*required, "unit", "units"):
            continue
        is_missing = attribute not in variable.attrs
        actual = variable.attrs.get(attribute)
        is_other = not DataArray(actual).equals(DataArray(expected))
        if (attribute in required) if is_missing else is_other:
            raise ValueError(
                f"{checked.path}: {name!r} has {attribute}={expected!r} in the file, but "
                f"{'no such attribute' if is_missing else repr(actual)} in the data; open the file"
                f"{'' if attribute in required else ' without apply_unit='}, change the values, "
                "and keep the attributes"
            )


def _check_unit(name: str, dim: str, unit: int, part: Indices, whole: int) -> None:
    """Raise an error if a region starts or stops inside a byte."""
    if unit == 1 or len(part) == whole:
        return
    hint = f"write the whole dimension {dim!r} at once"
    if unit != WHOLE:
        if isinstance(part, range) and not (part.start % unit or part.stop % whole % unit):
            return
        hint = f"pass a slice that starts and stops at a multiple of {unit}"
    raise ValueError(f"{name!r} is stored with several elements of {dim!r} in a byte; {hint}")
