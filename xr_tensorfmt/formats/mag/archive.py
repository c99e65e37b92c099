"""Archives of version 1 and 100, written until December 2025, and streams.

An archive has a header of 24 bytes, metadata records, tensor records, padding, and data. The
published specification defines other tensor records. No release of magnetron writes them, but
other programs may, so they are read too.

Streams were written from April to July 2025 and are only read. A stream has the magic number
``MAG&``, the header of an archive, the marker KVDT, the marker THDR, a record per tensor, the
marker TDAT, and data without gaps. Source: ``magnetron_storage.c`` before commit 5a44451 and files
written by it. It wrote non-contiguous tensors in the order of memory; like magnetron, this module
reads them as C order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from struct import Struct, unpack
from typing import ClassVar, Self

from xr_tensorfmt.core.header import Cursor, HeaderReader
from xr_tensorfmt.core.open_options import OpenOptions
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats._shared.keyed import StoredTensor
from xr_tensorfmt.formats.mag.spec import (
    ARCHIVE_ALIGNMENT,
    CORRUPT,
    EARLY_ARCHIVE_DTYPES,
    FOREIGN,
    INCOMPLETE,
    LATE_ARCHIVE_DTYPES,
    MagFile,
    Numbering,
    TensorRecord,
    check_checksum,
    check_placement,
    round_up,
    take_key,
)

VERSIONS = (1, 100)

FILLER = b"\xff"
"""Byte of the padding. The specification does not mention padding."""

MAX_RANK = 8
"""Largest rank that the file format allows."""

MAX_RANK_OF_VERSION_1 = 6
"""Largest rank in magnetron 0.1.2, and the number of lengths in a published record."""

MAX_KEY_BYTES = 65535
"""Limit on the size of a key."""

RESERVED_METADATA_BYTES = 8
"""Unused bytes that magnetron reserves per metadata record."""

_CHECKSUM_OFFSET = 8
"""Offset of the checksum. It covers the following bytes up to the end of the records."""

_KEY_LENGTH = Struct("<I")

_INT64, _FLOAT64 = 1, 2
"""Type tags of metadata."""


@dataclass(frozen=True)
class ArchiveHeader:
    """Header of an archive or a stream."""

    magic: bytes
    version: int
    checksum: int
    tensor_count: int
    metadata_count: int
    aux: int = 0

    struct: ClassVar[Struct] = Struct("<4sIIIII")

    @classmethod
    def read(cls, reader: HeaderReader) -> Self:
        """Read the header."""
        return cls(*cls.struct.unpack(reader.read_field(0, cls.struct.size, "the MAG header")))


_METADATA = Struct("<I8s")
"""Type tag and value of a metadata record. The key follows."""

_VALUES = {_INT64: Struct("<q"), _FLOAT64: Struct("<d")}


def read_metadata(cursor: Cursor, count: int) -> dict[str, int | float]:
    """Read the metadata records."""
    metadata: dict[str, int | float] = {}
    for index in range(count):
        record_name = f"metadata record {index}"
        tag, raw = cursor.unpack(_METADATA, record_name)
        if tag not in _VALUES:
            field = f"the type tag of {record_name}"
            expected = f"{_INT64} for int64 or {_FLOAT64} for float64"
            raise cursor.error(field, tag, expected, FOREIGN, back=_METADATA.size)
        key = _read_key(cursor, record_name)
        if key in metadata:
            expected = "one metadata record for each key"
            raise cursor.error("the key", f"{key!r} twice", expected, CORRUPT)
        (metadata[key],) = _VALUES[tag].unpack(raw)
    return metadata


_RECORD = Struct("<IQQ")
"""Rank and dtype in one number, length and offset. The shape and the key follow."""


def read_record(cursor: Cursor, index: int) -> TensorRecord:
    """Read a tensor record."""
    record_offset, record_name = cursor.offset, f"tensor record {index}"
    aux, length, offset = cursor.unpack(_RECORD, record_name)
    dtype, rank = aux & 0xFF, aux >> 8
    if not 1 <= rank <= MAX_RANK or dtype >= len(LATE_ARCHIVE_DTYPES):
        field, back = f"rank and dtype of {record_name}", _RECORD.size
        expected = f"a rank of 1 to {MAX_RANK} and a dtype below {len(LATE_ARCHIVE_DTYPES)}"
        raise cursor.error(field, f"{aux:#x}", expected, FOREIGN, back=back)
    shape = unpack(f"<{rank}q", cursor.take(8 * rank, f"the shape of {record_name}"))
    if min(shape) < 1:
        expected = "lengths of 1 and more"
        raise cursor.error(f"the shape of {record_name}", shape, expected, CORRUPT, back=8 * rank)
    return TensorRecord(_read_key(cursor, record_name), shape, dtype, offset, length, record_offset)


def _read_key(cursor: Cursor, record_name: str) -> str:
    (length,) = cursor.unpack(_KEY_LENGTH, f"the key length of {record_name}")
    if not 1 <= length <= MAX_KEY_BYTES:
        field, back = f"the key length of {record_name}", _KEY_LENGTH.size
        raise cursor.error(field, length, f"1 to {MAX_KEY_BYTES}", FOREIGN, back=back)
    return take_key(cursor, length, record_name)


_PUBLISHED_RECORD = Struct(f"<{MAX_RANK_OF_VERSION_1}qBQQI")
"""The record of the specification after the key: shape, dtype, length and offset of data, aux."""


def _read_published_record(cursor: Cursor, index: int) -> TensorRecord:
    """Read a tensor record of the specification, which does not define the rank.

    As in streams, aux contains the rank. If it contains 0, the rank is inferred: the shape stops
    before the first 0, or, if there is none, without its trailing 1s.
    """
    record_offset, record_name = cursor.offset, f"tensor record {index}"
    key = _read_key(cursor, record_name)
    *lengths, dtype, length, offset, aux = cursor.unpack(_PUBLISHED_RECORD, record_name)
    positive = list(takewhile(lambda length: length > 0, lengths))
    has_ones = len(positive) == len(lengths)
    while has_ones and positive and positive[-1] == 1:
        positive.pop()
    rank = (aux >> 8 & 0xFF) or len(positive)
    shape = tuple(lengths[:rank])
    if rank > len(lengths) or min(shape, default=1) < 1:
        field, back = f"the shape of {record_name}", _PUBLISHED_RECORD.size
        expected = f"up to {len(lengths)} lengths of 1 and more"
        raise cursor.error(field, f"{lengths} with aux {aux:#x}", expected, CORRUPT, back=back)
    return TensorRecord(key, shape, dtype, offset, length, record_offset)


def read_archive(reader: HeaderReader, options: OpenOptions) -> MagFile:
    """Read an archive."""
    header = ArchiveHeader.read(reader)
    cursor = Cursor(reader, ArchiveHeader.struct.size)
    if header.aux:
        hint = "magnetron cannot read the file either"
        raise cursor.error("aux", header.aux, "0", hint, back=4)
    metadata = read_metadata(cursor, header.metadata_count)
    records = _read_records(cursor, header.tensor_count)
    numbering = _find_numbering(header.version, records)
    findings = check_checksum(cursor, options, header.checksum, _CHECKSUM_OFFSET)
    stop = cursor.offset
    # An offset of 0 cannot be relative to the start of the file.
    is_relative = bool(records) and records[0].offset == 0
    base = round_up(stop, ARCHIVE_ALIGNMENT) if is_relative else 0
    tensors = tuple(record.to_stored(reader, numbering, base) for record in records)
    # magnetron reserves up to this size.
    reserved = sum(round_up(tensor.nbytes, ARCHIVE_ALIGNMENT) for tensor in tensors)
    reserved += (len(tensors) + 1) * ARCHIVE_ALIGNMENT + len(metadata) * RESERVED_METADATA_BYTES
    file = MagFile(
        "archive",
        header.version,
        tensors,
        stop,
        reader.source.size,
        metadata,
        {"checksum": header.checksum},
        findings,
        reserved_stop=stop + reserved,
    )
    check_placement(reader, file)
    return file


def _read_records(cursor: Cursor, count: int) -> list[TensorRecord]:
    """Read tensor records as magnetron writes them, or as the specification describes them.

    A published record begins with the length of the key. Below 256, the length is not a valid rank
    and dtype.
    """
    start = cursor.offset
    try:
        return [read_record(cursor, index) for index in range(count)]
    except TensorFormatError as error:
        cursor.offset = start
        try:
            return [_read_published_record(cursor, index) for index in range(count)]
        except TensorFormatError:
            raise error from None


def _find_numbering(version: int, records: Sequence[TensorRecord]) -> Numbering:
    """Return the numbering of dtypes. Version 100 has two."""
    highest = max((record.dtype for record in records), default=0)
    is_later = version == 100 and highest >= len(EARLY_ARCHIVE_DTYPES)
    return LATE_ARCHIVE_DTYPES if is_later else EARLY_ARCHIVE_DTYPES


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
