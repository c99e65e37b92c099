"""From what a user passes for a remote file to the file system that reaches it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.core import OpenFile, url_to_fs
from fsspec.implementations.local import LocalFileSystem

from xr_tensorfmt.sources.remote import RemoteFile, open_remote
from xr_tensorfmt.sources.storeerrors import ask_store, redacted
from xr_tensorfmt.sources.threads import MOST_AT_ONCE

_OF_ARGUMENTS = ImportError, TypeError, ValueError


@dataclass(frozen=True)
class Place:
    """Where an object is.

    Parameters
    ----------
    url : str
        What the user calls it, without secrets: `redacted`.
    fs : AbstractFileSystem
        The file system that reaches it.
    path : str
        What `fs` calls it.
    """

    url: str
    fs: AbstractFileSystem = field(repr=False)
    path: str = field(repr=False)

    @property
    def is_local(self) -> bool:
        """Whether `path` is that of a file on this machine."""
        return isinstance(self.fs, LocalFileSystem)

    def open(self) -> tuple[RemoteFile, bytes]:
        """As `open_remote`."""
        return open_remote(self.url, self.fs, self.path)


def locate(
    file: Any, storage_options: Mapping[str, Any] | None, fs: AbstractFileSystem | None
) -> Place:
    """Find the file system of a remote file; nothing is asked of it.

    Parameters
    ----------
    file : str, PathLike or OpenFile
        A URL, a chain of URLs, an open file of fsspec, or a path in `fs`.
    storage_options : mapping, optional
        How to reach a URL, in the words of its file system.
    fs : AbstractFileSystem, optional
        The file system.

    Returns
    -------
    Place

    Raises
    ------
    TypeError, ValueError
        The arguments do not fit each other, or there is no such protocol.
    ImportError
        The package is missing that reaches it.
    """
    if storage_options and not (fs is None and isinstance(file, str)):
        raise ValueError(
            "storage_options= says how to reach a URL, but the file system is given already; "
            "leave it out"
        )
    place = _place(file, storage_options or {}, fs)
    if getattr(place.fs, "asynchronous", False):
        raise ValueError(
            f"{place.url}: the file system was made with asynchronous=True and cannot be used "
            "from other threads; make it without"
        )
    return place


def _place(file: Any, storage_options: Mapping[str, Any], fs: AbstractFileSystem | None) -> Place:
    if fs is not None:
        if not isinstance(fs, AbstractFileSystem):
            raise TypeError(f"fs= is a {type(fs).__name__}, not a file system of fsspec")
        if not isinstance(file, str | os.PathLike):
            raise TypeError(f"fs= needs the path of a file in it, not a {type(file).__name__}")
        path = fs._strip_protocol(os.fspath(file))  # noqa: SLF001  # named so by fsspec's rules
        return Place(redacted(fs.unstrip_protocol(path)), fs, path)
    if isinstance(file, OpenFile):
        url = redacted(file.full_name)
        if file.compression:
            raise ValueError(
                f"{url} is compressed ({file.compression}) and cannot be read by "
                "ranges; unpack it first"
            )
        return Place(url, file.fs, file.path)
    options = _with_connections(file, storage_options)
    url = redacted(file)
    reach = partial(url_to_fs, file, **options)
    found, path = ask_store(reach, url=url, path=file, options=options, kept=_OF_ARGUMENTS)
    return Place(url, found, path)


def _with_connections(url: str, storage_options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Let s3fs open a connection for each request in flight, where it would open ten."""
    if not url.startswith(("s3://", "s3a://")):
        return storage_options
    given = storage_options.get("config_kwargs", {})
    return {**storage_options, "config_kwargs": {"max_pool_connections": MOST_AT_ONCE, **given}}
