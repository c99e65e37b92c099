"""Build cases and run their contenders, in a process for each version of the package."""

from __future__ import annotations

import gc
import os
import warnings
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any

import dask
import numpy as np
from dask.system import CPU_COUNT

from benchmark.cases import CASES, SERVERS

BUILT: dict[str, Any] = {}  # of the current case


def start() -> None:
    """Prepare the process."""
    dask.config.set(num_workers=CPU_COUNT)
    warnings.simplefilter("ignore")


def close() -> None:
    """Stop the servers of the cases."""
    SERVERS.close()


def answer(folder: str, scale: int, name: str, contender: str | None = None) -> Any:
    """Run a contender of a case once, or build the case and return the names of its contenders.

    The first run of a contender compares its value with numpy.
    """
    if contender is None:
        case = CASES[name]
        contenders, expected = case.build(Path(folder), case.get_size(scale))
        BUILT.update(contenders=contenders, expected=dict.fromkeys(contenders, expected))
        return list(contenders)
    return run(BUILT["contenders"][contender], BUILT["expected"].pop(contender, None))


def get_own_memory() -> float:
    """Return the memory of this process that is not a mapped file, in MiB."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text("ascii").split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def run(contender: Any, expected: Any) -> dict[str, float]:
    """Run a contender; with `expected`, check its value and measure its memory."""
    function, read = contender if isinstance(contender, tuple) else (contender, None)
    gc.collect()
    samples, done = [get_own_memory()], Event()

    def sample() -> None:
        while not done.wait(0.002):
            samples.append(get_own_memory())

    if expected:
        Thread(target=sample, daemon=True).start()
    start = perf_counter()
    value = function()
    seconds = perf_counter() - start
    done.set()
    if expected:
        check(read(value) if read else value, expected())
    return {"seconds": seconds, "memory": max(samples) - samples[0]}


def check(value: Any, expected: Any) -> None:
    """Compare a value with the value of numpy."""
    if isinstance(expected, dict):
        for key, array in expected.items():
            check(value[key], array)
    else:
        np.testing.assert_allclose(np.asarray(value), np.asarray(expected), rtol=1e-5)
