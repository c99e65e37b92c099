"""Requests to stores: versions, byte ranges, threads, time limits and retries."""

from __future__ import annotations

import asyncio
import atexit
import errno
import logging
import re
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from itertools import compress
from math import inf
from random import SystemRandom
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from fsspec.asyn import get_loop

from xr_tensorfmt.core.locks import call_in_children
from xr_tensorfmt.core.source import Item, Result
from xr_tensorfmt.errors import (
    SAME_BYTES,
    SourceChangedError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from xr_tensorfmt.sources import get_packages
from xr_tensorfmt.sources.store_errors import find_response, find_transient_failure

if TYPE_CHECKING:
    from xr_tensorfmt.sources.locations import Location

_logger = logging.getLogger(__name__)

# Names in infos of file systems and in headers of responses, in order of preference. Checksums such
# as Content-MD5 are not entity tags: a server does not compare them with If-Match.
_ETAGS = "generation", "ETag", "etag", "e_tag"
_TIMES = "Last-Modified", "LastModified", "last_modified", "mtime", "updated", "created"


@dataclass(frozen=True)
class Version:
    """Size, entity tag and modification time of an object, as far as they are known."""

    size: int | None = None
    etag: str = ""
    modified: str = ""

    @classmethod
    def from_info(cls, info: Mapping[str, Any]) -> Version:
        """Return the version in the info of a file system."""
        tags = (str(info[name]) for name in _ETAGS if info.get(name))
        times = (str(info[name]) for name in _TIMES if info.get(name))
        return cls(info.get("size"), next(tags, ""), next(times, ""))

    @property
    def strong_etag(self) -> str:
        """The entity tag, or an empty str if it is weak (RFC 9110, section 8.8.1)."""
        return "" if self.etag.startswith("W/") else self.etag

    def differs(self, other: Version) -> bool:
        """Return whether two versions differ; False if they cannot be compared."""
        if None not in (self.size, other.size) and self.size != other.size:
            return True
        if self.etag and other.etag:
            return self.etag.removeprefix("W/") != other.etag.removeprefix("W/")
        return bool(self.modified and other.modified) and self.modified != other.modified

    def __str__(self) -> str:
        names = f"{self.size} bytes", f"entity tag {self.etag}", f"modified {self.modified}"
        is_known = self.size is not None, self.etag, self.modified
        return ", ".join(compress(names, is_known)) or "another version"


NO_VERSION = Version()
# Statuses of stores that do not know If-Match.
_REFUSALS = {400, 403, 501}
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


@dataclass(frozen=True)
class RangeResponse:
    """The answer to a `RangeRequest`."""

    count: int  # received bytes
    version: Version = NO_VERSION
    start: int | None = None  # offset in the object, if the response contains it

    @classmethod
    def from_headers(cls, count: int, headers: Mapping[str, Any]) -> RangeResponse:
        """Return a response of HTTP or S3. Without Content-Range, it is the whole file."""
        content_range = headers.get("Content-Range") or headers.get("ContentRange") or ""
        match = _CONTENT_RANGE.fullmatch(content_range)
        size = int(match[2]) if match and match[2] != "*" else None
        version = replace(Version.from_info(headers), size=size)
        return cls(count, version, int(match[1]) if match else 0)


@dataclass(frozen=True)
class RangeRequest:
    """A request for bytes of a version of an object, or for no bytes but its info."""

    location: Location
    start: int = 0
    stop: int = 0
    version: Version = NO_VERSION

    @property
    def length(self) -> int:
        """Number of requested bytes."""
        return self.stop - self.start

    def check_response(self, response: RangeResponse) -> None:
        """Raise if a response has another version, or other bytes than requested."""
        if self.version.differs(response.version):
            raise build_changed_error(self.location.name, response.version, self.version)
        # The size is unknown before the first response, so its range may pass the end.
        is_short = self.version.size is not None and response.count < self.length
        is_long = response.count > self.length
        offset = self.start if response.start is None else response.start
        if offset != self.start or is_short or is_long:
            received = f"more than {self.length}" if is_long else response.count
            reason = (
                f"the server sent {received} bytes from byte {offset}, expected {self.length} from "
                f"byte {self.start}; the object has changed, or its server does not serve byte "
                "ranges; put 'simplecache::' before the URL to open a local copy"
            )
            raise OSError(errno.EIO, reason, self.location.name)


def build_changed_error(path: str, actual: Version, expected: Version) -> SourceChangedError:
    """Return the error for an object that was replaced after it was opened."""
    _logger.info("%s: replaced since it was opened, it is %s, not %s", path, actual, expected)
    hint = f"it has been replaced since it was opened; open it again, {SAME_BYTES}"
    return SourceChangedError(path, "the object", actual, str(expected), hint)


MAX_REQUESTS = 24
"""Limit on the concurrent requests to a store."""

_MORE_TIME = "pass a larger timeout= or --storage-option timeout= to wait longer"

# Ctrl-C does not interrupt a long wait on Windows.
_INTERVAL = 0.2
_is_shutdown = threading.Event()

# Python calls these functions before it joins the threads of pools. Functions of atexit are later.
getattr(threading, "_register_atexit", atexit.register)(_is_shutdown.set)

_thread_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def wait_for_result(future: Future[Result], limit: float = inf) -> Result:
    """Wait for a future, up to a number of seconds, and cancel it if the wait ends before."""
    stop = monotonic() + limit
    try:
        while not wait([future], _INTERVAL).done:
            if _is_shutdown.is_set():
                raise RuntimeError("the process is ending, so the request was cancelled")
            if monotonic() > stop:
                reason = f"not complete after {limit:.3g} s; {_MORE_TIME}"
                raise TimeoutError(errno.ETIMEDOUT, reason)
        return future.result()
    finally:
        future.cancel()


def run_all(start: Callable[[Item], Future[Result]], items: Iterable[Item]) -> list[Result]:
    """Start a call for every item, and return all results; stop at the first error."""
    limit = 2 * MAX_REQUESTS  # so that a slow call does not keep the others from starting
    pending: deque[Future[Result]] = deque()
    results: list[Result] = []
    try:
        for item in items:
            if len(pending) >= limit:
                results.append(wait_for_result(pending.popleft()))
            pending.append(start(item))
        while pending:
            results.append(wait_for_result(pending.popleft()))
        return results
    finally:
        for future in pending:
            future.cancel()


def start_in_thread(call: Callable[..., Result], *arguments: Any) -> Future[Result]:
    """Start a call in a thread of its own."""
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(call(*arguments))
        except BaseException as error:  # noqa: BLE001  # the waiting thread raises it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


async def run_in_thread(call: Callable[..., Result], *arguments: Any) -> Result:
    """Make a call in a thread. An event loop has up to 24 of these threads."""
    slots = _thread_slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MAX_REQUESTS))
    async with slots:
        return await asyncio.wrap_future(start_in_thread(call, *arguments))


