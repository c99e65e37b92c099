"""One case in a process of its own, which the parent watches: see `benchmark.alone`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from time import perf_counter

from benchmark.sections import SECTIONS

# What a contender imports is no part of its memory, or of its time.
MODULES = (
    "dask.array",
    "h5netcdf",
    "netCDF4",
    "safetensors.numpy",
    "xarray",
    "xr_tensorfmt.backend",
    "zarr",
)

_LONG_ENOUGH = 0.25


def main(section: str, case_name: str, folder: str) -> None:
    """Get ready, wait for a line from the parent, run, and say how long it took.

    Short jobs are run again until the parent has had time to see their memory.
    """
    case = SECTIONS[section].case(Path(folder), case_name)
    for module in MODULES:
        importlib.import_module(module)
    state = case.setup()
    print("ready", flush=True)
    sys.stdin.readline()
    start = perf_counter()
    case.run(state)
    seconds = perf_counter() - start
    while perf_counter() - start < _LONG_ENOUGH:
        case.run(state)
    print(seconds, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
