"""Stream: the container before MAG!, with the magic ``MAG&``, of April to July 2025.

A header of 24 bytes as in the archive, the marker KVDT, the marker THDR and a record for each
tensor, the marker TDAT and the data without gaps. Source: ``magnetron_storage.c`` before commit
5a44451 and files that it wrote. Tensors that were not contiguous lie there as their memory was,
under their logical shape; like magnetron itself this reads them in the order of rows.
"""

from __future__ import annotations

from dataclasses import replace
from struct import Struct

from xr_tensorfmt.core.header import Cursor, HeaderReader
from xr_tensorfmt.formats.mag.archive import MOST_RANK_OF_VERSION_1 as MOST_RANK
from xr_tensorfmt.formats.mag.archive import Header
from xr_tensorfmt.formats.mag.spec import (
    ARCHIVE_1_DTYPES,
    DAMAGED,
    Contents,
    StoredTensor,
    data_bytes,
    decode_key,
    element,
)

SECTION, RECORDS = b"KVDT", b"THDR"
"""The markers behind the header."""

MOST_KEY_BYTES = 1024
"""Limit of the container on the length of a key."""


_RECORD = Struct(f"<I{MOST_RANK}qI64s")
"""Length of the key, lengths of the axes, rank and dtype, and a name that nobody reads."""


def read_stream(reader: HeaderReader) -> Contents:
    """Read a stream; it has no checksum."""
    header = Header.read(reader)
    cursor = Cursor(reader, Header.struct.size)
    found = header.version, header.metadata_count, header.aux
    if found != (1, 0, 0):
        field = "version, count of metadata and aux"
        raise cursor.error(field, found, "1, 0 and 0", DAMAGED, back=Header.struct.size - 4)
    cursor.expect(SECTION)
    cursor.expect(RECORDS)
    records = [_read_record(cursor, number) for number in range(header.tensor_count)]
    cursor.expect(b"TDAT")
    start = position = cursor.offset
    tensors = []
    for each in records:
        tensors.append(replace(each, offset=position))
        position += each.nbytes
    size = reader.source.size
    if position != size:
        raise cursor.error(
            "the data",
            f"{size - start} bytes",
            f"{position - start} bytes for all tensors",
            "the file is incomplete or its header damaged; fetch it again",
        )
    return Contents("stream", header.version, tuple(tensors), start, size)


def _read_record(cursor: Cursor, number: int) -> StoredTensor:
    """Read a record; the data of a tensor begin where those of the tensor before end."""
    path, what, at = cursor.reader.source.name, f"tensor record {number}", cursor.offset
    length, *lengths, aux, _ = cursor.unpack(_RECORD, what)
    dtype, rank = aux & 0xFF, aux >> 8
    if not 1 <= length <= MOST_KEY_BYTES or rank > MOST_RANK or dtype >= len(ARCHIVE_1_DTYPES):
        found = f"a key of {length} bytes, rank {rank} and dtype {dtype}"
        limits = f"a rank up to {MOST_RANK} and a dtype below {len(ARCHIVE_1_DTYPES)}"
        expected = f"1 to {MOST_KEY_BYTES} bytes, {limits}"
        raise cursor.error(what, found, expected, DAMAGED, back=_RECORD.size)
    shape, unused = tuple(lengths[:rank]), lengths[rank:]
    if min(lengths) < 1 or max(unused, default=1) > 1:
        expected = f"{rank} lengths of 1 and more, then ones"
        field, back = f"the shape of {what}", _RECORD.size - 4
        raise cursor.error(field, lengths, expected, DAMAGED, back=back)
    stored = element(ARCHIVE_1_DTYPES[dtype])
    nbytes = data_bytes(path, shape, stored, at)
    start = cursor.offset
    key = decode_key(path, cursor.take(length, f"the key of {what}"), start)
    return StoredTensor(key, shape, stored, 0, nbytes)
