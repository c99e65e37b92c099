"""Reading the header of a file, and limits on what a header may claim."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from struct import Struct
from typing import Any, cast

import numpy as np

from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError


class _SourceWithHead:
    """A Source whose first bytes are not fetched again; for parsing a header alone."""

    def __init__(self, source: Source, head: bytes) -> None:
        self._source = source
        self._head = np.frombuffer(head, dtype=np.uint8)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, extents: Extents) -> Bytes:
        """Copy the ranges from the first bytes if these contain them."""
        if extents.bounds[1] <= self._head.size:
            return extents.gather(self._head, 0)
        return self._source.read(extents)

    def read_bytes(self, start: int, stop: int) -> bytes:
        """As `Source.read_bytes`."""
        return self.read(Extents.single(start, stop)).tobytes()


# Fields further behind the first bytes are fetched without what is between.
_NEAR = 64 << 10

MAX_READ_AHEAD = 1 << 20
"""Limit on the bytes that are read ahead in a long header."""


class HeaderReader:
    """Reads fields of the header of a file, fetching as much as is needed.

    Parameters
    ----------
    source : Source
        The file.
    head : bytes
        Its first bytes, if they are already known.
    """

    def __init__(self, source: Source, head: bytes = b"") -> None:
        self.source = cast("Source", _SourceWithHead(source, head)) if head else source
        self._head = bytearray(head)
        # The last bytes that were fetched from far behind the first ones, and their offset.
        self._far, self._far_start = b"", 0

    def bytes_at(self, offset: int, length: int, field: str) -> bytes:
        """Bytes of one field.

        Parameters
        ----------
        offset, length : int
            Position and length of the field.
        field : str
            Name of the field, for the error.

        Returns
        -------
        bytes
            Exactly `length` bytes.

        Raises
        ------
        TensorFormatError
            The file ends within the field.
        """
        stop = offset + length
        if stop > self.source.size:
            found = f"cut off by the end of the file at byte {self.source.size}"
            hint = "the file is incomplete; fetch it again"
            raise self.error(field, found, f"{length} bytes", hint, offset)
        ahead = self.source.read_ahead
        if offset > len(self._head) + min(ahead, _NEAR):
            return self._far_bytes(offset, stop)
        if stop > len(self._head):
            # Twice as much each time, so that a long header needs few requests.
            ahead = min(max(len(self._head), ahead), MAX_READ_AHEAD)
            upto = min(self.source.size, max(stop, len(self._head) + ahead))
            self._head += self._fetch(len(self._head), upto)
        return bytes(self._head[offset:stop])

    def _far_bytes(self, offset: int, stop: int) -> bytes:
        """Bytes of a field far behind the first bytes; the following bytes are read ahead."""
        last = self._far_start + len(self._far)
        if not self._far_start <= offset <= stop <= last:
            ahead = min(self.source.size, offset + self.source.read_ahead)
            self._far, self._far_start = self._fetch(offset, max(stop, ahead)), offset
        return self._far[offset - self._far_start : stop - self._far_start]

    @property
    def head(self) -> bytes:
        """The first 64 bytes, or all where the file is shorter; they tell most formats apart."""
        return self.first_bytes(64)

    def first_bytes(self, length: int) -> bytes:
        """The first bytes of the file, fewer where it is shorter."""
        return self.bytes_at(0, min(length, self.source.size), "the header")

    def unsigned(self, offset: int, length: int, field: str) -> int:
        """A little-endian unsigned integer; the errors of `bytes_at`."""
        return int.from_bytes(self.bytes_at(offset, length, field), "little")

    def check_complete(self, stop: int) -> None:
        """Refuse a file that is shorter than its header says.

        Parameters
        ----------
        stop : int
            The byte after the last one that the header speaks of.

        Raises
        ------
        TensorFormatError
            The file ends before it.
        """
        size = self.source.size
        if size < stop:
            hint = "the file is incomplete; fetch it again"
            raise self.error("the file", f"{size} bytes", f"{stop} bytes", hint, size)

    def error(
        self, field: str, found: object, expected: str, hint: str, offset: int
    ) -> TensorFormatError:
        """An error about a field of this file."""
        return TensorFormatError(self.source.name, field, found, expected, hint, offset=offset)

    def _fetch(self, start: int, stop: int) -> bytes:
        return self.source.read_bytes(start, stop) if stop > start else b""


class Cursor:
    """Reads fields of a header in sequence.

    Parameters
    ----------
    reader : HeaderReader
        The file.
    offset : int
        Position of the first field.
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
        """Read the marker of a section.

        Parameters
        ----------
        marker : bytes
            The expected bytes.

        Raises
        ------
        TensorFormatError
            The file has other bytes there.
        """
        field = f"the marker {marker.decode()}"
        found = self.take(len(marker), field)
        if found != marker:
            raise self.error(
                field, repr(found), repr(marker), "the file is damaged", back=len(marker)
            )

    def error(
        self, field: str, found: object, expected: str, hint: str, *, back: int = 0
    ) -> TensorFormatError:
        """An error about the field that begins `back` bytes before the next one."""
        return self.reader.error(field, found, expected, hint, self.offset - back)


MAX_FILLED_ELEMENTS = 1 << 40
"""Limit on the elements of an array most of which a file does not store."""

MAX_DIMENSIONS = 31
"""Limit on the rank of a tensor, as numpy broadcasts at most 32 arrays."""

MAX_FILE_BYTES = 1 << 62
"""Limit on the size of a tensor; numpy counts bytes in 63 bits."""

WIDEST_ITEM = 16
"""Bytes of the largest element in memory, a complex128."""


def check_rank(path: str, tensor: object, rank: int, offset: int) -> None:
    """Refuse a rank that numpy cannot hold."""
    if rank > MAX_DIMENSIONS:
        field, expected = f"the rank of {tensor}", f"at most {MAX_DIMENSIONS} dimensions"
        hint = "the header is damaged, or the file is of another format"
        raise TensorFormatError(path, field, rank, expected, hint, offset=offset)


def check_size(path: str, lengths: Sequence[int], item: int, offset: int) -> None:
    """Refuse a shape that is larger than any address space."""
    if not is_addressable(lengths, item):
        found = f"{item} bytes for each element of shape {tuple(lengths)}"
        field, expected = "the tensor's size", f"at most {MAX_FILE_BYTES} bytes"
        hint = "it is larger than any address space; the header is damaged"
        raise TensorFormatError(path, field, found, expected, hint, offset=offset)


def is_addressable(lengths: Sequence[int], item: int) -> bool:
    """Whether numpy can hold a shape."""
    # A length of 0 does not excuse the others: numpy multiplies them all the same.
    extent = prod(lengths) or prod([max(1, length) for length in lengths])
    return extent * item <= MAX_FILE_BYTES
