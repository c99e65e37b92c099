"""Bytes that are in memory already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from xr_tensorfmt.sources.base import Fill, Source


class Memory(Source):
    """The content of a file, given as ``bytes``, ``bytearray`` or ``memoryview``.

    Parameters
    ----------
    content : bytes-like
        The whole file. Arrays read from it are copies; the content is never written to.
    """

    def __init__(self, content: bytes | bytearray | memoryview) -> None:
        self._view = memoryview(content).cast("B")
        self.size = self._view.nbytes

    @property
    def name(self) -> str:
        """A word for what has no path."""
        return f"<{self.size} bytes in memory>"

    @contextmanager
    def opened(self) -> Iterator[Fill]:
        """Give access to the bytes."""

        def fill(start: int, buffer: memoryview) -> int:
            piece = self._view[start : start + len(buffer)]
            buffer[: len(piece)] = piece
            return len(piece)

        yield fill

    def __reduce__(self) -> tuple[type[Memory], tuple[bytes]]:
        """A memoryview does not pickle; its bytes do."""
        return Memory, (bytes(self._view),)
