"""Limits on costs, in units that do not depend on the machine."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limit_calls(limit: int) -> Iterator[None]:
    """Fail if at least as many functions of Python or C are called."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)
    assert calls < limit


@contextmanager
def limit_memory(limit: int) -> Iterator[None]:
    """Fail if at least as many bytes are allocated at any time."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit
