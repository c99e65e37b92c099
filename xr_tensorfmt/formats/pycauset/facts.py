"""From the metadata of an R1 container to a Matrix and its attributes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from xr_tensorfmt.formats.annotation import KEY as NOTE_KEY
from xr_tensorfmt.formats.pycauset.container import Content
from xr_tensorfmt.formats.pycauset.matrix import VECTORS, Matrix
from xr_tensorfmt.formats.pycauset.metadata import Metadata

BIT_ROW = 64
"""Bytes that dense rows of bits are padded to a multiple of, since 2026-01-05."""


def matrix_of(content: Content, metadata: Metadata) -> Matrix:
    """What the metadata say about the matrix.

    Parameters
    ----------
    content : Content
        The container.
    metadata : Metadata
        Its metadata.

    Returns
    -------
    Matrix
        With the shape as it is stored: that of the metadata is the one after a transposition.

    Raises
    ------
    TensorFormatError
        A key is missing or holds something else than it should.
    """
    matrix_type = metadata.take("matrix_type", str)
    view = metadata.below("view")
    transposed = view.take("is_transposed", bool, False)
    shape = (metadata.length("rows"), metadata.length("cols"))
    # Vectors have n rows and 1 column, transposed or not.
    if transposed and matrix_type not in VECTORS:
        shape = (shape[1], shape[0])
    return Matrix(
        "r1",
        matrix_type,
        metadata.take("data_type", str),
        *shape,
        content.slot.payload_offset,
        content.payload_limit,
        metadata.offset,
        metadata.take("seed", int, 0),
        view.scalar("scalar"),
        transposed,
        view.take("is_conjugated", bool, False),
        bit_row=BIT_ROW,
        attrs=dict(_attrs(metadata, view, transposed)),
        facts={
            "payload_uuid": metadata.take("payload_uuid", str),
            "slot": content.slot.name,
            "generation": content.slot.generation,
        },
        note=metadata.values.get(NOTE_KEY),
        derived=tuple(_derived(metadata)),
    )


def _derived(metadata: Metadata) -> Iterator[str]:
    """What PyCauset takes for true of the values: a property that is false changes no result."""
    properties = metadata.below("properties").values
    for what, names in (
        ("kept results", metadata.below("cached").values),
        ("properties", [name for name, value in properties.items() if value not in (False, None)]),
    ):
        if names:
            yield f"the {what} {', '.join(map(repr, names))}"


def _attrs(metadata: Metadata, view: Metadata, transposed: bool) -> Iterator[tuple[str, Any]]:
    """Attributes, flat and of types that netCDF knows."""
    yield "is_temporary", 0
    for key in ("object_type", "n"):
        if key in metadata.values:
            yield key, _plain(metadata.values[key])
    spacetime = metadata.below("spacetime")
    if spacetime.values:
        yield "spacetime", spacetime.take("type", str)
        for key, value in spacetime.take("args", dict, {}).items():
            yield f"spacetime_{key}", _plain(value)
    for key, value in metadata.below("properties").values.items():
        yield f"property_{key}", _plain(value)
    for key, entry in metadata.below("cached").values.items():
        if isinstance(entry, dict) and _fits(entry.get("signature"), metadata, view, transposed):
            yield from _cached(key, entry.get("value"))


def _cached(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A result that was kept; those that are in other files are left out."""
    if key == "sum" and _is_pair(value):
        yield "cached_sum", attribute_of(complex(*value))
    elif key == "eigenvalues" and isinstance(value, list) and all(map(_is_pair, value)):
        numbers = [attribute_of(complex(*pair)) for pair in value]
        is_real = all(isinstance(number, float) for number in numbers)
        yield "cached_eigenvalues", numbers if is_real else [str(complex(*p)) for p in value]
    elif not isinstance(value, dict) and value is not None:
        yield f"cached_{key}", _plain(value)


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(each, int | float) for each in value)
    )


def attribute_of(number: complex) -> float | str:
    """A number as an attribute: a text where it is complex, which netCDF has no type for."""
    number = complex(number)
    return str(number) if number.imag else number.real


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float | str):
        return value
    return json.dumps(value, default=repr)


def _fits(signature: Any, metadata: Metadata, view: Metadata, transposed: bool) -> bool:
    """Whether a result was computed of this payload under this view."""
    if not isinstance(signature, Mapping):
        return False
    scalar = view.scalar("scalar")
    conjugated = view.take("is_conjugated", bool, False)
    expected = {"t": transposed, "c": conjugated, "sr": scalar.real, "si": scalar.imag}
    try:
        pairs = (part.split("=") for part in str(signature.get("view_signature")).split(";"))
        found = {key: float(value) for key, value in pairs}
    except ValueError:
        return False
    return found == expected and signature.get("payload_uuid") == metadata.values["payload_uuid"]
