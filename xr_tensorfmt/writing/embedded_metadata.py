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
from xr_tensorfmt.writing.checked_input import Part, Subject


def attributes(subject: Subject, attrs: Mapping[Any, Any], owner: str) -> dict[str, Any]:
    """Attributes as JSON.

    Parameters
    ----------
    subject : Subject
        What is written.
    attrs : mapping
        The attributes.
    owner : str
        Whose they are, for errors.

    Returns
    -------
    dict

    Raises
    ------
    ValueError
        JSON cannot hold one of them, and it must not be dropped.
    """
    kept: dict[str, Any] = {}
    for name, value in attrs.items():
        what = f"the attribute {name!r} of {owner}"
        try:
            kept |= to_json({name: value}, what)
        except TypeError as error:
            _unless_dropped(subject, "attrs", error)
    return kept


def described(subject: Subject, name: str, variable: Variable) -> dict[str, Any]:
    """A variable's dims and attributes, for the note.

    Parameters
    ----------
    subject : Subject
        What is written.
    name : str
        The variable.
    variable : Variable
        The same.

    Returns
    -------
    dict
    """
    attrs = attributes(subject, variable.attrs, repr(name))
    return {"dims": list(variable.dims), "attrs": attrs}


def labels(subject: Subject, names: Mapping[str, Variable]) -> dict[str, Any]:
    """Coordinates with their values, for the note.

    Parameters
    ----------
    subject : Subject
        What is written.
    names : mapping of str to Variable
        The coordinates.

    Returns
    -------
    dict

    Raises
    ------
    ValueError
        One is too large or of a dtype that JSON cannot hold, and must not be dropped.
    """
    kept = {}
    for name, variable in names.items():
        what = f"the coordinate {name!r}"
        if variable.size * max(1, variable.dtype.itemsize) > MOST_BYTES:
            large = f"{what} of {variable.size} labels, which no header can hold"
            subject.dropping("coords", large, f"call drop_vars({name!r})")
            continue
        try:
            values = array_to_json(_labels(variable, what), what)
        except TypeError as error:
            _unless_dropped(subject, "coords", error)
            continue
        kept[name] = described(subject, name, variable) | {"values": values}
    return kept


def _labels(variable: Variable, what: str) -> Array:
    if not isinstance(variable.dtype, np.dtype):
        raise TypeError(
            f"{what} has the dtype {variable.dtype} of pandas, which JSON cannot hold; "
            "convert it by astype(...)"
        )
    values: Array = variable.values
    return values


def _unless_dropped(subject: Subject, part: Part, error: TypeError) -> None:
    """Raise what JSON has against something, unless that may be dropped."""
    if part not in subject.drop:
        raise ValueError(
            f"{subject.path}: {error}, or pass drop=[{part!r}] to leave it out"
        ) from None


def one_tensor(subject: Subject, stored: str) -> dict[str, Any]:
    """The note of a file that holds one tensor.

    Parameters
    ----------
    subject : Subject
        What is written.
    stored : str
        What the tensor is called when the file is opened without a note.

    Returns
    -------
    dict

    Raises
    ------
    ValueError
        There is more than one variable, or something that JSON cannot hold.
    """
    name, variable = subject.only
    return {
        "version": VERSION,
        "tensors": {stored: {"name": name, **described(subject, name, variable)}},
        "coordinates": labels(subject, subject.coordinates),
        "attrs": attributes(subject, subject.attrs, "the Dataset"),
    }


def encoded(subject: Subject, note: Mapping[str, Any]) -> bytes:
    """A note as bytes.

    Parameters
    ----------
    subject : Subject
        What is written.
    note : mapping
        The note.

    Returns
    -------
    bytes
        JSON in UTF-8.

    Raises
    ------
    ValueError
        It is too long.
    """
    text = dumps(note, separators=(",", ":"), ensure_ascii=False).encode()
    if len(text) > MOST_BYTES:
        raise ValueError(
            f"{subject.path}: attributes and coordinates take {len(text)} bytes, and "
            f"{subject.format} keeps at most {MOST_BYTES} in its header; drop or shorten some"
        )
    return text
