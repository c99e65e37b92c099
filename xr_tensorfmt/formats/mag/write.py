"""What archives and snapshots know of a tensor that is written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from json import dumps
from math import prod
from struct import pack
from typing import Any, Literal

import numpy as np
from dask.delayed import Delayed
from google_crc32c import value as crc32c
from xarray import DataArray, Dataset, Variable

from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.embedded_metadata import KEY as EMBEDDED_KEY
from xr_tensorfmt.core.embedded_metadata import VERSION as EMBEDDED_VERSION
from xr_tensorfmt.core.json_values import TAG, without_dtypes
from xr_tensorfmt.formats.mag import MAGIC, MagFormat
from xr_tensorfmt.formats.mag.archive import (
    ALIGNMENT,
    FLOAT64,
    HEADER,
    INT64,
    LENGTH,
    METADATA,
    MOST_KEY_BYTES,
    RECORD,
)
from xr_tensorfmt.formats.mag.document import ALIGNMENT as DOCUMENT_ALIGNMENT
from xr_tensorfmt.formats.mag.document import HEADER as DOCUMENT_HEADER
from xr_tensorfmt.formats.mag.document import MOST_DOCUMENT_BYTES, NAMES
from xr_tensorfmt.formats.mag.spec import FOUR, THIRTEEN, default_dims, element, round_up
from xr_tensorfmt.writing.atomic_file import Piece
from xr_tensorfmt.writing.checked_input import CheckedInput, Encoding, Part
from xr_tensorfmt.writing.conversion import Conversion
from xr_tensorfmt.writing.embedded_metadata import attributes, described, encoded, labels
from xr_tensorfmt.writing.file_plan import FilePlan, Placed
from xr_tensorfmt.writing.to_file import Mode, write


@dataclass(frozen=True)
class Entry:
    """A tensor to be."""

    key: str
    variable: Variable
    conversion: Conversion

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return prod(self.variable.shape) * self.conversion.element.stored.itemsize


MOST_ARCHIVE_DIMENSIONS = 6
_VERSION = 1
_CHECKED_FROM = 12
_FILLER = b"\xff"
_ARCHIVE_ELEMENTS = {name: element(name) for name in FOUR}


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


def plan_archive(checked: CheckedInput) -> FilePlan:
    """Arrange a Dataset as an archive of version 1."""
    for name in checked.coordinates:
        checked.dropping("coords", f"the coordinate {name!r}", "reset_coords() makes it a variable")
    keys = set(checked.variables)
    entries = [_entry(checked, name, each, keys) for name, each in checked.variables.items()]
    metadata = _metadata(checked)
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
    return FilePlan(_size(entries, metadata), (Piece(0, first), *pieces), tuple(placed))


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


def _metadata(checked: CheckedInput) -> dict[str, bytes]:
    records = {}
    for name, value in checked.attrs.items():
        plain = value.item() if isinstance(value, np.integer | np.floating) else value
        whole = type(plain) is int and -(1 << 63) <= plain < 1 << 63
        if not (whole or type(plain) is float):
            found = f"the attribute {name!r} of the Dataset, which is no int64 and no float"
            checked.dropping("attrs", found, "write version=300")
            continue
        _check_key(checked, name)
        payload = int.from_bytes(pack("<q" if whole else "<d", plain), "little")
        key = name.encode()
        records[name] = METADATA.pack(INT64 if whole else FLOAT64, payload, len(key)) + key
    return records


def _entry(checked: CheckedInput, key: str, variable: Variable, keys: set[str]) -> Recorded:
    _check_key(checked, key)
    if not 1 <= variable.ndim <= MOST_ARCHIVE_DIMENSIONS or not variable.size:
        raise ValueError(
            f"{checked.path}: {key!r} has shape {variable.shape}, and an archive holds 1 to "
            f"{MOST_ARCHIVE_DIMENSIONS} dimensions and no empty tensors; reshape it, "
            "or write version=300"
        )
    default = default_dims(key, variable.ndim, keys)
    if variable.dims != default:
        names = f"the names {variable.dims} of the dimensions of {key!r}"
        checked.dropping("dims", names, "write version=300")
    if variable.attrs:
        attrs = f"attributes of variables such as those of {key!r}"
        checked.dropping("attrs", attrs, "write version=300")
    return Recorded(key, variable, checked.conversion(key, variable, _ARCHIVE_ELEMENTS))


def _check_key(checked: CheckedInput, key: Any) -> None:
    if not isinstance(key, str) or "\0" in key or not 1 <= len(key.encode()) <= MOST_KEY_BYTES:
        raise ValueError(
            f"{checked.path}: {key!r} cannot be a key of an archive, which is a text of 1 to "
            f"{MOST_KEY_BYTES} bytes without NUL; rename it, or write version=300"
        )


MOST_SNAPSHOT_DIMENSIONS = 16
_SNAPSHOT_ELEMENTS = {name: element(name) for name in THIRTEEN}
_SNAPSHOT_VERSION = "0.3.0"


@dataclass(frozen=True)
class Mapped(Entry):
    """A tensor of the document's map."""

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


