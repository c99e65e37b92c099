"""Writing to a region of an existing local file, in place."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal, Self

import dask.array
import numpy as np
from dask.delayed import Delayed
from xarray import DataArray, Variable

from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.extents import Extents, Integers
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import WHOLE, EncodedBatch, file_order
from xr_tensorfmt.core.reading import locate
from xr_tensorfmt.core.reading import read as read_selection
from xr_tensorfmt.core.selection import Indices, Selection, array_to_indices
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.datasets import cf
from xr_tensorfmt.datasets.dask_tasks import find_values
from xr_tensorfmt.datasets.explanation import find_sources
from xr_tensorfmt.datasets.lazy_array import get_lazy_data
from xr_tensorfmt.errors import SourceChangedError, did_you_mean, shorten
from xr_tensorfmt.sources.local import LocalFile, find_mapped_file
from xr_tensorfmt.sources.locations import Location
from xr_tensorfmt.writing.atomic_file import check_writable, open_descriptor, write_batches
from xr_tensorfmt.writing.blocks import divide_variables, keep_values, plan_tasks, write_blocks
from xr_tensorfmt.writing.checked_input import CheckedInput
from xr_tensorfmt.writing.conversion import format_dtype, is_numeric
from xr_tensorfmt.writing.file_plan import PlannedVariable

Region = Mapping[Any, Any] | Literal["auto"]
"""A slice, positions, labels or "auto" by dimension."""

Positions = Mapping[str, Indices]
"""The positions in the file by dimension of a region, ascending."""

Located = Sequence[tuple[str, Extents]]


@dataclass(frozen=True)
class MutableFile(LocalFile):
    """A file whose values may change while its header is used. It records the header's fields."""

    fields: list[tuple[str, Extents]] = field(default_factory=list, compare=False)

    def _check(self, status: os.stat_result) -> None:
        if status.st_size != self.size:  # only another size is an error
            super()._check(status)

    def sibling(self, path: str) -> tuple[Self, bytes]:
        """Open another file, which records in the same list, and return no bytes unrecorded."""
        sibling, _ = super().sibling(path)
        return replace(sibling, fields=self.fields), b""

    def read_bytes(self, start: int, stop: int) -> bytes:
        """Fetch fields of the header, and record them."""
        self.fields.append((self.path, Extents.single(start, stop)))
        return super().read_bytes(start, stop)


def _locate_header(source: MutableFile, container: Container, positions: Positions) -> Located:
    """Return the ranges of fields, without writable values, and of labels in the region."""
    stop = max(fields.bounds[1] for _, fields in source.fields)
    header, values = list[tuple[str, Extents]](), defaultdict[str, list[Extents]](list)
    labels = {coordinate.name for coordinate in container.coordinates}
    for tensor in (*container.tensors, *container.coordinates):
        owner = tensor.source or source
        try:
            layout, _ = file_order(tensor.layout)
        except TypeError:  # this can only be read, such as labels
            if tensor.name in labels:
                found = locate(tensor.layout, owner, _select(tensor, positions))
                header += [(file.name, extents) for file, extents in found]
            continue
        if 0 not in layout.shape:
            located = layout.locate(Selection.everything(layout.shape))
            count = int(np.searchsorted(located.starts, stop))
            values[owner.name].append(Extents(located.starts[:count], located.lengths[:count]))
    written = {path: Extents.union(values[path]) for path in {path for path, _ in source.fields}}
    for path, fields in source.fields:
        bounds, skipped = fields.bounds, written[path]
        starts = np.append(bounds[0], skipped.starts + skipped.lengths).clip(*bounds)
        stops = np.append(skipped.starts, bounds[1]).clip(*bounds)
        header.append((path, Extents.from_bounds(starts, stops)))
    return [(path, extents) for path, extents in header if len(extents)]


def _compute_checksum(header: Located) -> bytes:
    """Return the checksum of ranges of files."""
    parts = [MutableFile.from_path(path).read(extents) for path, extents in header]
    return blake2b(np.concatenate(parts).data).digest()


@dataclass(frozen=True)
class ExistingFile:
    """A file that is changed in place. Parts of the header may be in other files."""

    path: str
    identity: tuple[int, ...]
    header: Located
    checksum: bytes

    def write(self, batches: Iterator[EncodedBatch]) -> bytes:
        """Write bytes at their offsets. Raise SourceChangedError if the header has changed."""
        is_same = _get_identity(self.path) == self.identity
        if not is_same or _compute_checksum(self.header) != self.checksum:
            raise SourceChangedError(
                self.path,
                field="the file",
                actual="replaced",
                expected="the file whose header was read",
                hint="call the writer again",
            )
        with open_descriptor(self.path) as descriptor:
            write_batches(descriptor, batches)
        return b""


def _flush(files: Sequence[ExistingFile], _marks: Sequence[bytes] = ()) -> None:
    """Wait until the disk has all bytes."""
    for file in files:
        with open_descriptor(file.path) as descriptor:
            os.fsync(descriptor)


