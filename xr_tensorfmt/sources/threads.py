"""The threads of this process that wait for answers of stores, shared by all that read."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeVar

MOST_AT_ONCE = 16
"""Requests that a process sends at the same time, over all reads of all its threads."""

Item = TypeVar("Item")


class Threads:
    """Up to 16 threads, made at first use and made anew in a process that was forked."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = Lock()
        self._executor: ThreadPoolExecutor | None = None

    def _get(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(MOST_AT_ONCE, self._name)
            return self._executor

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Begin a call in one of the threads; it must not itself wait for another of them."""
        return self._get().submit(call, *arguments)

    def run_all(self, call: Callable[[Item], None], items: Iterable[Item]) -> None:
        """Call with each item in the threads, and wait for all."""
        pending: deque[Future[None]] = deque()
        try:
            for item in items:
                if len(pending) >= MOST_AT_ONCE:
                    pending.popleft().result()
                pending.append(self.submit(call, item))
            while pending:
                pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


REQUESTS = Threads("tensorfmt-request")
"""Those that send one request at a time, and wait for nothing else."""

LOADS = Threads("tensorfmt-load")
"""Those that load whole variables for ``await ds.load_async()``."""

READS = Threads("tensorfmt-read")
"""Those that wait for requests, where one read is made of several."""
