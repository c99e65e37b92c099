"""Requests to stores: each has a limit without progress, and is repeated where that may help.

What is sent is in `transports`, which failures may be transient in `store_errors`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from errno import EIO, ETIMEDOUT
from functools import partial
from math import inf
from random import SystemRandom
from typing import Any, TypeVar

from xr_tensorfmt.core.locks import call_in_children
from xr_tensorfmt.errors import StoreTimeoutError, StoreUnavailableError
from xr_tensorfmt.sources.places import Place
from xr_tensorfmt.sources.requests import Answer, Asked, Progress, changed
from xr_tensorfmt.sources.store_errors import Transient, response_in, store_error, transient
from xr_tensorfmt.sources.transports import Transport, store_of, transport_of

Result = TypeVar("Result")
Attempt = Callable[[Progress], Awaitable[Result]]
Failed = Callable[[Transient, int, float], Exception]
"""The error to raise for the last failure, after so many attempts and seconds."""

MOST_ATTEMPTS = 5
MOST_TIMEOUTS = 3
"""Limits on the attempts of a request, and on those of them that end by a timeout."""

FIRST_PAUSE = 0.5
"""Seconds before the second attempt, less up to a half; each pause is twice the one before."""

_jitter = SystemRandom()

# By store, each of which has one event loop.
_slots: dict[Hashable, asyncio.Semaphore] = {}
call_in_children(_slots.clear)


def start_fetch(asked: Asked, into: memoryview) -> Future[Answer]:
    """Start a request for a range of an object, which is put into memory of its length.

    Errors of the future are of this package, or `OSError`.
    """

    async def get(transport: Transport, progress: Progress) -> Answer:
        try:
            answer = await transport.get(asked, into, progress)
        except Exception as error:
            response = response_in(error)
            asked.check_status(response.status if response else 0)
            raise
        if asked.version.differs(answer.version):
            raise changed(asked.place.url, answer.version, asked.version)
        if asked.size is not None:
            asked.check_count(answer.count)
        return answer

    return _start(get, asked.place, asked)


def start_info(place: Place) -> Future[dict[str, Any]]:
    """Start a request for size and version of an object; errors as of `start_fetch`."""
    return _start(lambda transport, progress: transport.info(place.path, progress), place)


def _start(
    attempt: Callable[[Transport, Progress], Awaitable[Result]],
    place: Place,
    asked: Asked | None = None,
) -> Future[Result]:
    context = asked.context if asked else ""
    transport = transport_of(place.fs)

    def failed(last: Transient, attempts: int, seconds: float) -> Exception:
        error = store_error(last.error, place.url, place.path, [place.fs, place.options], context)
        assert isinstance(error, OSError), "this is the type where no others are kept"
        kind = StoreTimeoutError if last.is_timeout else StoreUnavailableError
        number = ETIMEDOUT if last.is_timeout else error.errno or EIO
        times = "once" if attempts == 1 else f"{attempts} times"
        reason = f"{error.strerror}; it was requested {times} in {seconds:.3g} s{_advice(last)}"
        span = (asked.start, asked.stop) if asked else None
        return kind(number, reason, place.url, span, attempts, seconds)

    async def send() -> Result:
        await transport.connect()
        store = store_of(place.fs, place.path)
        slot = _slots.setdefault(store, asyncio.Semaphore(transport.most))
        once = partial(attempt, transport)
        return await repeated(once, place.timeout, slot, failed, by_library=transport.repeats)

    async def send_and_convert() -> Result:
        sending = asyncio.ensure_future(send())
        try:
            await asyncio.wait([sending])
            return place.ask(sending.result, context=context)
        finally:
            sending.cancel()

    return asyncio.run_coroutine_threadsafe(send_and_convert(), transport.loop)


def _advice(last: Transient) -> str:
    if last.wait:
        return f", and the server asks for a pause of {last.wait:.3g} s; try again later"
    return "; pass a larger timeout= to wait longer" if last.is_timeout else "; try again later"


async def repeated(
    attempt: Attempt[Result],
    limit: float | None,
    slot: AbstractAsyncContextManager[Any],
    failed: Failed,
    *,
    by_library: bool = False,
) -> Result:
    """Make a request, and repeat it with growing pauses while its failures may be transient."""
    clock = asyncio.get_running_loop().time
    number, sent, timeouts, seconds, pause = 0, 0, 0, 0.0, FIRST_PAUSE
    while True:
        number += 1
        async with slot:
            began = clock()
            try:
                return await _watched(attempt, limit)
            except Exception as error:
                last = transient(error)
                if last is None:
                    raise
            seconds += clock() - began
        sent, timeouts = sent + last.sent, timeouts + last.is_timeout
        is_last = number == MOST_ATTEMPTS or timeouts == MOST_TIMEOUTS
        if is_last or last.wait > (limit or inf) or (last.by_library and by_library):
            # Outside of the except clause, so that this error has not the other as its context.
            raise failed(last, sent, seconds)
        wait = max(last.wait, _jitter.uniform(pause / 2, pause))
        await asyncio.sleep(wait)
        seconds, pause = seconds + wait, 2 * pause


async def _watched(attempt: Attempt[Result], limit: float | None) -> Result:
    progress = None
    try:
        async with asyncio.timeout(limit) as window:
            progress = Progress(window, limit)
            return await attempt(progress)
    except TimeoutError:
        if progress is None or not window.expired():
            raise
    raise TimeoutError(str(progress))
