"""Objects in stores, read by byte ranges.

`locations` finds the file system of a URL. `fsspec_store` and `obstore_store` send requests.
`retries` limits and repeats them, and `store_errors` translates their errors. This module divides a
read into requests, sends up to 24 of them concurrently, and checks the responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from errno import EIO, ETIMEDOUT
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import numpy as np
from fsspec.asyn import get_loop

from xr_tensorfmt.core.extents import Bytes, Extents, Fetch
from xr_tensorfmt.core.locks import call_in_children
from xr_tensorfmt.core.source import Fill, Source
from xr_tensorfmt.errors import (
    StoreTimeoutError,
    StoreUnavailableError,
    build_directory_error,
)
from xr_tensorfmt.sources.fsspec_store import FsspecStore, get_fsspec_store
from xr_tensorfmt.sources.locations import Location
from xr_tensorfmt.sources.obstore_store import ObstoreStore
from xr_tensorfmt.sources.requests import RangeRequest, RangeResponse, Version, build_changed_error
from xr_tensorfmt.sources.retries import retry
from xr_tensorfmt.sources.store_errors import TransientFailure, find_response
from xr_tensorfmt.sources.threads import MAX_REQUESTS, run_all, start_in_thread, wait_for_result

Result = TypeVar("Result")

HEAD_BYTES = 64 << 10
"""Bytes fetched when an object is opened."""

MAX_GAP = 256 << 10
"""Largest gap between two ranges of one request.

Fetching a gap of this size takes as long as another request, given 24 concurrent requests with
20 ms of latency and 315 MB/s.
"""

MIN_PART, MAX_PART = 2 << 20, 4 << 20
"""Bytes of the parts of a long range.

