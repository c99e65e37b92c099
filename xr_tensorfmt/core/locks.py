"""Locks that a forked process finds free, whichever thread held them, and values computed once."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakSet

Value = TypeVar("Value")


def call_in_children(call: Callable[[], object]) -> None:
    """Call something in each process that is forked, in which other threads are gone."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


class ForkSafeLock:
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


_every: WeakSet[ForkSafeLock] = WeakSet()


def _renew_all() -> None:
    for lock in list(_every):
        lock.renew()


call_in_children(_renew_all)


class CachedValue(Generic[Value]):
    """Computes a value once for all threads; the value is pickled if it is known.

    A process that is forked while a thread computes the value computes it anew.
    """

    def __init__(self, value: Value | None = None) -> None:
        self._value = value
        self._lock = ForkSafeLock()

    @property
    def known(self) -> Value | None:
        """The value if it has been computed."""
        return self._value

    def get(self, compute: Callable[[], Value]) -> Value:
        """The value; the first caller computes it while others wait."""
        if self._value is None:
            with self._lock.current:
                if self._value is None:
                    self._value = compute()
        return self._value

    def __dask_tokenize__(self) -> str:
        """Independent of whether the value is known, so that names in dask are."""
        return type(self).__name__

    def __reduce__(self) -> tuple[type[CachedValue[Value]], tuple[Value | None]]:
        """Pickle without the lock."""
        return CachedValue, (self._value,)
