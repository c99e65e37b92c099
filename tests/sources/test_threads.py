"""Threads end with their calls, and an event loop has a limited number of them."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.memory import MemoryFileSystem

from tests import tensfiles as tf
from tests.opening import open_tensor
from xr_tensorfmt.sources.requests import MAX_REQUESTS, run_in_thread, start_in_thread


def wait_for_threads(count: int) -> None:
    deadline = time.monotonic() + 10
    while threading.active_count() > count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= count


def test_event_loop_has_limited_number_of_threads() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def call() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1

    async def call_often() -> None:
        await asyncio.gather(*(run_in_thread(call) for _ in range(3 * MAX_REQUESTS)))

    before = threading.active_count()
    asyncio.run(call_often())
    assert 1 < most <= MAX_REQUESTS
    wait_for_threads(before)


def test_error_is_raised_by_future() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        start_in_thread(int, "x").result(5)


@pytest.mark.slow
def test_openings_with_new_stores_leave_no_threads() -> None:
    values = np.arange(6000.0).reshape(30, 200)
    tensors = []
    for number in range(12):
        store = MemoryFileSystem(skip_instance_cache=True)
        store.pipe_file("/t.bin", tf.make_0_9(values))
        tensors.append(open_tensor("/t.bin", fs=store))
        ds = xr.Dataset({f"v{n}": ("x", tensors[-1][:, n].variable._data) for n in range(30)})
        asyncio.run(ds.load_async())
        if number == 0:
            before = threading.active_count()  # including the event loop of fsspec
    wait_for_threads(before)
