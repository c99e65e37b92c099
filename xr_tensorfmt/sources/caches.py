"""Objects that are read through a cache of fsspec: ``simplecache``, ``filecache``, ``blockcache``.

A cache does not know which version of an object it has a copy of. So the version is noted in a file
beside the copy, and compared when the object is opened and when it is read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

from fsspec import AbstractFileSystem

from xr_tensorfmt.core.locks import RenewedLock
from xr_tensorfmt.errors import SourceChangedError
from xr_tensorfmt.sources.requests import Asked, Version, changed
from xr_tensorfmt.sources.store_errors import ask_store

# A whole file is downloaded at its first read, which one thread at a time must do.
_one_download = RenewedLock()


def is_cache(fs: AbstractFileSystem) -> bool:
    """Whether a file system keeps local copies of what it reads, by blocks or as whole files."""
    cached = sys.modules.get("fsspec.implementations.cached")
    return cached is not None and isinstance(fs, cached.CachingFileSystem)


def info_of(fs: Any, path: str) -> Mapping[str, Any]:
    """The info of an object in the store, also where the file system is a cache."""
    while is_cache(fs):
        # Two of the three would list the directory, which servers of HTTP cannot do.
        fs = fs.fs
    fs.invalidate_cache(path)  # a cached listing may be of an older version
    info: Mapping[str, Any] = fs.info(path)
    return info


def open_copy(fs: Any, url: str, path: str) -> dict[str, Any]:
    """The info of an object with the size of its copy; one of an older version is made anew."""
    return ask_store(_open_copy, fs, url, path, url=url, path=path, options=fs)


def fetch_from_cache(
    fs: Any, asked: Asked, ranges: Sequence[tuple[int, int]], take: Callable[[int, bytes], None]
) -> None:
    """Read ranges of a copy, which is made where there is none; `take` gets number and bytes."""
    context = f", while bytes {asked.start} to {asked.stop - 1} were fetched"
    url, path = asked.url, asked.path
    ask_store(_fetch, fs, asked, ranges, take, url=url, path=path, options=fs, context=context)


def _open_copy(fs: Any, url: str, path: str) -> dict[str, Any]:
    try:
        info = dict(info_of(fs, path))
    except FileNotFoundError:
        _raise_own(fs, path)
        raise
    if info.get("type") == "directory":
        return info
    version, wanted = Version.of(info), None if fs.compression else info.get("size")
    with _one_download.current:
        known, size = _noted(fs, path), _size_of(fs, path)
        if (known is not None and known.differs(version)) or wanted not in (None, size):
            _drop(fs, url, path)
            size = _size_of(fs, path)
        _note(fs, url, path, version)
    if wanted not in (None, size):
        raise changed(url, f"a copy of {size} bytes", f"{wanted} bytes")
    return {**info, "size": size}


def _fetch(
    fs: Any, asked: Asked, ranges: Sequence[tuple[int, int]], take: Callable[[int, bytes], None]
) -> None:
    with _one_download.current:
        known = _noted(fs, asked.path)
        if known is not None and asked.version.differs(known):
            raise changed(asked.url, known, asked.version)
        with _opened(fs, asked.path) as file:
            size = file.seek(0, os.SEEK_END)
            if size != asked.size:
                raise changed(asked.url, f"a copy of {size} bytes", f"{asked.size} bytes")
            for number, (start, stop) in enumerate(ranges):
                file.seek(start)
                take(number, file.read(stop - start))
        # Blocks may have been fetched just now, and a copy without a note as well.
        if known is None or not _is_whole(fs):
            _note(fs, asked.url, asked.path, asked.version)


def _note(fs: Any, url: str, path: str, expected: Version) -> None:
    """Note the version of a copy; an error where it is not the expected one any more."""
    found = Version.of(info_of(fs, path))
    if expected.differs(found):
        with suppress(SourceChangedError):
            _drop(fs, url, path)
        raise changed(url, found, expected)
    with (
        suppress(OSError),  # a cache that cannot be written to
        open(_name_of_note(fs, path), "w", encoding="utf-8") as file,
    ):
        file.write(f"{expected.etag}\n{expected.modified}")


def _noted(fs: Any, path: str) -> Version | None:
    """The version that was noted beside a copy."""
    try:
        with open(_name_of_note(fs, path), encoding="utf-8") as file:
            etag, _, modified = file.read().partition("\n")
    except OSError:
        return None
    return Version(etag, modified)


def _name_of_note(fs: Any, path: str) -> str:
    return os.path.join(fs.storage[-1], f"{fs.hash_name(path)}.version")


def _is_whole(fs: Any) -> bool:
    """Whether a cache has whole files, and no blocks."""
    return bool(getattr(type(fs), "local_file", False))


def _opened(fs: Any, path: str) -> BinaryIO:
    try:
        file: BinaryIO = fs.open(path, "rb")
    except FileNotFoundError:
        _raise_own(fs, path)
        raise
    return file


def _raise_own(fs: Any, path: str) -> None:
    """Raise the error of the store, of which fsspec often makes one that says "not found"."""
    while is_cache(fs):
        fs = fs.fs
    fs.cat_file(path, start=0, end=1)


def _size_of(fs: Any, path: str) -> int:
    with _opened(fs, path) as file:
        return file.seek(0, os.SEEK_END)


def _drop(fs: Any, url: str, path: str) -> None:
    """Remove a copy."""
    if not _is_whole(fs):
        # fsspec would take the new blocks for ones that are there already.
        raise SourceChangedError(
            url,
            "the cache",
            "blocks of another version",
            "blocks of the object",
            f"it has been replaced since they were fetched; delete the cache, {fs.storage[-1]}",
        )
    with _opened(fs, path) as file:
        name = file.name
    fs.pop_from_cache(path)
    for each in (name, _name_of_note(fs, path)):
        with suppress(FileNotFoundError):
            os.unlink(each)
