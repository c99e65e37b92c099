"""Stream: the container before MAG!, with the magic ``MAG&``, of April to July 2025.

A header of 24 bytes as in the archive, the marker KVDT, the marker THDR and a record for each
tensor, the marker TDAT and the data without gaps. Source: ``magnetron_storage.c`` before commit
5a44451 and files that it wrote. Tensors that were not contiguous lie there as their memory was,
under their logical shape; like magnetron itself this reads them in the order of rows.
"""

from __future__ import annotations

from math import prod
from struct import Struct

from xr_tensorfmt.core.header import Cursor, HeaderReader, check_size
from xr_tensorfmt.formats.mag.archive import HEADER
from xr_tensorfmt.formats.mag.spec import FOUR, Contents, Stored, decode_key, element

MOST_KEY_BYTES = 1024
"""Limit of the container on the length of a key."""

SLOTS = 6
"""Lengths of axes that each record has room for; those that are not used are 1."""

_RECORD = Struct("<I6qI64s")


def read_stream(reader: HeaderReader) -> Contents:
    """Read a stream; it has no checksum."""
    header = reader.bytes_at(0, HEADER.size, "the MAG header")
    _, version, _, tensor_count, metadata_count, aux = HEADER.unpack(header)
    cursor = Cursor(reader, HEADER.size)
    if (version, metadata_count, aux) != (1, 0, 0):
        raise cursor.error(
            "version, count of metadata and aux",
            (version, metadata_count, aux),
            "1, 0 and 0",
            "the header is damaged",
            back=HEADER.size - 4,
        )
    cursor.expect(b"KVDT")
    cursor.expect(b"THDR")
    records = [_read_record(cursor, number) for number in range(tensor_count)]
    cursor.expect(b"TDAT")
    start = position = cursor.offset
    tensors = []
    for key, shape, name in records:
        kind = element(name)
        nbytes = prod(shape) * kind.stored.itemsize
        tensors.append(Stored(key, shape, kind, position, nbytes))
        position += nbytes
    if position != reader.source.size:
        raise cursor.error(
            "the data",
            f"{reader.source.size - start} bytes",
            f"{position - start} bytes for all tensors",
            "the file is incomplete or its header damaged; fetch it again",
        )
    return Contents("stream", version, tuple(tensors), start)


def _read_record(cursor: Cursor, number: int) -> tuple[str, tuple[int, ...], str]:
    what, at = f"tensor record {number}", cursor.offset
    length, *slots, aux, _ = cursor.unpack(_RECORD, what)
    dtype, rank = aux & 0xFF, aux >> 8
    if not 1 <= length <= MOST_KEY_BYTES or rank > SLOTS or dtype >= len(FOUR):
        raise cursor.error(
            what,
            f"a key of {length} bytes, rank {rank} and dtype {dtype}",
            f"1 to {MOST_KEY_BYTES} bytes, a rank up to {SLOTS} and a dtype below {len(FOUR)}",
            "the header is damaged",
            back=_RECORD.size,
        )
    shape, rest = tuple(slots[:rank]), slots[rank:]
    if min(slots) < 1 or max(rest, default=1) > 1:
        raise cursor.error(
            f"the shape of {what}",
            slots,
            f"{rank} lengths of 1 and more, then ones",
            "the header is damaged",
            back=_RECORD.size - 4,
        )
    check_size(cursor.reader.source.name, shape, element(FOUR[dtype]).stored.itemsize, at)
    start = cursor.offset
    key = cursor.take(length, f"the key of {what}")
    return decode_key(cursor.reader.source.name, key, start), shape, FOUR[dtype]
