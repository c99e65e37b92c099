"""Requests to stores: each has a limit without progress, and is repeated where that may help.

What is sent is in `transports`, when and how often in `retries`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from concurrent.futures import Future
from errno import EIO, ETIMEDOUT
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from fsspec import AbstractFileSystem

from xr_tensorfmt.errors import StoreTimeoutError, StoreUnavailableError
from xr_tensorfmt.sources.requests import Answer, Asked, changed
from xr_tensorfmt.sources.retries import Attempt, Progress, Transient, repeated
from xr_tensorfmt.sources.store_errors import ask_store, store_error
from xr_tensorfmt.sources.transports import Transport, store_of, transport_of

Result = TypeVar("Result")

# By event loop, and within it by store; used in the thread of the loop alone.
_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, asyncio.Semaphore]]
_slots = WeakKeyDictionary()


def start_fetch(
    fs: AbstractFileSystem, asked: Asked, into: memoryview, timeout: float | None
) -> Future[Answer]:
    """Start a request for a range of an object, which is put into memory of its length.

    Errors of the future are of this package, or `OSError`.
    """

    async def get(progress: Progress) -> Answer:
        answer = await transport.get(asked, into, progress)
        if asked.version.differs(answer.version):
            raise changed(asked.url, answer.version, asked.version)
        if asked.size is not None:
            asked.check_count(answer.count)
        return answer

    transport = transport_of(fs)
    return _start(get, transport, asked.url, asked.path, (asked.start, asked.stop), timeout)


def start_info(
    fs: AbstractFileSystem, url: str, path: str, timeout: float | None
) -> Future[dict[str, Any]]:
    """Start a request for size and version of an object."""
    transport = transport_of(fs)
    return _start(
        lambda progress: transport.info(path, progress), transport, url, path, None, timeout
    )


def _start(
    attempt: Attempt[Result],
    transport: Transport,
    url: str,
    path: str,
    span: tuple[int, int] | None,
    timeout: float | None,
) -> Future[Result]:
    context = f", while bytes {span[0]} to {span[1] - 1} were fetched" if span else ""

    def failed(last: Transient, attempts: int, seconds: float) -> Exception:
        error = store_error(last.error, url, path, transport.fs, context)
        assert isinstance(error, OSError), "this is the type where no others are kept"
        kind = StoreTimeoutError if last.is_timeout else StoreUnavailableError
        number = ETIMEDOUT if last.is_timeout else error.errno or EIO
        times = "once" if attempts == 1 else f"{attempts} times"
        reason = f"{error.strerror}; it was requested {times} in {seconds:.3g} s{_advice(last)}"
        return kind(number, reason, url, span, attempts, seconds)

    async def send() -> Result:
        await transport.connect()
        slot = _slot(transport, path)
        repeats = not transport.repeats_statuses
        return await repeated(attempt, timeout, slot, failed, repeats_statuses=repeats)

    async def send_and_convert() -> Result:
        sending = asyncio.ensure_future(send())
        try:
            await asyncio.wait([sending])
            return ask_store(
                sending.result, url=url, path=path, options=transport.fs, context=context
            )
        finally:
            sending.cancel()

    return asyncio.run_coroutine_threadsafe(send_and_convert(), transport.loop)


def _advice(last: Transient) -> str:
    if last.wait:
        return f", and the server asks for a pause of {last.wait:.3g} s; try again later"
    return "; pass a larger timeout= to wait longer" if last.is_timeout else "; try again later"


def _slot(transport: Transport, path: str) -> asyncio.Semaphore:
    slots = _slots.setdefault(asyncio.get_running_loop(), {})
    store = store_of(transport.fs, path)
    if store not in slots:
        slots[store] = asyncio.Semaphore(transport.most)
    return slots[store]
