"""Objects in stores that fsspec supports."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from itertools import islice
from typing import Any

import numpy as np
from fsspec import AbstractFileSystem, get_filesystem_class
from fsspec.core import OpenFile, url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import get_protocol

from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.core.source import Fill, Part, Source, even_parts
from xr_tensorfmt.errors import StoreUnavailableError
from xr_tensorfmt.sources import DEFAULT_TIMEOUT, checked_timeout
from xr_tensorfmt.sources.caches import is_cache, open_copy, read_copy
from xr_tensorfmt.sources.object_store import ObjectStore, adapted, is_lost, is_object_store
from xr_tensorfmt.sources.requests import Answer, Asked, Version, changed
from xr_tensorfmt.sources.retries import start_fetch, start_info
from xr_tensorfmt.sources.store_errors import ask_store, redacted
from xr_tensorfmt.sources.threads import MOST_AT_ONCE, first_done, reads_of, result_of
from xr_tensorfmt.sources.transports import configured, store_of
from xr_tensorfmt.sources.url_stores import store_of_url

HEAD_BYTES = 64 << 10
"""Bytes of an object that are fetched when it is opened."""

GAP = 256 << 10
"""Largest gap between two ranges that are fetched by one request.

With 24 requests in flight, each of 20 ms, one more takes as long as these bytes at 315 MB/s, which
is between the bandwidth of an office and that of a machine in the data centre of the store.
"""

SMALLEST_PART, LARGEST_PART = 2 << 20, 4 << 20
"""Bytes of the parts of a long range.

Measured at 20 ms a request and 100 MB/s a connection: 8 MiB take 105 ms by one request, 47 by four.
"""

PARTS = 10
"""Parts of a long range, between these limits; so two threads have nearly all requests in flight.

