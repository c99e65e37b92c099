"""Where objects are: their file systems, by URLs, open files of fsspec and ``fs=``."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from fsspec import AbstractFileSystem
from fsspec.core import OpenFile, url_to_fs
from fsspec.implementations.local import LocalFileSystem

from xr_tensorfmt.sources import DEFAULT_TIMEOUT, checked_timeout
from xr_tensorfmt.sources.object_store import (
    ObjectStore,
    adapted,
    is_lost,
    is_object_store,
    store_of_url,
)
from xr_tensorfmt.sources.store_errors import ask_store, redacted
from xr_tensorfmt.sources.threads import MOST_AT_ONCE

Result = TypeVar("Result")

_ARGUMENT_ERRORS = ImportError, TypeError, ValueError


@dataclass(frozen=True)
class Place:
    """An object and its file system; a request may take `timeout` seconds without progress.

    If it is in a store of obstore that was made for its URL, fsspec can open it by the `options`.
    """

    url: str
    fs: AbstractFileSystem = field(repr=False)
    path: str = field(repr=False)
    timeout: float | None = DEFAULT_TIMEOUT
    options: Mapping[str, Any] | None = field(default=None, repr=False, hash=False)

    @property
    def is_local(self) -> bool:
        """Whether `path` is of a local file."""
        return isinstance(self.fs, LocalFileSystem)

    def beside(self, name: str) -> Place:
        """Another object in the same directory."""
        url, path = (
            f"{folder}{slash}{name}"
            for folder, slash, _ in (text.rpartition("/") for text in (self.url, self.path))
        )
        return replace(self, url=url, path=path)

    def ask(self, call: Callable[..., Result], *arguments: Any, context: str = "") -> Result:
        """Call something that asks the store; errors as of `ask_store`."""
        url, path, options = self.url, self.path, [self.fs, self.options]
        return ask_store(call, *arguments, url=url, path=path, options=options, context=context)

    def for_this_process(self) -> Place:
        """The same object, also in a process that was forked, where threads of `fs` are gone."""
        if isinstance(self.fs, ObjectStore):
            return self.by_fsspec() if is_lost() else self
        if getattr(self.fs, "_pid", os.getpid()) == os.getpid():
            return self
        return replace(self, fs=pickle.loads(pickle.dumps(self.fs)))  # noqa: S301  # our own bytes

    def by_fsspec(self) -> Place:
        """The same object, by the file system of fsspec in the place of a store of obstore."""
        if self.options is None:
            raise RuntimeError(
                "a store of obstore cannot be used in a process that was forked from one that has "
                "used obstore; start the process by 'spawn' or 'forkserver', or pass a file system "
                "of fsspec"
            )
        return _by_fsspec(self.url, self.options, self.timeout)


def locate(
    file: Any, storage_options: Mapping[str, Any] | None, fs: AbstractFileSystem | None
) -> Place:
    """Find the file system of a remote file, for writing; nothing is requested."""
    if is_object_store(fs):
        raise TypeError(
            f"fs={fs!r}: files can be read from stores of obstore, but not written; pass a URL, "
            "or a file system of fsspec"
        )
    options, _ = _split_timeout(file, storage_options, None)
    return _place(file, options, fs, None)


def locate_for_reading(
    file: Any,
    storage_options: Mapping[str, Any] | None,
    fs: AbstractFileSystem | None,
    timeout: float | None,
) -> Place:
    """Find the file system of a remote file, whose requests are limited and repeated here."""
    options, timeout = _split_timeout(file, storage_options, timeout)
    if not isinstance(file, str) or fs is not None:
        return _place(file, options, fs, timeout)
    found = store_of_url(file, options, timeout)
    if found is None:
        return _by_fsspec(file, options, timeout)
    return Place(file, *found, timeout, options)


def _split_timeout(
    file: Any, storage_options: Mapping[str, Any] | None, timeout: float | None
) -> tuple[Mapping[str, Any], float | None]:
    """The options of a file system, and the limit on waits, which may be among them."""
    options = dict(storage_options or {})
    given = options.get("timeout")
    if isinstance(given, int | float) and isinstance(file, str):
        timeout = options.pop("timeout")
    return options, checked_timeout(timeout)


def _by_fsspec(url: str, options: Mapping[str, Any], timeout: float | None) -> Place:
    # Botocore waits as long as this package does, and repeats nothing.
    config = {"retries": {"total_max_attempts": 1}, "read_timeout": timeout}
    return _place(url, options, None, timeout, config)


def _place(
    file: Any,
    options: Mapping[str, Any],
    fs: AbstractFileSystem | None,
    timeout: float | None,
    config: Mapping[str, Any] | None = None,
) -> Place:
    """The place of a file; of a URL by fsspec, with a configuration for botocore."""
    if options and not (fs is None and isinstance(file, str)):
        raise ValueError(
            "storage_options= applies to URLs, but a file system is given already; leave it out"
        )
    if fs is not None:
        url, found, path = _within(fs, file)
    elif isinstance(file, OpenFile):
        url, found, path = file.full_name, file.fs, file.path
    else:
        if file.startswith(("s3://", "s3a://")):
            # A connection for each concurrent request; the default is ten.
            config = {"max_pool_connections": MOST_AT_ONCE, **(config or {})}
            options = {**options, "config_kwargs": {**config, **options.get("config_kwargs", {})}}
        url, find = file, partial(url_to_fs, file, **options)
        found, path = ask_store(
            find, url=redacted(url), path=url, options=options, kept=_ARGUMENT_ERRORS
        )
    url = redacted(url)
    if getattr(file, "compression", None):
        raise ValueError(
            f"{url} is compressed ({file.compression}), so it cannot be read by byte "
            "ranges; decompress it first"
        )
    if getattr(found, "asynchronous", False):
        raise ValueError(
            f"{url}: the file system was created with asynchronous=True, so it cannot be "
            "used from other threads; create it without"
        )
    return Place(url, found, path, timeout)


def _within(fs: Any, file: Any) -> tuple[str, Any, str]:
    """The URL of a path in a file system that was passed, the file system, and the path."""
    if not isinstance(fs, AbstractFileSystem) and not is_object_store(fs):
        raise TypeError(
            f"fs= must be a file system of fsspec or a store of obstore, not a {type(fs).__name__}"
        )
    if not isinstance(file, str | os.PathLike):
        raise TypeError(f"fs= needs the path of a file in it, not a {type(file).__name__}")
    path = os.fspath(file)
    if is_object_store(fs):
        fs, path = adapted(fs), path.strip("/")
    else:
        path = fs._strip_protocol(path)  # noqa: SLF001  # there is no public form
    return fs.unstrip_protocol(path), fs, path
