"""A source whose first bytes are known, so that parsing a header does not fetch them again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from math import prod
from struct import Struct
from typing import Any

import numpy as np

from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.core.source import Fill, Source
from xr_tensorfmt.errors import TensorFormatError


class Headed(Source):
    """Another source and its first bytes; for parsing alone, as it would not travel light."""

    def __init__(self, source: Source, head: bytes) -> None:
        self._source = source
        self._head = np.frombuffer(head, dtype=np.uint8)
        self.size = source.size
        self.mapped = source.mapped
        self.distant = source.distant
        self.read_ahead = source.read_ahead

    @property
    def name(self) -> str:
        """That of the other source."""
        return self._source.name

    def opened(self) -> AbstractContextManager[Fill]:
        """As the other source."""
        return self._source.opened()

    def window(self, start: int, stop: int) -> Bytes | None:
        """As the other source."""
        return self._source.window(start, stop)

    def sibling(self, path: str) -> Source | None:
        """As the other source."""
        return self._source.sibling(path)

    def read(self, extents: Extents) -> Bytes:
        """Take the ranges out of the first bytes where all are in them."""
        if extents.bounds[1] <= self._head.size:
            return extents.gather(self._head, 0)
        return self._source.read(extents)


# What lies further behind the head is fetched without all that is between.
_NEAR = 64 << 10

MOST_READ_AHEAD = 1 << 20
"""Bytes fetched at most beyond what was asked for, as a long header is read piece by piece."""


class HeaderReader:
    """The beginning of a file, fetched as far as it is asked for.

    Parameters
    ----------
    source : Source
        The file.
    head : bytes
        Its first bytes, as far as they are known.
    """

    def __init__(self, source: Source, head: bytes = b"") -> None:
        self.source = Headed(source, head) if head else source
        self._head = bytearray(head)
        # What was fetched last from far behind the head, and where it begins.
        self._far, self._far_start = b"", 0

    def bytes_at(self, offset: int, length: int, field: str) -> bytes:
        """Bytes of one field.

        Parameters
        ----------
        offset, length : int
            Where the field is.
        field : str
            What it is, for the error.

        Returns
        -------
        bytes
            As many as were asked for.

        Raises
        ------
        TensorFormatError
            The file ends before the field does.
        """
        stop = offset + length
        if stop > self.source.size:
            raise TensorFormatError(
                self.source.name,
                field,
                f"cut off by the end of the file at byte {self.source.size}",
                f"{length} bytes",
                "the file is incomplete; fetch it again",
                offset=offset,
            )
        ahead = self.source.read_ahead
        if offset > len(self._head) + min(ahead, _NEAR):
            return self._far_bytes(offset, stop)
        if stop > len(self._head):
            # Twice as much each time, so that a long header takes few requests.
            ahead = min(max(len(self._head), ahead), MOST_READ_AHEAD)
            upto = min(self.source.size, max(stop, len(self._head) + ahead))
            self._head += self._fetch(len(self._head), upto)
        return bytes(self._head[offset:stop])

    def _far_bytes(self, offset: int, stop: int) -> bytes:
        """Bytes of a field far behind the head, whose neighbours are fetched with it."""
        last = self._far_start + len(self._far)
        if not self._far_start <= offset <= stop <= last:
            ahead = min(self.source.size, offset + self.source.read_ahead)
            self._far, self._far_start = self._fetch(offset, max(stop, ahead)), offset
        return self._far[offset - self._far_start : stop - self._far_start]

    def first_bytes(self, length: int) -> bytes:
        """The first bytes of the file, fewer where it is shorter."""
        return self.bytes_at(0, min(length, self.source.size), "the header")

    def unsigned(self, offset: int, length: int, field: str) -> int:
        """A little-endian unsigned integer; the errors of `bytes_at`."""
        return int.from_bytes(self.bytes_at(offset, length, field), "little")

    def error(
        self, field: str, found: object, expected: str, hint: str, offset: int
    ) -> TensorFormatError:
        """An error about a field of this file."""
        return TensorFormatError(self.source.name, field, found, expected, hint, offset=offset)

    def _fetch(self, start: int, stop: int) -> bytes:
        return self.source.read(Extents.single(start, stop)).tobytes() if stop > start else b""


class Cursor:
    """Fields of a header, one after the other.

    Parameters
    ----------
    reader : HeaderReader
        The file.
    offset : int
        Where the first field begins.
    """

    def __init__(self, reader: HeaderReader, offset: int) -> None:
        self.reader = reader
        self.offset = offset

    def take(self, length: int, field: str) -> bytes:
        """The next bytes; the errors of `HeaderReader.bytes_at`."""
        taken = self.reader.bytes_at(self.offset, length, field)
        self.offset += length
        return taken

    def unpack(self, record: Struct, field: str) -> tuple[Any, ...]:
        """The next fields of fixed size; the errors of `HeaderReader.bytes_at`."""
        return record.unpack(self.take(record.size, field))

    def expect(self, marker: bytes) -> None:
        """Pass over letters that begin a section.

        Parameters
        ----------
        marker : bytes
            The letters.

        Raises
        ------
        TensorFormatError
            There are others.
        """
        field = f"the marker {marker.decode()}"
        found = self.take(len(marker), field)
        if found != marker:
            raise self.error(field, repr(found), repr(marker), "it is damaged", back=len(marker))

    def error(
        self, field: str, found: object, expected: str, hint: str, *, back: int = 0
    ) -> TensorFormatError:
        """An error about the field that begins `back` bytes before the next one."""
        return self.reader.error(field, found, expected, hint, self.offset - back)


MOST_DIMENSIONS = 31
"""Limit on the rank of a tensor, as numpy broadcasts up to 32 arrays."""

MOST_BYTES = 1 << 62
"""Limit on the size of a tensor; numpy counts bytes in 63 bits."""

WIDEST = 16
"""Bytes of the largest element that any value of a file becomes: a complex number."""


def check_rank(path: str, tensor: object, rank: int, offset: int) -> None:
    """Refuse a rank that numpy cannot hold."""
    if rank > MOST_DIMENSIONS:
        raise TensorFormatError(
            path,
            f"the rank of {tensor}",
            rank,
            f"at most {MOST_DIMENSIONS} dimensions",
            "the header is damaged, or the file is of another format",
            offset=offset,
        )


def check_size(path: str, lengths: Sequence[int], item: int, offset: int) -> None:
    """Refuse a shape that no computer can address."""
    if not is_addressable(lengths, item):
        raise TensorFormatError(
            path,
            "the tensor's size",
            f"{item} bytes for each element of shape {tuple(lengths)}",
            f"at most {MOST_BYTES} bytes",
            "no computer can address it; the header is damaged",
            offset=offset,
        )


def is_addressable(lengths: Sequence[int], item: int) -> bool:
    """Whether numpy can hold a shape."""
    # A length of 0 does not excuse the others: numpy multiplies them all the same.
    extent = prod(lengths) or prod([max(1, length) for length in lengths])
    return extent * item <= MOST_BYTES
