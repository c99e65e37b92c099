"""Threads for requests to stores, shared by all reads of the process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

MOST_AT_ONCE = 16
"""Limit on the concurrent requests of a process, over all its reads."""

Item = TypeVar("Item")


class Threads:
    """A pool of up to 16 threads, and another one in a process that was forked."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._executor = ThreadPoolExecutor(MOST_AT_ONCE, self._name)

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Start a call in one of the threads; it must not wait for another call in the pool."""
        return self._executor.submit(call, *arguments)

    def run_all(self, call: Callable[[Item], None], items: Iterable[Item]) -> None:
        """Call with each item in the threads, and wait for all calls."""
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
"""Each call is one request, and waits for no other call."""

LOADS = Threads("tensorfmt-load")
"""Each call loads a whole variable, for ``await ds.load_async()``."""

READS = Threads("tensorfmt-read")
"""Each call is a read that waits for requests."""
