"""Tensor records of archives, as every magnetron that wrote any wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from struct import Struct, unpack

from xr_tensorfmt.core.header import Cursor, HeaderReader, check_size
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.mag.spec import (
    ELEVEN,
    FOUR,
    Contents,
    Numbering,
    Stored,
    check_checksum,
    decode_key,
    element,
    first_that_fits,
    follow_each_other,
    round_up,
)

ALIGNMENT = 64
"""Multiple of bytes at which data begin."""

MOST_RANK = 8
"""Limit of the container on the dimensions of a tensor; version 1 has up to 6."""

MOST_KEY_BYTES = 65535
"""Limit of the container on the length of a key."""

RECORD = Struct("<IQQ")
LENGTH = Struct("<I")


@dataclass(frozen=True, slots=True)
class Record:
    """One tensor record, as it is."""

    key: str
    shape: tuple[int, ...]
    dtype: int
    length: int
    offset: int
    at: int


def read_record(cursor: Cursor, number: int) -> Record:
    """Read one record."""
    at, what = cursor.offset, f"tensor record {number}"
    aux, length, offset = cursor.unpack(RECORD, what)
    dtype, rank = aux & 0xFF, aux >> 8
    if not 1 <= rank <= MOST_RANK or dtype >= len(ELEVEN):
        raise cursor.error(
            f"rank and dtype of {what}",
            f"{aux:#x}",
            f"a rank of 1 to {MOST_RANK} and a dtype below {len(ELEVEN)}",
            "the header is damaged, or the file is of another format",
            back=RECORD.size,
        )
    shape = unpack(f"<{rank}q", cursor.take(8 * rank, f"the shape of {what}"))
    if min(shape) < 1:
        raise cursor.error(
            f"the shape of {what}", shape, "lengths of 1 and more", "it is damaged", back=8 * rank
        )
    return Record(read_key(cursor, what), shape, dtype, length, offset, at)


def place(path: str, record: Record, numbering: Numbering, base: int) -> Stored:
    """What a record means, if its dtype is of a numbering."""
    if record.dtype >= len(numbering):
        raise TensorFormatError(
            path,
            f"the dtype of {record.key!r}",
            record.dtype,
            f"a number below {len(numbering)}",
            "the header is damaged",
            offset=record.at,
        )
    kind = element(numbering[record.dtype])
    check_size(path, record.shape, kind.stored.itemsize, record.at)
    count = prod(record.shape)
    nbytes = count * kind.stored.itemsize
    # Elements in all releases; padded bytes before; bytes in the published text.
    if record.length not in (count, round_up(nbytes, ALIGNMENT), nbytes):
        raise TensorFormatError(
            path,
            f"the length of {record.key!r}",
            record.length,
            f"{count} elements or {nbytes} bytes for shape {record.shape}",
            "the header is damaged",
            offset=record.at,
        )
    return Stored(record.key, record.shape, kind, base + record.offset, nbytes)


def read_key(cursor: Cursor, what: str) -> str:
    """The length of a key, and the key; the errors of `HeaderReader.bytes_at`."""
    (length,) = cursor.unpack(LENGTH, f"the key length of {what}")
    return take_key(cursor, length, what)


def take_key(cursor: Cursor, length: int, what: str) -> str:
    """A key of known length; the errors of `HeaderReader.bytes_at`."""
    if not 1 <= length <= MOST_KEY_BYTES:
        raise cursor.error(
            f"the key length of {what}",
            length,
            f"1 to {MOST_KEY_BYTES}",
            "the header is damaged, or the file is of another format",
            back=LENGTH.size,
        )
    start = cursor.offset
    return decode_key(cursor.reader.source.name, cursor.take(length, f"the key of {what}"), start)


SLOTS = 6
"""Lengths of axes that each record has room for."""

_RECORD = Struct("<6qBQQI")


def read_literal_records(cursor: Cursor, count: int) -> list[Record]:
    """Read tensor records: key, six lengths, dtype, length and offset of the data, aux."""
    return [_read_record(cursor, number) for number in range(count)]


def _read_record(cursor: Cursor, number: int) -> Record:
    at, what = cursor.offset, f"tensor record {number}"
    key = read_key(cursor, what)
    *slots, dtype, length, offset, aux = cursor.unpack(_RECORD, what)
    rank = _rank(slots, aux)
    shape = tuple(slots[:rank])
    if rank > SLOTS or min(shape, default=1) < 1:
        raise cursor.error(
            f"the shape of {what}",
            f"{slots} with aux {aux:#x}",
            f"up to {SLOTS} lengths of 1 and more",
            "the header is damaged",
            back=_RECORD.size,
        )
    return Record(key, shape, dtype, length, offset, at)


def _rank(slots: list[int], aux: int) -> int:
    """The text does not say; the older container has it in aux, and fills up with ones."""
    stored = aux >> 8 & 0xFF
    if stored:
        return stored
    unused = next((axis for axis, length in enumerate(slots) if length < 1), None)
    if unused is not None:
        return unused
    return max((axis + 1 for axis, length in enumerate(slots) if length > 1), default=0)


HEADER = Struct("<4sIIIII")
_CHECKSUM_AT, _CHECKED_FROM = 8, 12
METADATA = Struct("<IQI")
INT64, FLOAT64 = 1, 2


def read_archive(reader: HeaderReader, options: OpenOptions) -> Contents:
    """Read an archive of version 1 or 100."""
    header = reader.bytes_at(0, HEADER.size, "the MAG header")
    _, version, checksum, tensor_count, metadata_count, aux = HEADER.unpack(header)
    cursor = Cursor(reader, HEADER.size)
    if aux:
        raise cursor.error("aux", aux, "0", "no magnetron reads such a file either", back=4)
    metadata = _read_metadata(cursor, metadata_count)
    records, candidates = _read_records(cursor, tensor_count, version)

    stop = cursor.offset
    findings = check_checksum(reader, options, checksum, _CHECKSUM_AT, _CHECKED_FROM, stop)
    data_start = round_up(stop, ALIGNMENT)
    # Data begin after the header, so that an offset of 0 cannot count from the start of the file.
    base = data_start if records and records[0].offset == 0 else 0

    def reading(numbering: Numbering) -> tuple[Contents, bool]:
        tensors = tuple(place(reader.source.name, each, numbering, base) for each in records)
        fits = follow_each_other(tensors, data_start, ALIGNMENT) is not None
        facts = {"checksum": checksum}
        return Contents("archive", version, tensors, stop, metadata, facts, findings), fits

    contents, _ = first_that_fits([partial(reading, each) for each in candidates])
    return contents


def _read_metadata(cursor: Cursor, count: int) -> dict[str, int | float]:
    metadata: dict[str, int | float] = {}
    for number in range(count):
        what = f"metadata record {number}"
        tag, payload, length = cursor.unpack(METADATA, what)
        if tag not in (INT64, FLOAT64):
            raise cursor.error(
                f"the type tag of {what}",
                tag,
                f"{INT64} for int64 or {FLOAT64} for float64",
                "the header is damaged, or the file is of another format",
                back=METADATA.size,
            )
        key = take_key(cursor, length, what)
        if key in metadata:
            raise cursor.error(
                "the key", f"{key!r} twice", "one metadata record for each key", "it is damaged"
            )
        (metadata[key],) = unpack("<q" if tag == INT64 else "<d", payload.to_bytes(8, "little"))
    return metadata


def _read_records(
    cursor: Cursor, count: int, version: int
) -> tuple[list[Record], Sequence[Numbering]]:
    """The tensor records, and the numberings that their dtypes may be of."""
    start = cursor.offset
    try:
        records = [read_record(cursor, number) for number in range(count)]
    except TensorFormatError as error:
        cursor.offset = start
        try:
            return read_literal_records(cursor, count), (FOUR, ELEVEN)
        except TensorFormatError:
            raise error from None
    if version == 1:
        return records, (FOUR,)
    if any(each.dtype >= len(FOUR) for each in records):
        return records, (ELEVEN,)
    return records, (FOUR, ELEVEN)
