"""Objects in stores, read by byte ranges."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

import numpy as np

from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.core.source import Fill, Part, Source, even_parts
from xr_tensorfmt.errors import StoreUnavailableError
from xr_tensorfmt.sources.object_store import ObjectStore
from xr_tensorfmt.sources.places import Place
from xr_tensorfmt.sources.requests import Answer, Asked, Version, changed
from xr_tensorfmt.sources.retries import start_fetch, start_info
from xr_tensorfmt.sources.threads import MOST_AT_ONCE, first_done, result_of, threads_of
from xr_tensorfmt.sources.transports import store_of

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

    place: Place
    size: int
    version: Version

    high_latency = True
    read_ahead = 1 << 20

    @classmethod
    def described(cls, place: Place, info: Mapping[str, Any]) -> Self:
        """The file of an info, unless it cannot be read by byte ranges."""
        if info.get("type") == "directory":
            raise IsADirectoryError(f"{place.url} is a directory; pass the path of a file in it")
        if info.get("size") is None:
            raise ValueError(
                f"{place.url}: the store does not tell the size of the object, so it cannot be "
                "read by byte ranges; put 'simplecache::' before the URL to open a local copy"
            )
        return cls(place, int(info["size"]), Version.of(info))

    @property
    def name(self) -> str:
        """The URL."""
        return self.place.url

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """URL, options, size and version: a replaced object gets other names in dask."""
        url, fs, path = self.place.url, self.place.fs, self.place.path
        options = type(fs).__name__, fs.storage_args, fs.storage_options
        return (type(self).__name__, url, path, self.size, str(self.version), *options)

    def sibling(self, path: str) -> tuple[RemoteFile, bytes]:
        """Another object in the same directory, with its first bytes; as `open_remote`."""
        return open_remote(self.place.beside(path))

    @property
    def store(self) -> Hashable:
        """The file system, and over HTTP the server."""
        return store_of(self.place.fs, self.place.path)

    def run(self, read: Callable[[int], None], numbers: Iterable[int]) -> None:
        """Do up to 24 reads at the same time."""
        threads_of(self.store, "read").run_all(read, numbers)

    def parts(self, extents: Extents) -> list[Part]:
        """Parts of 2 to 4 MiB, over gaps of up to 256 KiB."""
        return even_parts(
            extents, gap=GAP, smallest=SMALLEST_PART, largest=LARGEST_PART, most=PARTS
        )

    def read(self, extents: Extents) -> Bytes:
        """Fetch byte ranges by concurrent requests."""
        packed = np.empty(extents.nbytes, dtype=np.uint8)
        place, parts = self.place.for_this_process(), iter(self.parts(extents))
        pending: dict[Future[Answer], tuple[Part, Bytes]] = {}
        try:
            while True:
                for part in islice(parts, MOST_AT_ONCE - len(pending)):
                    fetched = part.target(packed) if part.whole else np.empty(part.size, np.uint8)
                    asked = self.asked(place, part.start, part.stop)
                    pending[start_fetch(asked, fetched.data)] = part, fetched
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
        """Give access to the object, as `read`."""

        def fill(start: int, buffer: memoryview) -> int:
            buffer[:] = self.read(Extents.single(start, start + len(buffer))).data
            return len(buffer)

        yield fill

    def asked(self, place: Place, start: int, stop: int) -> Asked:
        """A request for a range of this version."""
        return Asked(place, start, stop, self.version, self.size)


def open_remote(place: Place) -> tuple[RemoteFile, bytes]:
    """Open an object, with its first bytes; what obstore cannot open of a URL is left to fsspec."""
    place = place.for_this_process()
    store = place.fs
    if not isinstance(store, ObjectStore) or place.options is None:
        return _open(place)
    failure: OSError
    try:
        return _open(place)
    except StoreUnavailableError:
        raise
    except OSError as error:
        failure = error
    try:
        by_fsspec = place.by_fsspec()
    except ImportError:
        raise failure from None
    opened = _open(by_fsspec)
    store.is_refused = True
    return opened


def _open(place: Place) -> tuple[RemoteFile, bytes]:
    """Request size and version of an object, and at the same time its first bytes."""
    place.fs.invalidate_cache(place.path)  # a cached listing may be of an older version
    asked = start_info(place)
    head = bytearray(HEAD_BYTES)
    fetched = start_fetch(Asked(place, 0, HEAD_BYTES), memoryview(head))
    try:
        source = RemoteFile.described(place, _info(asked, fetched))
        if source.size == 0:
            return source, b""
        answer = result_of(fetched)
    finally:
        asked.cancel()
        fetched.cancel()
    if source.version.differs(answer.version):
        raise changed(place.url, answer.version, source.version)
    if answer.size is not None and answer.size != source.size:
        raise changed(place.url, f"{answer.size} bytes", f"{source.size} bytes")
    if answer.count != min(source.size, HEAD_BYTES):
        raise changed(place.url, f"{answer.count} first bytes", f"{source.size} bytes in all")
    return source, bytes(head[: answer.count])


def _info(asked: Future[dict[str, Any]], fetched: Future[Answer]) -> dict[str, Any]:
    """The info of an object; of two errors, the one that is more specific."""
    try:
        return result_of(asked)
    except FileNotFoundError:
        result_of(fetched)  # fsspec's info() turns every HTTP error into "not found"
        raise
