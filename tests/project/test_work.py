"""The limits on calls and memory detect values above them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.work import limit_calls, limit_memory


def test_calls_are_counted() -> None:
    with limit_calls(10):
        abs(1)
    with pytest.raises(AssertionError), limit_calls(10):
        _ = [abs(number) for number in range(20)]


def test_memory_is_measured_at_its_peak() -> None:
    with limit_memory(1 << 20):
        np.ones(1000)
    with pytest.raises(AssertionError), limit_memory(1 << 20):
        np.ones(1 << 20, dtype="u1")
