"""Writing to a region of an existing local file, in place."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from numbers import Real
from typing import Any, Literal

import numpy as np
from dask.base import optimize
from dask.delayed import Delayed
from pandas import Index, MultiIndex
from xarray import DataArray, Variable

from xr_tensorfmt.core.elements import build_file_dtype
from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.core.file_format import Container, Tensor
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import WHOLE, EncodedBatch, file_order
from xr_tensorfmt.core.layout import read as read_selection
from xr_tensorfmt.core.selection import Indices, Selection, array_to_indices
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.datasets import cf
from xr_tensorfmt.datasets.lazy_array import find_lazy_tensor, get_lazy_data, unwrap
from xr_tensorfmt.errors import SourceChangedError, did_you_mean, shorten
from xr_tensorfmt.sources.local import LocalFile, find_mapped_file
from xr_tensorfmt.sources.locations import Location
from xr_tensorfmt.writing.atomic_file import check_writable, open_descriptor, write_batches
from xr_tensorfmt.writing.blocks import divide_variables, keep_values, plan_tasks, write_blocks
from xr_tensorfmt.writing.checked_input import CheckedInput
from xr_tensorfmt.writing.file_plan import PlannedVariable, format_dtype, is_numeric

Region = Mapping[Any, Any] | Literal["auto"]
"""A slice, positions or "auto" by dimension."""


@dataclass(frozen=True)
class _ExistingFile:
    """A file that is changed in place, with checksums of its head and of the opened file."""

    path: str
    guards: Mapping[str, tuple[int, bytes]]

    def write(self, batches: Iterator[EncodedBatch]) -> int:
        """Write bytes at their offsets. Raise SourceChangedError if a header has changed."""
        with open_descriptor(self.path) as descriptor:  # of this file, even if it is replaced now
            if any(_compute_guard(path, guard[0]) != guard for path, guard in self.guards.items()):
                expected, hint = "the file whose header was read", "call the writer again"
                raise SourceChangedError(self.path, "the file", "replaced", expected, hint)
            write_batches(descriptor, batches)
            return os.fstat(descriptor).st_ino


def _measure_heads(source: Source, container: Container) -> dict[str, int]:
    """Return the number of bytes before the first value of a file and its siblings."""
    heads = {source.name: source.size}
    for tensor in (*container.tensors, *container.coordinates):
        owner = tensor.source or source
        heads.setdefault(owner.name, owner.size)
        with suppress(TypeError):  # tensors that can only be read, such as labels
            layout, _ = file_order(tensor.layout)
            everything = Selection.everything(layout.shape)
            if everything.size and (extents := layout.locate(everything)):
                heads[owner.name] = min(heads[owner.name], extents.bounds[0])
    return heads


def _compute_guard(path: str, stop: int) -> tuple[int, bytes]:
    """Hash the inode, size and first bytes of a file. Return their number, too."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())  # without st_dev, which differs between machines
        text = f"{status.st_ino} {status.st_size} ".encode()
        return stop, blake2b(text + file.read(stop)).digest()


def _flush(files: Sequence[_ExistingFile], *_: object) -> None:
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
            f"{location.name}: no store can change a part of an object; write it without region="
        )
    # Other programs may change values while the header is read.
    source, _ = LocalFile.open_head(checked.path, "mmap", verify_unchanged=False)
    container = read(HeaderReader(source))
    if container.derived:
        raise ValueError(
            f"{checked.path} has {' and '.join(container.derived)}, which region= would make "
            "stale; rewrite the whole file without region="
        )
    tensors = {tensor.name: tensor for tensor in (*container.tensors, *container.coordinates)}
    planned = _plan_region(checked, source, tensors, region)
    heads = _measure_heads(source, container)
    guards = {name: _compute_guard(name, heads[name]) for name in {source.name, *planned}}
    pairs = []
    for path, variables in planned.items():
        check_writable(path)
        kept = variables if compute else keep_values(variables)
        own = {name: guards[name] for name in (path, source.name)}
        pairs.append((_ExistingFile(path, own), divide_variables(kept)))
    if not compute:
        return plan_tasks(pairs, _flush)
    write_blocks(pairs)
    _flush([file for file, _ in pairs])
    return None


