"""Sources of bytes: local files, objects in stores, file objects and memory.

All entries of the package tell paths from URLs, list directories and open files here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from errno import ENOENT
from glob import glob, has_magic
from io import BytesIO
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import unquote

from xr_tensorfmt.core.source import DEFAULT_TIMEOUT, InputOutput, Source
from xr_tensorfmt.errors import build_choice_error, redact, suggest_file
from xr_tensorfmt.sources.local import FileObject, LocalFile

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from xr_tensorfmt.sources.locations import Location

Options = Mapping[str, Any] | None

ARCHIVES = ("zip", "tar", "libarchive")
"""Protocols of archives, whose members precede the URL of the archive in a chain."""

_CACHES = ("simplecache", "filecache", "blockcache", "cached")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)(://|::)")
_MODES = get_args(InputOutput)


def get_path(file: Any) -> Any:
    """Return the str of a path, which may be a PathLike of bytes. Other objects are unchanged."""
    return os.fsdecode(file) if isinstance(file, os.PathLike) else file


def is_url(file: object) -> bool:
    """Return whether a str is a URL or a chain such as ``simplecache::s3://...``.

    Only protocols that fsspec knows make a URL. Any other str is a local path: ``H2O::hf.tens``.
    """
    match = _SCHEME.match(file) if isinstance(file, str) else None
    if match is None:
        return False
    if match[2] == "::":
        return match[1] in _CACHES and is_url(match.string[match.end() :])
    from fsspec.registry import known_implementations, registry  # noqa: PLC0415  # slow to import

    return match[1] in known_implementations or match[1] in registry


def check_local(path: str) -> None:
    """Raise FileNotFoundError if a path is a URL of an unknown protocol, and not in a directory."""
    # xarray makes paths absolute.
    match = re.search(r"(?:^|[/\\])([A-Za-z][A-Za-z0-9+.-]+):[/\\]+", path)
    if match and not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        reason = f"fsspec knows no protocol {match[1]!r}, and no directory has this name"
        raise FileNotFoundError(ENOENT, reason, redact(f"{match[1]}://{path[match.end() :]}"))


def split_chain(url: str) -> list[str]:
    """Return the URLs in a chain. In other URLs, ``::`` is a part of a name or address."""
    match = _SCHEME.match(url)
    if match is None or "::" not in url:
        return [url]
    if match[2] == "::":
        return [match[1], *split_chain(url[match.end() :])]
    if match[1] not in (*_CACHES, *ARCHIVES):
        return [url]
    stops = [separator.start() for separator in re.finditer("::", url)]
    stop = next((stop for stop in stops if is_url(url[stop + 2 :])), stops[-1])
    return [url[:stop], *split_chain(url[stop + 2 :])]


def is_remote(file: object) -> bool:
    """Return whether `file` is a URL or an ``fsspec.OpenFile``, without importing fsspec."""
    return is_url(file) or "fsspec.core.OpenFile" in get_class_names(file)


def get_class_names(value: object) -> Iterator[str]:
    """Yield the full names of the classes of a value, whose package may not be imported."""
    return (f"{base.__module__}.{base.__qualname__}" for base in type(value).__mro__)


def get_packages(value: object) -> set[str]:
    """Return the packages of the classes of a value."""
    return {name.partition(".")[0] for name in get_class_names(value)}


def find_source(
    file: Any,
    io: InputOutput = "auto",
    storage_options: Options = None,
    fs: AbstractFileSystem | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
    *,
    verify_unchanged: bool = True,
) -> tuple[Source, bytes]:
    """Return the Source of a path, URL, file object or bytes, and bytes that opening fetched."""
    if io not in _MODES:
        raise build_choice_error("io", io, _MODES)
    file = get_path(file)
    if fs is not None or is_remote(file):
        from xr_tensorfmt.sources import locations, stores  # noqa: PLC0415  # slow to import

        location = locations.locate_for_reading(
            file, storage_options, fs, timeout, verify_unchanged
        )
        if not location.is_local:
            return stores.open_remote(location)
        # `pathlib.Path.as_uri` encodes characters, and fsspec does not decode them.
        is_found = fs is not None or os.path.exists(location.path)
        file = location.path if is_found else unquote(location.path)
    elif storage_options:
        raise ValueError("storage_options= applies only to URLs; omit it for this file")
    if isinstance(file, str):
        check_local(file)
        try:
            return LocalFile.open_head(file, io, verify_unchanged=verify_unchanged)
        except FileNotFoundError as error:
            raise suggest_file(error) from None
    return _wrap(file), b""


def _wrap(file: Any) -> Source:
    """Return the Source of a file object or bytes."""
    if isinstance(file, Source):
        return file
    if hasattr(file, "read") and hasattr(file, "seek"):
        return FileObject(file)
    try:
        content = memoryview(file)
    except TypeError:
        name = f"an object of type {type(file).__name__}"
        expected = "a path, a URL, a binary file object or bytes"
        raise TypeError(f"cannot open {name}; pass {expected}") from None
    return FileObject(BytesIO(content), name=f"<{content.nbytes} bytes in memory>")


def list_names(directory: Any, storage_options: Options = None, fs: Any = None) -> list[str]:
    """Return the sorted names of files in a directory, without hidden ones, as ``._X`` of macOS."""
    directory = get_path(directory)
    if fs is None and not is_remote(directory):
        with os.scandir(os.path.expanduser(directory)) as entries:
            names = [entry.name for entry in entries if not entry.is_dir()]
    else:
        call, location = _find_store(directory, storage_options, fs)
        location = replace(location, path=location.path.rstrip("/") or "/")
        infos = call(location, "ls", detail=True)
        paths = [info["name"].rstrip("/") for info in infos if info["type"] != "directory"]
        names = list(map(os.path.basename, paths))
    return sorted({name for name in names if not name.startswith(".")})


def find_matches(path: Any, storage_options: Options = None, fs: Any = None) -> list[str]:
    """Return `path` if it exists or is no pattern, otherwise the visible paths that match it."""
    path = get_path(path)
    if fs is None and not is_url(path):
        local = os.path.expanduser(path)
        is_name = not has_magic(local) or os.path.lexists(local)
        return [path] if is_name else sorted(glob(local))
    call, location = _find_store(path, storage_options, fs)
    pattern = location.path.partition("?")[0] if "://" in location.path else location.path
    if not has_magic(pattern):
        return [path]
    with suppress(FileNotFoundError, NotADirectoryError):
        call(location, "info")
        return [path]
    matches = sorted(call(location, "glob"))
    visible = [match for match in matches if not os.path.basename(match).startswith(".")]
    return visible if fs is not None else [location.replace_path(match).url for match in visible]


def _find_store(
    path: Any, storage_options: Options, fs: Any
) -> tuple[Callable[..., Any], Location]:
    """Return a function that calls a method of a file system with retries, and a location."""
    from xr_tensorfmt.sources import locations, stores  # noqa: PLC0415  # slow to import

    location = locations.locate_for_reading(path, storage_options, fs, DEFAULT_TIMEOUT)
    return stores.call_fresh, location
