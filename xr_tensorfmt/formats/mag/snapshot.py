"""Snapshots of version 100 and 200, written by magnetron 0.1.5 to 0.1.9. They are only read.

A snapshot has a header of 32 bytes and sections with markers: a pool of strings (SRP!), empty
metadata (MDT!), tensor descriptors (DSC!), and data (BUF!). Source: ``mag_snapshot.c`` of
magnetron, and files written by these releases.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from operator import itemgetter
from struct import Struct, unpack

from xr_tensorfmt.core.findings import Gap
from xr_tensorfmt.core.header import Cursor, HeaderReader, check_rank
from xr_tensorfmt.core.open_options import OpenOptions
from xr_tensorfmt.formats.mag.spec import (
    CORRUPT,
    SNAPSHOT_100_DTYPES,
    SNAPSHOT_200_DTYPES,
    MagFile,
    TensorRecord,
    check_alignment,
    check_checksum,
    round_up,
    take_key,
)

POOL = b"SRP!"

MAX_STRINGS, MAX_POOL_BYTES = 65534, 128 << 20
"""Limits of the container on the number and the bytes of strings in the pool."""

HEADER = Struct("<4sIQIIII")
"""Magic, version, seconds since 1970, checksum, aux, counts of metadata and of tensors."""

_CHECKSUM_OFFSET = 16
_COUNT = Struct("<I")

VERSIONS = {100: (SNAPSHOT_100_DTYPES, 1), 200: (SNAPSHOT_200_DTYPES, 16)}
"""Numbering of dtypes and alignment of data, by version."""

_DESCRIPTOR = Struct("<BBHIQQ")
"""Rank, dtype, zeros, index of the key in the pool, elements, offset. The shape follows."""


def _read_descriptor(cursor: Cursor, keys: list[str], index: int) -> tuple[int, TensorRecord]:
    """Read a tensor descriptor. Return the index of the key in the pool, and the record."""
    start, record_name = cursor.offset, f"tensor descriptor {index}"
    rank, dtype, reserved, key, count, offset = cursor.unpack(_DESCRIPTOR, record_name)
    check_rank(cursor.reader.source.name, record_name, rank, start)
    shape = unpack(f"<{rank}Q", cursor.take(8 * rank, f"the shape of {record_name}"))
    if reserved or prod(shape) != count or key >= len(keys):
        actual = f"{count} elements of shape {shape}, reserved bytes {reserved:#x}, key {key}"
        expected = f"the product of the lengths, zeros, and a key below {len(keys)}"
        raise cursor.error(record_name, actual, expected, CORRUPT, back=cursor.offset - start)
    return key, TensorRecord(keys[key], shape, dtype, offset, record_offset=start)


def read_snapshot(reader: HeaderReader, options: OpenOptions) -> MagFile:
    """Read a snapshot of version 100 or 200."""
    cursor = Cursor(reader, 0)
    header = cursor.unpack(HEADER, "the MAG header")
    _, version, seconds, checksum, aux, metadata_count, tensor_count = header
    if aux or metadata_count:
        field = "aux and the count of metadata"
        raise cursor.error(field, (aux, metadata_count), "zeros", CORRUPT, back=12)
    keys = _read_pool(cursor)
    if tensor_count > len(keys):
        expected = f"at most the {len(keys)} keys"
        raise cursor.error("the count of tensors", tensor_count, expected, CORRUPT)
    cursor.expect(b"MDT!")
    cursor.expect(b"DSC!")
    numbered = [_read_descriptor(cursor, keys, index) for index in range(tensor_count)]
    findings = check_checksum(cursor, options, checksum, _CHECKSUM_OFFSET)
    cursor.expect(b"BUF!")
    numbering, alignment = VERSIONS[version]
    stop, size = cursor.offset, reader.source.size
    start = round_up(stop, alignment)
    records = [record for _, record in sorted(numbered, key=itemgetter(0))]
    tensors = tuple(record.to_stored(reader, numbering, start) for record in records)
    file_info = {"checksum": checksum, "seconds_since_1970": seconds}
    gaps = (Gap(stop, start, "the padding before the data"),)
    file = MagFile("snapshot", version, tensors, start, size, {}, file_info, findings, gaps)
    check_alignment(reader, file, alignment)
    return file


def _read_pool(cursor: Cursor) -> list[str]:
    cursor.expect(POOL)
    (count,) = cursor.unpack(_COUNT, "the count of strings")
    if count > MAX_STRINGS:
        limit = f"up to {MAX_STRINGS}"
        raise cursor.error("the count of strings", count, limit, CORRUPT, back=_COUNT.size)
    offsets = unpack(f"<{count + 1}I", cursor.take(4 * (count + 1), "the offsets of strings"))
    if offsets[0] or any(stop <= start for start, stop in pairwise(offsets)):
        field, expected = "the offsets of strings", "0 and then ascending offsets"
        raise cursor.error(field, offsets[:8], expected, CORRUPT, back=4 * (count + 1))
    if offsets[-1] > MAX_POOL_BYTES:
        limit = f"up to {MAX_POOL_BYTES}"
        raise cursor.error("the bytes of all strings", offsets[-1], limit, CORRUPT)
    cursor.reader.read_field(cursor.offset, offsets[-1], "the strings")
    return [take_key(cursor, stop - start, "a tensor") for start, stop in pairwise(offsets)]
