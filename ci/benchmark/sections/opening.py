"""Open files without reading values, import the package, and start the command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray, BackendEntrypoint
from xarray.core.indexing import LazilyIndexedArray

from benchmark.job import Job

TITLE = "Opening"
INTRO = """\
Models of tensors of float32 in MAG, a consolidated zarr store and netCDF4 are opened as a lazy
Dataset and closed. The baseline is a Dataset of the same variables from an engine that reads no
file. Jobs that start Python end with its process."""
COUNTS = (1, 1_000, 10_000)
MAX_PEER_COUNT = 1_000  # more take minutes
SHAPE = (2, 2)
LOAD_ENGINE = """
from importlib.metadata import entry_points
entry_points(group="xarray.backends")["tensorfmt"].load()
"""
RUN_HELP = """
import sys
from importlib.metadata import entry_points
sys.argv[:] = ["xr-tensorfmt", "--help"]
entry_points(group="console_scripts")["xr-tensorfmt"].load()()
"""


class _NoValues(BackendArray):
    dtype = np.dtype(np.float32)
    shape = SHAPE

    def __getitem__(self, key: Any) -> Any:
        raise NotImplementedError


class _NoFile(BackendEntrypoint):
    def open_dataset(
        self, filename_or_obj: Any, *, drop_variables: Any = None, count: int = 1
    ) -> xr.Dataset:
        variables = _get_variables(count).items()
        return xr.Dataset(
            {key: xr.Variable(dims, LazilyIndexedArray(_NoValues())) for key, dims in variables}
        )


@cache
def _get_variables(count: int) -> dict[str, tuple[str, str]]:
    keys = [f"layers.{number}.self_attn.q_proj.weight" for number in range(count)]
    return {key: (f"{key}_dim_0", f"{key}_dim_1") for key in keys}


@contextmanager
def provide(folder: Path, scale: int) -> Iterator[None]:
    """Write the headers of the files."""
    for count in _get_counts(scale):
        values = np.zeros(SHAPE, np.float32)
        variables = {key: (dims, values) for key, dims in _get_variables(count).items()}
        ds = xr.Dataset(variables)
        ds.tensorfmt.to_file(folder / f"{count}.mag")
        if count <= MAX_PEER_COUNT:
            ds.to_zarr(folder / f"{count}.zarr")
            ds.to_netcdf(folder / f"{count}.nc", engine="h5netcdf")
    yield


def get_jobs(folder: Path, scale: int) -> Sequence[Job]:
    """Return the jobs."""
    one, some, many = _get_counts(scale)
    return [
        _get_open_job("one", folder, one),
        _get_open_job("some", folder, some),
        _get_open_job("many", folder, many),
        _get_open_job("some with dask", folder, some, {}),
        *_get_process_jobs(folder),
    ]


def _get_counts(scale: int) -> tuple[int, int, int]:
    one, some, many = COUNTS
    return one, max(some // scale, 2), max(many // scale, 3)


def _get_open_job(name: str, folder: Path, count: int, chunks: Any = None) -> Job:
    def open_and_close(suffix: str, engine: Any, **options: Any) -> Callable[[], None]:
        path = folder / f"{count}{suffix}"
        return lambda: xr.open_dataset(path, engine=engine, chunks=chunks, **options).close()

    peers = {}
    if count <= MAX_PEER_COUNT:
        peers["zarr"] = open_and_close(".zarr", "zarr")
        peers["netCDF4"] = open_and_close(".nc", "netcdf4")
    if count == 1:  # 1,000 take a quarter of a minute
        peers["h5netcdf"] = open_and_close(".nc", "h5netcdf")
    return Job(
        name,
        f"open a model of {count:,} tensor{'s' * (count > 1)}{', `chunks={}`' * (chunks == {})}",
        open_and_close(".mag", "tensorfmt"),
        "a Dataset of xarray",
        open_and_close(".mag", _NoFile, count=count),
        peers,
        memory=count > 1,
    )


def _get_process_jobs(folder: Path) -> Iterator[Job]:
    def open_one(engine: str, suffix: str) -> Callable[[], None]:
        path = str(folder / f"1{suffix}")
        return _run_python(f"import xarray; xarray.open_dataset({path!r}, engine={engine!r})")

    baseline = ("Python that imports xarray", _run_python("import xarray"))
    yield Job(
        "import", "start Python and load the engine", _run_python(LOAD_ENGINE), *baseline, peers={}
    )
    yield Job(
        "first open",
        "start Python and open a file",
        open_one("tensorfmt", ".mag"),
        *baseline,
        peers={"zarr": open_one("zarr", ".zarr"), "netCDF4": open_one("netcdf4", ".nc")},
    )
    yield Job("help", "`xr-tensorfmt --help`", _run_python(RUN_HELP), *baseline, peers={})


def _run_python(code: str) -> Callable[[], None]:
    def run() -> None:
        command = [sys.executable, "-W", "ignore", "-c", code]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    return run
