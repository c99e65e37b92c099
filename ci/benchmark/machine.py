"""What the numbers depend on besides the code."""

from __future__ import annotations

import os
import platform
import shutil
from importlib.metadata import version
from pathlib import Path

import psutil
from dask.system import CPU_COUNT

PACKAGES = (
    "numpy",
    "xarray",
    "dask",
    "zarr",
    "h5netcdf",
    "netCDF4",
    "safetensors",
    "xr-tensorfmt",
)
_GIBIBYTE = 1 << 30

CORES = CPU_COUNT
"""Threads of the limit, and of dask."""


def versions() -> str:
    """The machine and the packages, in one sentence."""
    memory = psutil.virtual_memory().total / _GIBIBYTE
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return (
        f"{CORES} cores, {memory:.0f} GiB, {platform.system()} {platform.release().split('-')[0]} "
        f"({platform.machine()}), Python {platform.python_version()}, {packages}"
    )


def load() -> float:
    """Processes that wanted to run in the last minute, on average."""
    return os.getloadavg()[0]


def check_disk(folder: Path, needed: int) -> None:
    """Refuse to start what would fill the disk.

    Parameters
    ----------
    folder : Path
        Where the files go.
    needed : int
        Bytes of the largest section's files; they are removed before the next section's come.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SystemExit(
            f"ci/bench needs {needed / _GIBIBYTE:.1f} GiB of disk in {folder}, of which "
            f"{free / _GIBIBYTE:.1f} GiB are free; set TENSORFMT_BENCH_DIR to another folder"
        )


def fits_memory(needed: int) -> bool:
    """Whether files of so many bytes stay in the page cache beside what the cases take."""
    return bool(psutil.virtual_memory().available > needed + needed // 2)
