"""Sources of bytes: local files, objects in stores, file objects and memory."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, get_args

from xr_tensorfmt.core.source import Source
from xr_tensorfmt.sources.local import LocalFile
from xr_tensorfmt.sources.memory import FileObject, Memory

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

InputOutput = Literal["auto", "mmap", "read"]
_WAYS = get_args(InputOutput)

DEFAULT_TIMEOUT = 60.0
"""Seconds that a request may take without progress."""


def is_url(file: object) -> bool:
    """Whether `file` is a URL or a chain of them (``s3://...``, ``simplecache::s3://...``)."""
    return isinstance(file, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)", file) is not None


def is_remote(file: object) -> bool:
    """Whether `file` is a URL or an ``fsspec.OpenFile``; nothing is requested or imported."""
    fsspec = sys.modules.get("fsspec.core")
    return is_url(file) or (fsspec is not None and isinstance(file, fsspec.OpenFile))


def find_source(
    file: Any,
    io: InputOutput = "auto",
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> tuple[Source, bytes]:
    """The Source for whatever a user passes, and the first bytes where opening fetches them."""
    if io not in _WAYS:
        raise ValueError(f"io={io!r} is not one of {', '.join(map(repr, _WAYS))}")
    if fs is None and not is_remote(file):
        if storage_options:
            raise ValueError("storage_options= applies to URLs only; leave it out for this file")
        return open_source(file, io), b""
    from xr_tensorfmt.sources.caches import is_cache, open_cached  # noqa: PLC0415
    from xr_tensorfmt.sources.places import locate_for_reading  # noqa: PLC0415
    from xr_tensorfmt.sources.remote import open_remote  # noqa: PLC0415

    place = locate_for_reading(file, storage_options, fs, timeout)
    if place.is_local:
        return open_source(place.path, io), b""
    return open_cached(place) if is_cache(place.fs) else open_remote(place)


def open_source(file: Any, io: InputOutput = "auto") -> Source:
    """The Source for a local path, a file object or bytes."""
    if isinstance(file, bytes | bytearray | memoryview):
        return Memory(file)
    if isinstance(file, str | os.PathLike):
        return LocalFile.at(file, mapped=io != "read")
    if hasattr(file, "read") and hasattr(file, "seek"):
        return FileObject(file)
    raise TypeError(
        f"cannot open an object of type {type(file).__name__}; pass a path, a URL, "
        "a binary file object or bytes"
    )


def checked_timeout(timeout: object) -> float | None:
    """A number of seconds, or None for no limit."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout={timeout!r} must be a number of seconds, or None for no limit")
    if not (timeout > 0 and isfinite(timeout)):
        raise ValueError(f"timeout={timeout!r} must be positive; pass None for no limit")
    return float(timeout)
