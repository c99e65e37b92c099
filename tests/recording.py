"""Sources that record their reads."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from xr_tensorfmt.core.source import Source


class LoggingSource(Source):
    """`requests` lists the ranges that were fetched, as (start, length)."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.requests: list[tuple[int, int]] = []

    @abstractmethod
    def read_field(self, start: int, length: int) -> bytes: ...

    @contextmanager
    def open(self) -> Iterator[LoggingSource]:
        yield self

    def seek(self, start: int) -> None:
        self.position = start

    def readinto(self, buffer: memoryview) -> int:
        self.requests.append((self.position, len(buffer)))
        piece = self.read_field(self.position, len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    @property
    def fetched(self) -> int:
        return sum(length for _, length in self.requests)


class RecordingSource(LoggingSource):
    """Bytes in memory that record reads."""

    name = "<recording>"

    def __init__(self, content: bytes) -> None:
        super().__init__(len(content))
        self.content = content

    def read_field(self, start: int, length: int) -> bytes:
        return self.content[start : start + length]


class HollowSource(LoggingSource):
    """A large file of zeros after a header, without using memory."""

    name = "<hollow>"

    def __init__(self, header: bytes, size: int) -> None:
        super().__init__(size)
        self.header = header

    def read_field(self, start: int, length: int) -> bytes:
        return self.header[start : start + length].ljust(length, b"\0")
