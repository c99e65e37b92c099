"""Time limit and retries of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from math import inf, isfinite
from random import SystemRandom
from typing import Any, TypeVar

from xr_tensorfmt.sources.store_errors import TransientFailure, find_transient_failure

Result = TypeVar("Result")

DEFAULT_TIMEOUT = 60.0
"""Seconds that a request may take without progress."""

MIN_RATE = 5000
"""Average bytes per second that a request must receive after its timeout.

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
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout={timeout!r} must be a number of seconds, or None for no limit")
    if not (timeout > 0 and isfinite(timeout)):
        raise ValueError(f"timeout={timeout!r} must be positive; pass None for no limit")
    return float(timeout)


async def retry(
    attempt: Callable[[], Awaitable[Result]],
    seconds_allowed: float | None,
    slot: AbstractAsyncContextManager[Any],
    build_error: Callable[[TransientFailure, int, float], Exception],
    *,
    nbytes: int = 0,
    store_retries: bool = False,
) -> Result:
    """Make a request, and retry it with growing pauses after transient failures.

    Parameters
    ----------
    attempt : callable
        Makes the request once.
    seconds_allowed : float or None
        Seconds without progress, or None for no limit.
    slot : asynchronous context manager
        Limits the concurrent requests. It is released during pauses.
    build_error : callable
        Returns the error to raise, given the last failure, the number of attempts and the seconds.
    nbytes : int
        Requested bytes.
    store_retries : bool
        Whether the library of the store retries error statuses itself.
    """
    clock = asyncio.get_running_loop().time
    attempts, timeouts, seconds, pause = 0, 0, 0.0, FIRST_PAUSE
    while True:
        attempts += 1
        async with slot:
            start = clock()
            try:
                return await _limit(attempt, seconds_allowed, nbytes)
            except Exception as error:
                failure = find_transient_failure(error)
                if failure is None:
                    raise
            seconds += clock() - start
        timeouts += failure.is_timeout
        is_last = attempts == MAX_ATTEMPTS or timeouts == MAX_TIMEOUTS
        is_too_long = failure.pause > (seconds_allowed or inf)
        if is_last or is_too_long or (failure.is_status and store_retries):
            # Raising outside of the except clause leaves out the original error as context.
            raise build_error(failure, attempts, seconds)
        actual_pause = max(failure.pause, _jitter.uniform(pause / 2, pause))
        await asyncio.sleep(actual_pause)
        seconds, pause = seconds + actual_pause, 2 * pause


async def _limit(
    attempt: Callable[[], Awaitable[Result]], seconds_allowed: float | None, nbytes: int
) -> Result:
    """Make a request once; raise TimeoutError if it is slower than MIN_RATE."""
    if seconds_allowed is None:
        return await attempt()
    async with asyncio.timeout(seconds_allowed + nbytes / MIN_RATE):
        return await attempt()
