"""R1, the container of PyCauset 0.5.0 and later: slots, payload, metadata.

Sources: PyCauset, ``documentation/dev/PyCauset Container Format.md`` and
``python/pycauset/_internal/persistence.py`` of 0.6.1, and the files of 0.5.0, 0.6.0 and 0.6.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any
from zlib import crc32

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.header import HeaderReader
from xr_tensorfmt.formats.pycauset.slots import Slot, read_slots
from xr_tensorfmt.formats.pycauset.typedmap import decode_map

MOST_METADATA = 64 << 20
"""Limit on the bytes of a metadata block."""

BLOCK_HEADER = Struct("<4sIIIQII")
"""Magic, version, encoding, 0, length of the map, its checksum, 0."""

BLOCK_MAGIC = b"PCMB"

KNOWN_VERSION = 1


@dataclass(frozen=True)
class Content:
    """What a container says.

    Parameters
    ----------
    slot : Slot
        The slot that counts.
    metadata : mapping
        Its metadata.
    payload_limit : int
        The byte before which the payload must end.
    warnings : tuple of str
        What is wrong without being in the way.
    """

    slot: Slot
    metadata: Mapping[str, Any]
    payload_limit: int
    warnings: tuple[str, ...]


def read_container(reader: HeaderReader) -> Content:
    """Read slots and metadata.

    Parameters
    ----------
    reader : HeaderReader
        The file.

    Returns
    -------
    Content
        Of the newest slot that is valid and whose metadata are; if it is not the newest one of
        the file, there is a warning.

    Raises
    ------
    TensorFormatError
        Neither slot leads to metadata.
    """
    slots, faults = read_slots(reader)
    errors: list[TensorFormatError] = []
    for slot in slots:
        try:
            metadata = read_slot(reader, slot)
        except TensorFormatError as error:
            errors.append(error)
            continue
        found = [*faults, *(f"{each.field} has {each.found}" for each in errors)]
        blocks = [each.metadata_offset for each in slots]
        after = [offset for offset in blocks if offset > slot.payload_offset]
        warnings = tuple(
            f"{reader.source.name}: {fault}; the file was damaged or not written to its end, "
            f"and is read by slot {slot.name}, generation {slot.generation}"
            for fault in found
        )
        return Content(slot, metadata, min(after, default=reader.source.size), warnings)
    raise errors[0]


def read_slot(reader: HeaderReader, slot: Slot) -> dict[str, Any]:
    """Read the metadata that a slot points to.

    Parameters
    ----------
    reader : HeaderReader
        The file.
    slot : Slot
        The slot.

    Returns
    -------
    dict

    Raises
    ------
    TensorFormatError
        They are damaged.
    """
    start, length = slot.metadata_offset, slot.metadata_length
    header = BLOCK_HEADER.size
    if not header <= length <= MOST_METADATA:
        raise _error(reader, slot, f"{length} bytes", f"from {header} to {MOST_METADATA} bytes")
    raw = reader.bytes_at(start, length, "the metadata block")
    magic, version, encoding, _, size, checksum, _ = BLOCK_HEADER.unpack(raw[:header])
    encoded = raw[header : header + size]
    if magic != BLOCK_MAGIC:
        raise _error(reader, slot, repr(magic), repr(BLOCK_MAGIC))
    if (version, encoding) != (KNOWN_VERSION, KNOWN_VERSION):
        raise _error(reader, slot, f"version {version}, encoding {encoding}", "version 1 of both")
    if len(encoded) != size:
        raise _error(reader, slot, f"a map of {size} bytes", f"at most {length - header} bytes")
    if crc32(encoded) != checksum:
        raise _error(
            reader, slot, f"checksum {checksum:#010x}", f"{crc32(encoded):#010x} as computed"
        )
    return decode_map(encoded, reader.source.name, start + header)


def _error(reader: HeaderReader, slot: Slot, found: str, expected: str) -> TensorFormatError:
    return TensorFormatError(
        reader.source.name,
        f"the metadata block of slot {slot.name}",
        found,
        expected,
        "the file is damaged, or of a newer version",
        offset=slot.metadata_offset,
    )
