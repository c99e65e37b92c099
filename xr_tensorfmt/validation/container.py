"""What can be wrong with an R1 container of PyCauset: both slots, all metadata, and the gaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from zlib import crc32

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.header import HeaderReader
from xr_tensorfmt.formats.pycauset.container import BLOCK_HEADER, BLOCK_MAGIC, read_slot
from xr_tensorfmt.formats.pycauset.slots import (
    HEADER_BYTES,
    METADATA_ALIGNMENT,
    SLOTS,
    check_slot,
)
from xr_tensorfmt.validation.finding import Finding, finding_of
from xr_tensorfmt.validation.gaps import Gap, check_gaps, trailing

COVERED = ("slot A", "slot B")
"""Words of those warnings of the reader that are found here as well, with their place."""

_PREAMBLE_BYTES = 16
_SLOT_BYTES = 128
_POINTER_BYTES = 60
_UNUSED = Struct("<2Q")
_UNUSED_AT = 40


def check_container(reader: HeaderReader, payload: int, payload_stop: int) -> Iterator[Finding]:
    """Check slots, blocks of metadata, and all bytes that nothing points to.

    Parameters
    ----------
    reader : HeaderReader
        The file; one of its slots can be read.
    payload, payload_stop : int
        Where the values begin, and where they end by their shape.

    Yields
    ------
    Finding
    """
    source = reader.source
    blocks: dict[int, int] = {}
    for name, offset in SLOTS.items():
        slot, fault = check_slot(reader, name, offset)
        if fault is not None:
            message = f"{fault}; the file was damaged or not written to its end: save it again"
            yield Finding(source.name, offset, f"slot {name}", message)
            continue
        blocks[slot.metadata_offset] = slot.metadata_offset + slot.metadata_length
        try:
            read_slot(reader, slot)
        except TensorFormatError as error:
            yield finding_of(error)
    yield from _check_places(reader, blocks, payload, payload_stop)
    used = {payload: payload_stop, **blocks}
    for start, stop in _old_blocks(reader, used, payload_stop):
        yield from _check_old(reader, start, stop)
        used[start] = stop
    yield from trailing(source, max(used.values()), "the last block of metadata")
    yield from check_gaps(source, [*_header_gaps(), *_between(used)])


def _check_places(
    reader: HeaderReader, blocks: dict[int, int], payload: int, payload_stop: int
) -> Iterator[Finding]:
    """Metadata may follow the payload or precede it, but never lie in it or in the header."""
    for start, stop in blocks.items():
        within = start < payload_stop and stop > payload and payload_stop > payload
        if within or start < HEADER_BYTES:
            yield Finding(
                reader.source.name,
                start,
                "the metadata block",
                f"bytes {start} to {stop}, expected outside of the header and of the payload, "
                f"which is bytes {payload} to {payload_stop}; the header is damaged",
            )
    for name, offset in SLOTS.items():
        unused = reader.bytes_at(offset + _UNUSED_AT, _UNUSED.size, f"slot {name}")
        if any(unused):
            message = f"{unused.hex(' ')}, expected zeros; the file may be of a newer version"
            place = offset + _UNUSED_AT
            yield Finding(reader.source.name, place, f"the unused part of slot {name}", message)


def _header_gaps() -> Iterator[Gap]:
    begins = sorted(SLOTS.values())
    for begin in begins:
        yield Gap(begin + _POINTER_BYTES, begin + _SLOT_BYTES, "the rest of a slot")
    yield Gap(begins[-1] + _SLOT_BYTES, HEADER_BYTES, "the rest of the header")


def _between(used: dict[int, int]) -> Iterator[Gap]:
    position = HEADER_BYTES
    for start, stop in sorted(used.items()):
        yield Gap(position, start, "the padding before the next part of the file")
        position = max(position, stop)


def _old_blocks(
    reader: HeaderReader, used: dict[int, int], start: int
) -> Iterator[tuple[int, int]]:
    """Metadata of earlier generations, which stay in the file: they begin at multiples of 16."""
    known = dict(used)
    while start < reader.source.size:
        start = -(-start // METADATA_ALIGNMENT) * METADATA_ALIGNMENT
        if start in known:
            start = max(known[start], start + 1)
            continue
        if start + BLOCK_HEADER.size > reader.source.size:
            return
        header = reader.bytes_at(start, BLOCK_HEADER.size, "a metadata block")
        magic, _, _, _, size, _, _ = BLOCK_HEADER.unpack(header)
        stop = start + BLOCK_HEADER.size + size
        if magic != BLOCK_MAGIC or stop > reader.source.size:
            following = [begin for begin in known if begin > start]
            if not following:
                return
            start = min(following)
            continue
        yield start, stop
        start = stop


def _check_old(reader: HeaderReader, start: int, stop: int) -> Iterable[Finding]:
    raw = reader.bytes_at(start, stop - start, "a metadata block")
    header, encoded = raw[: BLOCK_HEADER.size], raw[BLOCK_HEADER.size :]
    stored = BLOCK_HEADER.unpack(header)[5]
    if crc32(encoded) != stored:
        message = (
            f"checksum {stored:#010x}, expected {crc32(encoded):#010x}; it is of an earlier "
            "generation, and no slot points to it: the values are not touched by it"
        )
        yield Finding(reader.source.name, start, "an old metadata block", message, "warning")
