"""Bytes in memory and file objects as sources."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import BinaryIO
from uuid import uuid4

from xr_tensorfmt.core.locks import ForkSafeLock, share_lock
from xr_tensorfmt.core.source import Fill, Source
from xr_tensorfmt.errors import redact


class FileObject(Source):
    """A seekable binary file object. Its position is the same after each read."""

    def __init__(self, file: BinaryIO, token: str = "", name: str = "") -> None:
        self._token = token or uuid4().hex
        name = name or getattr(file, "name", "")
        self._name = redact(name) if name and isinstance(name, str) else f"<{type(file).__name__}>"
        self._set_file(file)
        try:
            with self._use() as file:
                file.seek(0, os.SEEK_END)
                self.size = file.tell()
                is_text = isinstance(file.read(0), str)
        except (OSError, AttributeError) as error:
            raise TypeError(f"{self.name} is not seekable; pass a path or the bytes") from error
        if is_text:
            raise TypeError(f"{self.name} is opened in text mode; open the file with mode 'rb'")

    def _set_file(self, file: BinaryIO) -> tuple[BinaryIO, ForkSafeLock, int]:
        self._shared = file, share_lock(("file object", id(file))), os.getpid()
        return self._shared

    def __dask_tokenize__(self) -> str:
        """Return a random token, because dask would hash the content for every variable."""
        return self._token

    @property
    def name(self) -> str:
        """Name of the file object, or its type."""
        return self._name

    @contextmanager
    def _use(self) -> Iterator[BinaryIO]:
        """Lock the file object, because all sources of it share its position."""
        file, lock, process = self._shared
        if process != os.getpid() and not isinstance(file, BytesIO):
            # The file object of a forked process shares the position with its parent.
            file, lock, _ = self._set_file(pickle.loads(self._pickle()))  # noqa: S301  # own bytes
        if getattr(file, "closed", False):
            raise ValueError(
                f"{self.name} is closed, so its values cannot be read; load the values before "
                "closing the file, or open it by path"
            )
        with lock.current:
            position = file.tell()
            try:
                yield file
            finally:
                file.seek(position)

    @contextmanager
    def open(self) -> Iterator[Fill]:
        """Lock the file object for a batch of reads."""
        with self._use() as file:

            def fill(start: int, buffer: memoryview) -> int:
                file.seek(start)
                if hasattr(file, "readinto"):
                    return int(file.readinto(buffer))
                # obstore returns a buffer that is not bytes.
                piece = memoryview(file.read(len(buffer)))
                buffer[: len(piece)] = piece
                return len(piece)

            yield fill

    def _pickle(self) -> bytes:
        try:
            return pickle.dumps(self._shared[0])
        except TypeError as error:
            raise TypeError(
                f"{self.name} is an open file, so it cannot be sent to other processes; "
                "open it by path"
            ) from error

    def __reduce__(self) -> tuple[Callable[..., FileObject], tuple[bytes, str, str]]:
        """Pickle the file object without the lock; raise TypeError if it cannot be pickled."""
        return _unpickle, (self._pickle(), self._token, self._name)


def _unpickle(content: bytes, token: str, name: str) -> FileObject:
    return FileObject(pickle.loads(content), token, name)  # noqa: S301  # pickled by this module


class Memory(FileObject):
    """The content of a file in memory."""

    def __init__(self, content: bytes | bytearray | memoryview, name: str = "") -> None:
        name = name or f"<{memoryview(content).nbytes} bytes in memory>"
        super().__init__(BytesIO(content), name=name)
