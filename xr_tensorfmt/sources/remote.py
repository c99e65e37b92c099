"""Objects in stores that fsspec supports."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from fsspec import AbstractFileSystem
from fsspec.core import OpenFile, url_to_fs
from fsspec.implementations.local import LocalFileSystem

from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.core.source import Fill, Part, Source, even_parts
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.sources.requests import Answer, Asked, Version, changed, fetch
from xr_tensorfmt.sources.store_errors import ask_store, redacted
from xr_tensorfmt.sources.threads import MOST_AT_ONCE, READS, REQUESTS

HEAD_BYTES = 64 << 10
"""Bytes of an object that are fetched when it is opened."""

GAP = 256 << 10
"""Largest gap between two ranges that are fetched by one request.

With 16 requests in flight, each of 20 ms, one more takes as long as these bytes at 200 MB/s, which
is between the bandwidth of an office and that of a machine in the data centre of the store.
"""

SMALLEST_PART, LARGEST_PART = 2 << 20, 4 << 20
"""Bytes of the parts of a long range.

Measured at 20 ms a request and 100 MB/s a connection: 8 MiB take 105 ms by one request, 47 by four.
"""


@dataclass(frozen=True)
class RemoteFile(Source):
    """An object, read by byte ranges."""

    url: str
    fs: AbstractFileSystem = field(repr=False)
    path: str = field(repr=False)
    size: int
    version: Version

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
        return Place(self.url, self.fs, self.path).beside(path).open()

    def run(self, read: Callable[[int], None], numbers: Iterable[int]) -> None:
        """Do up to 16 reads at the same time."""
        READS.run_all(read, numbers)

    def parts(self, extents: Extents) -> list[Part]:
        """Parts of 2 to 4 MiB, over gaps of up to 256 KiB."""
        return even_parts(
            extents, gap=GAP, smallest=SMALLEST_PART, largest=LARGEST_PART, most=MOST_AT_ONCE
        )

    def read(self, extents: Extents) -> Bytes:
        """Fetch byte ranges by concurrent requests."""
        packed = np.empty(extents.nbytes, dtype=np.uint8)
        fs = of_this_process(self.fs)

        def fetch_part(part: Part) -> None:
            data = self._fetch(fs, part.start, part.stop)
            part.place(packed, np.frombuffer(data, dtype=np.uint8))

        REQUESTS.run_all(fetch_part, self.parts(extents))
        return packed

    @contextmanager
    def opened(self) -> Iterator[Fill]:
        """Give access to the object by one request at a time."""
        fs = of_this_process(self.fs)

        def fill(start: int, buffer: memoryview) -> int:
            buffer[:] = self._fetch(fs, start, start + len(buffer))
            return len(buffer)

        yield fill

    def _fetch(self, fs: AbstractFileSystem, start: int, stop: int) -> bytes:
        data = fetch(fs, Asked(self.url, self.path, start, stop, self.version, self.size)).data
        if len(data) != stop - start:
            raise TensorFormatError(
                self.url,
                f"bytes {start} to {stop - 1}",
                f"{len(data)} bytes",
                f"{stop - start} bytes",
                "the store sent another number of bytes than were requested; "
                "the object has changed, or its server does not serve byte ranges",
                offset=start,
            )
        return data


def open_remote(url: str, fs: AbstractFileSystem, path: str) -> tuple[RemoteFile, bytes]:
    """Request size and version of an object, and at the same time its first bytes."""
    fs = of_this_process(fs)
    fs.invalidate_cache(path)  # a cached listing may be of an older version
    ask_info = partial(ask_store, fs.info, path, url=url, path=path, options=fs)
    asked = REQUESTS.submit(ask_info)
    fetched = REQUESTS.submit(fetch, fs, Asked(url, path, 0, HEAD_BYTES))
    info = _info(url, asked, fetched)
    if info["size"] == 0:
        return RemoteFile(url, fs, path, 0, Version.of(info)), b""
    answer: Answer = fetched.result()
    source = RemoteFile(url, fs, path, int(info["size"]), Version.of(info))
    if source.version.differs(answer.version):
        raise changed(url, answer.version, source.version)
    if answer.size is not None and answer.size != source.size:
        raise changed(url, f"{answer.size} bytes", f"{source.size} bytes")
    if len(answer.data) != min(source.size, HEAD_BYTES):
        raise changed(url, f"{len(answer.data)} first bytes", f"{source.size} bytes in all")
    return source, answer.data


def _info(url: str, asked: Future[dict[str, Any]], fetched: Future[Answer]) -> dict[str, Any]:
    """The info of an object; of two errors, the one that is more specific."""
    if isinstance(asked.exception(), FileNotFoundError):
        fetched.result()  # fsspec's info() turns every HTTP error into "not found"
    info = asked.result()
    if info.get("type") == "directory":
        raise IsADirectoryError(f"{url} is a directory; pass the path of a file in it")
    if info.get("size") is None:
        raise ValueError(
            f"{url}: the store does not tell the size of the object, so it cannot be read by byte "
            "ranges; put 'simplecache::' before the URL to open a local copy"
        )
    return info


def of_this_process(fs: AbstractFileSystem) -> AbstractFileSystem:
    """The file system, or a copy of it in a process that was forked, where its threads are gone."""
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

    @property
    def is_local(self) -> bool:
        """Whether `path` is of a local file."""
        return isinstance(self.fs, LocalFileSystem)

    def beside(self, name: str) -> Place:
        """Another object in the same directory."""
        url, path = (f"{text.rpartition('/')[0]}/{name}" for text in (self.url, self.path))
        return Place(url, self.fs, path)

    def open(self) -> tuple[RemoteFile, bytes]:
        """As `open_remote`."""
        return open_remote(self.url, self.fs, self.path)


def locate(
    file: Any, storage_options: Mapping[str, Any] | None, fs: AbstractFileSystem | None
) -> Place:
    """Find the file system of a remote file; nothing is requested."""
    if storage_options and not (fs is None and isinstance(file, str)):
        raise ValueError(
            "storage_options= applies to URLs, but a file system is given already; leave it out"
        )
    place = _place(file, storage_options or {}, fs)
    if getattr(place.fs, "asynchronous", False):
        raise ValueError(
            f"{place.url}: the file system was created with asynchronous=True, so it cannot be "
            "used from other threads; create it without"
        )
    return place


def _place(file: Any, storage_options: Mapping[str, Any], fs: AbstractFileSystem | None) -> Place:
    if fs is not None:
        if not isinstance(fs, AbstractFileSystem):
            raise TypeError(f"fs= must be a file system of fsspec, not a {type(fs).__name__}")
        if not isinstance(file, str | os.PathLike):
            raise TypeError(f"fs= needs the path of a file in it, not a {type(file).__name__}")
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
    options = _with_connections(file, storage_options)
    url = redacted(file)
    find = partial(url_to_fs, file, **options)
    found, path = ask_store(find, url=url, path=file, options=options, kept=_ARGUMENT_ERRORS)
    return Place(url, found, path)


def _with_connections(url: str, storage_options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Let s3fs open a connection for each concurrent request; its default is ten."""
    if not url.startswith(("s3://", "s3a://")):
        return storage_options
    given = storage_options.get("config_kwargs", {})
    return {**storage_options, "config_kwargs": {"max_pool_connections": MOST_AT_ONCE, **given}}
