"""The note that keeps what a format has no place for; `formats.annotation` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from json import dumps
from typing import Any

import numpy as np
from xarray import Variable

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.embedded_metadata import MOST_BYTES, VERSION
from xr_tensorfmt.core.json_values import array_to_json, to_json
from xr_tensorfmt.writing.checked_input import CheckedInput, Part


def attributes(checked: CheckedInput, attrs: Mapping[Any, Any], owner: str) -> dict[str, Any]:
    """Attributes as JSON."""
    kept: dict[str, Any] = {}
    for name, value in attrs.items():
        what = f"the attribute {name!r} of {owner}"
        try:
            kept |= to_json({name: value}, what)
        except TypeError as error:
            _unless_dropped(checked, "attrs", error)
    return kept


def described(checked: CheckedInput, name: str, variable: Variable) -> dict[str, Any]:
    """A variable's dims and attributes, for the note."""
    attrs = attributes(checked, variable.attrs, repr(name))
    return {"dims": list(variable.dims), "attrs": attrs}


def labels(checked: CheckedInput, names: Mapping[str, Variable]) -> dict[str, Any]:
    """Coordinates with their values, for the note."""
    kept = {}
    for name, variable in names.items():
        what = f"the coordinate {name!r}"
        if variable.size * max(1, variable.dtype.itemsize) > MOST_BYTES:
            large = f"{what} of {variable.size} labels, which no header can hold"
            checked.dropping("coords", large, f"call drop_vars({name!r})")
            continue
        try:
            values = array_to_json(_labels(variable, what), what)
        except TypeError as error:
            _unless_dropped(checked, "coords", error)
            continue
        kept[name] = described(checked, name, variable) | {"values": values}
    return kept


def _labels(variable: Variable, what: str) -> Array:
    if not isinstance(variable.dtype, np.dtype):
        raise TypeError(
            f"{what} has the dtype {variable.dtype} of pandas, which JSON cannot hold; "
            "convert it by astype(...)"
        )
    values: Array = variable.values
    return values


def _unless_dropped(checked: CheckedInput, part: Part, error: TypeError) -> None:
    """Raise what JSON has against something, unless that may be dropped."""
    if part not in checked.drop:
        raise ValueError(
            f"{checked.path}: {error}, or pass drop=[{part!r}] to leave it out"
        ) from None


def one_tensor(checked: CheckedInput, stored: str) -> dict[str, Any]:
    """The note of a file that holds one tensor."""
    name, variable = checked.only
    return {
        "version": VERSION,
        "tensors": {stored: {"name": name, **described(checked, name, variable)}},
        "coordinates": labels(checked, checked.coordinates),
        "attrs": attributes(checked, checked.attrs, "the Dataset"),
    }


def encoded(checked: CheckedInput, embedded: Mapping[str, Any]) -> bytes:
    """A note as bytes."""
    text = dumps(embedded, separators=(",", ":"), ensure_ascii=False).encode()
    if len(text) > MOST_BYTES:
        raise ValueError(
            f"{checked.path}: attributes and coordinates take {len(text)} bytes, and "
            f"{checked.format} keeps at most {MOST_BYTES} in its header; drop or shorten some"
        )
    return text
