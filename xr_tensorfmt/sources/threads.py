"""Threads for calls that wait for a store.

A thread may wait for a store that does not answer. So threads are daemons, which Python does not
join at exit, and waits end when the interpreter shuts down.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

from xr_tensorfmt.core.locks import ForkSafeLock, call_in_children

MAX_REQUESTS = 24
"""Limit on the concurrent requests to a store."""

Item = TypeVar("Item")
Result = TypeVar("Result")

# Ctrl-C does not interrupt a long wait on Windows.
_INTERVAL = 0.2
_is_shutdown = threading.Event()

# Python calls these functions before it joins the threads of pools. Functions of atexit are later.
getattr(threading, "_register_atexit", atexit.register)(_is_shutdown.set)


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


def run_all(start: Callable[[Item], Future[None]], items: Iterable[Item]) -> None:
    """Start a call for every item, and wait for all calls; stop at the first error."""
    pending: deque[Future[None]] = deque()
    try:
        for item in items:
            # Twice as many, so that a slow call does not keep the others from starting.
            if len(pending) >= 2 * MAX_REQUESTS:
                wait_for_result(pending.popleft())
            pending.append(start(item))
        while pending:
            wait_for_result(pending.popleft())
    finally:
        for future in pending:
            future.cancel()


class _Calls:
    """The calls of a key that wait for a thread, and the number of its threads."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self.threads = 0


_calls: dict[Hashable, _Calls] = {}
_lock = ForkSafeLock()
call_in_children(_calls.clear)


def start_in_thread(
    call: Callable[..., Result], *arguments: Any, key: Hashable = None
) -> Future[Result]:
    """Start a call in a thread.

    A key has up to 24 threads, which end when no call waits. Calls that wait for each other need
    different keys. Without a key, the call has its own thread.
    """
    future: Future[Result] = Future()
    key = future if key is None else key
    with _lock.current:
        calls = _calls.setdefault(key, _Calls())
        calls.waiting.append(partial(_run, future, call, arguments))
        is_full = calls.threads == MAX_REQUESTS
        calls.threads += not is_full
    if not is_full:
        threading.Thread(target=_run_waiting, args=(key, calls), daemon=True).start()
    return future


def _run_waiting(key: Hashable, calls: _Calls) -> None:
    while True:
        with _lock.current:
            if not calls.waiting:
                calls.threads -= 1
                if not calls.threads:
                    del _calls[key]
                return
            run = calls.waiting.popleft()
        run()


def _run(future: Future[Any], call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call(*arguments))
    except BaseException as error:  # noqa: BLE001  # the waiting thread raises it
        future.set_exception(error)
