"""Bytes in memory and file objects as sources."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO
from uuid import uuid4

from xr_tensorfmt.core.locks import ForkSafeLock
from xr_tensorfmt.core.source import Fill, Source
from xr_tensorfmt.sources.store_errors import redact


class Memory(Source):
    """The content of a file in memory."""

    def __init__(
        self, content: bytes | bytearray | memoryview, token: str = "", name: str = ""
    ) -> None:
        self._view = memoryview(content).cast("B")
        self.size = self._view.nbytes
        self._token = token or uuid4().hex
        self._name = name or f"<{self.size} bytes in memory>"

    def __dask_tokenize__(self) -> str:
        """Return a random token, because dask would hash the content for every variable."""
        return self._token

    @property
    def name(self) -> str:
        """Name of the file with these bytes, or a description."""
        return self._name

    @contextmanager
    def open(self) -> Iterator[Fill]:
        """Fill buffers from the bytes."""

        def fill(start: int, buffer: memoryview) -> int:
            piece = self._view[start : start + len(buffer)]
            buffer[: len(piece)] = piece
            return len(piece)

        yield fill

    def __reduce__(self) -> tuple[type[Memory], tuple[bytes, str, str]]:
        """Pickle the bytes, because a memoryview cannot be pickled."""
        return Memory, (bytes(self._view), self._token, self._name)


class FileObject(Source):
    """A seekable binary file object."""

    def __init__(self, file: BinaryIO, token: str = "") -> None:
        self._file = file
        self._token = token or uuid4().hex
        self._lock = ForkSafeLock()
        try:
            file.seek(0, os.SEEK_END)
            self.size = file.tell()
            file.seek(0)
            is_text = isinstance(file.read(0), str)
        except (OSError, AttributeError) as error:
            raise TypeError(f"{self.name} is not seekable; pass a path or the bytes") from error
        if is_text:
            raise TypeError(f"{self.name} is opened in text mode; open the file with mode 'rb'")

    def __dask_tokenize__(self) -> str:
        """Return a random token, because dask would hash the content for every variable."""
        return self._token

    @property
    def name(self) -> str:
        """Name of the file object, or its type."""
        name = getattr(self._file, "name", None)
        if isinstance(name, str) and name:
            return redact(name)
        return f"<{type(self._file).__name__}>"

    @contextmanager
    def open(self) -> Iterator[Fill]:
        """Lock the file object, because all readers share its position."""

        def fill(start: int, buffer: memoryview) -> int:
            self._file.seek(start)
            # obstore returns a buffer that is not bytes.
            piece = memoryview(self._file.read(len(buffer)))
            buffer[: len(piece)] = piece
            return len(piece)

        if getattr(self._file, "closed", False):
            raise ValueError(
                f"{self.name} is closed, so its values cannot be read; load the values before "
                "closing the file, or open it by path"
            )
        with self._lock.current:
            yield fill

    def __reduce__(self) -> tuple[Callable[..., FileObject], tuple[bytes, str]]:
        """Pickle the file object without the lock; raise TypeError if it cannot be pickled."""
        try:
            return _unpickle, (pickle.dumps(self._file), self._token)
        except TypeError as error:
            raise TypeError(
                f"{self.name} is an open file, so it cannot be sent to other processes; "
                "open it by path"
            ) from error


def _unpickle(content: bytes, token: str) -> FileObject:
    return FileObject(pickle.loads(content), token)  # noqa: S301  # pickled by this module
