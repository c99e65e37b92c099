"""How long a request may make no progress, and which failures are followed by another attempt.

Nothing here depends on the library that sends a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from errno import ECONNABORTED, ECONNRESET, EPIPE, ETIMEDOUT
from math import inf, isfinite
from random import SystemRandom
from typing import Any, TypeVar

Result = TypeVar("Result")

DEFAULT_TIMEOUT = 60.0
"""Seconds that a request may take without progress."""

LEAST_RATE = 1000
"""Bytes a second that count as progress.

A line of 200 kB/s gives each of 24 concurrent requests eight times as much.
"""

LEAST_HIDDEN_RATE = 10_000
"""Bytes a second of a request whose progress cannot be seen."""

MOST_ATTEMPTS = 5
MOST_TIMEOUTS = 3
"""Limits on the attempts of a request, and on those of them that end by a timeout."""

FIRST_PAUSE = 0.5
"""Seconds before the second attempt, less up to a half; each pause is twice the one before."""

_jitter = SystemRandom()

_TRANSIENT_STATUSES = {408, 429, 500, 502, 503, 504}
_TRANSIENT_NUMBERS = {ECONNRESET, ECONNABORTED, EPIPE, ETIMEDOUT}
# By name, as the libraries need not be there: of aiohttp, Python's http.client, and botocore.
_RESETS = {
    "ClientPayloadError",
    "ServerDisconnectedError",
    "IncompleteRead",
    "ConnectionClosedError",
    "HTTPClientError",
    "IncompleteReadError",
    "ResponseParserError",
    "ResponseStreamingError",
}
_TIMEOUTS = {"TimeoutError", "ConnectTimeoutError", "ReadTimeoutError"}


def checked_timeout(timeout: object) -> float | None:
    """A number of seconds, or None for no limit."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout={timeout!r} must be a number of seconds, or None for no limit")
    if not (timeout > 0 and isfinite(timeout)):
        raise ValueError(f"timeout={timeout!r} must be positive; pass None for no limit")
    return float(timeout)


class Progress:
    """The window of time in which a request must make progress."""

    def __init__(self, window: asyncio.Timeout, timeout: float | None) -> None:
        self._window = window
        self._timeout = timeout
        self._received = 0
        self._said = "" if timeout is None else f"nothing was received for {timeout:.3g} s"

    def begin(self) -> None:
        """Note that a response has begun."""
        if self._timeout is not None:
            self._received = 0
            self._said = f"nothing was received for {self._timeout:.3g} s"
            self._restart(self._timeout)

    def advance(self, count: int) -> None:
        """Note that bytes of a response were received."""
        self._received += count
        if self._timeout is None or self._received < LEAST_RATE * self._timeout:
            self._said = f"only {self._received} bytes were received within {self._timeout} s"
        else:
            self.begin()

    def hide(self, count: int | None) -> None:
        """Allow time for bytes whose arrival cannot be seen; any time if there is no limit."""
        if self._timeout is None or count is None:
            self._window.reschedule(None)
            return
        seconds = self._timeout + count / LEAST_HIDDEN_RATE
        self._said = f"there was no answer within {seconds:.3g} s"
        self._restart(seconds)

    def _restart(self, seconds: float) -> None:
        self._window.reschedule(asyncio.get_running_loop().time() + seconds)

    def __str__(self) -> str:
        """What was received too little of."""
        return self._said


Attempt = Callable[[Progress], Awaitable[Result]]


@dataclass(frozen=True)
class Transient:
    """A failure that another attempt may not meet.

    `wait` is how long the server asks to wait, `sent` how often a library has sent the request.
    """

    error: Exception
    is_timeout: bool = False
    by_status: bool = False
    wait: float = 0.0
    sent: int = 1


Failed = Callable[[Transient, int, float], Exception]
"""The error to raise for the last failure, after so many attempts and seconds."""


async def repeated(
    attempt: Attempt[Result],
    limit: float | None,
    slot: AbstractAsyncContextManager[Any],
    failed: Failed,
    *,
    repeats_statuses: bool = True,
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
        if is_last or last.wait > (limit or inf) or (last.by_status and not repeats_statuses):
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


def transient(error: Exception) -> Transient | None:
    """Whether a failure may be transient, by the error or by one from which a library made it."""
    origin = _origin(error)
    # fsspec turns every failure of HEAD into FileNotFoundError.
    said = origin if isinstance(error, FileNotFoundError) and origin is not None else error
    for each in (error, origin):
        if each is None:
            continue
        status, headers, repeats = _answered(each)
        names = {kind.__name__ for kind in type(each).__mro__}
        is_timeout = not names.isdisjoint(_TIMEOUTS) or status in (408, 504)
        if status in _TRANSIENT_STATUSES:
            return Transient(said, is_timeout, True, _wait(headers), 1 + repeats)
        if is_timeout or type(each).__name__ in _RESETS or _is_reset(each):
            return Transient(said, is_timeout)
    return None


def _origin(error: Exception) -> Exception | None:
    """The error from which a library made this one; botocore has it among its arguments."""
    arguments = getattr(error, "kwargs", None)
    inner = arguments.get("error") if isinstance(arguments, dict) else error.__cause__
    return inner if isinstance(inner, Exception) else None


def _answered(error: Exception) -> tuple[int | None, Mapping[str, Any], int]:
    """Status, headers and number of repetitions, in an error of aiohttp or of botocore."""
    status, headers, repeats = getattr(error, "status", None), getattr(error, "headers", None), 0
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        about = response.get("ResponseMetadata", {})
        status, headers = about.get("HTTPStatusCode"), about.get("HTTPHeaders")
        repeats = about.get("RetryAttempts", 0)
    return status if isinstance(status, int) else None, headers or {}, repeats


def _is_reset(error: Exception) -> bool:
    if isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError):
        return True
    return isinstance(error, OSError) and error.errno in _TRANSIENT_NUMBERS


def _wait(headers: Mapping[str, Any]) -> float:
    """The seconds of ``Retry-After``, which may be a date."""
    value = next((str(headers[name]) for name in headers if name.lower() == "retry-after"), "")
    if value.isdecimal():
        return float(value)
    with suppress(ValueError, TypeError):
        then = parsedate_to_datetime(value)
        return max(0.0, (then - datetime.now(then.tzinfo or UTC)).total_seconds())
    return 0.0
