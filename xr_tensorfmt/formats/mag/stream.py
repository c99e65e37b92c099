"""Stream: the container before MAG!, with the magic ``MAG&``, of April to July 2025.

A header of 24 bytes as in the archive, the marker KVDT, the marker THDR and a record for each
tensor, the marker TDAT and the data without gaps. Source: ``magnetron_storage.c`` before commit
5a44451 and files that it wrote. Tensors that were not contiguous lie there as their memory was,
under their logical shape; like magnetron itself this reads them in the order of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from struct import Struct
from typing import ClassVar, Self

from xr_tensorfmt.core.header import Cursor, HeaderReader, check_size
from xr_tensorfmt.formats.mag.archive import MOST_RANK_OF_VERSION_1 as MOST_RANK
from xr_tensorfmt.formats.mag.archive import Header
from xr_tensorfmt.formats.mag.spec import (
    ARCHIVE_1_DTYPES,
    Contents,
    StoredTensor,
    decode_key,
    element,
)

SECTION, RECORDS = b"KVDT", b"THDR"
"""The markers behind the header."""

MOST_KEY_BYTES = 1024
"""Limit of the container on the length of a key."""


@dataclass(frozen=True, slots=True)
class Record:
    """One tensor; lengths of axes that it does not have are 1 in the file."""

    key: str
    shape: tuple[int, ...]
    dtype: str

    _struct: ClassVar[Struct] = Struct(f"<I{MOST_RANK}qI64s")

    @classmethod
    def read(cls, cursor: Cursor, number: int) -> Self:
        """Read the record of a number."""
        path, what, at = cursor.reader.source.name, f"tensor record {number}", cursor.offset
        length, *lengths, aux, _ = cursor.unpack(cls._struct, what)
        dtype, rank = aux & 0xFF, aux >> 8
        if not 1 <= length <= MOST_KEY_BYTES or rank > MOST_RANK or dtype >= len(ARCHIVE_1_DTYPES):
            raise cursor.error(
                what,
                f"a key of {length} bytes, rank {rank} and dtype {dtype}",
                f"1 to {MOST_KEY_BYTES} bytes, a rank up to {MOST_RANK} and a dtype below "
                f"{len(ARCHIVE_1_DTYPES)}",
                "the header is damaged",
                back=cls._struct.size,
            )
        shape, unused = tuple(lengths[:rank]), lengths[rank:]
        if min(lengths) < 1 or max(unused, default=1) > 1:
            raise cursor.error(
                f"the shape of {what}",
                lengths,
                f"{rank} lengths of 1 and more, then ones",
                "the header is damaged",
                back=cls._struct.size - 4,
            )
        check_size(path, shape, element(ARCHIVE_1_DTYPES[dtype]).stored.itemsize, at)
        start = cursor.offset
        key = decode_key(path, cursor.take(length, f"the key of {what}"), start)
        return cls(key, shape, ARCHIVE_1_DTYPES[dtype])


def read_stream(reader: HeaderReader) -> Contents:
    """Read a stream; it has no checksum."""
    header = Header.read(reader)
    cursor = Cursor(reader, Header.struct.size)
    if (header.version, header.metadata_count, header.aux) != (1, 0, 0):
        raise cursor.error(
            "version, count of metadata and aux",
            (header.version, header.metadata_count, header.aux),
            "1, 0 and 0",
            "the header is damaged",
            back=Header.struct.size - 4,
        )
    cursor.expect(SECTION)
    cursor.expect(RECORDS)
    records = [Record.read(cursor, number) for number in range(header.tensor_count)]
    cursor.expect(b"TDAT")
    start = position = cursor.offset
    tensors = []
    for record in records:
        stored = element(record.dtype)
        nbytes = prod(record.shape) * stored.stored.itemsize
        tensors.append(StoredTensor(record.key, record.shape, stored, position, nbytes))
        position += nbytes
    size = reader.source.size
    if position != size:
        raise cursor.error(
            "the data",
            f"{size - start} bytes",
            f"{position - start} bytes for all tensors",
            "the file is incomplete or its header damaged; fetch it again",
        )
    return Contents("stream", header.version, tuple(tensors), start, size)
