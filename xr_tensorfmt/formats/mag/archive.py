"""Archive 1 and 100, of magnetron 0.1.2 and commits until December 2025, and streams before them.

An archive is a header of 24 bytes, metadata records, tensor records, padding, and data. The text
that was published describes another tensor record than any magnetron has written; it is read where
a file has it.

A stream, with the magic ``MAG&``, was written from April to July 2025: the same header, the marker
KVDT, the marker THDR and a record for each tensor, the marker TDAT and the data without gaps.
Source: ``magnetron_storage.c`` before commit 5a44451 and files that it wrote. Tensors that were not
contiguous lie there as their memory was, under their logical shape; like magnetron itself this
reads them in the order of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from itertools import accumulate, takewhile
from math import prod
from struct import Struct, pack, unpack
from typing import ClassVar, Self

from google_crc32c import value as crc32c

from xr_tensorfmt.contract import Cursor, HeaderReader, OpenOptions, TensorFormatError
from xr_tensorfmt.formats._shared.keyed import StoredTensor
from xr_tensorfmt.formats.mag.spec import (
    ARCHIVE_1_DTYPES,
    ARCHIVE_100_DTYPES,
    ARCHIVE_ALIGNMENT,
    DAMAGED,
    FOREIGN,
    INCOMPLETE,
    Contents,
    Numbering,
    TensorRecord,
    check_checksum,
    round_up,
    take_key,
)

VERSIONS = (1, 100)

FILLER = b"\xff"
"""What the padding consists of; the published text does not mention it."""

MAX_RANK, MAX_RANK_OF_VERSION_1 = 8, 6
"""Limits on the dimensions of a tensor: of the container, and of magnetron 0.1.2, which is also the
number of lengths in a record of fixed size."""

MAX_KEY_BYTES, MAX_STREAM_KEY_BYTES = 65535, 1024
"""Limits on the length of a key, of an archive and of a stream."""

_CHECKSUM_OFFSET = 8
"""The checksum covers what follows it, up to the end of the records."""

_KEY_LENGTH = Struct("<I")

_INT64, _FLOAT64 = 1, 2
"""Tags of metadata."""


@dataclass(frozen=True)
class Header:
    """The first bytes of an archive, and of a stream."""

    magic: bytes
    version: int
    checksum: int
    tensor_count: int
    metadata_count: int
    aux: int = 0

    struct: ClassVar[Struct] = Struct("<4sIIIII")

    @classmethod
    def read(cls, reader: HeaderReader) -> Self:
        """Read it; the errors of `HeaderReader.read_field`."""
        return cls(*cls.struct.unpack(reader.read_field(0, cls.struct.size, "the MAG header")))

    def pack_before(self, records: bytes) -> bytes:
        """The bytes of it and of records, with the checksum of what follows it."""
        content = self.struct.pack(*astuple(self)) + records
        start, stop = _CHECKSUM_OFFSET, _CHECKSUM_OFFSET + 4
        return content[:start] + pack("<I", crc32c(content[stop:])) + content[stop:]


_METADATA = Struct("<I8s")
"""Tag and value of an entry of the metadata; the key follows."""

_VALUES = {_INT64: Struct("<q"), _FLOAT64: Struct("<d")}


def read_metadata(cursor: Cursor, count: int) -> dict[str, int | float]:
    """Read all entries of the metadata."""
    metadata: dict[str, int | float] = {}
    for number in range(count):
        what = f"metadata record {number}"
        tag, raw = cursor.unpack(_METADATA, what)
        if tag not in _VALUES:
            field = f"the type tag of {what}"
            expected = f"{_INT64} for int64 or {_FLOAT64} for float64"
            raise cursor.error(field, tag, expected, FOREIGN, back=_METADATA.size)
        key = _read_key(cursor, what)
        if key in metadata:
            expected = "one metadata record for each key"
            raise cursor.error("the key", f"{key!r} twice", expected, DAMAGED)
        (metadata[key],) = _VALUES[tag].unpack(raw)
    return metadata


def pack_metadata(key: str, value: float) -> bytes:
    """The bytes of an entry of the metadata."""
    tag = _INT64 if isinstance(value, int) else _FLOAT64
    return _METADATA.pack(tag, _VALUES[tag].pack(value)) + _pack_key(key)


_RECORD = Struct("<IQQ")
"""Rank and dtype of a tensor in one number, length and offset; shape and key follow."""


def read_record(cursor: Cursor, number: int) -> TensorRecord:
    """Read the tensor record of a number."""
    at, what = cursor.offset, f"tensor record {number}"
    aux, length, offset = cursor.unpack(_RECORD, what)
    dtype, rank = aux & 0xFF, aux >> 8
    if not 1 <= rank <= MAX_RANK or dtype >= len(ARCHIVE_100_DTYPES):
        field, back = f"rank and dtype of {what}", _RECORD.size
        expected = f"a rank of 1 to {MAX_RANK} and a dtype below {len(ARCHIVE_100_DTYPES)}"
        raise cursor.error(field, f"{aux:#x}", expected, FOREIGN, back=back)
    shape = unpack(f"<{rank}q", cursor.take(8 * rank, f"the shape of {what}"))
    if min(shape) < 1:
        expected = "lengths of 1 and more"
        raise cursor.error(f"the shape of {what}", shape, expected, DAMAGED, back=8 * rank)
    return TensorRecord(_read_key(cursor, what), shape, dtype, offset, length, at)


def pack_record(record: TensorRecord) -> bytes:
    """The bytes of a tensor record, whose length is the number of elements."""
    rank = len(record.shape)
    fixed = _RECORD.pack(record.dtype | rank << 8, prod(record.shape), record.offset)
    return fixed + pack(f"<{rank}q", *record.shape) + _pack_key(record.key)


def _read_key(cursor: Cursor, what: str) -> str:
    (length,) = cursor.unpack(_KEY_LENGTH, f"the key length of {what}")
    if not 1 <= length <= MAX_KEY_BYTES:
        field, back = f"the key length of {what}", _KEY_LENGTH.size
        raise cursor.error(field, length, f"1 to {MAX_KEY_BYTES}", FOREIGN, back=back)
    return take_key(cursor, length, what)


def _pack_key(key: str) -> bytes:
    raw = key.encode()
    return _KEY_LENGTH.pack(len(raw)) + raw


_PUBLISHED_RECORD = Struct(f"<{MAX_RANK_OF_VERSION_1}qBQQI")
"""What follows the key in the published text: lengths, dtype, length and offset of data, aux."""


def _read_published_record(cursor: Cursor, number: int) -> TensorRecord:
    """Read a tensor record as the published text describes it, which does not say the rank.

    Streams have it in aux, and fill up with ones.
    """
    at, what = cursor.offset, f"tensor record {number}"
    key = _read_key(cursor, what)
    *lengths, dtype, length, offset, aux = cursor.unpack(_PUBLISHED_RECORD, what)
    used = list(takewhile(lambda length: length > 0, lengths))
    is_filled_up = len(used) == len(lengths)
    while is_filled_up and used and used[-1] == 1:
        used.pop()
    rank = aux >> 8 & 0xFF or len(used)
    shape = tuple(lengths[:rank])
    if rank > len(lengths) or min(shape, default=1) < 1:
        field, back = f"the shape of {what}", _PUBLISHED_RECORD.size
        expected = f"up to {len(lengths)} lengths of 1 and more"
        raise cursor.error(field, f"{lengths} with aux {aux:#x}", expected, DAMAGED, back=back)
    return TensorRecord(key, shape, dtype, offset, length, at)


def read_archive(reader: HeaderReader, options: OpenOptions) -> Contents:
    """Read an archive."""
    header = Header.read(reader)
    cursor = Cursor(reader, Header.struct.size)
    if header.aux:
        hint = "no magnetron reads such a file either"
        raise cursor.error("aux", header.aux, "0", hint, back=4)
    metadata = read_metadata(cursor, header.metadata_count)
    records = _read_records(cursor, header.tensor_count)
    numbering = _find_numbering(header.version, records)
    findings = check_checksum(cursor, options, header.checksum, _CHECKSUM_OFFSET)
    stop, facts = cursor.offset, {"checksum": header.checksum}
    # Data begin after the header, so that an offset of 0 cannot count from the start of the file.
    relative = bool(records) and records[0].offset == 0
    base = round_up(stop, ARCHIVE_ALIGNMENT) if relative else 0
    tensors = tuple(record.stored(reader, numbering, base) for record in records)
    contents = Contents(
        "archive", header.version, tensors, stop, reader.source.size, metadata, facts, findings
    )
    return replace(contents, reserved_stop=_reserved_stop(contents))


_RESERVED_BYTES_OF_METADATA = 8
"""Bytes that magnetron reserves for an entry of the metadata beyond those that it takes."""


def _reserved_stop(contents: Contents) -> int:
    """Return the largest size that magnetron reserves for a file, and never truncates."""
    data = sum(round_up(tensor.nbytes, ARCHIVE_ALIGNMENT) for tensor in contents.tensors)
    gaps = (len(contents.tensors) + 1) * ARCHIVE_ALIGNMENT
    metadata = len(contents.metadata) * _RESERVED_BYTES_OF_METADATA
    return contents.data_start + data + gaps + metadata


def _read_records(cursor: Cursor, count: int) -> list[TensorRecord]:
    """Read the tensor records as magnetron writes them, or else as the published text has them."""
    start = cursor.offset
    try:
        return [read_record(cursor, number) for number in range(count)]
    except TensorFormatError as error:
        cursor.offset = start
        try:
            return [_read_published_record(cursor, number) for number in range(count)]
        except TensorFormatError:
            raise error from None


def _find_numbering(version: int, records: Sequence[TensorRecord]) -> Numbering:
    """Return the numbering of dtypes. Version 100 has two, and the later one has higher numbers."""
    highest = max((record.dtype for record in records), default=0)
    is_later = version == 100 and highest >= len(ARCHIVE_1_DTYPES)
    return ARCHIVE_100_DTYPES if is_later else ARCHIVE_1_DTYPES


_STREAM_RECORD = Struct(f"<I{MAX_RANK_OF_VERSION_1}qI64s")
"""Length of the key, lengths of the axes, rank and dtype, and a name that nobody reads."""


def read_stream(reader: HeaderReader) -> Contents:
    """Read a stream; it has no checksum."""
    header = Header.read(reader)
    cursor = Cursor(reader, Header.struct.size)
    found = header.version, header.metadata_count, header.aux
    if found != (1, 0, 0):
        field = "version, count of metadata and aux"
        raise cursor.error(field, found, "1, 0 and 0", DAMAGED, back=Header.struct.size - 4)
    cursor.expect(b"KVDT")
    cursor.expect(b"THDR")
    records = [_read_stream_record(cursor, number) for number in range(header.tensor_count)]
    cursor.expect(b"TDAT")
    start, size = cursor.offset, reader.source.size
    stops = list(accumulate((tensor.nbytes for tensor in records), initial=start))
    if stops[-1] != size:
        expected = f"{stops[-1] - start} bytes for all tensors"
        raise cursor.error("the data", f"{size - start} bytes", expected, INCOMPLETE)
    pairs = zip(records, stops, strict=False)
    tensors = tuple(replace(tensor, offset=offset) for tensor, offset in pairs)
    return Contents("stream", header.version, tensors, start, size)


def _read_stream_record(cursor: Cursor, number: int) -> StoredTensor:
    """Read a record; the data of a tensor begin where those of the tensor before end."""
    at, what = cursor.offset, f"tensor record {number}"
    length, *lengths, aux, _ = cursor.unpack(_STREAM_RECORD, what)
    dtype, rank = aux & 0xFF, aux >> 8
    limits = MAX_STREAM_KEY_BYTES, MAX_RANK_OF_VERSION_1, len(ARCHIVE_1_DTYPES)
    if not 1 <= length <= limits[0] or rank > limits[1] or dtype >= limits[2]:
        found = f"a key of {length} bytes, rank {rank} and dtype {dtype}"
        expected = "1 to {} bytes, a rank up to {} and a dtype below {}".format(*limits)
        raise cursor.error(what, found, expected, DAMAGED, back=_STREAM_RECORD.size)
    if min(lengths) < 1 or max(lengths[rank:], default=1) > 1:
        field, expected = f"the shape of {what}", f"{rank} lengths of 1 and more, then ones"
        raise cursor.error(field, lengths, expected, DAMAGED, back=_STREAM_RECORD.size - 4)
    record = TensorRecord(take_key(cursor, length, what), tuple(lengths[:rank]), dtype, 0, at=at)
    return record.stored(cursor.reader, ARCHIVE_1_DTYPES, 0)
