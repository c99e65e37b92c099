"""Time limit and retries of a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from math import inf, isfinite
from numbers import Real
from random import SystemRandom
from typing import Any, TypeVar

from xr_tensorfmt.sources.store_errors import TransientFailure, find_transient_failure

Result = TypeVar("Result")
_logger = logging.getLogger(__name__)

MIN_RATE = 5000
"""Bytes per second that a slow request must receive.

Over a line of 200 kB/s, 24 concurrent requests receive 8 kB/s each.
"""

MAX_ATTEMPTS = 5
"""Limit on the attempts of a request."""

MAX_TIMEOUTS = 3
"""Limit on the attempts that time out."""

FIRST_PAUSE = 0.5
"""Seconds before the second attempt, randomly reduced by up to a half. Later pauses double."""

_jitter = SystemRandom()


def check_timeout(timeout: object) -> float | None:
    """Return a timeout in seconds, or None for no limit; raise if `timeout` is invalid."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, Real):
        raise TypeError(f"timeout={timeout!r} must be a number of seconds, or None for no limit")
    seconds = float(timeout)
    if not (seconds > 0 and isfinite(seconds)):
        raise ValueError(f"timeout={timeout!r} must be positive; pass None for no limit")
    return seconds


async def retry(
    attempt: Callable[[], Awaitable[Result]],
    timeout: float | None,  # noqa: ASYNC109  # of an attempt
    slot: AbstractAsyncContextManager[Any],
    build_error: Callable[[TransientFailure, int, float], Exception],
    describe: Callable[[TransientFailure], str] = str,
    *,
    nbytes: int = 0,
    store_retries: bool = False,
) -> Result:
    """Make a request, and retry it with growing pauses after transient failures.

    `slot` limits the concurrent requests, and is released during pauses. `store_retries` tells
    whether the library of the store retries error statuses itself. `build_error` returns the error
    to raise for the last failure, the number of attempts and the seconds. `describe` returns the
    text for the log.
    """
    clock = asyncio.get_running_loop().time
    limit = None if timeout is None else timeout + nbytes / MIN_RATE
    attempts = timeouts = 0
    seconds = 0.0
    pause = FIRST_PAUSE
    while True:
        attempts += 1
        async with slot:
            start = clock()
            try:
                async with asyncio.timeout(limit):
                    return await attempt()
            except Exception as error:
                failure = find_transient_failure(error)
                if failure is None:
                    raise
            seconds += clock() - start
        timeouts += failure.is_timeout
        is_last = attempts == MAX_ATTEMPTS or timeouts == MAX_TIMEOUTS
        library_has_retried = failure.is_status and store_retries
        if is_last or library_has_retried or failure.pause > (timeout or inf):
            # Raising outside of the except clause leaves out the original error as context.
            raise build_error(failure, attempts, seconds)
        actual_pause = max(failure.pause, _jitter.uniform(pause / 2, pause))
        _logger.info("%s; next attempt in %.3g s", describe(failure), actual_pause)
        await asyncio.sleep(actual_pause)
        seconds += actual_pause
        pause *= 2