With 20 ms of latency and 100 MB/s per connection, 8 MiB take 105 ms in one part and 47 ms in four.
"""

TARGET_PARTS = 10
"""Target number of parts of a read, within these limits. A part costs about 1 ms of CPU time."""

# One semaphore per store limits its concurrent requests.
_slots: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()
call_in_children(_slots.clear)

CHECK_INTERVAL = 60.0
"""Seconds between two requests for the version of a file, if other requests do not return it."""

_check_times: dict[RemoteFile, float] = {}
_MAX_CHECK_TIMES = 10_000


@dataclass(frozen=True)
class RemoteFile(Source):
    """An object, read by byte ranges."""

    location: Location
    size: int
    version: Version

    high_latency = True
    read_ahead = 1 << 20

    @classmethod
    def from_info(cls, location: Location, info: dict[str, Any]) -> Self:
        """Return the file for the info of a file system; raise if byte ranges cannot be read."""
        if info.get("type") == "directory":
            raise build_directory_error(location.name)
        if info.get("size") is None:
            raise ValueError(
                f"{location.name}: the store does not report the size of the object, so it cannot "
                "be read by byte ranges; put 'simplecache::' before the URL to open a local copy"
            )
        return cls(location, int(info["size"]), Version.from_info(info))

    @property
    def name(self) -> str:
        """The URL without secrets."""
        return self.location.name

    @property
    def file_name(self) -> str:
        """The name in the directory."""
        return self.location.file_name

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """URL, options and version. A replaced object has other names in dask."""
        url, fs, path = self.location.url, self.location.fs, self.location.path
        options = type(fs).__name__, fs.storage_args, fs.storage_options
        return (type(self).__name__, url, path, str(self.version), *options)

    def sibling(self, path: str) -> tuple[RemoteFile, bytes]:
        """Open another object in the same directory, with its first bytes."""
        return open_remote(self.location.sibling(path))

    @property
    def store(self) -> Hashable:
        """The file system, and for HTTP the server."""
        return _get_store_key(self.location)

    def run(self, read: Callable[[int], None], indices: Iterable[int]) -> None:
        """Make up to 24 reads concurrently."""
        run_all(partial(start_in_thread, read), indices)

    def plan_requests(self, extents: Extents) -> Extents:
        """Divide ranges into parts of 2 to 4 MiB, including gaps of up to 256 KiB."""
        fetched = extents.merge(gap=MAX_GAP, limit=self.size).nbytes
        part = min(max(fetched // TARGET_PARTS, MIN_PART), MAX_PART)
        return extents.merge(gap=MAX_GAP, limit=part, max_length=MAX_PART)

    def read(self, extents: Extents) -> Bytes:
        """Fetch byte ranges with concurrent requests."""
        packed = np.empty(extents.nbytes, dtype=np.uint8)
        location = self.location.renew_after_fork()
        fetches = extents.iterate_fetches(self.plan_requests(extents))
        run_all(partial(self._start_request, location, packed), fetches)
        self._check_version(location)
        return packed

    def _start_request(self, location: Location, packed: Bytes, fetch: Fetch) -> Future[None]:
        request = RangeRequest(location.name, location.path, fetch.start, fetch.stop, self.version)

        async def attempt() -> None:
            buffer = fetch.allocate(packed)
            await _request_range(location, request, buffer.data)
            fetch.copy_ranges(buffer, packed)

        return _start(location, attempt, request)

    def _check_version(self, location: Location) -> None:
        """Compare the version if the requests had no condition on it, at most once a minute."""
        if _get_store(location).is_conditional:
            return
        now = monotonic()
        if now - _check_times.get(self, -inf) < CHECK_INTERVAL:
            return
        if len(_check_times) >= _MAX_CHECK_TIMES:
            _check_times.clear()
        # Set before the request, so that concurrent reads do not compare the version too.
        _check_times[self] = now
        self._request_version(location)

    def check_unchanged(self) -> None:
        """Raise OSError or SourceChangedError if the object was replaced or removed."""
        version = self._request_version(self.location.renew_after_fork())
        # The entity tag of an object depends only on its content in many stores.
        if self.version.modified and version.modified and version.modified != self.version.modified:
            raise build_changed_error(self.name, version, self.version)

    def _request_version(self, location: Location) -> Version:
        """Request the version of the object; raise SourceChangedError if it was replaced."""
        try:
            location.fs.invalidate_cache(location.path)
            info = wait_for_result(_start_info(location))
            version = Version.from_info(info)
            if self.version.differs(version):
                raise build_changed_error(self.name, version, self.version)  # noqa: TRY301
        except BaseException:
            # The next read compares again.
            _check_times.pop(self, None)
            raise
        return version

    @contextmanager
    def open(self) -> Iterator[Fill]:
        """Fill buffers by `read`."""

        def fill(start: int, buffer: memoryview) -> int:
            buffer[:] = self.read(Extents.single(start, start + len(buffer))).data
            return len(buffer)

        yield fill


def forget_checks() -> None:
    """Compare versions again, because this process has replaced an object."""
    _check_times.clear()


def open_remote(location: Location) -> tuple[RemoteFile, bytes]:
    """Request size and version of an object, and concurrently its first bytes."""
    location = location.renew_after_fork()
    location.fs.invalidate_cache(location.path)  # a cached listing may have an older version
    head = bytearray(HEAD_BYTES)
    request = RangeRequest(location.name, location.path, 0, HEAD_BYTES)
    request_head = partial(_request_range, location, request, memoryview(head))
    future_info = _start_info(location)
    future_response = _start(location, request_head, request)
    try:
        source = RemoteFile.from_info(location, wait_for_result(future_info))
        if source.size == 0:
            return source, b""
        response = wait_for_result(future_response)
    finally:
        future_info.cancel()
        future_response.cancel()
    stop = min(source.size, HEAD_BYTES)
    replace(request, stop=stop, version=source.version).check_response(response)
    return source, bytes(head[:stop])


async def _request_range(
    location: Location, request: RangeRequest, buffer: memoryview
) -> RangeResponse:
    """Make a range request once, and check its response."""
    try:
        response = await _get_store(location).request_range(request, buffer)
    except Exception as error:
        error_response = find_response(error)
        request.check_status(error_response.status if error_response else 0)
        raise
    request.check_response(response)
    return response


def _start_info(location: Location) -> Future[dict[str, Any]]:
    """Start a request for size and version of an object."""
    return _start(location, partial(_get_store(location).info, location.path))


def _start(
    location: Location,
    attempt: Callable[[], Awaitable[Result]],
    request: RangeRequest | None = None,
) -> Future[Result]:
    """Start a request in the event loop of a file system, with retries and translated errors."""
    store = _get_store(location)

    async def send() -> Result:
        try:
            await store.prepare()
            slot = _slots.setdefault(_get_store_key(location), asyncio.Semaphore(MAX_REQUESTS))
            return await retry(
                attempt,
                location.timeout,
                slot,
                partial(_build_unavailable_error, location, request),
                partial(_describe_failure, location, request),
                nbytes=request.length if request else 0,
                store_retries=store.retries_statuses,
            )
        except Exception as error:  # noqa: BLE001  # libraries do not share a base class
            failure = location.translate(error, request.context if request else "")
        # Raising outside of the except clause leaves out the original error as context.
        raise failure

    # The event loop runs in a thread of fsspec.
    return asyncio.run_coroutine_threadsafe(
        send(), getattr(location.fs, "loop", None) or get_loop()
    )


def _build_unavailable_error(
    location: Location,
    request: RangeRequest | None,
    failure: TransientFailure,
    attempts: int,
    seconds: float,
) -> StoreUnavailableError:
    """Return the error for a request that failed in all attempts."""
    context, span = (request.context, (request.start, request.stop)) if request else ("", None)
    times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    hint = "pass a larger timeout= to wait longer" if failure.is_timeout else "try again later"
    if failure.pause:
        hint = f"the server requests a pause of {failure.pause:.3g} s; try again later"
    elif failure.is_timeout and _get_store(location).retries_statuses:
        hint += (
            ", or send fewer requests if the store limits their rate (status 429 or 503), because "
            "its package waits then"
        )
    number, text = _translate_failure(location, failure, context)
    reason = f"{text}; gave up after {times} in {seconds:.3g} s; {hint}"
    error_type = StoreTimeoutError if failure.is_timeout else StoreUnavailableError
    return error_type(number, reason, location.name, span, attempts, seconds)


def _describe_failure(
    location: Location, request: RangeRequest | None, failure: TransientFailure
) -> str:
    context = request.context if request else ""
    return f"{location.name}: {_translate_failure(location, failure, context)[1]}"


def _translate_failure(
    location: Location, failure: TransientFailure, context: str
) -> tuple[int, str]:
    """Return the number of an error, and a text without secrets."""
    if failure.is_timeout and not failure.is_status:
        return ETIMEDOUT, f"the response was not complete in time{context}"
    error = location.translate(failure.error, context)
    return getattr(error, "errno", EIO), getattr(error, "strerror", str(error))


def _get_store(location: Location) -> FsspecStore | ObstoreStore:
    fs: Any = location.fs
    return fs if isinstance(fs, ObstoreStore) else get_fsspec_store(fs, location.timeout)


def _get_store_key(location: Location) -> tuple[int, str]:
    """Return the key that requests to a server share: the file system, and for HTTP the host."""
    path = location.path
    return hash(location.fs), urlsplit(path).netloc if "://" in path else ""
