"""Objects in stores, read by byte ranges.

`places` finds the file system of a URL. `fsspec_store` and `obstore_store` send one request.
`retries` limits its time and repeats it, `store_errors` converts its errors. This module divides
what is needed into requests, sends up to 24 of them at a time, and checks the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EIO, ETIMEDOUT
from functools import partial
from itertools import islice
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import numpy as np

from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.core.locks import call_in_children
from xr_tensorfmt.core.source import Fill, MergedRange, Source, balance_ranges
from xr_tensorfmt.errors import StoreTimeoutError, StoreUnavailableError
from xr_tensorfmt.sources.fsspec_store import FsspecStore, get_fsspec_store
from xr_tensorfmt.sources.obstore_store import ObstoreStore
from xr_tensorfmt.sources.places import Place
from xr_tensorfmt.sources.requests import Answer, RangeRequest, Version, changed
from xr_tensorfmt.sources.retries import retry
from xr_tensorfmt.sources.store_errors import Transient, response_in, store_error
from xr_tensorfmt.sources.threads import MAX_REQUESTS, first_done, result_of, threads_of

Result = TypeVar("Result")

HEAD_BYTES = 64 << 10
"""Bytes of an object that are fetched when it is opened."""

GAP = 256 << 10
"""Largest gap between two ranges that are fetched by one request.

With 24 requests in flight, each of 20 ms, one more takes as long as these bytes at 315 MB/s, which
is between the bandwidth of an office and the bandwidth of a machine in the store's data centre.
"""

MIN_PART, MAX_PART = 2 << 20, 4 << 20
"""Bytes of the parts of a long range.

Measured at 20 ms a request and 100 MB/s a connection: 8 MiB take 105 ms by one request, 47 by four.
"""

PARTS = 10
"""Parts of a long range, between these limits; so two threads have nearly all requests in flight.

