"""The types, names and properties of the dimensions of variables in a file."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from xarray import Variable

from xr_tensorfmt.core.json_values import to_json
from xr_tensorfmt.core.source import is_file_name
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.cc4s.header import Dimension, Properties, make_dims_unique
from xr_tensorfmt.formats.cc4s.spec import ENERGIES, TYPES, VERTEX, YAML, get_object_types
from xr_tensorfmt.formats.cc4s.yaml_text import MAX_BYTES, format_yaml, is_portable, parse_fields
from xr_tensorfmt.writing.checked_input import CheckedInput
from xr_tensorfmt.writing.encoding import get_file_info
from xr_tensorfmt.writing.file_plan import FilePlan, Piece, SiblingFile

Types = Mapping[str, str | None]
"""Types of dimensions by name."""

MAX_WRITTEN_DIMENSIONS = 10
"""Limit on dimensions. cc4s sorts their numbers as text."""


def choose_types(variables: Mapping[str, Variable], cc4s_object: str) -> Types:
    """Choose a type for each dimension. If one has none, cc4s would exchange the others."""
    types: dict[str, str | None] = {}
    for variable in variables.values():
        types |= {dim: kind for dim, kind in _find_types(variable).items() if dim not in types}
    before: dict[str, str | None] = {}
    while before != types:  # a type that a variable gets can be the first one of another variable
        before = dict(types)
        for variable in variables.values():
            dims = tuple(map(str, variable.dims))
            if any(types[dim] for dim in dims):
                expected = get_object_types(cc4s_object, variable.ndim) or dims
                for dim, dimension_type in zip(dims, expected, strict=True):
                    types[dim] = types[dim] or dimension_type
    return types


def _find_types(variable: Variable) -> dict[str, str | None]:
    """Return the types stored in the file, or the types that the names stand for."""
    file_info = get_file_info(variable, "cc4s")
    dims = tuple(map(str, variable.dims))
    stored = dict(zip(file_info.get("dims", ()), file_info.get("types", ()), strict=False))
    # Renamed dimensions are identified by position if no other dimension has moved.
    has_moved = len(stored) != len(dims) or any(
        dim != name for dim, name in zip(dims, stored, strict=True) if dim in stored
    )
    in_order = [None] * len(dims) if has_moved else [*stored.values()]
    types: dict[str, str | None] = {}
    for dim, by_position in zip(dims, in_order, strict=True):
        has_no_type = re.fullmatch(r"dim_\d+", dim)  # the name of ``State_2`` has a type
        plain = None if has_no_type else re.sub(r"_([2-9]|[1-9]\d+)$", "", dim) or dim
        is_renamed = not has_moved and plain not in TYPES
        types[dim] = stored.get(dim, by_position if is_renamed else plain)
    return types


def name_dimensions(
    variables: Mapping[str, Variable], types: Types
) -> Mapping[str, tuple[str, ...]]:
    """Return the dimension names that the reader gives to the variables."""
    names = make_dims_unique(
        [Dimension(length, types[str(dim)]) for dim, length in variable.sizes.items()]
        for variable in variables.values()
    )
    return dict(zip(variables, names, strict=True))


def check_types(path: str, cc4s_object: str, name: str, variable: Variable, types: Types) -> None:
    """Raise ValueError if an object of cc4s has a wrong type. cc4s does not check the types."""
    if variable.ndim > MAX_WRITTEN_DIMENSIONS:
        raise ValueError(
            f"{path}: {name!r} has {variable.ndim} dimensions, but cc4s exchanges the dimensions "
            f"of tensors with more than {MAX_WRITTEN_DIMENSIONS}; stack some of them"
        )
    expected = get_object_types(cc4s_object, variable.ndim) or ()
    actual = [types[str(dim)] for dim in variable.dims]
    fits = all(kind in (None, own) for kind, own in zip(actual, expected, strict=False))
    if fits or actual == list(get_file_info(variable, "cc4s").get("types", ())):
        return
    dims = make_dims_unique([[Dimension(1, of_object) for of_object in expected]])[0]
    raise ValueError(
        f"{path}: {name!r} has the dims {variable.dims}, but cc4s expects the types "
        f"{expected} for {cc4s_object}; transpose or rename them, for instance to {dims}"
    )


def check_states(
    path: str, tensors: Mapping[str, Variable], coordinates: Mapping[str, Variable]
) -> None:
    """Raise ValueError if two axes have different states, or states in another order.

    The numbers of states are the coordinates ``state``, ``state_2``, ... of `open_calculation`.
    Integrals may have the occupied states along one axis and the virtual ones along another.
    """
    numbers = {
        item.dims[0]: item.values
        for name, item in coordinates.items()
        if re.fullmatch(r"state(_\d+)?", name) and item.ndim == 1 and item.dtype.kind in "iu"
    }
    whole = (ENERGIES, VERTEX)
    axes = [
        (name, dim)
        for name in sorted(tensors, key=lambda name: name not in whole)
        for dim in tensors[name].dims
        if dim in numbers and not name.startswith("Sliced")
    ]
    for name, dim in axes:
        reference, actual = numbers[axes[0][1]], numbers[dim]
        common = reference[np.isin(reference, actual)]
        is_part = name not in whole and common.size < reference.size
        if np.array_equal(reference, actual) or (
            is_part and (not common.size or np.array_equal(common, actual))
        ):
            continue
        line = ", ".join(f"{d}=states" for d in sorted(numbers, key=str))
        raise ValueError(
            f"{path}: {name!r} has other states along {dim!r} than {axes[0][0]!r} along "
            f"{axes[0][1]!r}, or in another order; select or sort the states of all dimensions "
            f"at once: ds.isel({line})"
        )


def plan_properties(
    checked: CheckedInput, types: Types, names: Mapping[str, Collection[str]]
) -> tuple[list[SiblingFile], dict[str, Variable]]:
    """Return the files of dimension types, and the coordinates that they cannot hold."""
    others = dict(checked.coordinates)
    files: list[SiblingFile] = []
    defaults: dict[Any, set[str]] = defaultdict(set)
    for name, variable in checked.variables.items():
        for dim, default in zip(variable.dims, names[name], strict=True):
            defaults[dim].add(default)
    # The reader omits properties that have the name of a dimension.
    candidates = {name: item for name, item in others.items() if name not in types}
    for dimension_type in dict.fromkeys(filter(None, types.values())):
        dims = [dim for dim in types if types[dim] == dimension_type]
        file = f"{dimension_type}{YAML}"
        has_file = is_file_name(dimension_type) and is_file_name(file) and file != checked.file_name
        if not has_file or any(len(defaults[dim]) > 1 for dim in dims):
            continue
        prefixes = {dim: f"{next(iter(defaults[dim]))}_" for dim in dims}
        by_dim = {d: _get_properties(dimension_type, d, prefixes[d], candidates) for d in dims}
        packed = [item.pack() for item in by_dim.values()]
        # The reader labels all dimensions of the type and length.
        if by_dim[dims[0]].indices and packed.count(packed[0]) == len(packed):
            files.append(_plan_file(checked.path, by_dim[dims[0]]))
            for dim, item in by_dim.items():
                for name in item.indices:
                    del others[f"{prefixes[dim]}{name}"]
    return files, others


def _get_properties(
    dimension_type: str, dim: str, prefix: str, coordinates: Mapping[str, Variable]
) -> Properties:
    """Return the coordinates of a dimension that can become its properties."""
    indices, values = {}, {}
    for name, variable in coordinates.items():
        if name.startswith(prefix) and variable.dims == (dim,) and _is_property(variable):
            indices[name.removeprefix(prefix)] = variable.values.astype(np.int64)
            if "values" in variable.attrs:
                values[name.removeprefix(prefix)] = _get_values(variable)
    return Properties(dimension_type, indices, values)


def _is_property(variable: Variable) -> bool:
    """Return whether a coordinate has integers that number values, or are values."""
    if variable.dtype.kind not in "iu" or set(variable.attrs) - {"values"}:
        return False
    smallest, largest = variable.values.min(initial=0), variable.values.max(initial=-1)
    if smallest < 0 or largest >= MAX_BYTES:
        return False
    values = _get_values(variable) if variable.attrs else [0] * (int(largest) + 1)
    with suppress(TypeError):  # JSON does not support the values
        is_long = isinstance(values, list) and len(values) > largest
        return is_long and to_json(values, "values") == values and is_portable(values)
    return False


def _get_values(variable: Variable) -> Any:
    """Return the attribute "values". Other engines open a list as an array."""
    values = variable.attrs["values"]
    return values.tolist() if isinstance(values, np.ndarray) else values


def _plan_file(path: str, properties: Properties) -> SiblingFile:
    """Plan the file of a dimension type. A file with equal content is kept."""
    content = format_yaml(properties.pack())
    name = f"{properties.dimension_type}{YAML}"

    def has_equal_content(existing: bytes) -> bool:
        try:
            present = Properties.unpack(parse_fields("", existing))
        except TensorFormatError:
            return False
        if present.pack() != properties.pack():
            names = ", ".join(properties.indices)
            raise ValueError(
                f"{path}: {name} in the same directory has other values of {names}, but it applies "
                "to all tensors there; write into another directory, or remove that file if no "
                "other tensor needs it"
            )
        return True

    return SiblingFile(name, FilePlan(len(content), (Piece(0, content),), ()), has_equal_content)
