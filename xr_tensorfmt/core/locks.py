"""Fork-safe locks, and values that are computed once."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary


def call_in_children(call: Callable[[], object]) -> None:
    """Register a function that forked processes call."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


class ForkSafeLock:
    """A lock per process, because the thread that holds a lock is missing in forked processes."""

    def __init__(self) -> None:
        self._locks: dict[int, Any] = {}

    @property
    def current(self) -> Any:
        """The lock of this process."""
        return self._locks.setdefault(os.getpid(), Lock())


_shared: WeakValueDictionary[Hashable, ForkSafeLock] = WeakValueDictionary()
_sharing = ForkSafeLock()


def share_lock(key: Hashable) -> ForkSafeLock:
    """Return the lock of a key, which is the same for all who hold it at a time."""
    with _sharing.current:
        return _shared.setdefault(key, ForkSafeLock())


class CachedValue:
    """A value that is computed once by all threads. It is not pickled."""

    def __init__(self) -> None:
        self._value: Any = None
        self._lock = ForkSafeLock()

    @property
    def is_set(self) -> bool:
        """Whether the value was computed."""
        return self._value is not None

    def get(self, compute: Callable[[], Any]) -> Any:
        """Return the value. The first caller computes it while others wait."""
        with self._lock.current:
            if self._value is None:
                self._value = compute()
            return self._value

    def __dask_tokenize__(self) -> str:
        return type(self).__name__

    def __reduce__(self) -> tuple[type[CachedValue], tuple[()]]:
        return CachedValue, ()
