"""Threads end when no call waits, and a key has a limited number of them."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest
import xarray as xr
from obstore.store import MemoryStore

from tests import tensfiles as tf
from tests.opening import open_tensor
from xr_tensorfmt.sources.threads import MAX_REQUESTS, start_in_thread


def wait_for_threads(count: int) -> None:
    deadline = time.monotonic() + 10
    while threading.active_count() > count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= count


def test_key_has_limited_number_of_threads() -> None:
    before = threading.active_count()
    go_on = threading.Event()
    futures = [start_in_thread(go_on.wait, 10, key="a") for _ in range(3 * MAX_REQUESTS)]
    other = start_in_thread(lambda: 1, key="b")
    assert other.result(5) == 1
    assert threading.active_count() <= before + MAX_REQUESTS + 1
    go_on.set()
    assert all(future.result(5) for future in futures)
    wait_for_threads(before)


def test_error_is_raised_by_future_and_cancelled_call_is_not_made() -> None:
    go_on = threading.Event()
    futures = [start_in_thread(go_on.wait, 10, key="a") for _ in range(MAX_REQUESTS)]
    calls: list[int] = []
    cancelled = start_in_thread(calls.append, 1, key="a")
    failing = start_in_thread(int, "x", key="a")
    assert cancelled.cancel()
    go_on.set()
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result(5)
    assert all(future.result(5) for future in futures)
    assert not calls


def test_openings_with_new_stores_leave_no_threads() -> None:
    values = np.arange(6000.0).reshape(30, 200)
    tensors = []
    for number in range(12):
        store = MemoryStore()
        store.put("t.bin", tf.make_0_9(values))
        tensors.append(open_tensor("t.bin", fs=store))
        ds = xr.Dataset({f"v{n}": ("x", tensors[-1][:, n].variable._data) for n in range(30)})
        asyncio.run(ds.load_async())
        if number == 0:
            before = threading.active_count()  # including the event loop of fsspec
    wait_for_threads(before)
