"""An object of a store, written in order through a file of its file system."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.cached import CachingFileSystem

from xr_tensorfmt.core.extents import Bytes
from xr_tensorfmt.sources.remote import Place, of_this_process
from xr_tensorfmt.sources.store_errors import ask_store
from xr_tensorfmt.writing.atomic_file import exists_already, target_of
from xr_tensorfmt.writing.unfinished import suffix_of_unfinished

# Packages whose files become an object when they are closed, and not before.
_ATOMIC = {"s3fs", "gcsfs", "adlfs"}

MIB = 1 << 20
SMALLEST_PART = 16 * MIB
"""Bytes of a part: it is sent by one request at a time, so that short ones would mostly wait."""

MOST_PARTS = 10_000
"""Parts of an object in S3; Google's and Azure's stores take more."""

_UNCHANGED = "; what was there before is unchanged"


def part_size(size: int) -> int:
    """Bytes of the parts in which an object of some size is uploaded."""
    return max(SMALLEST_PART, -(-size // (MOST_PARTS * MIB)) * MIB)


class Upload:
    """An object that is written from its first byte to its last."""

    def __init__(self, place: Place, size: int, *, replace: bool) -> None:
        self.url = place.url
        self._fs, self._target = of_this_process(place.fs), place.path
        self._replace = replace
        self._part = part_size(size)
        self._file: Any = None
        self._is_atomic = _is_atomic(self._fs)
        directory, slash, name = place.path.rpartition("/")
        aside = f"{directory}{slash}.{name}{suffix_of_unfinished()}"
        self._path = self._target if self._is_atomic else aside

    def write(self, data: Bytes) -> None:
        """Send the bytes that follow."""
        self._ask(self._write, data)

    def finish(self) -> None:
        """Make the object appear."""
        self._ask(self._finish)

    def refuse_existing(self) -> None:
        """Refuse to write over an object."""
        self._ask(self._refuse_existing)

    def discard(self) -> None:
        """Leave nothing behind, and what was there before unchanged."""
        if self._file is None:
            return
        if self._is_atomic:
            self._file.closed = True  # or else the object would appear when the file is forgotten
            with suppress(Exception):
                self._file.discard()
            return
        with suppress(Exception):
            self._file.close()
        with suppress(Exception):
            self._fs.rm(self._path)

    def _write(self, data: Bytes) -> None:
        if self._file is None:
            mode = "xb" if self._is_atomic and not self._replace else "wb"
            try:
                self._file = self._fs.open(self._path, mode, block_size=self._part)
            except NotImplementedError:
                reason = "its file system only reads; write to a local path, or to a store"
                raise OSError(errno.EROFS, reason) from None
        for first in range(0, data.size, self._part):
            self._file.write(data[first : first + self._part].tobytes())

    def _finish(self) -> None:
        try:
            self._file.close()
        except OSError:
            if not self._replace:
                self._refuse_existing()
            raise
        if not self._is_atomic:
            if not self._replace:
                self._refuse_existing()
            self._fs.mv(self._path, self._target)
        self._fs.invalidate_cache(self._target)

    def _refuse_existing(self) -> None:
        self._fs.invalidate_cache(self._target)
        if self._fs.exists(self._target):
            raise exists_already(self.url)

    def _ask(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call the file system, and say of its errors which object they are about."""
        url, path, fs = self.url, self._target, self._fs
        ask_store(call, *arguments, url=url, path=path, options=fs, context=_UNCHANGED)


def _is_atomic(fs: AbstractFileSystem) -> bool:
    modules = {base.__module__.partition(".")[0] for base in type(fs).__mro__}
    return not modules.isdisjoint(_ATOMIC)


def check_place(place: Place, *, replace: bool) -> None:
    """Refuse what cannot be written there, or must not be replaced."""
    if place.is_local:
        target_of(place.path, replace=replace)
        return
    path = place.path.strip("/")
    if place.url.endswith("/") or not path or (_is_atomic(place.fs) and "/" not in path):
        raise IsADirectoryError(f"{place.url} is a directory; give the name of an object in it")
    is_cached = isinstance(place.fs, CachingFileSystem)
    if is_cached:
        raise ValueError(
            f"{place.url}: the cache would keep what was there before; write to the URL after '::'"
        )
    if not replace:
        Upload(place, 0, replace=False).refuse_existing()


def content_of(place: Place) -> bytes:
    """What a small object has; nothing if it is missing or cannot be read."""
    fs = of_this_process(place.fs)
    fs.invalidate_cache(place.path)
    try:
        content: bytes = fs.cat_file(place.path)
    except Exception:  # noqa: BLE001  # stores raise many, and it is then written anew
        return b""
    return content
