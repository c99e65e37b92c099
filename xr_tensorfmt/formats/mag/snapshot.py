"""Snapshot 100 and 200: the containers of magnetron 0.1.5 to 0.1.9, in sections with markers.

A header of 32 bytes, a pool of strings (SRP!), metadata that were never implemented (MDT!),
descriptors of tensors (DSC!), data (BUF!). Source: ``mag_snapshot.c`` of magnetron and files of
these releases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod
from struct import Struct, unpack

from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import Cursor, HeaderReader, check_rank, check_size
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.mag.spec import (
    THIRTEEN,
    TWELVE,
    Contents,
    Numbering,
    Stored,
    check_checksum,
    check_placement,
    decode_key,
    element,
    first_that_fits,
    follow_each_other,
    round_up,
)

POOL, DATA = b"SRP!", b"BUF!"

MOST_STRINGS = 65534
"""Limit of the container on the strings of its pool."""

MOST_POOL_BYTES = 128 << 20
"""Limit of the container on the bytes of its pool."""

_HEADER = Struct("<4sIQIIII")
_CHECKSUM_AT, _CHECKED_FROM = 16, 20
_COUNT = Struct("<I")
_DESCRIPTOR = Struct("<BBHIQQ")

# Numbering and alignment by version, the released one first. The others were in use for some days
# between two releases, under a version that says nothing of it.
_READINGS: dict[int, Sequence[tuple[Numbering, int]]] = {
    100: ((TWELVE, 1), (TWELVE, 16)),
    200: ((THIRTEEN, 16), (TWELVE, 16)),
}


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One tensor descriptor, as it is."""

    key: int
    shape: tuple[int, ...]
    dtype: int
    offset: int
    at: int


def read_snapshot(reader: HeaderReader, options: OpenOptions) -> Contents:
    """Read a snapshot of version 100 or 200."""
    header = reader.bytes_at(0, _HEADER.size, "the MAG header")
    _, version, seconds, checksum, aux, metadata_count, tensor_count = _HEADER.unpack(header)
    cursor = Cursor(reader, _HEADER.size)
    if aux or metadata_count:
        raise cursor.error(
            "aux and the count of metadata",
            (aux, metadata_count),
            "zeros",
            "it is damaged",
            back=12,
        )
    keys = _read_pool(cursor)
    if tensor_count > len(keys):
        raise cursor.error(
            "the count of tensors",
            tensor_count,
            f"up to {len(keys)}, as there are keys",
            "it is damaged",
        )
    cursor.expect(b"MDT!")
    cursor.expect(b"DSC!")
    descriptors = [_read_descriptor(cursor, number) for number in range(tensor_count)]
    findings = check_checksum(reader, options, checksum, _CHECKSUM_AT, _CHECKED_FROM, cursor.offset)
    cursor.expect(DATA)
    descriptors.sort(key=lambda each: each.key)
    facts = {"checksum": checksum, "seconds_since_1970": seconds}

    released = _READINGS[version][0]

    def reading(numbering: Numbering, alignment: int) -> tuple[Contents, bool]:
        start = round_up(cursor.offset, alignment)
        tensors = tuple(_stored(cursor, each, keys, numbering, start) for each in descriptors)
        doubts = () if (numbering, alignment) == released else (_doubt(reader.source.name, start),)
        contents = Contents("snapshot", version, tensors, start, {}, facts, findings + doubts)
        ends = follow_each_other(tensors, start, alignment) == reader.source.size
        return contents, ends and _zeros(reader, cursor.offset, start)

    contents, fits = first_that_fits([partial(reading, *each) for each in _READINGS[version]])
    if not fits:
        check_placement(reader.source.name, contents, reader.source.size)
        raise cursor.error(
            "the data",
            f"{reader.source.size - cursor.offset} bytes",
            "those of all tensors one after the other, and then the end of the file",
            "the file is incomplete, or something was added to it; fetch it again",
        )
    return contents


def _zeros(reader: HeaderReader, start: int, stop: int) -> bool:
    """Whether there is nothing but padding; the file may end in the middle of it."""
    padding = reader.bytes_at(start, min(stop, reader.source.size) - start, "the padding")
    return not any(padding)


def _doubt(path: str, offset: int) -> Finding:
    message = (
        "they lie as for the commits of some days between two releases of magnetron, and are read "
        "so; compare some values"
    )
    return Finding(path, offset, "the data", message, "warning")


def _read_pool(cursor: Cursor) -> list[str]:
    cursor.expect(POOL)
    (count,) = cursor.unpack(_COUNT, "the count of strings")
    if count > MOST_STRINGS:
        raise cursor.error(
            "the count of strings", count, f"up to {MOST_STRINGS}", "it is damaged", back=4
        )
    offsets = unpack(f"<{count + 1}I", cursor.take(4 * (count + 1), "the offsets of strings"))
    if offsets[0] or any(stop <= start for start, stop in pairwise(offsets)):
        raise cursor.error(
            "the offsets of strings",
            f"{offsets[:8]}",
            "0 and then ever larger ones",
            "it is damaged",
            back=4 * (count + 1),
        )
    if offsets[-1] > MOST_POOL_BYTES:
        raise cursor.error(
            "the bytes of all strings", offsets[-1], f"up to {MOST_POOL_BYTES}", "it is damaged"
        )
    origin, path = cursor.offset, cursor.reader.source.name
    pool = cursor.take(offsets[-1], "the strings")
    return [decode_key(path, pool[start:stop], origin + start) for start, stop in pairwise(offsets)]


def _read_descriptor(cursor: Cursor, number: int) -> Descriptor:
    at, what = cursor.offset, f"tensor descriptor {number}"
    rank, dtype, zeros, key, count, offset = cursor.unpack(_DESCRIPTOR, what)
    check_rank(cursor.reader.source.name, what, rank, at)
    shape = unpack(f"<{rank}Q", cursor.take(8 * rank, f"the shape of {what}"))
    if zeros or prod(shape) != count:
        raise cursor.error(
            what,
            f"{count} elements of shape {shape}, reserved bytes {zeros:#x}",
            "the product of the lengths, and zeros",
            "the header is damaged",
            back=_DESCRIPTOR.size + 8 * rank,
        )
    return Descriptor(key, shape, dtype, offset, at)


def _stored(
    cursor: Cursor, descriptor: Descriptor, keys: list[str], numbering: Numbering, start: int
) -> Stored:
    path, at, shape = cursor.reader.source.name, descriptor.at, descriptor.shape
    if descriptor.dtype >= len(numbering) or descriptor.key >= len(keys):
        raise TensorFormatError(
            path,
            "the tensor descriptor",
            f"dtype {descriptor.dtype} and key {descriptor.key}",
            f"a dtype below {len(numbering)} and a key below {len(keys)}",
            "the header is damaged",
            offset=at,
        )
    kind = element(numbering[descriptor.dtype])
    check_size(path, shape, kind.stored.itemsize, at)
    nbytes = prod(shape) * kind.stored.itemsize
    return Stored(keys[descriptor.key], shape, kind, start + descriptor.offset, nbytes)
