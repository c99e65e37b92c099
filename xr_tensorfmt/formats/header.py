"""Reading header fields out of untrusted bytes."""

from __future__ import annotations

from struct import Struct
from typing import Any

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.extents import Extents
from xr_tensorfmt.sources import Source
from xr_tensorfmt.sources.headed import Headed

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
