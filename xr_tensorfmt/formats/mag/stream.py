"""Streams, written from April to July 2025. They are only read.

A stream has the magic number ``MAG&``, the header of an archive, the marker KVDT, the marker THDR,
a record per tensor, the marker TDAT, and data without gaps. Source: ``magnetron_storage.c`` before
commit 5a44451 and files written by it. It wrote non-contiguous tensors in the order of memory; like
magnetron, this module reads them as C order.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from struct import Struct

from xr_tensorfmt.contract import Cursor, HeaderReader
from xr_tensorfmt.formats._shared.keyed import StoredTensor
from xr_tensorfmt.formats.mag.archive import MAX_RANK_OF_VERSION_1, ArchiveHeader
from xr_tensorfmt.formats.mag.spec import (
    CORRUPT,
    EARLY_ARCHIVE_DTYPES,
    INCOMPLETE,
    MagFile,
    TensorRecord,
    take_key,
)

MAX_STREAM_KEY_BYTES = 1024
"""Limit on the size of a key."""

_STREAM_RECORD = Struct(f"<I{MAX_RANK_OF_VERSION_1}qI64s")
"""Length of the key, shape, rank and dtype, and an unused name. The key follows."""


def read_stream(reader: HeaderReader) -> MagFile:
    """Read a stream. It has no checksum."""
    header = ArchiveHeader.read(reader)
    cursor = Cursor(reader, ArchiveHeader.struct.size)
    actual = header.version, header.metadata_count, header.aux
    if actual != (1, 0, 0):
        field = "version, count of metadata and aux"
        raise cursor.error(field, actual, "1, 0 and 0", CORRUPT, back=ArchiveHeader.struct.size - 4)
    cursor.expect(b"KVDT")
    cursor.expect(b"THDR")
    records = [_read_stream_record(cursor, index) for index in range(header.tensor_count)]
    cursor.expect(b"TDAT")
    start, size = cursor.offset, reader.source.size
    stops = list(accumulate((tensor.nbytes for tensor in records), initial=start))
    if stops[-1] != size:
        expected = f"{stops[-1] - start} bytes for all tensors"
        raise cursor.error("the data", f"{size - start} bytes", expected, INCOMPLETE)
    pairs = zip(records, stops, strict=False)
    tensors = tuple(replace(tensor, offset=offset) for tensor, offset in pairs)
    return MagFile("stream", header.version, tensors, start, size)


def _read_stream_record(cursor: Cursor, index: int) -> StoredTensor:
    """Read a record. It has no offset, because data are consecutive."""
    record_offset, record_name = cursor.offset, f"tensor record {index}"
    length, *lengths, aux, _ = cursor.unpack(_STREAM_RECORD, record_name)
    dtype, rank = aux & 0xFF, aux >> 8
    max_bytes, max_rank, dtypes = MAX_STREAM_KEY_BYTES, len(lengths), len(EARLY_ARCHIVE_DTYPES)
    if not 1 <= length <= max_bytes or rank > max_rank or dtype >= dtypes:
        actual = f"a key of {length} bytes, rank {rank} and dtype {dtype}"
        expected = f"1 to {max_bytes} bytes, a rank up to {max_rank} and a dtype below {dtypes}"
        raise cursor.error(record_name, actual, expected, CORRUPT, back=_STREAM_RECORD.size)
    if min(lengths) < 1 or max(lengths[rank:], default=1) > 1:
        field, expected = f"the shape of {record_name}", f"{rank} lengths of 1 and more, then ones"
        raise cursor.error(field, lengths, expected, CORRUPT, back=_STREAM_RECORD.size - 4)
    key = take_key(cursor, length, record_name)
    record = TensorRecord(key, tuple(lengths[:rank]), dtype, 0, record_offset=record_offset)
    return record.to_stored(cursor.reader, EARLY_ARCHIVE_DTYPES, 0)