def _get_identity(path: str) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_ino, status.st_size  # without st_dev, which differs between machines


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
    source = MutableFile.from_path(checked.path, io="mmap")
    container = read(HeaderReader(source))
    tensors = {tensor.name: tensor for tensor in (*container.tensors, *container.coordinates)}
    if container.derived:
        raise ValueError(
            f"{checked.path} has {' and '.join(container.derived)}, which region= would make "
            "stale; rewrite the whole file without region="
        )
    checked = _change_each(checked, lambda n, v: _encode_like(checked, n, v, tensors.get(n)))
    if isinstance(region, str):
        region = _find_labelled(checked, tensors)
    _check_names(checked, tensors, region)
    checked, positions = _find_positions(checked, source, tensors, region)
    header = _locate_header(source, container, positions)
    checksum = _compute_checksum(header)
    planned: dict[str, list[PlannedVariable]] = {}
    for name, variable in checked.variables.items():
        path = (tensors[name].source or source).name
        plan = _plan_variable(checked, name, variable, tensors[name], positions)
        planned.setdefault(path, []).append(plan)
    for path in planned:
        check_writable(path)
        _check_overlap(checked, path)
    _check_coordinates(checked, source, tensors, positions)
    files = [ExistingFile(path, _get_identity(path), header, checksum) for path in planned]
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
    labelled = [x for x in names if x in checked.coordinates or _list_labels(tensors, x)]
    return dict.fromkeys(labelled or names, "auto")


def _check_names(
    checked: CheckedInput, tensors: Mapping[str, Tensor], region: Mapping[Any, Any]
) -> None:
    dims: set[str] = set()
    for name in checked.variables:
        if name not in tensors:
            raise ValueError(
                f"{checked.path} has no variable {name!r}{did_you_mean(name, tensors)}, only "
                f"{shorten(', '.join(map(repr, tensors)))}; rename the variable (if the data were "
                "opened with group=, open them without it)"
            )
        dims.update(tensors[name].dims)
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


def _encode_like(
    checked: CheckedInput, name: str, variable: Variable, tensor: Tensor | None
) -> Variable:
    """Encode a variable by the attributes of a tensor, unless it has such attributes itself."""
    if tensor is None:
        return variable
    keys = _list_required(tensor, variable)
    is_encoded = not keys.isdisjoint(variable.attrs) or "_Unsigned" in keys
    if not keys or is_encoded or ("units" in keys and variable.dtype.kind not in "mMO"):
        return variable
    copied = variable.copy(deep=False)
    copied.encoding = {key: tensor.attrs[key] for key in keys} | {"dtype": tensor.layout.dtype}
    if variable.dtype.kind in "MO":
        copied.encoding.setdefault("calendar", "standard")
    single = replace(checked, variables={name: copied}, coordinates={})
    encoded, units = None, str(tensor.attrs.get("units"))
    with suppress(ValueError):
        encoded = single.encode([tensor.layout.dtype.name]).variables[name]
        # xarray may choose another unit, or write the same one in another way.
        if "units" in keys and encoded.attrs["units"].split(None, 1)[0] != units.split(None, 1)[0]:
            encoded = None
    if encoded is None:
        stored = ", ".join(f"{key}={tensor.attrs[key]!r}" for key in sorted(keys))
        raise ValueError(
            f"{checked.path}: values of {name!r} cannot be stored as {tensor.layout.dtype} with "
            f"{stored}, which region= keeps; change the values, or rewrite the whole file"
        )
    if "units" in keys:
        encoded.attrs["units"] = units
    return encoded


def _list_required(tensor: Tensor, variable: Variable) -> set[str]:
    """Return the attributes of a tensor that determine the values of a decoded variable."""
    attrs = tensor.attrs
    units = attrs.get("units")
    is_time = isinstance(units, str) and (" since " in units or variable.dtype.kind == "m")
    keys = {*cf.PACKING, *(("units", "calendar") if is_time else ())}
    # NaN as _FillValue changes no value.
    return {key for key in keys & attrs.keys() if np.array_equal(attrs[key], attrs[key])}


def _find_positions(
    checked: CheckedInput, source: Source, tensors: Mapping[str, Tensor], region: Mapping[Any, Any]
) -> tuple[CheckedInput, Positions]:
    """Return the positions of the region in the file, and the data in their order."""
    lengths: dict[str, int] = {}
    for name in checked.variables:
        lengths |= zip(tensors[name].dims, tensors[name].layout.shape, strict=True)
    positions: dict[str, Indices] = {}
    orders: dict[str, Integers] = {}
    for dim, requested in region.items():
        if isinstance(requested, slice):
            positions[dim] = _find_range(dim, requested, lengths[dim])
            continue
        found = _find_indices(checked, source, tensors, dim, requested)
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


