"""Sources of bytes: local files, objects in stores, file objects and memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import unquote

from xr_tensorfmt.core.open_options import DEFAULT_TIMEOUT
from xr_tensorfmt.core.source import InputOutput, Source
from xr_tensorfmt.errors import build_choice_error
from xr_tensorfmt.sources.local import LocalFile
from xr_tensorfmt.sources.memory import FileObject, Memory

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)")
_MODES = get_args(InputOutput)


def is_url(file: object) -> bool:
    """Return whether `file` is a URL or a chain of URLs (``simplecache::s3://...``)."""
    return isinstance(file, str) and _SCHEME.match(file) is not None


def is_remote(file: object) -> bool:
    """Return whether `file` is a URL or an ``fsspec.OpenFile``, without importing fsspec."""
    if isinstance(file, str):
        return is_url(file)
    return "fsspec.core.OpenFile" in get_class_names(file)


def get_class_names(value: object) -> Iterator[str]:
    """Yield the full names of the classes of a value, whose package may not be imported."""
    return (f"{base.__module__}.{base.__qualname__}" for base in type(value).__mro__)


def find_source(
    file: Any,
    io: InputOutput = "auto",
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> tuple[Source, bytes]:
    """Return the Source of a file, and its first bytes if opening it fetches them."""
    if io not in _MODES:
        raise build_choice_error("io", io, _MODES)
    if fs is None and not is_remote(file):
        if storage_options:
            raise ValueError("storage_options= applies only to URLs; omit it for this file")
        return open_source(file, io)
    from xr_tensorfmt.sources.locations import locate_for_reading  # noqa: PLC0415
    from xr_tensorfmt.sources.remote import open_remote  # noqa: PLC0415

    location = locate_for_reading(file, storage_options, fs, timeout)
    if location.is_local:
        path = location.path
        # `pathlib.Path.as_uri` encodes characters, and fsspec does not decode them.
        return open_source(path if os.path.exists(path) else unquote(path), io)
    return open_remote(location)


def open_source(file: Any, io: InputOutput = "auto") -> tuple[Source, bytes]:
    """Return the Source of a local path, a file object or bytes, and the first bytes of a path."""
    if isinstance(file, str | os.PathLike):
        return LocalFile.open_head(file, io)
    if isinstance(file, Source):
        return file, b""
    if isinstance(file, bytes | bytearray | memoryview):
        return Memory(file), b""
    if hasattr(file, "read") and hasattr(file, "seek"):
        return FileObject(file), b""
    with suppress(TypeError):
        return Memory(memoryview(file)), b""  # such as Bytes of obstore
    raise TypeError(
        f"cannot open an object of type {type(file).__name__}; pass a path, a URL, "
        "a binary file object or bytes"
    )
