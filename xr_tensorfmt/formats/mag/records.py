"""Tensor records of archives, as every magnetron that wrote any wrote them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from struct import Struct, unpack

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.header import Cursor
from xr_tensorfmt.formats.limits import check_size
from xr_tensorfmt.formats.mag.contents import Stored
from xr_tensorfmt.formats.mag.dtypes import ELEVEN, Numbering, element
from xr_tensorfmt.formats.mag.names import decode_key
from xr_tensorfmt.formats.mag.placement import round_up

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
    """One tensor record, as it is.

    Parameters
    ----------
    key : str
        Its key.
    shape : tuple of int
        Lengths of the axes.
    dtype : int
        Number of the dtype.
    length : int
        Number of elements, or bytes of the data, as the record says.
    offset : int
        Of the data, as the record says.
    at : int
        Where the record begins.
    """

    key: str
    shape: tuple[int, ...]
    dtype: int
    length: int
    offset: int
    at: int


def read_record(cursor: Cursor, number: int) -> Record:
    """Read one record.

    Parameters
    ----------
    cursor : Cursor
        Where the record begins; afterwards, where it ends.
    number : int
        Which it is, for messages.

    Returns
    -------
    Record

    Raises
    ------
    TensorFormatError
        It is cut off, or not a record of this kind.
    """
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
    """What a record means, if its dtype is of a numbering.

    Parameters
    ----------
    path : str
        The file.
    record : Record
        The record.
    numbering : tuple of str
        The dtypes by number.
    base : int
        Byte of the file that offsets count from.

    Returns
    -------
    Stored

    Raises
    ------
    TensorFormatError
        The numbering has no such dtype, or the length of the data is another one.
    """
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
