"""Bytes that are in memory already."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Protocol

from xr_tensorfmt.core.source import Fill, Source
from xr_tensorfmt.sources.store_errors import ask_store, redacted


class Memory(Source):
    """The content of a file, given as ``bytes``, ``bytearray`` or ``memoryview``."""

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


class BinaryReader(Protocol):
    """What a file object must offer."""

    def read(self, size: int, /) -> bytes:
        """Read at most `size` bytes from the current position on."""

    def seek(self, offset: int, whence: int = 0, /) -> object:
        """Move the position."""

    def tell(self) -> int:
        """Return the position."""


class FileObject(Source):
    """A seekable binary file object."""

    def __init__(self, file: BinaryReader) -> None:
        self._file = file
        self._lock = Lock()
        try:
            file.seek(0, os.SEEK_END)
            self.size = file.tell()
            file.seek(0)
            binary = isinstance(file.read(0), bytes)
        except (OSError, AttributeError) as error:
            raise TypeError(f"{self.name} cannot seek; pass a path or the bytes") from error
        if not binary:
            raise TypeError(f"{self.name} gives text; open the file with mode 'rb'")

    @property
    def name(self) -> str:
        """The file's own name where it has one."""
        name = getattr(self._file, "name", None)
        if isinstance(name, str) and name:
            return redacted(name)
        return f"<{type(self._file).__name__}>"

    @contextmanager
    def opened(self) -> Iterator[Fill]:
        """Hold the file object for a batch of requests."""
        fs = getattr(self._file, "fs", None)  # of those that fsspec has opened
        path = str(getattr(self._file, "path", ""))

        def fill(start: int, buffer: memoryview) -> int:
            self._file.seek(start)
            read = partial(self._file.read, len(buffer))
            context = f", while bytes {start} to {start + len(buffer) - 1} were read"
            piece = (
                ask_store(read, url=self.name, path=path, options=fs, context=context)
                if fs is not None
                else read()
            )
            buffer[: len(piece)] = piece
            return len(piece)

        if getattr(self._file, "closed", False):
            raise ValueError(
                f"{self.name} is closed, but lazy values are still in it; keep it open, load "
                "before closing it, or open it by path"
            )
        with self._lock:
            yield fill

    def __reduce__(self) -> tuple[type[FileObject], tuple[BinaryReader]]:
        """Travel as the file object itself, if that can; the lock is made anew."""
        try:
            self._file.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        except TypeError as error:
            raise TypeError(
                f"{self.name} is an open file, which cannot travel to other processes; "
                "open it by path"
            ) from error
        return FileObject, (self._file,)
