"""MAG snapshots of version 300, as magnetron 0.2 loads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from json import dumps
from typing import Any

from xarray import Variable

from xr_tensorfmt.formats.annotation import KEY as NOTE_KEY
from xr_tensorfmt.formats.annotation import VERSION as NOTE_VERSION
from xr_tensorfmt.formats.mag.document import ALIGNMENT, HEADER, MOST_DOCUMENT_BYTES, NAMES
from xr_tensorfmt.formats.mag.dtypes import THIRTEEN, element
from xr_tensorfmt.formats.mag.names import default_dims
from xr_tensorfmt.jsonvalues import TAG, without_dtypes
from xr_tensorfmt.layouts import Dense
from xr_tensorfmt.write.blueprint import Blueprint, Placed
from xr_tensorfmt.write.draft import Piece
from xr_tensorfmt.write.mag.entry import Entry
from xr_tensorfmt.write.notes import attributes, described, encoded, labels
from xr_tensorfmt.write.subject import Subject

MOST_DIMENSIONS = 16
_ELEMENTS = {name: element(name) for name in THIRTEEN}
_SNAPSHOT_VERSION = "0.3.0"


@dataclass(frozen=True)
class Mapped(Entry):
    """A tensor of the document's map.

    Parameters
    ----------
    key, variable, conversion
        As of `Entry`.
    offset : int
        Where its values begin, counted from the first of all data.
    """

    offset: int

    @property
    def facts(self) -> dict[str, Any]:
        """What the document says of it."""
        name = self.conversion.element.name
        return {
            "shape": list(self.variable.shape),
            "dtype": NAMES.get(name, name),
            "dtype_id": THIRTEEN.index(name),
            "offset": self.offset,
            "nbytes": self.nbytes,
        }


def plan_snapshot(subject: Subject) -> Blueprint:
    """Arrange a Dataset as a snapshot of version 300.

    Parameters
    ----------
    subject : Subject
        What is written.

    Returns
    -------
    Blueprint
    """
    held = {
        name: each
        for name, each in subject.coordinates.items()
        if not each.size or (each.dtype.name not in _ELEMENTS and name not in subject.encoding)
    }
    tensors = {
        **subject.variables,
        **{name: each for name, each in subject.coordinates.items() if name not in held},
    }
    entries = _entries(subject, tensors)
    size = max((each.offset + each.nbytes for each in entries), default=0)
    if not size:
        raise ValueError(
            f"{subject.path}: magnetron loads no snapshot without a single element; "
            "add a variable that has some, or write another format"
        )
    text = _document(subject, entries, held)
    start = -(-(HEADER.size + len(text)) // ALIGNMENT) * ALIGNMENT
    header = HEADER.pack(b"MAG!", 300, 0, HEADER.size, len(text), start, size)
    placed = tuple(
        Placed(
            each.variable,
            Dense(each.variable.shape, each.conversion.element, start + each.offset),
            each.conversion,
        )
        for each in entries
    )
    return Blueprint(start + size, (Piece(0, header + text),), placed)


def _entries(subject: Subject, tensors: Mapping[str, Variable]) -> list[Mapped]:
    entries: list[Mapped] = []
    end = 0
    for key, variable in tensors.items():
        if variable.ndim > MOST_DIMENSIONS:
            raise ValueError(
                f"{subject.path}: {key!r} has {variable.ndim} dimensions, and magnetron loads at "
                f"most {MOST_DIMENSIONS}; stack some of them"
            )
        conversion = subject.conversion(key, variable, _ELEMENTS)
        if variable.size:
            end = -(-end // ALIGNMENT) * ALIGNMENT
        entries.append(Mapped(key, variable, conversion, end))
        end += entries[-1].nbytes
    return entries


def _document(subject: Subject, entries: Sequence[Mapped], held: Mapping[str, Variable]) -> bytes:
    attrs = attributes(subject, subject.attrs, "the Dataset")
    metadata = without_dtypes(attrs)
    if NOTE_KEY in metadata:
        raise ValueError(
            f"{subject.path}: the attribute {NOTE_KEY!r} of the Dataset has the name of the note "
            "that keeps dims and coordinates; rename it"
        )
    note = _note(subject, entries, held, attrs)
    if note:
        encoded(subject, note)
        metadata[NOTE_KEY] = note
    document = {
        "manifest_ver": 1,
        "timestamp": datetime.now().astimezone().isoformat(),
        "magnetron_ver": "0.2.2",
        "snapshot_ver": _SNAPSHOT_VERSION,
        "usr_metadata": metadata,
        "tensor_map": {each.key: each.facts for each in entries},
    }
    text = dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    if len(text) > MOST_DOCUMENT_BYTES:
        raise ValueError(
            f"{subject.path}: attributes and names take {len(text)} bytes, and readers take at "
            f"most {MOST_DOCUMENT_BYTES}; shorten them"
        )
    return text


def _note(
    subject: Subject,
    entries: Sequence[Mapped],
    held: Mapping[str, Variable],
    attrs: Mapping[str, Any],
) -> dict[str, Any]:
    """What opening the file would not show otherwise; empty where that is nothing."""
    keys = {each.key for each in entries}
    tensors = {}
    for each in entries:
        facts = described(subject, each.key, each.variable)
        if facts["attrs"] or facts["dims"] != list(
            default_dims(each.key, each.variable.ndim, keys)
        ):
            tensors[each.key] = facts
    stored = [name for name in subject.coordinates if name not in held]
    note = {
        "tensors": tensors,
        "stored_coordinates": stored,
        "coordinates": labels(subject, held),
        "tagged_attrs": f'"{TAG}"' in dumps(without_dtypes(attrs)),
        "numpy_attrs": {name: value for name, value in attrs.items() if _has_dtypes(value)},
    }
    return {"version": NOTE_VERSION, **note} if any(note.values()) else {}


def _has_dtypes(value: Any) -> bool:
    """Whether the metadata hold an attribute without the dtype of a number in it."""
    return dumps(without_dtypes(value)) != dumps(value)
