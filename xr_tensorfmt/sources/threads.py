"""Threads for calls to stores, which may never answer: Python does not join them at exit."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import Any
from weakref import WeakKeyDictionary

from xr_tensorfmt.core.source import Item, Result

MAX_REQUESTS = 24
"""Limit on the concurrent requests to a store."""

# Ctrl-C does not interrupt a long wait on Windows.
_INTERVAL = 0.2
_is_shutdown = threading.Event()

# Python calls these functions before it joins the threads of pools. Functions of atexit are later.
getattr(threading, "_register_atexit", atexit.register)(_is_shutdown.set)

_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def wait_for_result(future: Future[Result], check: Callable[[], None] | None = None) -> Result:
    """Wait for a future, and cancel it if the wait ends before. `check` may end it by an error."""
    try:
        while not wait([future], _INTERVAL).done:
            if _is_shutdown.is_set():
                raise RuntimeError("the process is ending, so the request was cancelled")
            if check is not None:
                check()
        return future.result()
    finally:
        future.cancel()


def run_all(
    start: Callable[[Item], Future[Result]],
    items: Iterable[Item],
    limit: int = 2 * MAX_REQUESTS,  # so that a slow call does not keep the others from starting
    check: Callable[[], None] | None = None,
) -> list[Result]:
    """Start a call for every item, and return all results; stop at the first error."""
    pending: deque[Future[Result]] = deque()
    results: list[Result] = []
    try:
        for item in items:
            if len(pending) >= limit:
                results.append(wait_for_result(pending.popleft(), check))
            pending.append(start(item))
        while pending:
            results.append(wait_for_result(pending.popleft(), check))
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
    slots = _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MAX_REQUESTS))
    async with slots:
        return await asyncio.wrap_future(start_in_thread(call, *arguments))
