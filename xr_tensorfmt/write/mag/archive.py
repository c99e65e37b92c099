"""MAG archives of version 1, byte for byte as magnetron 0.1.2 arranged them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from struct import pack
from typing import Any

import numpy as np
from google_crc32c import value as crc32c
from xarray import Variable

from xr_tensorfmt.formats.mag import MAGIC
from xr_tensorfmt.formats.mag.archive import FLOAT64, HEADER, INT64, METADATA
from xr_tensorfmt.formats.mag.dtypes import FOUR, element
from xr_tensorfmt.formats.mag.names import default_dims
from xr_tensorfmt.formats.mag.placement import round_up
from xr_tensorfmt.formats.mag.records import ALIGNMENT, LENGTH, MOST_KEY_BYTES, RECORD
from xr_tensorfmt.layouts import Dense
from xr_tensorfmt.write.blueprint import Blueprint, Placed
from xr_tensorfmt.write.draft import Piece
from xr_tensorfmt.write.mag.entry import Entry
from xr_tensorfmt.write.mag.sizes import check_size
from xr_tensorfmt.write.subject import Subject

MOST_DIMENSIONS = 6
_VERSION = 1
_CHECKED_FROM = 12
_FILLER = b"\xff"
_ELEMENTS = {name: element(name) for name in FOUR}


@dataclass(frozen=True)
class Recorded(Entry):
    """A tensor that has a record."""

    @property
    def record_bytes(self) -> int:
        """Bytes of the record."""
        return len(self.record(0))

    def record(self, offset: int) -> bytes:
        """The record of a tensor whose data begin at a byte of the file."""
        shape, key = self.variable.shape, self.key.encode()
        aux = FOUR.index(self.conversion.element.name) | len(shape) << 8
        fixed = RECORD.pack(aux, prod(shape), offset)
        return fixed + pack(f"<{len(shape)}q", *shape) + LENGTH.pack(len(key)) + key


def plan_archive(subject: Subject) -> Blueprint:
    """Arrange a Dataset as an archive of version 1.

    Parameters
    ----------
    subject : Subject
        What is written.

    Returns
    -------
    Blueprint

    Raises
    ------
    ValueError
        The container cannot hold something.
    """
    for name in subject.coordinates:
        subject.dropping("coords", f"the coordinate {name!r}", "reset_coords() makes it a variable")
    keys = set(subject.variables)
    entries = [_entry(subject, name, each, keys) for name, each in subject.variables.items()]
    metadata = _metadata(subject)
    records = HEADER.size + len(b"".join(metadata.values()))
    start = round_up(records + sum(each.record_bytes for each in entries), ALIGNMENT)
    head, placed, pieces, position = b"", [], [], start
    for each in entries:
        head += each.record(position)
        layout = Dense(each.variable.shape, each.conversion.element, position)
        placed.append(Placed(each.variable, layout, each.conversion))
        stop = position + each.nbytes
        position = round_up(stop, ALIGNMENT)
        pieces.append(Piece(stop, _FILLER * (position - stop)))
    first = _header(entries, metadata, head)
    first += _FILLER * (start - len(first) if entries else 0)
    return Blueprint(_size(entries, metadata), (Piece(0, first), *pieces), tuple(placed))


def _header(entries: list[Recorded], metadata: Mapping[str, bytes], records: bytes) -> bytes:
    counts = (len(entries), len(metadata), 0)
    checked = HEADER.pack(MAGIC, _VERSION, 0, *counts) + b"".join(metadata.values()) + records
    return HEADER.pack(MAGIC, _VERSION, crc32c(checked[_CHECKED_FROM:]), *counts) + checked[24:]


def _size(entries: list[Recorded], metadata: Mapping[str, bytes]) -> int:
    """What magnetron reserved for a file: more than it needs, by its own estimate."""
    size = HEADER.size + sum(len(record) + 8 for record in metadata.values())
    for each in entries:
        size = round_up(size + each.record_bytes, ALIGNMENT) + round_up(each.nbytes, ALIGNMENT)
    return size


def _metadata(subject: Subject) -> dict[str, bytes]:
    records = {}
    for name, value in subject.attrs.items():
        plain = value.item() if isinstance(value, np.integer | np.floating) else value
        whole = type(plain) is int and -(1 << 63) <= plain < 1 << 63
        if not (whole or type(plain) is float):
            found = f"the attribute {name!r} of the Dataset, which is no int64 and no float"
            subject.dropping("attrs", found, "write version=300")
            continue
        _check_key(subject, name)
        payload = int.from_bytes(pack("<q" if whole else "<d", plain), "little")
        key = name.encode()
        records[name] = METADATA.pack(INT64 if whole else FLOAT64, payload, len(key)) + key
    return records


def _entry(subject: Subject, key: str, variable: Variable, keys: set[str]) -> Recorded:
    _check_key(subject, key)
    check_size(subject, key, variable)
    if not 1 <= variable.ndim <= MOST_DIMENSIONS or not variable.size:
        raise ValueError(
            f"{subject.path}: {key!r} has shape {variable.shape}, and an archive holds 1 to "
            f"{MOST_DIMENSIONS} dimensions and no empty tensors; reshape it, or write version=300"
        )
    default = default_dims(key, variable.ndim, keys)
    if variable.dims != default:
        names = f"the names {variable.dims} of the dimensions of {key!r}"
        subject.dropping("dims", names, "write version=300")
    if variable.attrs:
        attrs = f"attributes of variables such as those of {key!r}"
        subject.dropping("attrs", attrs, "write version=300")
    return Recorded(key, variable, subject.conversion(key, variable, _ELEMENTS))


def _check_key(subject: Subject, key: Any) -> None:
    if not isinstance(key, str) or "\0" in key or not 1 <= len(key.encode()) <= MOST_KEY_BYTES:
        raise ValueError(
            f"{subject.path}: {key!r} cannot be a key of an archive, which is a text of 1 to "
            f"{MOST_KEY_BYTES} bytes without NUL; rename it, or write version=300"
        )
