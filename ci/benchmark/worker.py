"""Process that runs contenders: ``python -m benchmark.worker SECTION FOLDER SCALE``.

The package is the first one in PYTHONPATH, so that two workers can run two versions. The process
reads the names of a job and a contender from a line of stdin, prepares the run, prints "ready",
waits for another line, and prints the seconds and the answer.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import dask
import xarray as xr
from dask.system import CPU_COUNT

import xr_tensorfmt
from benchmark.job import Prepared
from benchmark.sections import SECTIONS

# Imports are not part of the memory of a job.
PRELOADED = ("dask.array", "h5netcdf", "netCDF4", "safetensors.numpy", "zarr")


def main(section: str, folder: str, scale: str) -> None:
    """Answer requests until stdin is closed."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of packages is not a reply

    def reply(value: Any) -> None:
        print(json.dumps(value), file=replies, flush=True)

    dask.config.set(num_workers=CPU_COUNT)
    for module in PRELOADED:
        import_module(module)
    xr.backends.list_engines()
    jobs = {job.name: job for job in SECTIONS[section].get_jobs(Path(folder), int(scale))}
    reply(str(Path(xr_tensorfmt.__file__).parents[1]))
    for line in sys.stdin:
        job, name = json.loads(line)
        try:
            run = jobs[job].contenders[name]
            if isinstance(run, Prepared):
                run = partial(run.run, run.prepare())
            gc.collect()
            reply("ready")
            sys.stdin.readline()
            start = perf_counter()
            answer = run()
            reply({"seconds": perf_counter() - start, "answer": answer})
        except Exception:  # noqa: BLE001  # the parent reports it and goes on
            reply({"error": traceback.format_exc()})


if __name__ == "__main__":
    main(*sys.argv[1:])
