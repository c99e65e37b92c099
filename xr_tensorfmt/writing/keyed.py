"""What formats write that hold tensors under keys and have no names for dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from xarray import Variable

from xr_tensorfmt.core.elements import Element
from xr_tensorfmt.core.embedded_metadata import KEY, EmbeddedVariable
from xr_tensorfmt.core.keyed import StoredTensor, default_dims
from xr_tensorfmt.writing.checked_input import CheckedInput
from xr_tensorfmt.writing.conversion import Conversion
from xr_tensorfmt.writing.embedded_metadata import described
from xr_tensorfmt.writing.file_plan import Placed


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

    def placed(self, offset: int) -> Placed:
        """The values at an offset of the file."""
        return Placed(self.variable, self.stored(offset).layout, self.conversion)


Coordinates = dict[str, Variable]


def divided_coordinates(
    checked: CheckedInput, elements: Mapping[str, Element], *, empty: bool
) -> tuple[Coordinates, Coordinates]:
    """Coordinates that are written as tensors, and those that are embedded.

    These are the ones that the format has no dtype for and, where `empty` is False, those without
    elements.
    """
    stored: Coordinates = {}
    embedded: Coordinates = {}
    for name, each in checked.coordinates.items():
        has_dtype = each.dtype.name in elements or name in checked.encoding
        (stored if has_dtype and (each.size or empty) else embedded)[name] = each
    return stored, embedded


def described_entries(
    checked: CheckedInput, entries: Sequence[Entry]
) -> dict[str, EmbeddedVariable]:
    """Variables with attributes, or with dims that the file would not open with."""
    keys = {each.key for each in entries}
    embedded = {}
    for each in entries:
        variable = described(checked, each.key, each.variable)
        if variable.attrs or variable.dims != default_dims(each.key, each.variable.ndim, keys):
            embedded[each.key] = variable
    return embedded


def check_attribute_names(checked: CheckedInput, attrs: Mapping[Any, Any]) -> None:
    """Refuse an attribute of the Dataset that has the name of the embedded metadata."""
    if KEY in attrs:
        raise ValueError(
            f"{checked.path}: the attribute {KEY!r} of the Dataset has the name of the "
            "metadata entry for dims and coordinates; rename it"
        )
