"""Write formats that store tensors under keys and do not name dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
from xr_tensorfmt.formats._shared.keyed import StoredTensor, get_default_dims


@dataclass(frozen=True, eq=False)
class Entry:
    """A variable to write under a key."""

    key: str
    variable: Variable
    conversion: Conversion

    def place(self, offset: int) -> StoredTensor:
        """Return the tensor at an offset."""
        shape, element = self.variable.shape, self.conversion.element
        nbytes = prod(shape) * element.stored.itemsize
        return StoredTensor(self.key, shape, element, offset, nbytes)


def place_tensors(entries: Iterable[Entry], alignment: int = 1) -> list[StoredTensor]:
    """Place tensors one after the other. Offsets are relative to the first tensor."""
    tensors, stop = [], 0
    for entry in entries:
        start = stop + -stop % alignment if entry.variable.size else stop
        tensors.append(entry.place(start))
        stop = tensors[-1].stop
    return tensors


def plan_variables(
    entries: Iterable[Entry], tensors: Iterable[StoredTensor], start: int
) -> tuple[PlannedVariable, ...]:
    """Plan the values of placed tensors whose offsets are relative to `start`."""
    return tuple(
        PlannedVariable(entry.variable, entry.place(start + tensor.offset).layout, entry.conversion)
        for entry, tensor in zip(entries, tensors, strict=True)
    )


Coordinates = dict[str, Variable]


def collect_entries(
    checked: CheckedInput, elements: Mapping[str, Element], *, empty: bool
) -> tuple[list[Entry], Coordinates]:
    """Return the variables and coordinates to store as tensors, and the coordinates to embed.

    A coordinate is embedded if the format does not support its dtype, or if it has no elements and
    `empty` is False.
    """
    stored = dict(checked.variables)
    embedded: Coordinates = {}
    for name, coordinate in checked.coordinates.items():
        has_dtype = coordinate.dtype.name in elements or name in checked.encoding
        is_stored = has_dtype and (coordinate.size or empty)
        (stored if is_stored else embedded)[name] = coordinate
    entries = [
        Entry(key, variable, checked.conversion(key, variable, elements))
        for key, variable in stored.items()
    ]
    return entries, embedded


def embed_variables(
    checked: CheckedInput, entries: Sequence[Entry], coordinates: Coordinates
) -> EmbeddedMetadata:
    """Embed coordinates, and the attributes and dims of tensors if they are not the defaults."""
    keys = {entry.key for entry in entries}
    tensors = {}
    for entry in entries:
        variable = embed_variable(checked, entry.key, entry.variable)
        if variable.attrs or variable.dims != get_default_dims(
            entry.key, entry.variable.ndim, keys
        ):
            tensors[entry.key] = variable
    return EmbeddedMetadata(
        tensors=tensors,
        stored_coordinates=tuple(name for name in checked.coordinates if name in keys),
        coordinates=embed_coordinates(checked, coordinates),
    )


def encode_dataset_attrs(checked: CheckedInput) -> dict[str, Any]:
    """Encode the attributes of the Dataset. The name of the embedded metadata is reserved."""
    if EMBEDDED_KEY in checked.attrs:
        raise ValueError(
            f"{checked.path}: the attribute {EMBEDDED_KEY!r} of the Dataset has the name of the "
            "metadata entry for dims and coordinates; rename it"
        )
    return encode_attrs(checked, checked.attrs, "the Dataset")
