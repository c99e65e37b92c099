"""``python -m benchmark.worker FOLDER SCALE``: run contenders of cases when asked.

The package is the first one in PYTHONPATH, so two workers can compare two versions. A request is a
line of stdin with the names of a case and a contender. The reply to a case without contender is the
list of contenders. The first run of a contender compares its value with numpy.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any

import dask
import numpy as np
from dask.system import CPU_COUNT

from benchmark.cases import CASES, SERVERS


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


def main(folder: str, scale: int) -> None:
    """Answer until stdin is closed."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of packages is not a reply
    dask.config.set(num_workers=CPU_COUNT)
    warnings.simplefilter("ignore")
    contenders, expected, seen = {}, None, set()
    for line in sys.stdin:
        name, contender = json.loads(line)
        try:
            if contender is None:
                case = CASES[name]
                contenders, expected = case.build(Path(folder), case.get_size(scale))
                reply: Any = list(contenders)
            else:
                reply = run(contenders[contender], None if line in seen else expected)
                seen.add(line)
        except Exception:  # noqa: BLE001  # the parent reports it and goes on
            reply = {"error": traceback.format_exc()}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    with SERVERS:
        main(sys.argv[1], int(sys.argv[2]))
