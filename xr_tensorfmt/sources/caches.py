"""Objects that are read through a cache of fsspec: ``simplecache``, ``filecache``, ``blockcache``.

A cache does not know which version of an object it has a copy of. So each version of an object has
a directory of its own in that of the cache.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from typing import Any, BinaryIO

import numpy as np
from fsspec import AbstractFileSystem

from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.core.locks import RenewedLock
from xr_tensorfmt.core.source import Part
from xr_tensorfmt.sources.places import Place
from xr_tensorfmt.sources.remote import HEAD_BYTES, RemoteFile
from xr_tensorfmt.sources.requests import Asked, Version, changed

# A whole file is downloaded at its first read, which one thread at a time must do.
_one_download = RenewedLock()

_CHECKED = "xr-tensorfmt-checked"
"""An empty file beside a copy of a whole object that was of the right version when it was made."""


def is_cache(fs: AbstractFileSystem) -> bool:
    """Whether a file system keeps local copies of what it reads, by blocks or as whole files."""
    cached = sys.modules.get("fsspec.implementations.cached")
    return cached is not None and isinstance(fs, cached.CachingFileSystem)


class CachedFile(RemoteFile):
    """An object, read through a cache of fsspec."""

    def sibling(self, path: str) -> tuple[CachedFile, bytes]:
        """Another object in the same directory, as `open_cached`."""
        return open_cached(self.place.beside(path))

    def read(self, extents: Extents) -> Bytes:
        """Read byte ranges of the copy, one thread at a time."""
        packed = np.empty(extents.nbytes, dtype=np.uint8)
        asked = self.asked(self.place.for_this_process(), *extents.bounds)
        self.place.ask(_read, asked, self.parts(extents), packed, context=asked.context)
        return packed


def open_cached(place: Place) -> tuple[CachedFile, bytes]:
    """Open an object of which a cache has a copy, or gets one; with its first bytes."""
    place = place.for_this_process()
    file = CachedFile.described(place, place.ask(_info_of_copy, place))
    length = min(file.size, HEAD_BYTES)
    return file, file.read_bytes(0, length) if length else b""


def _info_of_copy(place: Place) -> dict[str, Any]:
    """The info of an object, with the size of its copy."""
    fs: Any = place.fs
    info = _info(fs, place.path)
    if info.get("type") == "directory":
        return info
    version, wanted = Version.of(info), None if fs.compression else info.get("size")
    for _ in range(2):
        with _opened(place, version) as file:
            size = file.seek(0, os.SEEK_END)
        if wanted in (None, size):
            return {**info, "size": size}
        shutil.rmtree(_directory(place, version))  # the copy was cut off
    raise changed(place.url, f"a copy of {size} bytes", f"{wanted} bytes")


def _read(asked: Asked, parts: Iterable[Part], packed: Bytes) -> None:
    """Read parts of a copy, which is made where there is none."""
    with _opened(asked.place, asked.version) as file:
        size = file.seek(0, os.SEEK_END)
        if size != asked.size:
            raise changed(asked.place.url, f"a copy of {size} bytes", f"{asked.size} bytes")
        for part in parts:
            file.seek(part.start)
            data = file.read(part.size)
            replace(asked, start=part.start, stop=part.stop).check_count(len(data))
            part.place(packed, np.frombuffer(data, dtype=np.uint8))


@contextmanager
def _opened(place: Place, version: Version) -> Iterator[BinaryIO]:
    """Open the copy of a version; an error where what was fetched for it is of another one."""
    fs: Any = place.fs
    directory = _directory(place, version)
    checked = os.path.join(directory, _CHECKED)
    options = {**fs.storage_options, "cache_storage": directory, "expiry_time": None}
    of_version = type(fs)(*fs.storage_args[:1], **options, skip_instance_cache=True)
    with _one_download.current:
        is_checked = os.path.exists(checked)
        with _own_errors(fs, place.path), of_version.open(place.path, "rb") as file:
            yield file
        if is_checked:
            return
        found = Version.of(_info(fs, place.path))
        if version.differs(found):
            shutil.rmtree(directory, ignore_errors=True)
            raise changed(place.url, found, version)
        if getattr(type(fs), "local_file", False):  # and not blocks, of which more may be fetched
            with suppress(OSError), open(checked, "wb"):
                pass


def _directory(place: Place, version: Version) -> str:
    fs: Any = place.fs
    name = f"{place.path}\n{version.etag}\n{version.modified}"
    return os.path.join(fs.storage[-1], sha256(name.encode()).hexdigest())


def _info(fs: Any, path: str) -> dict[str, Any]:
    """The info of an object in the store."""
    store = _store_of(fs)
    store.invalidate_cache(path)  # a cached listing may be of an older version
    with _own_errors(fs, path):
        return dict(store.info(path))


@contextmanager
def _own_errors(fs: Any, path: str) -> Iterator[None]:
    """Raise the error of the store, of which fsspec often makes one that says "not found"."""
    try:
        yield
    except FileNotFoundError:
        _store_of(fs).cat_file(path, start=0, end=1)
        raise


def _store_of(fs: Any) -> Any:
    """The file system below all caches, two of which would list directories for an info."""
    while is_cache(fs):
        fs = fs.fs
    return fs
