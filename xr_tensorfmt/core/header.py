"""Reading the header of a file, and limits on its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from struct import Struct
from typing import Any

from xr_tensorfmt.core.locks import cached_property
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError

# A field more than this many bytes after the cached head is fetched alone.
_NEAR = 64 << 10
_INCOMPLETE = "the file is incomplete; fetch it again"

CORRUPT = "the file is corrupt, or a newer version wrote it; fetch it again"
"""The default hint of an error about a header."""

UNFINISHED_MARK = b"The files of this index are being replaced, or a writer failed."
"""First bytes of an object in the place of the index of several objects."""

MAX_READ_AHEAD = 1 << 20
"""Limit on the bytes that are read ahead in a long header."""


class HeaderReader:
    """Reads header fields of a file and caches the first bytes, or begins with a known `head`."""

    def __init__(self, source: Source, head: bytes = b"") -> None:
        self.source = source
        self._head = bytearray(head)
        # The bytes that were last fetched from a large offset.
        self._far = b""
        self._far_start = 0

    def read_field(self, offset: int, length: int, field: str) -> bytes:
        """Return exactly `length` bytes, or raise TensorFormatError if the file ends before."""
        stop = offset + length
        if stop > self.source.size:
            actual = f"truncated by the end of the file at byte {self.source.size}"
            raise self.error(field, actual, f"{length} bytes", _INCOMPLETE, offset)
        if not length:
            return b""
        ahead = self.source.read_ahead
        if offset > len(self._head) + min(ahead, _NEAR):
            return self._read_far(offset, stop)
        if stop > len(self._head):
            # Double the size each time: a long header needs few requests.
            ahead = min(max(len(self._head), ahead), MAX_READ_AHEAD)
            end = min(self.source.size, max(stop, len(self._head) + ahead))
            self._head += self.source.read_bytes(len(self._head), end)
        return bytes(self._head[offset:stop])

    def _read_far(self, offset: int, stop: int) -> bytes:
        """Return the bytes of a field at a large offset, and read ahead."""
        far_stop = self._far_start + len(self._far)
        if not self._far_start <= offset <= stop <= far_stop:
            ahead = min(self.source.size, offset + self.source.read_ahead)
            self._far = self.source.read_bytes(offset, max(stop, ahead))
            self._far_start = offset
        return self._far[offset - self._far_start : stop - self._far_start]

    def read_bytes(self, start: int, stop: int) -> bytes:
        """Return a range of the file, from the cache if possible. Threads may call it at once."""
        if stop <= len(self._head):
            return bytes(self._head[start:stop])
        return self.source.read_bytes(start, stop)

    @cached_property
    def head(self) -> bytes:
        """The first 64 bytes, or all bytes of a shorter file."""
        return self.read_head(64)

    def read_head(self, length: int) -> bytes:
        """Return the first bytes of the file, fewer if it is shorter."""
        return self.read_field(0, min(length, self.source.size), "the header")

    def read_unsigned(self, offset: int, length: int, field: str) -> int:
        """Return a little-endian unsigned integer. Raises like `read_field`."""
        return int.from_bytes(self.read_field(offset, length, field), "little")

    def check_complete(self, stop: int) -> None:
        """Raise TensorFormatError if the file is shorter than `stop` bytes."""
        size = self.source.size
        self.check(size >= stop, "the file", f"{size} bytes", f"{stop} bytes", _INCOMPLETE, size)

    def error(
        self,
        field: str,
        actual: object,
        expected: str,
        hint: str = CORRUPT,
        offset: int | None = None,
    ) -> TensorFormatError:
        """Create an error about a field of this file."""
        return TensorFormatError(self.source.name, field, actual, expected, hint, offset=offset)

    def check(
        self,
        holds: bool,
        field: str,
        actual: object,
        expected: str,
        hint: str = CORRUPT,
        offset: int | None = None,
    ) -> None:
        """Raise the error about a field unless a condition holds."""
        if not holds:
            raise self.error(field, actual, expected, hint, offset)


@dataclass
class Cursor:
    """Reads consecutive header fields, from `offset` on. Errors are about the last field."""

    reader: HeaderReader
    offset: int
    _last: int = field(default=0, init=False)

    def take(self, length: int, field: str) -> bytes:
        """Return the next bytes. Raises like `HeaderReader.read_field`."""
        taken = self.reader.read_field(self.offset, length, field)
        self._last, self.offset = self.offset, self.offset + length
        return taken

    def unpack(self, record: Struct, field: str) -> tuple[Any, ...]:
        """Return the next fields of fixed size. Raises like `HeaderReader.read_field`."""
        return record.unpack(self.take(record.size, field))

    def expect(self, marker: bytes) -> None:
        """Read the marker of a section, or raise TensorFormatError if the file has other bytes."""
        field = f"the marker {marker.decode()}"
        actual = self.take(len(marker), field)
        self.check(actual == marker, field, repr(actual), repr(marker))

    def error(
        self, field: str, actual: object, expected: str, hint: str = CORRUPT, *, skip: int = 0
    ) -> TensorFormatError:
        """Create an error about the last field, or the part of it after `skip` bytes."""
        return self.reader.error(field, actual, expected, hint, self._last + skip)

    def check(
        self,
        holds: bool,
        field: str,
        actual: object,
        expected: str,
        hint: str = CORRUPT,
        *,
        skip: int = 0,
    ) -> None:
        """Raise the error about the last field unless a condition holds."""
        if not holds:
            raise self.error(field, actual, expected, hint, skip=skip)


MAX_DIMENSIONS = 31
"""Limit on the rank of a tensor, because numpy broadcasts up to 32 arrays."""

MAX_TENSOR_BYTES = 1 << 62
"""Limit on the size of a tensor, because numpy counts bytes in 63 bits."""

MAX_ITEM_BYTES = 16
"""Size of the largest element in memory, a complex128."""


def check_size(
    path: str, lengths: Sequence[int], item: int, offset: int, tensor: object = "the tensor"
) -> None:
    """Raise TensorFormatError if numpy does not support a shape, which is at `offset`."""
    if len(lengths) > MAX_DIMENSIONS:
        expected = f"at most {MAX_DIMENSIONS} dimensions"
        hint = "the header is corrupt, or the file has another format"
        field = f"the rank of {tensor}"
        raise TensorFormatError(path, field, len(lengths), expected, hint, offset=offset)
    if not is_addressable(lengths, item):
        actual = f"{item} bytes for each element of shape {tuple(lengths)}"
        field, expected = f"the size of {tensor}", f"at most {MAX_TENSOR_BYTES} bytes"
        hint = "it exceeds any address space; the header is corrupt"
        raise TensorFormatError(path, field, actual, expected, hint, offset=offset)


def is_addressable(lengths: Sequence[int], item: int) -> bool:
    """Return whether numpy supports a shape."""
    # numpy also multiplies the other lengths if one is 0.
    extent = prod(lengths) or prod([max(1, length) for length in lengths])
    return extent * item <= MAX_TENSOR_BYTES
