"""Write formats that store tensors under keys and do not name dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from xarray import Variable

from xr_tensorfmt.core.elements import Element, get_dtype_name
from xr_tensorfmt.core.embedded_metadata import (
    EmbeddedMetadata,
    embed_coordinates,
    embed_variable,
    encode_attrs,
)
from xr_tensorfmt.core.file_format import EMBEDDED_KEY
from xr_tensorfmt.core.layout import Dense
from xr_tensorfmt.formats.keyed import get_default_dims
from xr_tensorfmt.writing.checked_input import CheckedInput
from xr_tensorfmt.writing.encoding import Conversion
from xr_tensorfmt.writing.file_plan import PlannedVariable

KeyedVariable = tuple[Variable, Conversion]
"""A variable to write, and its conversion, whose name is the key."""

PlacedTensors = dict[str, tuple[tuple[int, ...], Element, int, int]]
"""Shape, element, start and stop of tensors by key, in bytes after the start of the first one."""


def count_bytes(entry: KeyedVariable) -> int:
    """Return the size of the values of a variable in the file."""
    variable, conversion = entry
    return int(variable.size) * conversion.element.stored.itemsize


def place_tensors(variables: Iterable[KeyedVariable], alignment: int = 1) -> PlacedTensors:
    """Store tensors one after the other."""
    placed, stop = PlacedTensors(), 0
    for variable, conversion in variables:
        nbytes = count_bytes((variable, conversion))
        start = stop + -stop % alignment if nbytes else stop
        stop = start + nbytes
        placed[conversion.name] = variable.shape, conversion.element, start, stop
    return placed


def plan_variables(
    variables: Iterable[KeyedVariable], placed: PlacedTensors, offset: int
) -> tuple[PlannedVariable, ...]:
    """Plan the values of tensors if the first one is at an offset."""
    return tuple(
        PlannedVariable(x, Dense(x.shape, item.element, offset + placed[item.name][2]), item)
        for x, item in variables
    )


Coordinates = dict[str, Variable]


def select_stored(
    checked: CheckedInput, elements: Mapping[str, Element], *, empty: bool
) -> tuple[list[KeyedVariable], Coordinates]:
    """Return the variables to store, and the coordinates to embed, by their dtypes and sizes."""
    stored = dict(checked.variables)
    embedded: Coordinates = {}
    for name, coordinate in checked.coordinates.items():
        has_dtype = get_dtype_name(coordinate.dtype) in elements or name in checked.encoding
        is_stored = has_dtype and (coordinate.size or empty)
        (stored if is_stored else embedded)[name] = coordinate
    variables = []
    for key, variable in stored.items():
        checked.warn_of_order(key, variable.dims)
        conversion = checked.choose_conversion(key, variable, elements)
        narrow = conversion.element.narrow
        if narrow is not conversion.element and variable.dtype == narrow.dtype:
            conversion = replace(conversion, element=narrow)  # the values are not converted
        variables.append((variable, conversion))
    return variables, embedded


def embed_variables(
    checked: CheckedInput, variables: Sequence[KeyedVariable], coordinates: Coordinates
) -> EmbeddedMetadata:
    """Embed coordinates, and the attributes and dims of tensors if they are not the defaults."""
    keys = {conversion.name for _, conversion in variables}
    similar_keys = {key for key in keys if "_dim_" in key}
    tensors = {}
    for variable, conversion in variables:
        key, dims = conversion.name, variable.dims
        default_dims = get_default_dims(key, len(dims), similar_keys)
        if variable.attrs or dims != default_dims:
            embedded = embed_variable(checked, key, variable)
            if embedded.attrs or embedded.dims != default_dims:
                tensors[key] = embedded
    return EmbeddedMetadata(
        tensors=tensors,
        stored_coordinates=tuple(name for name in checked.coordinates if name in keys),
        coordinates=embed_coordinates(checked, coordinates),
    )


def encode_dataset_attrs(checked: CheckedInput) -> dict[str, Any]:
    """Encode attributes of the Dataset. The name of the embedded metadata is reserved."""
    if EMBEDDED_KEY in checked.attrs:
        raise ValueError(
            f"{checked.path}: the attribute {EMBEDDED_KEY!r} of the Dataset has the name of the "
            "metadata entry for dims and coordinates; rename it"
        )
    return encode_attrs(checked, checked.attrs, "the Dataset")
