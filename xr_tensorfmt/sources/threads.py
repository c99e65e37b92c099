"""Threads, and waits for them, that end with the process: by Ctrl-C at once, and at its exit.

The pools of `concurrent.futures` are joined when Python ends, so that a thread which waits for a
dead server keeps the process alive.
"""

from __future__ import annotations

import atexit
import importlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

from xr_tensorfmt.core.locks import call_in_children

MOST_AT_ONCE = 24
"""Limit on the concurrent requests to a store."""

Item = TypeVar("Item")
Result = TypeVar("Result")

# Waits are divided, as Ctrl-C does not interrupt a wait on Windows.
_INTERVAL = 0.2
_ending = threading.Event()

# Python calls these, the last one first, before it joins the threads of pools; so that pools must
# be there before. The threads of dask, which are such, then end their waits for requests.
importlib.import_module("concurrent.futures.thread")
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
    threading.Thread(target=_do, args=(future, call, arguments), daemon=True).start()
    return future


def _do(future: Future[Any], call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if future.set_running_or_notify_cancel():
        with ExitStack() as stack:
            stack.push(partial(_give, future))
            future.set_result(call(*arguments))


def _give(future: Future[Any], _: object, error: BaseException | None, __: object) -> bool:
    """Give an error to the thread that waits for a future."""
    if error is not None:
        future.set_exception(error)
    return True


class Threads:
    """Up to 24 threads for calls, each of which ends when no call waits for a thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = deque()
        self._running = 0

    def submit(self, call: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Start a call in one of the threads; it must not wait for another call in them."""
        future: Future[Result] = Future()
        with self._lock:
            self._waiting.append((future, call, arguments))
            if self._running < MOST_AT_ONCE:
                self._running += 1
                in_thread(self._work)
        return future

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                each = self._waiting.popleft()
            _do(*each)
            del each

    def run_all(self, call: Callable[[Item], None], items: Iterable[Item]) -> None:
        """Call with each item in the threads, and wait for all calls."""
        pending: deque[Future[None]] = deque()
        try:
            for item in items:
                if len(pending) >= MOST_AT_ONCE:
                    result_of(pending.popleft())
                pending.append(self.submit(call, item))
            while pending:
                result_of(pending.popleft())
        finally:
            for future in pending:
                future.cancel()


_all: dict[Hashable, Threads] = {}
call_in_children(_all.clear)


def threads_of(store: Hashable, purpose: str) -> Threads:
    """The threads for calls to a store; calls that wait for others have another purpose."""
    return _all.setdefault((store, purpose), Threads())
