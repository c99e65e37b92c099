"""Requests in the event loop of a file system, with time limits, retries and translated errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future
from math import inf
from random import SystemRandom
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from fsspec.asyn import get_loop

from xr_tensorfmt.core.locks import call_in_children
from xr_tensorfmt.errors import StoreTimeoutError, StoreUnavailableError
from xr_tensorfmt.sources.locations import Location
from xr_tensorfmt.sources.requests import RangeRequest
from xr_tensorfmt.sources.store_errors import find_response, find_transient_failure
from xr_tensorfmt.sources.threads import MAX_REQUESTS

Result = TypeVar("Result")
_logger = logging.getLogger(__name__)

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
    location: Location,
    attempt: Callable[[], Awaitable[Result]],
    request: RangeRequest | None = None,
) -> Future[Result]:
    """Start a request, whose attempts `attempt` makes. The event loop runs in another thread."""

    async def send() -> Result:
        try:
            await location.store.prepare()
            return await retry(location, attempt, request)
        except Exception as error:  # noqa: BLE001  # libraries do not share a base class
            failure = _translate(location, error, request)
        # Raising outside of the except clause leaves out the original error as context.
        raise failure

    loop = getattr(location.fs, "loop", None) or get_loop()
    return asyncio.run_coroutine_threadsafe(send(), loop)


def _translate(location: Location, error: Exception, request: RangeRequest | None) -> Exception:
    response = find_response(error)
    context = request.describe(response.status if response else 0) if request else ""
    return location.translate(error, context)


async def retry(
    location: Location,
    attempt: Callable[[], Awaitable[Result]],
    request: RangeRequest | None = None,
) -> Result:
    """Make a request, and retry it with growing pauses after transient failures."""
    clock = asyncio.get_running_loop().time
    start, attempts, timeouts = clock(), 0, 0
    slot = _slots.setdefault(location.server, asyncio.Semaphore(MAX_REQUESTS))
    timeout = inf if location.timeout is None else location.timeout
    limit = timeout + (request.length if request else 0) / MIN_RATE
    while True:
        async with slot:  # released during pauses
            try:
                async with asyncio.timeout(None if limit == inf else limit):
                    return await attempt()
            except Exception as error:
                cause = find_transient_failure(error)
                if cause is None:
                    raise
        failure: Any = _translate(location, cause, request)
        attempts += 1
        timeouts += isinstance(failure, TimeoutError)
        response = find_response(cause)
        requested_pause = response.pause if response else 0.0
        is_last = attempts == MAX_ATTEMPTS or timeouts == MAX_TIMEOUTS
        library_has_retried = response is not None and location.store.retries_statuses
        if is_last or library_has_retried or requested_pause > timeout:
            numbers = attempts, clock() - start, requested_pause
            failure = _build_last_error(location, failure, request, *numbers)
            _logger.info("%s", failure)
            # Raising outside of the except clause leaves out the original error as context.
            raise failure
        pause = FIRST_PAUSE * 2 ** (attempts - 1) * _jitter.uniform(0.5, 1)
        pause = max(requested_pause, pause)
        _logger.info("%s; next attempt in %.3g s", failure, pause)
        await asyncio.sleep(pause)


def _build_last_error(
    location: Location,
    failure: Any,
    request: RangeRequest | None,
    attempts: int,
    seconds: float,
    pause: float,
) -> StoreUnavailableError:
    """Return the error of a request that is not tried again. The server requests a pause."""
    is_timeout = isinstance(failure, TimeoutError)
    error_type = StoreTimeoutError if is_timeout else StoreUnavailableError
    hint = "pass a larger timeout= to wait longer" if is_timeout else "try again later"
    if pause:
        hint = f"the server requests a pause of {pause:.3g} s; {hint}"
    elif is_timeout and location.store.retries_statuses:
        hint = f"its package may be waiting because of a rate limit (status 429); {hint}"
    times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    reason = f"{failure.strerror}; gave up after {times} in {seconds:.3g} s; {hint}"
    span = (request.start, request.stop) if request else None
    return error_type(failure.errno, reason, failure.filename, span, attempts, seconds)