# Bytes per second that a request must receive. Over a line of 200 kB/s, 24 concurrent requests
# receive 8 kB/s each.
MIN_RATE = 5000

# Limits on the attempts of a request, and on those that time out.
MAX_ATTEMPTS, MAX_TIMEOUTS = 5, 3

# Seconds before the second attempt, randomly reduced by up to a half. Later pauses double.
FIRST_PAUSE = 0.5

_jitter = SystemRandom()

# One semaphore per server limits its concurrent requests.
_slots: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()
call_in_children(_slots.clear)


def start_request(
    request: RangeRequest, attempt: Callable[[], Awaitable[Result]]
) -> Future[Result]:
    """Start a request, whose attempts `attempt` makes. The event loop runs in another thread."""
    loop = getattr(request.location.fs, "loop", None) or get_loop()
    return asyncio.run_coroutine_threadsafe(retry(request, attempt), loop)


async def retry(request: RangeRequest, attempt: Callable[[], Awaitable[Result]]) -> Result:
    """Make a request, and retry it with growing pauses after transient failures."""
    location = request.location
    clock = asyncio.get_running_loop().time
    start, attempts, timeouts = clock(), 0, 0
    slot = _slots.setdefault(location.server, asyncio.Semaphore(MAX_REQUESTS))
    timeout = inf if location.timeout is None else location.timeout
    limit = timeout + request.length / MIN_RATE
    while True:
        async with slot:  # released during pauses
            try:
                async with asyncio.timeout(limit):
                    return await attempt()
            except Exception as error:  # noqa: BLE001  # libraries do not share a base class
                transient = find_transient_failure(error)
                response = find_response(transient or error)
                context = _describe(request, response.status)
                failure = location.translate(transient or error, context)
        # Raising outside of the except clause leaves out the original error as context.
        if transient is None:
            raise failure
        attempts += 1
        timeouts += isinstance(failure, TimeoutError)
        is_last = attempts == MAX_ATTEMPTS or timeouts == MAX_TIMEOUTS or response.pause > timeout
        if is_last or (response.status and _retries_statuses(location.fs)):
            seconds = clock() - start
            raise _build_last_error(failure, request, attempts, seconds, response.pause)
        pause = FIRST_PAUSE * 2 ** (attempts - 1) * _jitter.uniform(0.5, 1)
        pause = max(pause, response.pause)
        _logger.info("%s; next attempt in %.3g s", failure, pause)
        await asyncio.sleep(pause)


def _describe(request: RangeRequest, status: int) -> str:
    if not request.length:
        return ""
    text = f", while bytes {request.start} to {request.stop - 1} were fetched"
    if request.version.strong_etag and status in _REFUSALS:
        text += "; if the store refuses conditions (If-Match), pass verify_unchanged=False or "
        text += "--open-option verify_unchanged=false"
    return text


def _retries_statuses(fs: Any) -> bool:
    """Return whether the library of a file system itself retries error statuses."""
    packages = get_packages(fs)
    if "s3fs" in packages:  # botocore does by default
        return bool((fs.config_kwargs.get("retries") or {}).get("total_max_attempts") != 1)
    return not packages.isdisjoint(("adlfs", "gcsfs", "huggingface_hub"))


def _build_last_error(
    failure: Any, request: RangeRequest, attempts: int, seconds: float, pause: float
) -> StoreUnavailableError:
    """Return and log the error of a request that is not tried again."""
    is_timeout = isinstance(failure, TimeoutError)
    error_type = StoreTimeoutError if is_timeout else StoreUnavailableError
    hint = _MORE_TIME if is_timeout else "try again later"
    if pause:
        hint = f"the server requests a pause of {pause:.3g} s; {hint}"
    times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    reason = f"{failure.strerror}; gave up after {times} in {seconds:.3g} s; {hint}"
    error = error_type(failure.errno, reason, failure.filename)
    error.span = (request.start, request.stop) if request.length else None
    error.attempts, error.seconds = attempts, seconds
    _logger.info("%s", error)
    return error
