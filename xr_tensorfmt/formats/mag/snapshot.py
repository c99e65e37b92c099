"""Snapshot 100 and 200: the containers of magnetron 0.1.5 to 0.1.9, in sections with markers.

A header of 32 bytes, a pool of strings (SRP!), metadata that were never implemented (MDT!),
descriptors of tensors (DSC!), data (BUF!). Source: ``mag_snapshot.c`` of magnetron and files of
these releases. They are read, and never written.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from operator import itemgetter
from struct import Struct, unpack

from xr_tensorfmt.contract import Cursor, Gap, HeaderReader, OpenOptions, check_rank
from xr_tensorfmt.formats.mag.spec import (
    DAMAGED,
    SNAPSHOT_100_DTYPES,
    SNAPSHOT_200_DTYPES,
    Contents,
    TensorRecord,
    check_alignment,
    check_checksum,
    round_up,
    take_key,
)

POOL = b"SRP!"

MAX_STRINGS, MAX_POOL_BYTES = 65534, 128 << 20
"""Limits of the container on the strings of its pool, and on their bytes."""

HEADER = Struct("<4sIQIIII")
"""Magic, version, seconds since 1970, checksum, aux, counts of metadata and of tensors."""

_CHECKSUM_OFFSET = 16
_COUNT = Struct("<I")

VERSIONS = {100: (SNAPSHOT_100_DTYPES, 1), 200: (SNAPSHOT_200_DTYPES, 16)}
"""Numbering of dtypes and alignment of data, by version."""

_DESCRIPTOR = Struct("<BBHIQQ")
"""Rank, dtype, zeros, the number of the key in the pool, elements, offset; the shape follows."""


def _read_descriptor(cursor: Cursor, keys: list[str], number: int) -> tuple[int, TensorRecord]:
    """The number of the key in the pool, and what is said of the tensor."""
    at, what = cursor.offset, f"tensor descriptor {number}"
    rank, dtype, reserved, key, count, offset = cursor.unpack(_DESCRIPTOR, what)
    check_rank(cursor.reader.source.name, what, rank, at)
    shape = unpack(f"<{rank}Q", cursor.take(8 * rank, f"the shape of {what}"))
    if reserved or prod(shape) != count or key >= len(keys):
        found = f"{count} elements of shape {shape}, reserved bytes {reserved:#x}, key {key}"
        expected = f"the product of the lengths, zeros, and a key below {len(keys)}"
        raise cursor.error(what, found, expected, DAMAGED, back=cursor.offset - at)
    return key, TensorRecord(keys[key], shape, dtype, offset, at=at)


def read_snapshot(reader: HeaderReader, options: OpenOptions) -> Contents:
    """Read a snapshot of version 100 or 200."""
    cursor = Cursor(reader, 0)
    header = cursor.unpack(HEADER, "the MAG header")
    _, version, seconds, checksum, aux, metadata_count, tensor_count = header
    if aux or metadata_count:
        field = "aux and the count of metadata"
        raise cursor.error(field, (aux, metadata_count), "zeros", DAMAGED, back=12)
    keys = _read_pool(cursor)
    if tensor_count > len(keys):
        expected = f"up to {len(keys)}, as there are keys"
        raise cursor.error("the count of tensors", tensor_count, expected, DAMAGED)
    cursor.expect(b"MDT!")
    cursor.expect(b"DSC!")
    numbered = [_read_descriptor(cursor, keys, number) for number in range(tensor_count)]
    findings = check_checksum(cursor, options, checksum, _CHECKSUM_OFFSET)
    cursor.expect(b"BUF!")
    numbering, alignment = VERSIONS[version]
    stop, size = cursor.offset, reader.source.size
    start = round_up(stop, alignment)
    records = [record for _, record in sorted(numbered, key=itemgetter(0))]
    tensors = tuple(record.stored(reader, numbering, start) for record in records)
    facts = {"checksum": checksum, "seconds_since_1970": seconds}
    gaps = (Gap(stop, start, "the padding before the data"),)
    contents = Contents("snapshot", version, tensors, start, size, {}, facts, findings, gaps)
    check_alignment(reader, contents, alignment)
    return contents


def _read_pool(cursor: Cursor) -> list[str]:
    cursor.expect(POOL)
    (count,) = cursor.unpack(_COUNT, "the count of strings")
    if count > MAX_STRINGS:
        limit = f"up to {MAX_STRINGS}"
        raise cursor.error("the count of strings", count, limit, DAMAGED, back=_COUNT.size)
    offsets = unpack(f"<{count + 1}I", cursor.take(4 * (count + 1), "the offsets of strings"))
    if offsets[0] or any(stop <= start for start, stop in pairwise(offsets)):
        field, expected = "the offsets of strings", "0 and then ever larger ones"
        raise cursor.error(field, offsets[:8], expected, DAMAGED, back=4 * (count + 1))
    if offsets[-1] > MAX_POOL_BYTES:
        limit = f"up to {MAX_POOL_BYTES}"
        raise cursor.error("the bytes of all strings", offsets[-1], limit, DAMAGED)
    cursor.reader.read_field(cursor.offset, offsets[-1], "the strings")
    return [take_key(cursor, stop - start, "a tensor") for start, stop in pairwise(offsets)]
