"""Objects that are read through a cache of fsspec: ``simplecache``, ``filecache``, ``blockcache``.

The cache decides when its copy is stale; see ``check_files`` and ``expiry_time`` of fsspec.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.core.locks import ForkSafeLock
from xr_tensorfmt.core.source import Fill, Source
from xr_tensorfmt.sources.places import Place
from xr_tensorfmt.sources.requests import Version, changed

# A whole file is downloaded when it is first opened, and caches do not lock.
_lock = ForkSafeLock()


@dataclass(frozen=True)
class CachedFile(Source):
    """An object, read from its local copy by one thread at a time."""

    place: Place
    size: int
    version: Version

    @property
    def name(self) -> str:
        """The URL."""
        return self.place.url

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """URL, options, size and version of the copy."""
        fs = self.place.fs
        copy = self.place.url, self.place.path, self.size, str(self.version)
        return (type(self).__name__, *copy, fs.storage_args, fs.storage_options)

    def sibling(self, path: str) -> tuple[CachedFile, bytes]:
        """Open another object in the same directory."""
        return open_cached(self.place.beside(path))

    @contextmanager
    def opened(self) -> Iterator[Fill]:
        """Open the copy; it is made if there is none."""
        with _open_copy(self.place.for_this_process()) as file:
            size = file.seek(0, os.SEEK_END)
            if size != self.size:
                raise changed(self.name, f"a copy of {size} bytes", f"{self.size} bytes")

            def fill(start: int, buffer: memoryview) -> int:
                file.seek(start)
                piece = file.read(len(buffer))
                buffer[: len(piece)] = piece
                return len(piece)

            yield fill

    def read(self, extents: Extents) -> Bytes:
        """Fetch byte ranges, with the errors of a store."""
        first, last = extents.bounds
        context = f", while bytes {first} to {last - 1} were fetched"
        return self.place.ask(super().read, extents, context=context)


def open_cached(place: Place) -> tuple[CachedFile, bytes]:
    """Open an object of which a cache has a copy, or makes one."""
    return place.ask(_open_cached, place.for_this_process()), b""


def _open_cached(place: Place) -> CachedFile:
    with _open_copy(place) as file:
        size = file.seek(0, os.SEEK_END)
        # Caches of blocks know the info of the object, copies of whole files their own time.
        info = getattr(file, "details", None)
        if info is None:
            info = {"mtime": os.fstat(file.fileno()).st_mtime_ns}
        return CachedFile(place, size, Version.of(info))


@contextmanager
def _open_copy(place: Place) -> Iterator[BinaryIO]:
    fs: Any = place.fs
    with _lock.current:
        try:
            file = fs.open(place.path, "rb")
        except FileNotFoundError:
            # Caches say so of each error of the store, which this raises.
            fs.fs.info(place.path)
            raise
        with file:
            yield file
