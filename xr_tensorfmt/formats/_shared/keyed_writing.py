"""What formats write that hold tensors under keys and have no names for dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from xarray import Variable

from xr_tensorfmt.contract import (
    EMBEDDED_KEY,
    CheckedInput,
    Conversion,
    Element,
    EmbeddedMetadata,
    PlannedVariable,
    embed_coordinates,
    embed_variable,
    encode_attrs,
)
from xr_tensorfmt.formats._shared.keyed import StoredTensor, default_dims


@dataclass(frozen=True, eq=False)
class Entry:
    """A tensor that will be written."""

    key: str
    variable: Variable
    conversion: Conversion

    def stored(self, offset: int) -> StoredTensor:
        """The tensor at an offset."""
        shape, element = self.variable.shape, self.conversion.element
        nbytes = prod(shape) * element.stored.itemsize
        return StoredTensor(self.key, shape, element, offset, nbytes)

    def placed(self, offset: int) -> PlannedVariable:
        """The values at an offset of the file."""
        return PlannedVariable(self.variable, self.stored(offset).layout, self.conversion)


def consecutive(entries: Sequence[Entry], alignment: int = 1) -> list[StoredTensor]:
    """The tensors one after the other; their offsets count from the first of all data."""
    tensors, stop = [], 0
    for each in entries:
        start = stop + -stop % alignment if each.variable.size else stop
        tensors.append(each.stored(start))
        stop = tensors[-1].stop
    return tensors


Coordinates = dict[str, Variable]


def collect_entries(
    checked: CheckedInput, elements: Mapping[str, Element], *, empty: bool
) -> tuple[list[Entry], Coordinates]:
    """The tensors that are written, with coordinates, and the coordinates that are embedded.

    These are the ones that the format has no dtype for and, where `empty` is False, those without
    elements.
    """
    stored = dict(checked.variables)
    embedded: Coordinates = {}
    for name, each in checked.coordinates.items():
        has_dtype = each.dtype.name in elements or name in checked.encoding
        (stored if has_dtype and (each.size or empty) else embedded)[name] = each
    entries = [
        Entry(key, each, checked.conversion(key, each, elements)) for key, each in stored.items()
    ]
    return entries, embedded


def embedded_variables(
    checked: CheckedInput, entries: Sequence[Entry], coordinates: Coordinates
) -> EmbeddedMetadata:
    """What is embedded of tensors that have attributes or dims of their own, and coordinates."""
    keys = {each.key for each in entries}
    tensors = {}
    for each in entries:
        variable = embed_variable(checked, each.key, each.variable)
        if variable.attrs or variable.dims != default_dims(each.key, each.variable.ndim, keys):
            tensors[each.key] = variable
    return EmbeddedMetadata(
        tensors=tensors,
        stored_coordinates=tuple(name for name in checked.coordinates if name in keys),
        coordinates=embed_coordinates(checked, coordinates),
    )


def dataset_attributes(checked: CheckedInput) -> dict[str, Any]:
    """Encode the attributes of the Dataset; one cannot have the name of the embedded metadata."""
    if EMBEDDED_KEY in checked.attrs:
        raise ValueError(
            f"{checked.path}: the attribute {EMBEDDED_KEY!r} of the Dataset has the name of the "
            "metadata entry for dims and coordinates; rename it"
        )
    return encode_attrs(checked, checked.attrs, "the Dataset")
