"""Where payload and metadata of an R1 container are: the preamble and two slots, the newer valid.

Source: PyCauset, ``documentation/dev/PyCauset Container Format.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from zlib import crc32

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.header import HeaderReader

PREAMBLE = b"\x01\x00\x10\x00"
"""Little-endian, header of 4096 bytes, reserved: bytes 12 to 15 of every container."""

HEADER_BYTES = 4096

METADATA_ALIGNMENT = 16
"""Multiple of bytes at which metadata begin."""

SLOTS = {"A": 16, "B": 144}
"""Where the slots are."""

SLOT_BYTES = 128

POINTERS = Struct("<7Q")
CHECKSUM = Struct("<I")


@dataclass(frozen=True)
class Slot:
    """Pointers to one generation of the metadata.

    Parameters
    ----------
    name : str
        ``"A"`` or ``"B"``.
    generation : int
        The higher, the newer.
    payload_offset, payload_length : int
        The values; the length is 64 too large in files of 0.5.0.
    metadata_offset, metadata_length : int
        The block of metadata.
    """

    name: str
    generation: int
    payload_offset: int
    payload_length: int
    metadata_offset: int
    metadata_length: int


def read_slots(reader: HeaderReader) -> tuple[tuple[Slot, ...], tuple[str, ...]]:
    """Read the header of a container.

    Parameters
    ----------
    reader : HeaderReader
        The file.

    Returns
    -------
    slots : tuple of Slot
        The valid ones, newest first; at least one.
    faults : tuple of str
        What is wrong with the others.

    Raises
    ------
    TensorFormatError
        The file ends before the header does, or no slot is valid.
    """
    reader.bytes_at(0, HEADER_BYTES, "the header")
    valid, faults = [], []
    for name, offset in SLOTS.items():
        slot, fault = check_slot(reader, name, offset)
        if fault is None:
            valid.append(slot)
        else:
            faults.append(f"slot {name} at byte {offset} has {fault}")
    if not valid:
        raise TensorFormatError(
            reader.source.name,
            "the header slots",
            " and ".join(faults),
            "at least one valid slot",
            "the header is damaged, or the file is cut off; fetch it again",
            offset=SLOTS["A"],
        )
    # Of two alike, as in a file that was never updated, A comes first.
    return tuple(sorted(valid, key=lambda slot: -slot.generation)), tuple(faults)


def check_slot(reader: HeaderReader, name: str, offset: int) -> tuple[Slot, str | None]:
    """Read a slot.

    Parameters
    ----------
    reader : HeaderReader
        The file.
    name : str
        The slot.
    offset : int
        Where it is.

    Returns
    -------
    slot : Slot
        What it says.
    fault : str or None
        What is wrong with it; None if it is valid.
    """
    raw = reader.bytes_at(offset, POINTERS.size, f"slot {name}")
    stored = CHECKSUM.unpack(
        reader.bytes_at(offset + POINTERS.size, CHECKSUM.size, f"the checksum of slot {name}")
    )[0]
    slot = Slot(name, *POINTERS.unpack(raw)[:5])
    if crc32(raw) != stored:
        return slot, f"checksum {stored:#010x} instead of {crc32(raw):#010x}"
    size = reader.source.size
    payload_end = slot.payload_offset + slot.payload_length
    metadata_end = slot.metadata_offset + slot.metadata_length
    if slot.payload_offset % HEADER_BYTES or slot.payload_offset < HEADER_BYTES:
        return slot, f"payload offset {slot.payload_offset}, which is no multiple of 4096"
    if slot.metadata_offset % METADATA_ALIGNMENT:
        return slot, f"metadata offset {slot.metadata_offset}, which is no multiple of 16"
    if max(payload_end, metadata_end) > size:
        return slot, f"ranges up to byte {max(payload_end, metadata_end)} in a file of {size} bytes"
    return slot, None
