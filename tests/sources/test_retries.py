"""The policy of retries: pauses and limits."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from xr_tensorfmt.errors import StoreTimeoutError, StoreUnavailableError
from xr_tensorfmt.sources import requests as retries
from xr_tensorfmt.sources.locations import Location
from xr_tensorfmt.sources.requests import MIN_RATE, RangeRequest, retry
from xr_tensorfmt.sources.store_errors import find_transient_failure, translate_error


class RefusedError(Exception):
    """An error like those of aiohttp."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(status)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class HubError(OSError):
    """An error like those of requests, httpx and huggingface_hub."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"{status} for https://host/x?token=secret")
        self.response = SimpleNamespace(status_code=status, headers=headers)


class PatientFileSystem(MemoryFileSystem):
    """A file system that retries error statuses itself."""

    __module__ = "gcsfs.core"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record pauses without waiting."""
    created: list[float] = []

    async def sleep(seconds: float) -> None:
        created.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.5)
    return created


def count_attempts(
    *errors: Exception, limit: float | None = 60, nbytes: int = 0, library_retries: bool = False
) -> int:
    """Return the number of attempts of a request that first raises these errors."""
    remaining, created = list(errors), 0

    async def attempt() -> None:
        nonlocal created
        created += 1
        if remaining:
            raise remaining.pop(0)

    fs = PatientFileSystem() if library_retries else MemoryFileSystem()
    location = Location("memory://x", fs, "x", limit)
    asyncio.run(retry(RangeRequest(location, 0, nbytes), attempt))
    return created


def test_pauses_grow_and_differ(pauses: list[float]) -> None:
    assert count_attempts(*(RefusedError(503) for _ in range(4))) == 5
    for number, pause in enumerate(pauses):
        assert 0.25 * 2**number <= pause <= 0.5 * 2**number
    assert len({pause / 2**number for number, pause in enumerate(pauses)}) == 4


def test_last_failure_is_raised_after_five_attempts_or_three_timeouts(
    pauses: list[float],
) -> None:
    with pytest.raises(StoreUnavailableError, match="after 5 attempts"):
        count_attempts(*(RefusedError(503) for _ in range(5)))
    assert len(pauses) == 4
    with pytest.raises(StoreTimeoutError, match="after 3 attempts"):
        count_attempts(*(TimeoutError() for _ in range(3)))
    assert count_attempts(TimeoutError(), RefusedError(503), TimeoutError(), RefusedError(503)) == 5


def test_server_may_ask_for_pause(pauses: list[float]) -> None:
    assert (
        count_attempts(RefusedError(429, Retry_After="7"), RefusedError(503, retry_after="30")) == 3
    )
    assert pauses == [7, 30]
    for nothing in ("", "soon", "-3", "Wed, 21 Oct 2015 07:28:00 GMT"):
        pauses.clear()
        assert count_attempts(RefusedError(503, Retry_After=nothing)) == 2
        assert pauses[0] <= 0.5


def test_server_may_name_a_date(pauses: list[float]) -> None:
    for seconds in (20, 40):
        date = format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)
        pauses.clear()
        assert count_attempts(RefusedError(503, Retry_After=date)) == 2
        assert seconds - 5 < pauses[0] <= seconds
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    with pytest.raises(StoreUnavailableError, match=r"after 1 attempt .*requests a pause"):
        count_attempts(RefusedError(503, Retry_After=date))


def test_pause_that_is_longer_than_limit_ends_attempts(pauses: list[float]) -> None:
    with pytest.raises(StoreUnavailableError, match="after 1 attempt "):
        count_attempts(RefusedError(503, Retry_After="61"))
    assert pauses == []
    assert count_attempts(RefusedError(503, Retry_After="61"), limit=None) == 2


def test_failures_retried_by_library_are_not_retried(pauses: list[float]) -> None:
    with pytest.raises(StoreUnavailableError, match="after 1 attempt "):
        count_attempts(RefusedError(503), library_retries=True)
    assert count_attempts(ConnectionResetError(), library_retries=True) == 2


def test_rate_limit_is_named_and_its_pause_waited_for(pauses: list[float]) -> None:
    words = r"the server answered 429 Too Many Requests.*; gave up after \d attempts? in"
    with pytest.raises(StoreUnavailableError, match=words):
        count_attempts(*(HubError(429) for _ in range(5)))
    with pytest.raises(StoreUnavailableError, match=words):
        count_attempts(HubError(429), library_retries=True)
    assert count_attempts(HubError(429, **{"retry-after": "7"})) == 2
    assert pauses[-1] == 7
    translated = translate_error(HubError(403), "https://host/x", "x", {})
    assert type(translated) is PermissionError
    assert "secret" not in str(translated)


def test_attempts_and_last_failure_are_logged(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "xr_tensorfmt"), pytest.raises(StoreTimeoutError):
        count_attempts(*(TimeoutError() for _ in range(3)))
    first, second, last = caplog.messages
    assert "next attempt in" in first
    assert "next attempt in" in second
    assert "gave up after 3 attempts" in last


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RefusedError(404), FileNotFoundError),
        (RefusedError(403), PermissionError),
        (RefusedError(501), OSError),
        (ValueError("x"), OSError),
    ],
)
def test_other_failures_are_raised_at_once(
    error: Exception, expected: type[Exception], pauses: list[float]
) -> None:
    with pytest.raises(expected) as caught:
        count_attempts(error)
    assert type(caught.value) is expected
    assert pauses == []


def test_failures_are_recognised_by_their_cause() -> None:
    for cause in (RefusedError(503), TimeoutError(), ConnectionResetError(104, "reset")):
        error = FileNotFoundError("http://host/x")
        error.__cause__ = cause
        assert find_transient_failure(error) is cause
    missing = FileNotFoundError("http://host/x")
    missing.__cause__ = RefusedError(404)
    assert find_transient_failure(missing) is None


@pytest.mark.parametrize("cause", [TimeoutError("late"), ConnectionRefusedError(111, "no")])
def test_failure_that_fsspec_calls_missing_keeps_its_type(cause: Exception) -> None:
    error = FileNotFoundError("http://host/x")
    error.__cause__ = cause
    translated = translate_error(error, "http://host/x", "http://host/x", {})
    assert type(translated) is type(cause)


class Window:
    """Record the limit of `asyncio.timeout`."""

    def __init__(self, seconds: float) -> None:
        ends.append(seconds)

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...


ends: list[float] = []


def test_slow_line_has_time_for_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "timeout", Window)
    ends.clear()
    part = 4 << 20
    for nbytes in (0, part):
        assert count_attempts(nbytes=nbytes) == 1
    assert ends == [60, 60 + part / MIN_RATE]
    # 24 requests at a time, over a line of 200 kB/s.
    assert part / (200_000 / 24) < ends[1]
