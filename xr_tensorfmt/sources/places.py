"""Find the file systems of URLs, open files of fsspec and ``fs=``; nothing is requested."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from fsspec import AbstractFileSystem
from fsspec.core import OpenFile, url_to_fs
from fsspec.implementations.local import LocalFileSystem

from xr_tensorfmt.sources.obstore_store import ObstoreStore, adapt_obstore, is_obstore
from xr_tensorfmt.sources.retries import DEFAULT_TIMEOUT, check_timeout
from xr_tensorfmt.sources.store_errors import ask_store, redacted
from xr_tensorfmt.sources.threads import MAX_REQUESTS

Result = TypeVar("Result")

_ARGUMENT_ERRORS = ImportError, TypeError, ValueError


@dataclass(frozen=True)
class Place:
    """An object and its file system; a request may take `timeout` seconds without progress."""

    url: str
    fs: AbstractFileSystem = field(repr=False)
    path: str = field(repr=False)
    timeout: float | None = DEFAULT_TIMEOUT
    _process: int = field(default_factory=os.getpid, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the number of the process."""
        return Place, (self.url, self.fs, self.path, self.timeout)

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
        return replace(self.for_this_process(), url=url, path=path)

    def ask(self, call: Callable[..., Result], *arguments: Any, context: str = "") -> Result:
        """Call something that asks the store; errors as of `ask_store`."""
        url, path = self.url, self.path
        return ask_store(call, *arguments, url=url, path=path, options=self.fs, context=context)

    def for_this_process(self) -> Place:
        """The same object, also in a process that was forked, where threads of `fs` are gone."""
        if isinstance(self.fs, ObstoreStore):
            self.fs.check_process()
            return self
        try:
            getattr(self.fs, "loop", None)
            is_usable = self._process == os.getpid()
        except RuntimeError:  # fsspec refuses the event loop of another process
            is_usable = False
        if is_usable:
            return self
        return replace(self, fs=pickle.loads(pickle.dumps(self.fs)))  # noqa: S301  # our own bytes


def exists(fs: AbstractFileSystem, path: str) -> bool:
    """Return whether a path exists. ``fs.exists`` would return False for any failure."""
    try:
        fs.info(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def is_cache(fs: object) -> bool:
    """Return whether a file system keeps local copies of what it reads."""
    cached = sys.modules.get("fsspec.implementations.cached")
    return cached is not None and isinstance(fs, cached.CachingFileSystem)


def locate(
    file: Any, storage_options: Mapping[str, Any] | None, fs: AbstractFileSystem | None
) -> Place:
    """Find the file system of a remote file, for writing."""
    if is_obstore(fs):
        raise TypeError(
            f"fs={fs!r}: files can be read from stores of obstore, but not written; pass a URL, "
            "or a file system of fsspec"
        )
    options, _ = _split_timeout(file, storage_options, None)
    return _locate(file, options, fs, None, {})


def locate_for_reading(
    file: Any,
    storage_options: Mapping[str, Any] | None,
    fs: AbstractFileSystem | None,
    timeout: float | None,
) -> Place:
    """Find the file system of a remote file, whose requests are limited and repeated here."""
    options, timeout = _split_timeout(file, storage_options, timeout)
    # botocore waits as long as this package does, and repeats nothing.
    config = {"retries": {"total_max_attempts": 1}, "read_timeout": timeout}
    return _locate(file, options, fs, timeout, config)


def _split_timeout(
    file: Any, storage_options: Mapping[str, Any] | None, timeout: float | None
) -> tuple[dict[str, Any], float | None]:
    """Return the options of a file system, and the timeout, which may be one of them."""
    options = dict(storage_options or {})
    if isinstance(options.get("timeout"), int | float) and isinstance(file, str):
        timeout = options.pop("timeout")
    return options, check_timeout(timeout)


def _locate(
    file: Any,
    options: dict[str, Any],
    fs: AbstractFileSystem | None,
    timeout: float | None,
    config: Mapping[str, Any],
) -> Place:
    """Find the file system; `config` is for botocore, if there is a URL of S3."""
    if options and not (fs is None and isinstance(file, str)):
        raise ValueError(
            "storage_options= applies to URLs, but a file system is given already; leave it out"
        )
    if fs is not None:
        url, fs, path = _locate_within(fs, file)
    elif isinstance(file, OpenFile):
        url, fs, path = file.full_name, file.fs, file.path
    else:
        if file.startswith(("s3://", "s3a://")):
            # A connection for each concurrent request; the default is ten.
            config = {"max_pool_connections": MAX_REQUESTS, **config}
            options["config_kwargs"] = {**config, **options.get("config_kwargs", {})}
        url, find = file, partial(url_to_fs, file, **options)
        fs, path = ask_store(
            find, url=redacted(url), path=url, options=options, kept=_ARGUMENT_ERRORS
        )
    url = redacted(url)
    if getattr(file, "compression", None):
        raise ValueError(
            f"{url} is compressed ({file.compression}), so it cannot be read by byte "
            "ranges; decompress it first"
        )
    if getattr(fs, "asynchronous", False):
        raise ValueError(
            f"{url}: the file system was created with asynchronous=True, so it cannot be "
            "used from other threads; create it without"
        )
    return Place(url, fs, path, timeout)


def _locate_within(fs: Any, file: Any) -> tuple[str, Any, str]:
    """Return the URL of a path in a file system, the file system, and the path."""
    if not isinstance(fs, AbstractFileSystem) and not is_obstore(fs):
        raise TypeError(
            f"fs= must be a file system of fsspec or a store of obstore, not a {type(fs).__name__}"
        )
    if not isinstance(file, str | os.PathLike):
        raise TypeError(f"fs= needs the path of a file in it, not a {type(file).__name__}")
    path = os.fspath(file)
    if is_obstore(fs):
        fs, path = adapt_obstore(fs), path.strip("/")
    else:
        path = fs._strip_protocol(path)  # noqa: SLF001  # there is no public form
    return fs.unstrip_protocol(path), fs, path