More parts are no faster: each costs the processor about a millisecond with s3fs.
"""

# Each store has one event loop.
_slots: dict[Hashable, asyncio.Semaphore] = {}
call_in_children(_slots.clear)


@dataclass(frozen=True)
class RemoteFile(Source):
    """An object, read by byte ranges."""

    place: Place
    size: int
    version: Version

    high_latency = True
    read_ahead = 1 << 20

    @classmethod
    def from_info(cls, place: Place, info: dict[str, Any]) -> Self:
        """Return the file of an info, unless it cannot be read by byte ranges."""
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
        """Open another object in the same directory, with its first bytes."""
        return open_remote(self.place.beside(path))

    @property
    def store(self) -> Hashable:
        """The file system, and over HTTP the server."""
        return _get_key(self.place)

    def run(self, read: Callable[[int], None], numbers: Iterable[int]) -> None:
        """Do up to 24 reads at the same time."""
        threads_of(self.store, "read").run_all(read, numbers)

    def merged_ranges(self, extents: Extents) -> list[MergedRange]:
        """Parts of 2 to 4 MiB, over gaps of up to 256 KiB."""
        return balance_ranges(extents, gap=GAP, min_size=MIN_PART, max_size=MAX_PART, count=PARTS)

    def read(self, extents: Extents) -> Bytes:
        """Fetch byte ranges by concurrent requests."""
        packed = np.empty(extents.nbytes, dtype=np.uint8)
        place, parts = self.place.for_this_process(), iter(self.merged_ranges(extents))
        pending: dict[Future[Answer], tuple[MergedRange, Bytes]] = {}
        try:
            while True:
                for part in islice(parts, MAX_REQUESTS - len(pending)):
                    fetched = (
                        part.target(packed) if part.is_exact else np.empty(part.size, np.uint8)
                    )
                    future = start_fetch(place, self._request(part), fetched.data)
                    pending[future] = part, fetched
                if not pending:
                    break
                for future in first_done(pending):
                    part, fetched = pending.pop(future)
                    future.result()
                    if not part.is_exact:
                        part.copy_to(packed, fetched)
        finally:
            for future in pending:
                future.cancel()
        self._check_unchanged(place)
        return packed

    def _request(self, part: MergedRange) -> RangeRequest:
        place = self.place
        return RangeRequest(place.url, place.path, part.start, part.stop, self.version, self.size)

    def _check_unchanged(self, place: Place) -> None:
        """Compare the version after a read, if the requests had no condition on the version."""
        if _get_store(place).is_conditional:
            return
        place.fs.invalidate_cache(place.path)
        info = result_of(start_info(place))
        size, version = info.get("size"), Version.of(info)
        if size != self.size or self.version.differs(version):
            raise changed(
                place.url, f"{size} bytes, {version}", f"{self.size} bytes, {self.version}"
            )

    @contextmanager
    def opened(self) -> Iterator[Fill]:
        """Give access to the object, as `read`."""

        def fill(start: int, buffer: memoryview) -> int:
            buffer[:] = self.read(Extents.single(start, start + len(buffer))).data
            return len(buffer)

        yield fill


def open_remote(place: Place) -> tuple[RemoteFile, bytes]:
    """Request size and version of an object, and at the same time its first bytes."""
    place = place.for_this_process()
    place.fs.invalidate_cache(place.path)  # a cached listing may be of an older version
    head = bytearray(HEAD_BYTES)
    info = start_info(place)
    fetch = start_fetch(place, RangeRequest(place.url, place.path, 0, HEAD_BYTES), memoryview(head))
    try:
        source = RemoteFile.from_info(place, result_of(info))
        if source.size == 0:
            return source, b""
        answer = result_of(fetch)
    finally:
        info.cancel()
        fetch.cancel()
    if source.version.differs(answer.version):
        raise changed(place.url, answer.version, source.version)
    if answer.size not in (None, source.size):
        raise changed(place.url, f"{answer.size} bytes", f"{source.size} bytes")
    if answer.count != min(source.size, HEAD_BYTES):
        raise changed(place.url, f"{answer.count} first bytes", f"{source.size} bytes in all")
    return source, bytes(head[: answer.count])


def start_fetch(place: Place, request: RangeRequest, into: memoryview) -> Future[Answer]:
    """Start a request for a range of an object, which is put into memory of its length.

    Errors of the future are of this package, or `OSError`.
    """
    store = _get_store(place)

    async def fetch() -> Answer:
        try:
            answer = await store.fetch(request, into)
        except Exception as error:
            response = response_in(error)
            request.check_status(response.status if response else 0)
            raise
        request.check_answer(answer)
        return answer

    return _start(place, store, fetch, request)


def start_info(place: Place) -> Future[dict[str, Any]]:
    """Start a request for size and version of an object; errors as of `start_fetch`."""
    store = _get_store(place)
    return _start(place, store, partial(store.info, place.path))


def _start(
    place: Place,
    store: FsspecStore | ObstoreStore,
    attempt: Callable[[], Awaitable[Result]],
    request: RangeRequest | None = None,
) -> Future[Result]:
    """Send a request in the event loop of a store, with repetitions."""
    context, nbytes = (request.context, request.length) if request else ("", 0)

    async def send() -> Result:
        try:
            await store.connect()
            slot = _slots.setdefault(_get_key(place), asyncio.Semaphore(MAX_REQUESTS))
            return await retry(
                attempt,
                place.timeout,
                slot,
                partial(_give_up, place, request),
                nbytes=nbytes,
                store_retries=store.retries,
            )
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  # each library has its own exceptions
            failure = store_error(error, place.url, place.path, place.fs, context)
        # Outside of the except clause, so that the original error is not the context of this one.
        raise failure

    return asyncio.run_coroutine_threadsafe(send(), store.loop)


def _give_up(
    place: Place, request: RangeRequest | None, last: Transient, attempts: int, seconds: float
) -> Exception:
    """Return the error for a request that was repeated in vain."""
    context, span = (request.context, (request.start, request.stop)) if request else ("", None)
    error = store_error(last.error, place.url, place.path, place.fs, context)
    times = "once" if attempts == 1 else f"{attempts} times"
    hint = "pass a larger timeout= to wait longer" if last.is_timeout else "try again later"
    advice = f"; {hint}"
    if last.wait:
        advice = f", and the server asks for a pause of {last.wait:.3g} s; try again later"
    text = getattr(error, "strerror", None) or str(error)
    if last.is_timeout and not last.is_status and type(last.error) is not TimeoutError:
        text = f"nothing was received in time{context}"  # libraries name their classes
    reason = f"{text}; it was requested {times} in {seconds:.3g} s{advice}"
    if last.is_timeout:
        return StoreTimeoutError(ETIMEDOUT, reason, place.url, span, attempts, seconds)
    number = getattr(error, "errno", None) or EIO
    return StoreUnavailableError(number, reason, place.url, span, attempts, seconds)


def _get_store(place: Place) -> FsspecStore | ObstoreStore:
    fs: Any = place.fs
    return fs if isinstance(fs, ObstoreStore) else get_fsspec_store(fs, place.timeout)


def _get_key(place: Place) -> tuple[int, str]:
    """Return what shares a limit on requests: a file system, and over HTTP a server."""
    return hash(place.fs), urlsplit(place.path).netloc if "://" in place.path else ""
