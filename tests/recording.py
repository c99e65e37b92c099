"""A Source that keeps a log of what it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from xr_tensorfmt.sources.base import Fill, Source


class RecordingSource(Source):
    """Bytes in memory; `requests` lists the ranges that were fetched, as (start, length)."""

    name = "<recording>"

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.size = len(content)
        self.requests: list[tuple[int, int]] = []

    @contextmanager
    def opened(self) -> Iterator[Fill]:
        def fill(start: int, buffer: memoryview) -> int:
            self.requests.append((start, len(buffer)))
            piece = self.content[start : start + len(buffer)]
            buffer[: len(piece)] = piece
            return len(piece)

        yield fill

    @property
    def fetched(self) -> int:
        return sum(length for _, length in self.requests)


class HollowSource(Source):
    """A file of any size that is all zeros but for its header, without the memory for it."""

    name = "<hollow>"

    def __init__(self, header: bytes, size: int) -> None:
        self.header = header
        self.size = size
        self.requests: list[tuple[int, int]] = []

    @contextmanager
    def opened(self) -> Iterator[Fill]:
        def fill(start: int, buffer: memoryview) -> int:
            self.requests.append((start, len(buffer)))
            buffer[:] = bytes(len(buffer))
            head = self.header[start : start + len(buffer)]
            buffer[: len(head)] = head
            return len(buffer)

        yield fill

    @property
    def fetched(self) -> int:
        return sum(length for _, length in self.requests)
