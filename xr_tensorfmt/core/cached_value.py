"""A value that is computed at first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from xr_tensorfmt.core.locks import RenewedLock

Value = TypeVar("Value")


class CachedValue(Generic[Value]):
    """Computes a value once for all threads; the value is pickled if it is known.

    A process that is forked while a thread computes the value computes it anew.
    """

    def __init__(self, value: Value | None = None) -> None:
        self._value = value
        self._lock = RenewedLock()

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