def _plan_region(
    checked: CheckedInput, source: Source, tensors: Mapping[str, Tensor], region: Region
) -> dict[str, list[PlannedVariable]]:
    """Plan the variables of each file, and check the coordinates, which are not written."""
    lengths = _check_names(checked, tensors)
    data = _encode_like(checked, tensors)
    if isinstance(region, str):
        region = dict.fromkeys(_choose_dims(lengths, checked, tensors), "auto")
    positions: dict[str, Indices] = {}
    for dim, requested in region.items():
        if dim not in lengths:
            raise ValueError(
                f"region={region!r} names {dim!r}{did_you_mean(dim, lengths)}, expected some of "
                f"the dimensions {', '.join(map(repr, lengths))} of the written variables"
            )
        if isinstance(requested, str) and requested == "auto":
            names = _name_labels(dim, checked, tensors)
            own = [_read_region(tensors[name], source, {}) for name in names if name in tensors]
            labels = [data[name] for name in names if name in data]
            found: Indices = _find_labels(checked, dim, labels, own)
        else:
            found = _normalize_positions(dim, requested, lengths[dim])
        order, positions[dim] = _sort_positions(dim, found, lengths[dim])
        if order is not None:
            data = {name: variable.isel({dim: order}, "ignore") for name, variable in data.items()}
    paths = {(tensor.source or source).name for tensor in tensors.values()}
    planned: dict[str, list[PlannedVariable]] = {}
    for name in checked.variables:
        tensor, path = tensors[name], (tensors[name].source or source).name
        variable = _load_own(data[name], paths)
        plan = _plan_variable(checked, name, variable, tensor, positions)
        planned.setdefault(path, []).append(plan)
    conflicts = {}
    for name in checked.coordinates:
        stored = _read_region(tensors[name], source, positions) if name in tensors else None
        if stored is None or not data[name].equals(stored):  # type: ignore[no-untyped-call]
            actual = f"the coordinate {name!r} is {_list_values(data[name])}"
            expected = "none" if stored is None else _list_values(stored)
            conflicts[name] = f"{actual}, but the region of the file has {expected}"
    if conflicts:
        raise ValueError(
            f"{checked.path}: {'; '.join(conflicts.values())}; correct region=, or call "
            f"drop_vars({[*conflicts]}), because coordinates are not written"
        )
    return planned


def _choose_dims(
    lengths: Mapping[str, int], checked: CheckedInput, tensors: Mapping[str, Tensor]
) -> Iterable[str]:
    """Return the dimensions with labels, or those along which the data are shorter."""
    labelled = [dim for dim in lengths if _name_labels(dim, checked, tensors)]
    sizes = {str(dim): n for x in checked.variables.values() for dim, n in x.sizes.items()}
    return labelled or [dim for dim, n in lengths.items() if sizes[dim] < n] or lengths


def _name_labels(dim: str, checked: CheckedInput, tensors: Mapping[str, Tensor]) -> Sequence[str]:
    """Return the name of a dimension with labels, or the coordinates that label its blocks."""
    if dim in checked.coordinates or dim in tensors:
        return [dim]
    return [x for x in checked.coordinates if x in tensors and tensors[x].dims == (dim,)]


