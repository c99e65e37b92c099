"""Sources over bytes in memory and over file objects."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO
from uuid import uuid4

from xr_tensorfmt.core.locks import ForkSafeLock
from xr_tensorfmt.core.source import Fill, Source
from xr_tensorfmt.sources.store_errors import ask_store, redacted


class Memory(Source):
    """The content of a file, given as ``bytes``, ``bytearray`` or ``memoryview``."""

    def __init__(
        self, content: bytes | bytearray | memoryview, token: str = "", *, name: str = ""
    ) -> None:
        self._view = memoryview(content).cast("B")
        self.size = self._view.nbytes
        self._token = token or uuid4().hex
        self._name = name or f"<{self.size} bytes in memory>"

    def __dask_tokenize__(self) -> tuple[str, str]:
        """Name this opening: dask would hash the whole content for each variable."""
        return type(self).__name__, self._token

    @property
    def name(self) -> str:
        """The file from which the bytes were made, or a description."""
        return self._name

    @contextmanager
    def opened(self) -> Iterator[Fill]:
        """Give access to the bytes."""

        def fill(start: int, buffer: memoryview) -> int:
            piece = self._view[start : start + len(buffer)]
            buffer[: len(piece)] = piece
            return len(piece)

        yield fill

    def __reduce__(self) -> tuple[Callable[..., Memory], tuple[bytes, str]]:
        """Pickle the bytes, because a memoryview cannot be pickled."""
        return partial(Memory, name=self._name), (bytes(self._view), self._token)


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
            binary = isinstance(file.read(0), bytes)
        except (OSError, AttributeError) as error:
            raise TypeError(f"{self.name} is not seekable; pass a path or the bytes") from error
        if not binary:
            raise TypeError(f"{self.name} is opened in text mode; open the file with mode 'rb'")

    def __dask_tokenize__(self) -> tuple[str, str]:
        """Name this opening: dask would hash the whole content for each variable."""
        return type(self).__name__, self._token

    @property
    def name(self) -> str:
        """The name of the file object, or else its type."""
        name = getattr(self._file, "name", None)
        if isinstance(name, str) and name:
            return redacted(name)
        return f"<{type(self._file).__name__}>"

    @contextmanager
    def opened(self) -> Iterator[Fill]:
        """Lock the file object, whose position all readers share."""
        fs, path = self._place

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
                f"{self.name} is closed, but values are still to be read from it; keep it open, "
                "load the values before it is closed, or open it by path"
            )
        with self._lock.current:
            yield fill

    def __reduce__(self) -> tuple[Callable[..., FileObject], tuple[object, ...]]:
        """Pickle the file object, if it can be pickled, with a new lock."""
        try:
            content = pickle.dumps(self._file)
        except TypeError as error:
            raise TypeError(
                f"{self.name} is an open file, which cannot be sent to other processes; "
                "open it by path"
            ) from error
        return _unpickle, (content, *self._place, self.name, self._token)

    @property
    def _place(self) -> tuple[Any, str]:
        """File system and path of a file object of fsspec; of others None and an empty str."""
        return getattr(self._file, "fs", None), str(getattr(self._file, "path", ""))


def _unpickle(content: bytes, fs: Any, path: str, name: str, token: str) -> FileObject:
    """Unpickle a file object, which may request something of a store."""
    load = partial(pickle.loads, content)
    return FileObject(ask_store(load, url=name, path=path, options=fs) if fs else load(), token)