def plan_snapshot(checked: CheckedInput) -> FilePlan:
    """Arrange a Dataset as a snapshot of version 300."""
    held = {
        name: each
        for name, each in checked.coordinates.items()
        if not each.size
        or (each.dtype.name not in _SNAPSHOT_ELEMENTS and name not in checked.encoding)
    }
    tensors = {
        **checked.variables,
        **{name: each for name, each in checked.coordinates.items() if name not in held},
    }
    entries = _entries(checked, tensors)
    size = max((each.offset + each.nbytes for each in entries), default=0)
    if not size:
        raise ValueError(
            f"{checked.path}: magnetron loads no snapshot without a single element; "
            "add a variable that has some, or write another format"
        )
    text = _document(checked, entries, held)
    start = -(-(DOCUMENT_HEADER.size + len(text)) // DOCUMENT_ALIGNMENT) * DOCUMENT_ALIGNMENT
    header = DOCUMENT_HEADER.pack(b"MAG!", 300, 0, DOCUMENT_HEADER.size, len(text), start, size)
    placed = tuple(
        Placed(
            each.variable,
            Dense(each.variable.shape, each.conversion.element, start + each.offset),
            each.conversion,
        )
        for each in entries
    )
    return FilePlan(start + size, (Piece(0, header + text),), placed)


def _entries(checked: CheckedInput, tensors: Mapping[str, Variable]) -> list[Mapped]:
    entries: list[Mapped] = []
    end = 0
    for key, variable in tensors.items():
        if variable.ndim > MOST_SNAPSHOT_DIMENSIONS:
            raise ValueError(
                f"{checked.path}: {key!r} has {variable.ndim} dimensions, and magnetron loads at "
                f"most {MOST_SNAPSHOT_DIMENSIONS}; stack some of them"
            )
        conversion = checked.conversion(key, variable, _SNAPSHOT_ELEMENTS)
        if variable.size:
            end = -(-end // DOCUMENT_ALIGNMENT) * DOCUMENT_ALIGNMENT
        entries.append(Mapped(key, variable, conversion, end))
        end += entries[-1].nbytes
    return entries


def _document(
    checked: CheckedInput, entries: Sequence[Mapped], held: Mapping[str, Variable]
) -> bytes:
    attrs = attributes(checked, checked.attrs, "the Dataset")
    metadata = without_dtypes(attrs)
    if EMBEDDED_KEY in metadata:
        raise ValueError(
            f"{checked.path}: the attribute {EMBEDDED_KEY!r} of the Dataset has the name of the note "
            "that keeps dims and coordinates; rename it"
        )
    embedded = _note(checked, entries, held, attrs)
    if embedded:
        encoded(checked, embedded)
        metadata[EMBEDDED_KEY] = embedded
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
            f"{checked.path}: attributes and names take {len(text)} bytes, and readers take at "
            f"most {MOST_DOCUMENT_BYTES}; shorten them"
        )
    return text


def _note(
    checked: CheckedInput,
    entries: Sequence[Mapped],
    held: Mapping[str, Variable],
    attrs: Mapping[str, Any],
) -> dict[str, Any]:
    """What opening the file would not show otherwise; empty where that is nothing."""
    keys = {each.key for each in entries}
    tensors = {}
    for each in entries:
        facts = described(checked, each.key, each.variable)
        if facts["attrs"] or facts["dims"] != list(
            default_dims(each.key, each.variable.ndim, keys)
        ):
            tensors[each.key] = facts
    stored = [name for name in checked.coordinates if name not in held]
    embedded = {
        "tensors": tensors,
        "stored_coordinates": stored,
        "coordinates": labels(checked, held),
        "tagged_attrs": f'"{TAG}"' in dumps(without_dtypes(attrs)),
        "numpy_attrs": {name: value for name, value in attrs.items() if _has_dtypes(value)},
    }
    return {"version": EMBEDDED_VERSION, **embedded} if any(embedded.values()) else {}


def _has_dtypes(value: Any) -> bool:
    """Whether the metadata hold an attribute without the dtype of a number in it."""
    return dumps(without_dtypes(value)) != dumps(value)


_PLANS: dict[int, Callable[[CheckedInput], FilePlan]] = {300: plan_snapshot, 1: plan_archive}


def plan(checked: CheckedInput, version: int = 300) -> FilePlan:
    """Plan a MAG file of a version."""
    return _PLANS[version](checked)


def to_mag(
    data: Dataset | DataArray,
    path: Any,
    *,
    version: Literal[300, 1] | None = None,
    mode: Mode = "w",
    compute: bool = True,
    region: Mapping[Any, slice] | None = None,
    encoding: Encoding | None = None,
    drop: Collection[Part] = (),
    storage_options: Mapping[str, Any] | None = None,
    fs: Any = None,
) -> Delayed | None:
    """Write a MAG file: every variable a tensor under its name.

    Parameters
    ----------
    data : Dataset or DataArray
        What to write. Attributes of the Dataset become the file's metadata.
    path : str or PathLike
        The file, or its URL.
    version : {300, 1}
        A snapshot that magnetron 0.2 loads, or an archive as magnetron 0.1.2 wrote it, which has
        no place for dims, coordinates and attributes of variables.
    mode, compute, region, encoding, drop, storage_options, fs
        As for `to_file`.

    Returns
    -------
    Delayed or None
        What writes the file when it is computed, where ``compute=False``.

    Raises
    ------
    ValueError
        The format cannot hold something; the message says what, and what would work.
    OSError
        The system refuses; what was there before is unchanged.
    """
    return write(
        data,
        path,
        MagFormat(),
        {"version": version},
        mode=mode,
        compute=compute,
        region=region,
        encoding=encoding,
        drop=drop,
        storage_options=storage_options,
        fs=fs,
    )
