"""Metadata to embed because the format does not support it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from json import dumps
from typing import Any

import numpy as np
from xarray import Variable

from xr_tensorfmt.core.elements import Array, Plain, get_stored_name
from xr_tensorfmt.core.embedded_metadata import (
    MAX_EMBEDDED_BYTES,
    EmbeddedMetadata,
    EmbeddedVariable,
)
from xr_tensorfmt.core.json_values import array_to_json, to_json
from xr_tensorfmt.core.open_options import OpenOptions
from xr_tensorfmt.writing.checked_input import CheckedInput, DroppablePart
from xr_tensorfmt.writing.conversion import Conversion, is_numeric


def encode_attrs(checked: CheckedInput, attrs: Mapping[Any, Any], owner: str) -> dict[str, Any]:
    """Encode attributes. Raise ValueError if one is unsupported and not dropped."""
    encodable: dict[str, Any] = {}
    for name, value in attrs.items():
        try:
            encodable |= to_json({name: value}, f"the attribute {name!r} of {owner}")
        except TypeError as error:
            _raise_unless_dropped(checked, "attrs", error)
    return encodable


def embed_variable(checked: CheckedInput, name: str, variable: Variable) -> EmbeddedVariable:
    """Return the dims and attributes of a variable. Raises like `encode_attrs`."""
    attrs = encode_attrs(checked, variable.attrs, repr(name))
    return EmbeddedVariable(dims=tuple(map(str, variable.dims)), attrs=attrs)


def embed_coordinates(
    checked: CheckedInput, coordinates: Mapping[str, Variable]
) -> dict[str, EmbeddedVariable]:
    """Return coordinates with values. Raise ValueError if one is unsupported and not dropped."""
    embedded = {}
    for name, variable in coordinates.items():
        subject = f"the coordinate {name!r}"
        if variable.size * max(1, variable.dtype.itemsize) > MAX_EMBEDDED_BYTES:
            large = f"{subject} of {variable.size} labels, too many for a header"
            checked.refuse_unless_dropped("coords", large, f"call drop_vars({name!r})")
            continue
        try:
            values = array_to_json(_get_values(name, variable, subject), subject)
        except TypeError as error:
            _raise_unless_dropped(checked, "coords", error)
            continue
        embedded[name] = replace(embed_variable(checked, name, variable), values=values)
    return embedded


def _get_values(name: str, variable: Variable, subject: str) -> Array:
    if not isinstance(variable.dtype, np.dtype):
        raise TypeError(
            f"{subject} has the pandas dtype {variable.dtype}, which JSON does not support; "
            "convert it with astype(...)"
        )
    values = np.asarray(variable.values)
    dtype = variable.encoding.get("dtype")
    if dtype is None or get_stored_name(dtype) is not None or not is_numeric(values.dtype):
        return values
    try:
        element = Plain(np.dtype(dtype))
    except TypeError:
        raise TypeError(
            f"the encoding of {subject} has the unknown dtype {dtype!r}; remove it"
        ) from None
    return Conversion(name, element, exact=False).apply(values)


def _raise_unless_dropped(checked: CheckedInput, part: DroppablePart, error: TypeError) -> None:
    """Raise an error about a part that cannot be embedded, unless it may be dropped."""
    if part not in checked.drop:
        raise ValueError(
            f"{checked.path}: {error}, or pass drop=[{part!r}] or --drop {part} to leave it out"
        ) from None


def embed_tensor(checked: CheckedInput) -> bytes:
    """Return JSON of all but the values of one variable, which ``Container.embedded`` takes."""
    name, variable = checked.single_variable
    embedded = replace(embed_variable(checked, name, variable), name=name)
    metadata = EmbeddedMetadata(
        tensors={OpenOptions.name: embedded},
        coordinates=embed_coordinates(checked, checked.coordinates),
        attrs=encode_attrs(checked, checked.attrs, "the Dataset"),
    )
    return encode_metadata(checked, metadata)


def encode_metadata(checked: CheckedInput, embedded: EmbeddedMetadata) -> bytes:
    """Encode embedded metadata as JSON. Raise ValueError if it exceeds the limit of readers."""
    content = dumps(embedded.to_dict(), separators=(",", ":"), ensure_ascii=False).encode()
    return check_header_size(checked, content, MAX_EMBEDDED_BYTES)


def check_header_size(checked: CheckedInput, content: bytes, limit: int) -> bytes:
    """Return a part of a header. Raise ValueError if it exceeds the limit of readers."""
    if len(content) > limit:
        raise ValueError(
            f"{checked.path}: attributes and coordinates take {len(content)} bytes, and "
            f"{checked.format} allows at most {limit} in its header; drop or shorten some"
        )
    return content