More of them are no faster: each costs the processor about a millisecond with s3fs.
"""


@dataclass(frozen=True)
class RemoteFile(Source):
    """An object, read by byte ranges."""

    url: str
    fs: AbstractFileSystem = field(repr=False)
    path: str = field(repr=False)
    size: int
    version: Version
    timeout: float | None = DEFAULT_TIMEOUT

    high_latency = True
    read_ahead = 1 << 20

    @property
    def name(self) -> str:
        """The URL."""
        return self.url

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """URL, options, size and version: a replaced object gets other names in dask."""
        fs = (type(self.fs).__name__, self.fs.storage_args, self.fs.storage_options)
        return (type(self).__name__, self.url, self.path, self.size, str(self.version), *fs)

    def sibling(self, path: str) -> tuple[RemoteFile, bytes]:
        """Another object in the same directory, with its first bytes; as `open_remote`."""
        return Place(self.url, self.fs, self.path, self.timeout).beside(path).open()

    @property
    def store(self) -> Hashable:
        """The file system, and over HTTP the server."""
        return store_of(self.fs, self.path)

    def run(self, read: Callable[[int], None], numbers: Iterable[int]) -> None:
        """Do up to 24 reads at the same time."""
        reads_of(self.store).run_all(read, numbers)

    def parts(self, extents: Extents) -> list[Part]:
        """Parts of 2 to 4 MiB, over gaps of up to 256 KiB."""
        return even_parts(
            extents, gap=GAP, smallest=SMALLEST_PART, largest=LARGEST_PART, most=PARTS
        )

    def read(self, extents: Extents) -> Bytes:
        """Fetch byte ranges by concurrent requests."""
        packed = np.empty(extents.nbytes, dtype=np.uint8)
        fs, parts = of_this_process(self.fs), iter(self.parts(extents))
        pending: dict[Future[Answer], tuple[Part, Bytes]] = {}
        try:
            while True:
                for part in islice(parts, MOST_AT_ONCE - len(pending)):
                    fetched = part.target(packed) if part.whole else np.empty(part.size, np.uint8)
                    pending[self._start(fs, part.start, fetched.data)] = part, fetched
                if not pending:
                    return packed
                for future in first_done(pending):
                    part, fetched = pending.pop(future)
                    future.result()
                    if not part.whole:
                        part.place(packed, fetched)
        finally:
            for future in pending:
                future.cancel()

    @contextmanager
    def opened(self) -> Iterator[Fill]:
        """Give access to the object by one request at a time."""
        fs = of_this_process(self.fs)

        def fill(start: int, buffer: memoryview) -> int:
            return result_of(self._start(fs, start, buffer)).count

        yield fill

    def _start(self, fs: AbstractFileSystem, start: int, into: memoryview) -> Future[Answer]:
        return start_fetch(fs, self._asked(start, start + len(into)), into, self.timeout)

    def _asked(self, start: int, stop: int) -> Asked:
        return Asked(self.url, self.path, start, stop, self.version, self.size)


class CachedFile(RemoteFile):
    """An object, read through a cache of fsspec."""

    def read(self, extents: Extents) -> Bytes:
        """Read byte ranges of the copy, one thread at a time."""
        packed = np.empty(extents.nbytes, dtype=np.uint8)
        fs, asked = of_this_process(self.fs), self._asked(*extents.bounds)
        read = partial(read_copy, fs, asked, self.parts(extents), packed)
        ask_store(read, url=self.url, path=self.path, options=fs, context=asked.context)
        return packed

    @contextmanager
    def opened(self) -> Iterator[Fill]:
        """Give access to the copy."""

        def fill(start: int, buffer: memoryview) -> int:
            buffer[:] = self.read(Extents.single(start, start + len(buffer))).data
            return len(buffer)

        yield fill


def open_remote(
    url: str, fs: AbstractFileSystem, path: str, timeout: float | None = DEFAULT_TIMEOUT
) -> tuple[RemoteFile, bytes]:
    """Request size and version of an object, and at the same time its first bytes."""
    fs = of_this_process(fs)
    if is_cache(fs):
        info = ask_store(open_copy, fs, url, path, url=url, path=path, options=fs)
        source = _described(CachedFile, info, url, fs, path, timeout)
        length = min(source.size, HEAD_BYTES)
        return source, source.read_bytes(0, length) if length else b""
    fs.invalidate_cache(path)  # a cached listing may be of an older version
    asked = start_info(fs, url, path, timeout)
    head = bytearray(HEAD_BYTES)
    fetched = start_fetch(fs, Asked(url, path, 0, HEAD_BYTES), memoryview(head), timeout)
    try:
        source = _described(RemoteFile, _info(asked, fetched), url, fs, path, timeout)
        if source.size == 0:
            return source, b""
        answer = result_of(fetched)
    finally:
        asked.cancel()
        fetched.cancel()
    if source.version.differs(answer.version):
        raise changed(url, answer.version, source.version)
    if answer.size is not None and answer.size != source.size:
        raise changed(url, f"{answer.size} bytes", f"{source.size} bytes")
    if answer.count != min(source.size, HEAD_BYTES):
        raise changed(url, f"{answer.count} first bytes", f"{source.size} bytes in all")
    return source, bytes(head[: answer.count])


def _info(asked: Future[dict[str, Any]], fetched: Future[Answer]) -> dict[str, Any]:
    """The info of an object; of two errors, the one that is more specific."""
    try:
        return result_of(asked)
    except FileNotFoundError:
        result_of(fetched)  # fsspec's info() turns every HTTP error into "not found"
        raise


def _described(
    kind: type[RemoteFile],
    info: Mapping[str, Any],
    url: str,
    fs: AbstractFileSystem,
    path: str,
    timeout: float | None,
) -> RemoteFile:
    """The file of an info, unless it cannot be read by byte ranges."""
    if info.get("type") == "directory":
        raise IsADirectoryError(f"{url} is a directory; pass the path of a file in it")
    if info.get("size") is None:
        raise ValueError(
            f"{url}: the store does not tell the size of the object, so it cannot be read by byte "
            "ranges; put 'simplecache::' before the URL to open a local copy"
        )
    return kind(url, fs, path, int(info["size"]), Version.of(info), timeout)


def of_this_process(fs: AbstractFileSystem) -> AbstractFileSystem:
    """The file system, or another one in a process that was forked, where its threads are gone."""
    if isinstance(fs, ObjectStore):
        return _of_fsspec(fs) if is_lost() else fs
    if getattr(fs, "_pid", os.getpid()) == os.getpid():
        return fs
    copy: AbstractFileSystem = pickle.loads(pickle.dumps(fs))  # noqa: S301  # our own bytes
    return copy


_ARGUMENT_ERRORS = ImportError, TypeError, ValueError


@dataclass(frozen=True)
class Place:
    """An object and its file system."""

    url: str
    fs: AbstractFileSystem = field(repr=False)
    path: str = field(repr=False)
    timeout: float | None = DEFAULT_TIMEOUT

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

    def open(self) -> tuple[RemoteFile, bytes]:
        """As `open_remote`; what obstore cannot open of a URL is left to fsspec."""
        store = self.fs
        if not isinstance(store, ObjectStore) or store.origin is None or is_lost():
            return open_remote(self.url, store, self.path, self.timeout)
        if store.is_refused:
            return replace(self, fs=_of_fsspec(store)).open()
        failure: OSError
        try:
            return open_remote(self.url, store, self.path, self.timeout)
        except StoreUnavailableError:
            raise
        except OSError as error:
            failure = error
        try:
            by_fsspec = replace(self, fs=_of_fsspec(store))
        except ImportError:
            raise failure from None
        opened = by_fsspec.open()
        store.is_refused = True
        return opened


def _of_fsspec(store: ObjectStore) -> AbstractFileSystem:
    """The file system of fsspec in the place of a store of obstore."""
    if store.origin is None:
        raise RuntimeError(
            "a store of obstore cannot be used in a process that was forked from one that has used "
            "obstore; start the process by 'spawn' or 'forkserver', or pass a file system of fsspec"
        )
    origin = store.origin
    return _by_fsspec(f"{origin.root}/", origin.options, origin.timeout).fs


def locate(
    file: Any, storage_options: Mapping[str, Any] | None, fs: AbstractFileSystem | None
) -> Place:
    """Find the file system of a remote file, for writing; nothing is requested."""
    if is_object_store(fs):
        raise TypeError(
            f"fs={fs!r}: files can be read from stores of obstore, but not written; pass a URL, "
            "or a file system of fsspec"
        )
    options, _ = split_timeout(file, storage_options, None)
    return _checked(file, options, fs)


def locate_for_reading(
    file: Any,
    storage_options: Mapping[str, Any] | None,
    fs: AbstractFileSystem | None,
    timeout: float | None,
) -> Place:
    """Find the file system of a remote file, whose requests are limited and repeated here."""
    options, timeout = split_timeout(file, storage_options, timeout)
    if not isinstance(file, str) or fs is not None:
        return replace(_checked(file, options, fs), timeout=timeout)
    found = store_of_url(file, options, timeout)
    return Place(file, *found, timeout) if found else _by_fsspec(file, options, timeout)


def _by_fsspec(url: str, options: Mapping[str, Any], timeout: float | None) -> Place:
    # Botocore waits as long as this package does, and repeats nothing.
    options = configured(url, options, retries={"total_max_attempts": 1}, read_timeout=timeout)
    return replace(_checked(url, options, None), timeout=timeout)


def split_timeout(
    file: Any, storage_options: Mapping[str, Any] | None, timeout: float | None
) -> tuple[Mapping[str, Any], float | None]:
    """The options of a file system, and the limit on waits, which may be among them."""
    options = dict(storage_options or {})
    given = options.get("timeout")
    if not isinstance(given, int | float) or not isinstance(file, str):
        return options, checked_timeout(timeout)
    if not _takes_timeout(file):
        del options["timeout"]
    return options, checked_timeout(given)


def _takes_timeout(url: str) -> bool:
    """Whether the file system of a URL has an option of this name."""
    with suppress(ImportError, ValueError):
        kind = get_filesystem_class(get_protocol(url))
        return "timeout" in signature(kind.__init__).parameters
    return False


def _checked(file: Any, storage_options: Mapping[str, Any], fs: AbstractFileSystem | None) -> Place:
    if storage_options and not (fs is None and isinstance(file, str)):
        raise ValueError(
            "storage_options= applies to URLs, but a file system is given already; leave it out"
        )
    place = _place(file, storage_options, fs)
    if getattr(place.fs, "asynchronous", False):
        raise ValueError(
            f"{place.url}: the file system was created with asynchronous=True, so it cannot be "
            "used from other threads; create it without"
        )
    return place


def _place(file: Any, storage_options: Mapping[str, Any], fs: AbstractFileSystem | None) -> Place:
    if fs is not None:
        if not isinstance(fs, AbstractFileSystem) and not is_object_store(fs):
            raise TypeError(
                "fs= must be a file system of fsspec or a store of obstore, "
                f"not a {type(fs).__name__}"
            )
        if not isinstance(file, str | os.PathLike):
            raise TypeError(f"fs= needs the path of a file in it, not a {type(file).__name__}")
        if is_object_store(fs):
            store, path = adapted(fs), os.fspath(file).strip("/")
            return Place(redacted(store.unstrip_protocol(path)), store, path)
        path = fs._strip_protocol(os.fspath(file))  # noqa: SLF001  # there is no public form
        return Place(redacted(fs.unstrip_protocol(path)), fs, path)
    if isinstance(file, OpenFile):
        url = redacted(file.full_name)
        if file.compression:
            raise ValueError(
                f"{url} is compressed ({file.compression}), so it cannot be read by byte "
                "ranges; decompress it first"
            )
        return Place(url, file.fs, file.path)
    # A connection for each concurrent request; the default is ten.
    options = configured(file, storage_options, max_pool_connections=MOST_AT_ONCE)
    url = redacted(file)
    find = partial(url_to_fs, file, **options)
    found, path = ask_store(find, url=url, path=file, options=options, kept=_ARGUMENT_ERRORS)
    return Place(url, found, path)
