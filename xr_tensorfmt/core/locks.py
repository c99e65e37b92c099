"""Locks that a process which was forked finds free, whichever thread held them before."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from weakref import WeakSet


def call_in_children(call: Callable[[], object]) -> None:
    """Call something in each process that is forked, in which other threads are gone."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


class RenewedLock:
    """A lock that another one replaces in a child process: its holder is a thread of the parent."""

    def __init__(self) -> None:
        self.renew()
        _every.add(self)

    def renew(self) -> None:
        """Forget who holds it."""
        self._lock = Lock()

    @property
    def current(self) -> Lock:
        """The lock of this process, for a `with` statement."""
        return self._lock


_every: WeakSet[RenewedLock] = WeakSet()


def _renew_all() -> None:
    for lock in list(_every):
        lock.renew()


call_in_children(_renew_all)
