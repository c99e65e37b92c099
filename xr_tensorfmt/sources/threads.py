"""Threads for requests.

A thread may wait for a store that does not answer. Python joins the threads of a pool at exit, so
waits end when the interpreter shuts down.
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
_is_shutdown = threading.Event()

# Python calls these functions before it joins the threads of pools. Functions of atexit are later.
getattr(threading, "_register_atexit", atexit.register)(_is_shutdown.set)


def wait_for_first(futures: Collection[Future[Any]]) -> set[Future[Any]]:
    """Wait until at least one future is done, and return the futures that are done."""
    while not _is_shutdown.is_set():
        done = wait(futures, _INTERVAL, FIRST_COMPLETED).done
        if done:
            return done
    raise RuntimeError("the process is ending, so the read was cancelled")


def wait_for_result(future: Future[Result]) -> Result:
    """Wait for a future, and cancel it if the wait is interrupted."""
    try:
        wait_for_first([future])
        return future.result()
    finally:
        future.cancel()


def start_in_thread(call: Callable[..., Result], *arguments: Any) -> Future[Result]:
    """Start a call in a new daemon thread, which is not joined at exit."""
    future: Future[Result] = Future()
    threading.Thread(target=_run, args=(future, call, arguments), daemon=True).start()
    return future


def _run(future: Future[Any], call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call(*arguments)
    except BaseException as error:  # noqa: BLE001  # the waiting thread raises it
        future.set_exception(error)
    else:
        future.set_result(result)


class StoreThreads(ThreadPoolExecutor):
    """A pool of 24 threads for calls that wait for a store."""

    def __init__(self) -> None:
        super().__init__(MAX_REQUESTS)

    def run_all(self, call: Callable[[Item], None], items: Iterable[Item]) -> None:
        """Call a function with every item, and wait for all calls; stop at the first error."""
        pending: deque[Future[None]] = deque()
        try:
            for item in items:
                if len(pending) >= MAX_REQUESTS:
                    wait_for_result(pending.popleft())
                pending.append(self.submit(call, item))
            while pending:
                wait_for_result(pending.popleft())
        finally:
            for future in pending:
                future.cancel()


_pools: dict[Hashable, StoreThreads] = {}
call_in_children(_pools.clear)


def get_threads(store: Hashable, purpose: str) -> StoreThreads:
    """Return the threads of a store. Calls that wait for each other need different purposes."""
    return _pools.setdefault((store, purpose), StoreThreads())