def _check_names(checked: CheckedInput, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the lengths of dimensions. Raise ValueError if the file has other variables."""
    lengths: dict[str, int] = {}
    for name, variable in checked.variables.items():
        if name not in tensors:
            raise ValueError(
                f"{checked.path} has no variable {name!r}{did_you_mean(name, tensors)}, only "
                f"{shorten(', '.join(map(repr, tensors)))}; rename the variable"
            )
        dims, stored = tuple(map(str, variable.dims)), tensors[name].dims
        if set(dims) != set(stored):
            hint = "select with a list, as in ds.isel(x=[0]), which keeps the dimension"
            if len(dims) == len(stored):
                renamed = {old: new for old, new in zip(dims, stored, strict=True) if old != new}
                hint = f"rename them by ds.rename({renamed}), also in region="
            raise ValueError(f"{name!r} has dims {dims}, but {checked.path} has {stored}; {hint}")
        lengths |= zip(stored, tensors[name].layout.shape, strict=True)
    return lengths


def _encode_like(checked: CheckedInput, tensors: Mapping[str, Tensor]) -> dict[str, Variable]:
    """Encode decoded variables and coordinates by the attributes of the file."""
    data = {**checked.variables, **checked.coordinates}
    decoded: dict[str, Variable] = {}
    for name in data.keys() & tensors.keys():
        variable, attrs = data[name], tensors[name].attrs
        keys, kind = cf.list_required(attrs, variable), variable.dtype.kind
        is_time = kind in ("MO" if " since " in str(attrs.get("units")) else "m")
        is_encoded = cf.list_required(variable.attrs, variable) or "_Unsigned" in keys
        if keys and not is_encoded and (is_time or "units" not in keys):
            decoded[name] = variable.copy(deep=False)
            dtype = tensors[name].layout.dtype
            if is_time and dtype.kind == "f" and name in checked.variables:
                dtype = np.dtype(np.float64)  # xarray would round, and `_plan_variable` does not
            elif name not in checked.encoding:  # values are rounded to a dtype of the user only
                dtype = build_file_dtype(dtype.name, dtype)
            requested = {key: attrs[key] for key in keys} | {"dtype": dtype}
            decoded[name].encoding = {"calendar": "standard"} | requested
    encoded = replace(checked, variables=decoded, coordinates={}).encode(()).variables
    for name, variable in encoded.items():
        units, written = tensors[name].attrs.get("units"), variable.attrs.get("units")
        # xarray may write the same unit in another way.
        if isinstance(units, str) and units.lower().split()[:1] == str(written).split()[:1]:
            variable.attrs["units"] = units
    data |= encoded
    for name in [name for name in data if name in tensors]:
        _check_attrs(checked.path, name, data[name], tensors[name].attrs)
    return data


def _normalize_positions(dim: str, requested: Any, length: int) -> Indices:
    """Return a slice as a range, or a list as an array."""
    with suppress(TypeError):  # a slice of labels
        if isinstance(requested, slice) and (found := range(length)[requested]).step == 1:
            return found
        array = np.asarray(requested)
        if array.ndim == 1 and (not array.size or array.dtype.kind in "iu"):
            return array.astype(np.int64)
    raise ValueError(
        f"region= has {shorten(repr(requested))} for {dim!r}; pass a slice of positions with step "
        f"1, a list of positions such as ds.indexes[{dim!r}].get_indexer(labels), or 'auto' for "
        "the labels of the data"
    )


def _sort_positions(dim: str, found: Indices, length: int) -> tuple[Integers | None, Indices]:
    """Return the order of the data and ascending positions. Raise ValueError if some are wrong."""
    if isinstance(found, range):
        return None, found
    order = np.argsort(found, kind="stable")
    if (np.diff(np.concatenate([[-1], found[order], [length]])) < 1).any():
        raise ValueError(
            f"region= has positions {shorten(str(found.tolist()))} for {dim!r}, expected different "
            f"ones from 0 to {length - 1}"
        )
    is_sorted = (np.diff(order) == 1).all()
    return None if is_sorted else order, array_to_indices(found[order])


def _find_labels(
    checked: CheckedInput, dim: str, labels: list[Variable], stored: list[Variable]
) -> Integers:
    """Return the positions of the labels of the data. Raise ValueError if one is missing."""
    if not labels or len(labels) != len(stored):
        owner = checked.path if labels else "the written data"
        size = next(x.sizes[dim] for x in checked.variables.values() if dim in x.dims)
        raise ValueError(
            f"region= finds positions by labels, but {owner} has no coordinate {dim!r}; pass "
            f"positions such as region={{{dim!r}: slice(0, {size})}}"
        )
    columns = [[x.to_index() for x in variables] for variables in (labels, stored)]
    requested, index = (MultiIndex.from_arrays(x) if x[1:] else x[0] for x in columns)
    found = np.full(len(requested), -1)
    if index.is_unique:
        found = np.asarray(index.get_indexer(requested))
    if (found < 0).any():
        raise ValueError(
            f"region=: the labels {_list_values(requested[found < 0])} of {dim!r} do not occur "
            f"once in {checked.path}; select labels of the file, or pass positions"
        )
    return found


def _list_values(variable: Variable | Index) -> str:
    return shorten(", ".join(map(str, variable.values.ravel()[:20].tolist())))


def _read_region(tensor: Tensor, source: Source, positions: Mapping[str, Indices]) -> Variable:
    sizes = zip(tensor.dims, tensor.layout.shape, strict=True)
    indices = tuple(positions.get(dim, range(length)) for dim, length in sizes)
    selection = Selection(tensor.layout.shape, indices)
    return Variable(tensor.dims, read_selection(tensor.layout, tensor.source or source, selection))


def _load_own(variable: Variable, paths: Collection[str]) -> Variable:
    """Copy values that are read from files that change, or are in a map of an unknown file."""
    data = get_lazy_data(variable)
    for values in find_values(data) if hasattr(data, "dask") else [data]:
        lazy = find_lazy_tensor(values)
        file = find_mapped_file(unwrap(values)) if lazy is None else lazy.array.source.name
        is_own = file == ""
        with suppress(OSError):  # a URL, or a name of something without a path
            is_own = is_own or bool(file and any(os.path.samefile(file, path) for path in paths))
        if is_own:
            return variable.copy(data=variable.values.copy())
    return variable


def find_values(array: Any) -> Iterator[Any]:
    """Yield the values in the tasks of a dask array, such as persisted chunks and lazy arrays."""
    graph = optimize(array)[0].dask  # type: ignore[no-untyped-call]
    pending = list(dict(graph).values())
    while pending:
        node = pending.pop()
        if isinstance(node, list | tuple):
            pending.extend(node)
        elif isinstance(node, dict):
            pending.extend(node.values())
        elif hasattr(node, "func") and hasattr(node, "args"):  # a task
            pending.extend([*node.args, *node.kwargs.values()])
        else:
            yield getattr(node, "value", node)


def _check_attrs(path: str, name: str, variable: Variable, stored: Mapping[str, Any]) -> None:
    """Raise an error if attributes of the file or the data give the values another meaning."""
    owners = [{"calendar": "standard"} | attrs for attrs in (dict(stored), variable.attrs)]
    required = {key for attrs in owners for key in cf.list_required(attrs, variable)}
    if variable.dtype.kind != "b" and "bool" in (str(attrs.get("dtype")) for attrs in owners):
        required.add("dtype")
    for attribute in sorted(
        (required | {"unit", "units"}) & {*owners[0], *owners[1]}, reverse=True
    ):
        values = [attrs[attribute] for attrs in owners if attribute in attrs]
        if attribute in required & {"units", "calendar"}:  # which have several spellings
            values = [re.sub("[T ]00:00(:00)?$|^(gregorian|standard)$", "", str(v)) for v in values]
        is_other = len(values) == 2 and not DataArray(values[0]).equals(DataArray(values[1]))
        is_factor = attribute == "unit" and isinstance(values[0], Real) and values[0] != 1
        if is_other or (len(values) == 1 and (is_factor or attribute in required)):
            need = f"need {owners[1][attribute]!r}" if attribute in owners[1] else "lack it"
            raise ValueError(
                f"{path}: {name!r} has {attribute}={stored.get(attribute)!r} in the file, but "
                f"the {variable.dtype} data {need}; round or "
                "decode the values, and keep the attributes of the file, opened without apply_unit="
            )


def _plan_variable(
    checked: CheckedInput,
    name: str,
    variable: Variable,
    tensor: Tensor,
    positions: Mapping[str, Indices],
) -> PlannedVariable:
    """Plan a variable, with the layout of its region in file order."""
    if positions and positions.keys().isdisjoint(tensor.dims):
        raise ValueError(
            f"{name!r} has none of the dimensions {[*positions]} of region=, so other writers "
            f"would write it, too; call drop_vars({name!r}), or write it alone with region={{}}"
        )
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
        if 0 < len(part) < whole:
            _check_whole_units(name, str(dim), part, whole, whole if unit == WHOLE else unit)
        indices.append(part)
    requested = {"dtype": element.name, **checked.encoding.get(name, {})}
    if len(requested) > 1:
        raise ValueError(
            f"region= cannot give {name!r} the encoding {requested}; pass the dtype only"
        )
    dtype = format_dtype(requested["dtype"]) if is_numeric(variable.dtype) else variable.dtype.name
    # Values are rounded only if encoding= names the dtype, or to pack them.
    exact = name not in checked.encoding and "scale_factor" not in tensor.attrs
    conversion = replace(checked, format=f"{name!r} in the file").build_conversion(
        name, variable, dtype, {element.name: element}, exact=exact
    )
    return PlannedVariable(variable, layout, conversion, tuple(indices))


def _check_whole_units(name: str, dim: str, part: Indices, whole: int, step: int) -> None:
    """Raise ValueError if a part of a dimension divides the elements of a byte or block."""
    is_whole = isinstance(part, range) and not (part.start % step or part.stop % whole % step)
    if step > 1 and not is_whole:
        raise ValueError(
            f"{name!r} is stored with several elements of {dim!r} in a byte; pass a slice that "
            f"starts and stops at a multiple of {step}, or write the whole dimension at once"
        )