def _find_indices(
    checked: CheckedInput, source: Source, tensors: Mapping[str, Tensor], dim: str, requested: Any
) -> Integers:
    """Return the positions in a list, or of the labels in a list or in the data."""
    is_auto = isinstance(requested, str) and requested == "auto"
    names = _list_labels(tensors, dim)
    try:
        if isinstance(requested, list) and {*map(type, requested)} == {tuple}:
            requested = np.fromiter(requested, object, len(requested))
        labels = _join(checked.coordinates, names) if is_auto else Variable(dim, requested)
    except ValueError:
        raise ValueError(
            f"region= has {requested!r} for {dim!r}; pass a slice, or a list of positions or labels"
        ) from None
    if labels is not None and not is_auto and (labels.dtype.kind in "iu" or not labels.size):
        return np.asarray(labels, dtype=np.int64)
    stored = _join({name: _read_region(tensors[name], source, {}) for name in names}, names)
    if labels is None or stored is None:
        owner = "the data have" if labels is None else f"{checked.path} has"
        raise ValueError(
            f"region= finds positions by labels, but {owner} no coordinate "
            f"{' or '.join(map(repr, names or [dim]))}; pass a slice such as "
            f"region={{{dim!r}: slice(0, 10)}}"
        )
    if labels.ndim != 1 or labels.dtype.kind == "b":
        actual = "a mask" if labels.ndim else f"the scalar {labels.values[()]!r}"
        raise ValueError(
            f"region=: the labels of {dim!r} are {actual}, expected a list; select with a list, as "
            f"in ds.sel({dim}=[label])"
        )
    return _find_labels(checked.path, dim, stored, labels)


def _find_labels(path: str, dim: str, stored: Variable, labels: Variable) -> Integers:
    """Return the positions of labels in a file. Raise ValueError if one is not unique."""
    index, candidates = labels.to_index(), np.arange(stored.size)
    if stored.dtype.kind == "O":  # an index of all strings takes longer
        requested = set(labels.values.tolist())
        candidates = np.flatnonzero([label in requested for label in stored.values.tolist()])
    near = stored[candidates].to_index()
    single = ~near.duplicated(keep=False)
    found = np.append(candidates[single], -1)[near[single].get_indexer(index)]
    is_wrong, problem = found < 0, f"do not occur once in {path}; select labels of the file"
    if not is_wrong.any():
        is_wrong, problem = index.duplicated(), "occur again in the region; select each label once"
    if is_wrong.any():
        wrong = _list_values(labels[is_wrong])
        raise ValueError(f"region=: the labels {wrong} of {dim!r} {problem}, or pass positions")
    return np.asarray(found, dtype=np.int64)


def _list_labels(tensors: Mapping[str, Tensor], dim: str) -> list[str]:
    """Return the coordinates with the labels of a dimension: its index, or strings of blocks."""
    along = [n for n, t in tensors.items() if t.dims == (dim,) and t.layout.dtype.kind == "O"]
    return [dim] if dim in tensors else along


def _join(coordinates: Mapping[str, Variable], names: Sequence[str]) -> Variable | None:
    """Return labels, as tuples if there are several coordinates, or None if one is missing."""
    columns = [coordinates[name] for name in names if name in coordinates]
    if not columns or len(columns) < len(names):
        return None
    if len(columns) == 1:
        return columns[0]
    pairs = zip(*(column.values for column in columns), strict=True)
    return Variable(columns[0].dims, np.fromiter(pairs, object, columns[0].size))


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


def _check_overlap(checked: CheckedInput, path: str) -> None:
    """Raise an error if values are read from, or mapped to, the file that is changed in place."""
    for name, variable in checked.variables.items():
        read = {source.name for source in find_sources(variable)}
        data = get_lazy_data(variable)
        while hasattr(data, "array"):
            data = data.array  # xarray has wrapped the values
        arrays = find_values(data) if isinstance(data, dask.array.Array) else [data]
        for file in read or filter(None, map(find_mapped_file, arrays)):
            with suppress(OSError):  # a URL, or a name of something without a path
                if os.path.samefile(file, path):
                    hint = "copy(deep=True)" if variable.chunks is None and not read else "load()"
                    found = "is lazy and reads from" if read else "is mapped to"
                    raise ValueError(
                        f"{name!r} {found} {checked.path}, which region= changes in place; call "
                        f"{hint} first, or write another file"
                    )


def _plan_variable(
    checked: CheckedInput, name: str, variable: Variable, tensor: Tensor, positions: Positions
) -> PlannedVariable:
    """Plan a variable, with the layout of its region in file order."""
    if set(variable.dims) != set(tensor.dims):
        raise ValueError(
            f"{name!r} has dims {variable.dims}, but {checked.path} has {tensor.dims}; "
            "rename or transpose it"
        )
    _check_attrs(checked, name, variable, tensor)
    try:
        layout, axes = file_order(tensor.layout)
        element = layout.stored_element()
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
    required = _list_required(tensor, variable)
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
