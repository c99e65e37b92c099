"""Threads whose waits end with the process.

Python joins the threads of a pool when it ends. A thread that waits for a store that never answers
would keep the process alive, so waits end when the process does.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from xr_tensorfmt.core.locks import call_in_children

MAX_REQUESTS = 24
"""Limit on the concurrent requests to a store."""

Item = TypeVar("Item")
Result = TypeVar("Result")

# Ctrl-C does not interrupt a long wait on Windows.
_INTERVAL = 0.2
_ending = threading.Event()

# Python calls these before it joins the threads of pools, the last one first. atexit is later.
getattr(threading, "_register_atexit", atexit.register)(_ending.set)


def first_done(futures: Collection[Future[Any]]) -> set[Future[Any]]:
    """Wait until at least one of some futures is done."""
    while not _ending.is_set():
        done = wait(futures, _INTERVAL, FIRST_COMPLETED).done
        if done:
            return done
    raise RuntimeError("the process is ending, so that nothing more is read")


def result_of(future: Future[Result]) -> Result:
    """Wait for a future; if the wait is interrupted, the future is cancelled."""
    try:
        first_done([future])
        return future.result()
    finally:
        future.cancel()


def in_thread(call: Callable[..., Result], *arguments: Any) -> Future[Result]:
    """Start a call in a thread of its own, which the end of the process does not wait for."""
    future: Future[Result] = Future()
    threading.Thread(target=_run, args=(future, call, arguments), daemon=True).start()
    return future


def _run(future: Future[Any], call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call(*arguments)
    except BaseException as error:  # noqa: BLE001  # the thread that waits raises it
        future.set_exception(error)
    else:
        future.set_result(result)


class Threads(ThreadPoolExecutor):
    """Up to 24 threads for calls that wait for a store."""

    def __init__(self) -> None:
        super().__init__(MAX_REQUESTS)

    def run_all(self, call: Callable[[Item], None], items: Iterable[Item]) -> None:
        """Call with each item in the threads, and wait for all calls."""
        pending: deque[Future[None]] = deque()
        try:
            for item in items:
                if len(pending) >= MAX_REQUESTS:
                    result_of(pending.popleft())
                pending.append(self.submit(call, item))
            while pending:
                result_of(pending.popleft())
        finally:
            for future in pending:
                future.cancel()


_pools: dict[Hashable, Threads] = {}
call_in_children(_pools.clear)


def threads_of(store: Hashable, purpose: str) -> Threads:
    """Return the threads for calls to a store; calls that wait for others have another purpose."""
    return _pools.setdefault((store, purpose), Threads())
