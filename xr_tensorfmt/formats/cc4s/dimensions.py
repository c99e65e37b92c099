"""The types of the dimensions of variables, and their names in a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from xarray import Variable

from xr_tensorfmt.formats.cc4s.header import Dimension, make_dims_unique
from xr_tensorfmt.formats.cc4s.spec import TYPES, get_object_types

Types = Mapping[str, str | None]
"""Types of dimensions by name."""


def get_file_info(variable: Variable) -> Mapping[str, Any]:
    """Return the encoding of the cc4s file that a variable was opened from, if any."""
    file_info = variable.encoding.get("tensorfmt")
    if isinstance(file_info, Mapping) and file_info.get("format") == "cc4s":
        return file_info
    return {}


def choose_types(variables: Mapping[str, Variable], cc4s_object: str) -> Types:
    """Choose a type for each dimension of the variables of an object.

    All dimensions of a tensor get a type if one has, because cc4s exchanges them otherwise.
    """
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
    """Return the types of the dimensions of a variable.

    Dimensions of an opened variable keep the type of the file, even if they are renamed. The types
    of others follow from their names: ``State_2`` has the type ``State``, and ``dim_0`` has none.
    """
    file_info = get_file_info(variable)
    dims = tuple(map(str, variable.dims))
    stored = dict(zip(file_info.get("dims", ()), file_info.get("types", ()), strict=False))
    # Renamed dimensions are identified by position if no other dimension has moved.
    has_moved = len(stored) != len(dims) or any(
        dim != name for dim, name in zip(dims, stored, strict=True) if dim in stored
    )
    in_order = [None] * len(dims) if has_moved else [*stored.values()]
    types: dict[str, str | None] = {}
    for dim, by_position in zip(dims, in_order, strict=True):
        has_no_type = re.fullmatch(r"dim_\d+", dim)
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
    expected = get_object_types(cc4s_object, variable.ndim) or ()
    actual = [types[str(dim)] for dim in variable.dims]
    pairs = zip(actual, expected, strict=False)
    if all(dimension_type in (None, of_object) for dimension_type, of_object in pairs):
        return
    if actual == list(get_file_info(variable).get("types", ())):
        return
    dims = make_dims_unique([[Dimension(1, of_object) for of_object in expected]])[0]
    raise ValueError(
        f"{path}: {name!r} has the dims {variable.dims}, but cc4s expects the types "
        f"{expected} for {cc4s_object}; transpose or rename them, for instance to {dims}"
    )
