"""The time limit of a request, and its repetition after failures that may be transient."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from math import inf, isfinite
from random import SystemRandom
from typing import Any, TypeVar

from xr_tensorfmt.sources.store_errors import Transient, transient

Result = TypeVar("Result")

DEFAULT_TIMEOUT = 60.0
"""Seconds that a request may take without progress."""

MIN_RATE = 5000
"""Bytes per second that a request must receive on average, beyond its timeout.

A line of 200 kB/s gives each of 24 concurrent requests 8 kB/s.
"""

MAX_ATTEMPTS = 5
MAX_TIMEOUTS = 3
"""Limits on the attempts of a request, and on the attempts that end by a timeout."""

FIRST_PAUSE = 0.5
"""Seconds before the second attempt, less up to a half; the pauses double."""

_jitter = SystemRandom()


def check_timeout(timeout: object) -> float | None:
    """Return a number of seconds, or None for no limit; raise if it is neither."""
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
    give_up: Callable[[Transient, int, float], Exception],
    *,
    nbytes: int = 0,
    store_retries: bool = False,
) -> Result:
    """Make a request, and repeat it with growing pauses while its failures may be transient.

    Parameters
    ----------
    attempt : callable
        Makes the request once.
    seconds_allowed : float or None
        Seconds without progress; None for no limit.
    slot : asynchronous context manager
        Limits the concurrent requests; pauses are made outside of it.
    give_up : callable
        Returns the error to raise, from the last failure, the number of requests and their seconds.
    nbytes : int
        Requested bytes.
    store_retries : bool
        Whether the library of the store has repeated the request after an error status.
    """
    clock = asyncio.get_running_loop().time
    number, sent, timeouts, seconds, pause = 0, 0, 0, 0.0, FIRST_PAUSE
    while True:
        number += 1
        async with slot:
            began = clock()
            try:
                return await _limit(attempt, seconds_allowed, nbytes)
            except Exception as error:
                last = transient(error)
                if last is None:
                    raise
            seconds += clock() - began
        sent, timeouts = sent + last.sent, timeouts + last.is_timeout
        is_last = number == MAX_ATTEMPTS or timeouts == MAX_TIMEOUTS
        if is_last or last.wait > (seconds_allowed or inf) or (last.is_status and store_retries):
            # Outside of the except clause, so that this error has not the other as its context.
            raise give_up(last, sent, seconds)
        wait = max(last.wait, _jitter.uniform(pause / 2, pause))
        await asyncio.sleep(wait)
        seconds, pause = seconds + wait, 2 * pause


async def _limit(
    attempt: Callable[[], Awaitable[Result]], seconds_allowed: float | None, nbytes: int
) -> Result:
    """Make a request once; raise TimeoutError if it is slower than MIN_RATE."""
    if seconds_allowed is None:
        return await attempt()
    seconds = seconds_allowed + nbytes / MIN_RATE
    try:
        async with asyncio.timeout(seconds) as window:
            return await attempt()
    except TimeoutError:
        if not window.expired():
            raise
    if nbytes:
        raise TimeoutError(f"there was no complete answer within {seconds:.3g} s")
    raise TimeoutError(f"nothing was received for {seconds:.3g} s")
