"""Writing to a region of an existing local file, in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import dask.array
import numpy as np
from dask.base import tokenize
from dask.delayed import Delayed
from xarray import DataArray, Variable

from xr_tensorfmt import cf
from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import WHOLE, EncodedBatch
from xr_tensorfmt.core.reading import read as read_selection
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import file_order
from xr_tensorfmt.datasets.dask_tasks import find_values
from xr_tensorfmt.datasets.explanation import find_sources
from xr_tensorfmt.datasets.lazy_array import get_lazy_data
from xr_tensorfmt.errors import SourceChangedError, did_you_mean, shorten
from xr_tensorfmt.sources.local import LocalFile, find_mapped_file
from xr_tensorfmt.sources.locations import Location
from xr_tensorfmt.writing.atomic_file import check_writable, open_descriptor, write_batches
from xr_tensorfmt.writing.block_grids import build_block_grids
from xr_tensorfmt.writing.checked_input import CheckedInput
from xr_tensorfmt.writing.conversion import format_dtype, is_numeric
from xr_tensorfmt.writing.file_plan import PlannedVariable
from xr_tensorfmt.writing.graph import plan_tasks, write_blocks

Region = Mapping[Any, slice]

AUTO = "auto"
"""Instead of a slice: find it by the labels of the dimension."""


class MutableFile(LocalFile):
    """A file whose values may change while its header is used."""

    def _check(self, status: os.stat_result) -> None:
        if status.st_size != self.size:  # only another size is an error
            super()._check(status)


@dataclass(frozen=True)
class Header:
    """The header of the file that a region was planned with."""

    path: str
    read: Callable[[HeaderReader], Container]
    token: str

    @classmethod
    def create(
        cls, path: str, read: Callable[[HeaderReader], Container]
    ) -> tuple[Header, Container]:
        """Read the header of a file."""
        container = read(HeaderReader(MutableFile.from_path(path, io="read")))
        tensors = [
            (tensor.name, tensor.dims, tensor.attrs, tensor.encoding, tensor.layout)
            for tensor in (*container.tensors, *container.coordinates)
        ]
        token = tokenize(tensors, container.attrs, container.encoding, container.embedded)
        return cls(path, read, token), container

    def check(self) -> None:
        """Raise SourceChangedError if the file has another header now."""
        header, _ = self.create(self.path, self.read)
        if header.token != self.token:
            raise _build_replaced_error(self.path)


def _build_replaced_error(path: str) -> SourceChangedError:
    return SourceChangedError(
        path,
        field="the file",
        actual="replaced",
        expected="the file whose header was read",
        hint="call the writer again",
    )


@dataclass(frozen=True)
class ExistingFile:
    """A file that is changed in place."""

    path: str
    identity: tuple[int, ...]
    header: Header

    @property
    def target(self) -> str:
        """Path of the file, because there is no temporary file."""
        return self.path

    def begin(self) -> ExistingFile:
        """Return the file itself."""
        return self

    def check(self) -> None:
        """Raise SourceChangedError if the file was replaced or has another header."""
        if _get_identity(self.path) != self.identity:
            raise _build_replaced_error(self.path)
        self.header.check()

    def write(self, batches: Iterator[EncodedBatch]) -> None:
        """Write bytes at their offsets."""
        if _get_identity(self.path) != self.identity:
            raise _build_replaced_error(self.path)
        write_batches(self.path, batches)


def _flush(files: Sequence[ExistingFile]) -> None:
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
    region: Mapping[Any, Any] | Literal["auto"],
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
    source = MutableFile.from_path(checked.path, io="read")
    header, container = Header.create(checked.path, read)
    if container.derived:
        raise ValueError(
            f"{checked.path} has {' and '.join(container.derived)}, which region= would make "
            "stale; rewrite the whole file without region="
        )
    tensors = {tensor.name: tensor for tensor in (*container.tensors, *container.coordinates)}
    checked = _encode(checked, tensors)
    slices = _find_slices(checked, source, tensors, region)
    _check_names(checked, tensors, slices)
    variables = _plan_variables(checked, tensors, source, slices)
    _check_coordinates(checked, source, tensors, slices)
    files = [ExistingFile(path, _get_identity(path), header) for path in variables]
    grids = [build_block_grids(planned) for planned in variables.values()]
    if not compute:
        begins = [file.begin for file in files]
        return plan_tasks(list(zip(begins, grids, strict=True)), _flush)
    write_blocks([(file.begin(), blocks) for file, blocks in zip(files, grids, strict=True)])
    _flush(files)
    return None


def _plan_variables(
    checked: CheckedInput, tensors: Mapping[str, Tensor], source: Source, region: Region
) -> dict[str, list[PlannedVariable]]:
    """Plan the variables of each file."""
    planned: dict[str, list[PlannedVariable]] = {}
    for name, variable in checked.variables.items():
        tensor = tensors[name]
        path = (tensor.source or source).name
        check_writable(path)
        _check_overlap(checked, path)
        planned.setdefault(path, []).append(_plan_variable(checked, name, variable, tensor, region))
    return planned


def _check_names(checked: CheckedInput, tensors: Mapping[str, Tensor], region: Region) -> None:
    for name in checked.variables:
        if name not in tensors:
            others = [tensor for tensor in tensors if tensor not in tensors[tensor].dims]
            rename = f"rename({others[0]!r})" if len(others) == 1 else "rename()"
            raise ValueError(
                f"{checked.path} has no variable {name!r}{did_you_mean(name, tensors)}, only "
                f"{shorten(', '.join(map(repr, tensors)))}; open the file without group=, or call "
                f"{rename} on the variable, and rewrite the whole file to add one"
            )
    dims = {dim for name in checked.variables for dim in tensors[name].dims}
    for name in region:
        if name not in dims:
            raise ValueError(
                f"region={region!r} names {name!r}{did_you_mean(name, dims)}, which is not one of "
                f"the dimensions {', '.join(map(repr, sorted(dims)))} of the written variables"
            )
    outside = [name for name in checked.variables if region.keys().isdisjoint(tensors[name].dims)]
    if region and outside:
        raise ValueError(
            f"{', '.join(map(repr, outside))} has none of the dimensions of region={region!r}, so "
            f"other writers would write it, too; call drop_vars({outside!r}), or write it alone "
            "with region={}"
        )


def _encode(checked: CheckedInput, tensors: Mapping[str, Tensor]) -> CheckedInput:
    """Encode variables like those of the file. Variables with its CF attributes are encoded."""

    def encode(variables: Mapping[str, Variable]) -> dict[str, Variable]:
        return {
            name: _encode_like(checked, name, variable, tensors[name])
            if name in tensors
            else variable
            for name, variable in variables.items()
        }

    return replace(
        checked, variables=encode(checked.variables), coordinates=encode(checked.coordinates)
    )


def _encode_like(checked: CheckedInput, name: str, variable: Variable, tensor: Tensor) -> Variable:
    """Encode a variable by the attributes of a tensor, unless it has such attributes itself."""
    keys = _list_required(tensor, variable)
    is_encoded = not keys.isdisjoint(variable.attrs) or "_Unsigned" in keys
    if not keys or is_encoded or ("units" in keys and variable.dtype.kind not in "mMO"):
        return variable
    copied = variable.copy(deep=False)
    copied.encoding = {key: tensor.attrs[key] for key in keys} | {"dtype": tensor.layout.dtype}
    if variable.dtype.kind in "MO":
        copied.encoding.setdefault("calendar", "standard")
    single = replace(checked, variables={name: copied}, coordinates={})
    encoded = single.encode([tensor.layout.dtype.name]).variables[name]
    units = tensor.attrs.get("units")
    if "units" in keys and encoded.attrs["units"].split()[0] == str(units).split()[0]:
        encoded.attrs["units"] = units  # xarray may write the same time in another way
    return encoded


def _list_required(tensor: Tensor, variable: Variable) -> set[str]:
    """Return the attributes of a tensor that determine the values of a decoded variable."""
    attrs = tensor.attrs
    units = attrs.get("units")
    is_time = isinstance(units, str) and (" since " in units or variable.dtype.kind == "m")
    keys = {*cf.PACKING, *(("units", "calendar") if is_time else ())}
    # NaN as _FillValue changes no value.
    return {key for key in keys & attrs.keys() if np.array_equal(attrs[key], attrs[key])}


def _find_slices(
    checked: CheckedInput,
    source: Source,
    tensors: Mapping[str, Tensor],
    region: Mapping[Any, Any] | Literal["auto"],
) -> Region:
    """Replace "auto" by the slices of the labels in the data, as `xarray.Dataset.to_zarr` does."""
    if isinstance(region, str):
        dims = {dim for variable in checked.variables.values() for dim in variable.dims}
        region = dict.fromkeys(sorted(map(str, dims)), AUTO)
    return {
        dim: _find_slice(checked, source, tensors, dim) if part == AUTO else part
        for dim, part in region.items()
    }


def _find_slice(
    checked: CheckedInput, source: Source, tensors: Mapping[str, Tensor], dim: str
) -> slice:
    if dim not in checked.coordinates or dim not in tensors:
        owner = "the data have" if dim not in checked.coordinates else f"{checked.path} has"
        raise ValueError(
            f"region='auto' finds a slice by labels, but {owner} no coordinate {dim!r}; pass a "
            f"slice such as region={{{dim!r}: slice(0, 10)}}"
        )
    stored = _read_region(tensors[dim], source, {}).to_index()
    labels = checked.coordinates[dim].to_index()
    first = int(stored.get_indexer(labels[:1])[0]) if stored.is_unique and labels.size else -1
    found = slice(first, first + labels.size)
    if first < 0 or not stored[found].equals(labels):
        raise ValueError(
            f"region='auto': the labels of {dim!r}, {_list_values(checked.coordinates[dim])}, are "
            f"no contiguous part of the labels of {checked.path}; select such a part, or pass a "
            "slice"
        )
    return found


def _check_coordinates(
    checked: CheckedInput,
    source: Source,
    tensors: Mapping[str, Tensor],
    region: Region,
) -> None:
    """Raise an error if coordinates differ from the file, because they are not written."""
    for name, coordinate in checked.coordinates.items():
        stored = _read_region(tensors[name], source, region) if name in tensors else None
        if stored is None:
            raise ValueError(
                f"{checked.path} has no coordinate {name!r}{did_you_mean(name, tensors)}, and "
                f"region= does not add one; call drop_vars({name!r}) first"
            )
        if not coordinate.equals(stored):  # type: ignore[no-untyped-call]
            raise ValueError(
                f"the coordinate {name!r} is {_list_values(coordinate)}, but the region of "
                f"{checked.path} has {_list_values(stored)}; correct region=, or rewrite the "
                "whole file to change coordinates"
            )


def _list_values(variable: Variable) -> str:
    return shorten(", ".join(map(str, variable.values.ravel()[:20].tolist())))


def _read_region(tensor: Tensor, source: Source, region: Region) -> Variable:
    """Read a region of a coordinate."""
    shape = tensor.layout.shape
    slices = [region.get(dim, slice(None)) for dim in tensor.dims]
    indices = tuple(range(n)[part] for n, part in zip(shape, slices, strict=True))
    values = read_selection(tensor.layout, tensor.source or source, Selection(shape, indices))
    return Variable(tensor.dims, values)


def _check_overlap(checked: CheckedInput, path: str) -> None:
    """Raise an error if values are read from, or mapped to, the file that is changed in place."""
    for name, variable in checked.variables.items():
        read = {source.name for source in find_sources(variable)}
        for file in read or _find_mapped_files(variable):
            with suppress(OSError):  # a URL, or a name of something without a path
                if os.path.samefile(file, path):
                    hint = "copy(deep=True)" if variable.chunks is None and not read else "load()"
                    found = "is lazy and reads from" if read else "is mapped to"
                    raise ValueError(
                        f"{name!r} {found} {checked.path}, which region= changes in place; call "
                        f"{hint} first, or write another file"
                    )


def _find_mapped_files(variable: Variable) -> set[str]:
    """Return the files that values in memory are mapped to."""
    data = get_lazy_data(variable)
    while hasattr(data, "array"):
        data = data.array  # xarray has wrapped the values
    arrays = find_values(data) if isinstance(data, dask.array.Array) else [data]
    return {file for array in arrays if (file := find_mapped_file(array)) is not None}


def _plan_variable(
    checked: CheckedInput,
    name: str,
    variable: Variable,
    tensor: Tensor,
    region: Region,
) -> PlannedVariable:
    """Plan a variable, with the layout of the whole tensor and its origin in the tensor."""
    if set(variable.dims) != set(tensor.dims):
        raise ValueError(
            f"{name!r} has dims {variable.dims}, but {checked.path} has {tensor.dims}; "
            "rename or transpose it"
        )
    _check_attrs(checked, name, variable, tensor)
    variable = variable.transpose(*tensor.dims)
    sizes = zip(tensor.dims, variable.shape, tensor.layout.shape, strict=True)
    origin = tuple(_get_start(*size, region) for size in sizes)
    try:
        layout, axes = file_order(tensor.layout)
        element = layout.stored_element()
    except TypeError as error:
        raise ValueError(
            f"{checked.path}: {name!r} cannot be written in part: {error}; write the whole file"
        ) from None
    units = dict(zip(axes, layout.write_units, strict=True))
    for axis, dim in enumerate(tensor.dims):
        start, stop = origin[axis], origin[axis] + variable.shape[axis]
        _check_unit(name, dim, units[axis], start, stop, is_end=stop == tensor.layout.shape[axis])
    others = [key for key in checked.encoding.get(name, {}) if key != "dtype"]
    if others:
        raise ValueError(
            f"encoding= has {', '.join(map(repr, others))} for {name!r}, but {checked.path} "
            "determines the encoding; leave them out, or rewrite the whole file"
        )
    requested = checked.encoding.get(name, {}).get("dtype", element.name)
    if format_dtype(requested) != element.name:
        raise ValueError(
            f"encoding= requests {name!r} as {format_dtype(requested)}, but {checked.path} stores "
            f"it as {element.name}, which region= cannot change; rewrite the whole file"
        )
    dtype = element.name if is_numeric(variable.dtype) else variable.dtype.name
    # Values are rounded only if encoding= names the dtype, or to pack them.
    exact = name not in checked.encoding and "scale_factor" not in tensor.attrs
    conversion = replace(checked, format=f"{name!r} in the file").build_conversion(
        name, variable, dtype, {element.name: element}, exact=exact
    )
    conversion = replace(conversion, is_fixed=True)
    return PlannedVariable(variable, tensor.layout, conversion, origin)


def _check_attrs(checked: CheckedInput, name: str, variable: Variable, tensor: Tensor) -> None:
    """Raise an error if attributes of the file would give the values another meaning."""
    required = _list_required(tensor, variable)
    for attribute, expected in tensor.attrs.items():
        is_missing = attribute in required and attribute not in variable.attrs
        actual = variable.attrs.get(attribute, expected)
        is_other = attribute in (*required, "unit", "units") and not _are_same(actual, expected)
        if is_missing or is_other:
            raise ValueError(
                f"{checked.path}: {name!r} has {attribute}={expected!r} in the file, but "
                f"{'no such attribute' if is_missing else repr(actual)} in the data; open the file "
                "without apply_unit=, change the values, and keep the attributes"
            )


def _are_same(first: Any, second: Any) -> bool:
    """Return whether two attributes are equal. NaN equals NaN."""
    return DataArray(first).equals(DataArray(second))


def _check_unit(name: str, dim: str, unit: int, start: int, stop: int, *, is_end: bool) -> None:
    """Raise an error if a region starts or stops inside a byte."""
    if unit == WHOLE and (start or not is_end):
        raise ValueError(
            f"{name!r} is stored in rows whose parts share bytes; write the whole dimension "
            f"{dim!r} at once"
        )
    if unit != WHOLE and (start % unit or (stop % unit and not is_end)):
        raise ValueError(
            f"{name!r} has {unit} elements of {dim!r} in a byte; start and stop at a multiple of "
            f"{unit}, not at {start} and {stop}"
        )


def _get_start(dim: Hashable, length: int, whole: int, region: Region) -> int:
    """Return the start of a region along a dimension. Raise ValueError if lengths differ."""
    requested = region.get(dim, slice(None))
    try:
        start, stop, step = requested.indices(whole)
    except (AttributeError, TypeError):
        step = 0
    if step != 1:
        raise ValueError(
            f"region={region!r} has {requested!r} for {dim!r}; pass a slice of integers with step "
            f"1, such as ds.indexes[{dim!r}].slice_indexer(first_label, last_label)"
        )
    if stop - start != length:
        hint = "pass a slice of the same length"
        if requested.stop is not None and requested.stop > whole:
            hint = "a region cannot extend a file, so use xarray.concat and write all"
        raise ValueError(
            f"region={region!r} selects {max(0, stop - start)} of {whole} elements along {dim!r}, "
            f"but the data have length {length}; {hint}"
        )
    return start
