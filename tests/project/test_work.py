"""The limits on calls and memory detect values above them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.work import calls_below, memory_below


def test_calls_are_counted() -> None:
    with calls_below(10):
        abs(1)
    with pytest.raises(AssertionError), calls_below(10):
        _ = [abs(number) for number in range(20)]


def test_memory_is_measured_at_its_peak() -> None:
    with memory_below(1 << 20):
        np.ones(1000)
    with pytest.raises(AssertionError), memory_below(1 << 20):
        np.ones(1 << 20, dtype="u1")
