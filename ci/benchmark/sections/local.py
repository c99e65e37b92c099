"""Read dense tensors from a local file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from dask.system import CPU_COUNT
from numpy.typing import NDArray

from benchmark.files import ROW, add_in_threads, build_dense, map_end, open_tensor, write_dense
from benchmark.job import Job
from benchmark.report import format_bytes

TITLE = "Dense tensors"
INTRO = """\
Tensors of float64 in a TENS file, an uncompressed zarr store with chunks of 8 MiB, and a contiguous
netCDF4 file. With dask, TENS and netCDF4 are read in chunks of 32 MiB. Weights are in safetensors
(float32) and MAG (bfloat16). The files are in the page cache. Each job opens its file."""
ROWS, WEIGHT_ROWS, CHUNK_ROWS = 8192, 4096, 256
KEY = "embed_tokens.weight"


@contextmanager
def provide(folder: Path, scale: int) -> Iterator[None]:
    """Write the files."""
    rows = ROWS // scale
    write_dense(folder / "dense", rows)
    build_dense(rows).to_netcdf(folder / "dense.nc", engine="h5netcdf")
    weights = build_dense(WEIGHT_ROWS // scale, np.float32).rename(tensor=KEY)
    weights.tensorfmt.to_file(folder / "weights.safetensors")
    weights.tensorfmt.to_file(folder / "weights.mag", encoding={"dtype": "bfloat16"})
    yield


def get_jobs(folder: Path, scale: int) -> Sequence[Job]:
    """Return the jobs."""
    rows = ROWS // scale
    half = rows // 2
    return [
        _get_value_job(folder, rows),
        *_get_sum_jobs(folder, rows),
        _get_slab_job(folder, rows, "b", slice(half, half + min(CHUNK_ROWS, half))),
        _get_slab_job(folder, rows, "a", slice(ROW // 2, ROW // 2 + 256)),
        *_get_weight_jobs(folder, WEIGHT_ROWS // scale),
    ]


def _map(folder: Path, rows: int) -> NDArray[Any]:
    return map_end(folder / "dense.tens", "<f8", rows, ROW)


def _get_openers(folder: Path) -> dict[str, Callable[..., xr.DataArray]]:
    suffixes = {"tensorfmt": ".tens", "zarr": ".zarr", "netCDF4": ".nc", "h5netcdf": ".nc"}
    return {
        name: partial(open_tensor, folder / f"dense{suffix}", name.lower())
        for name, suffix in suffixes.items()
    }


def _get_value_job(folder: Path, rows: int) -> Job:
    def load(opener: Callable[[], xr.DataArray]) -> float:
        return float(opener().values.sum())

    openers = _get_openers(folder)
    return Job(
        "values",
        f"load {format_bytes(8 * ROW * rows)} of float64, then sum",
        partial(load, openers.pop("tensorfmt")),
        "np.memmap",
        lambda: float(_map(folder, rows).sum()),
        {name: partial(load, opener) for name, opener in openers.items()},
        memory=True,
    )


def _get_sum_jobs(folder: Path, rows: int) -> Iterator[Job]:
    openers = _get_openers(folder)
    ours = openers.pop("tensorfmt")
    chunks = {name: {} if name == "zarr" else {"b": min(rows, CHUNK_ROWS)} for name in openers}
    size = f"{format_bytes(8 * ROW * rows)} of float64"

    yield Job(
        "sum",
        f"sum {size} with dask",
        lambda: add_lazily(ours(chunks={})),
        f"numpy, {CPU_COUNT} threads",
        lambda: add_in_threads(np.sum, np.array_split(_map(folder, rows), CPU_COUNT)),
        {name: partial(_add, opener, chunks[name]) for name, opener in openers.items()},
        memory=True,
    )
    yield Job(
        "nansum",
        f"sum {size} with dask and skip NaN",
        lambda: float(ours(chunks={}).sum()),
        f"np.nansum, {CPU_COUNT} threads",
        lambda: add_in_threads(
            np.nansum, np.array_split(_map(folder, rows), max(rows // CHUNK_ROWS, 1))
        ),
        {"zarr": lambda: float(openers["zarr"](chunks={}).sum())},
        memory=True,
    )


def add_lazily(array: xr.DataArray) -> float:
    """Return the sum of an array without NaN."""
    return float(array.sum(skipna=False))


def _add(opener: Callable[..., xr.DataArray], chunks: Any) -> float:
    return add_lazily(opener(chunks=chunks))


def _get_slab_job(folder: Path, rows: int, dim: str, part: slice) -> Job:
    def add(opener: Callable[..., xr.DataArray]) -> float:
        return float(opener().isel({dim: part}).values.sum())

    def add_by_hand() -> float:
        values = _map(folder, rows)
        return float((values[part] if dim == "b" else values[:, part]).sum())

    openers = _get_openers(folder)
    axis, width = ("slow", ROW) if dim == "b" else ("fast", rows)
    size = format_bytes(8 * width * (part.stop - part.start))
    return Job(
        f"{axis} slab",
        f"load {size} along the {axis} axis, then sum",
        partial(add, openers.pop("tensorfmt")),
        "np.memmap",
        add_by_hand,
        {name: partial(add, opener) for name, opener in openers.items()},
    )


def _get_weight_jobs(folder: Path, rows: int) -> Iterator[Job]:
    single, brain = folder / "weights.safetensors", folder / "weights.mag"
    size = 4 * ROW * rows

    def load(path: Path) -> float:
        return float(xr.open_dataset(path, engine="tensorfmt")[KEY].values.sum())

    def load_by_safetensors() -> float:
        from safetensors import safe_open  # noqa: PLC0415

        with safe_open(single, "numpy") as file:
            return float(file.get_tensor(KEY).sum())

    def shift_bfloat16() -> NDArray[Any]:
        halves = map_end(brain, "<u2", rows, ROW)
        values = np.empty(halves.shape, np.uint32)
        np.left_shift(halves, np.uint32(16), out=values, dtype=np.uint32)
        return values.view(np.float32)

    yield Job(
        "float32",
        f"load {format_bytes(size)} of float32 from safetensors, then sum",
        lambda: load(single),
        "np.memmap",
        lambda: float(map_end(single, "<f4", rows, ROW).sum()),
        {"safetensors": load_by_safetensors},
        memory=True,
    )
    yield Job(
        "bfloat16",
        f"load {format_bytes(size // 2)} of bfloat16 as float32, then sum",
        lambda: load(brain),
        "np.memmap and a shift",
        lambda: float(shift_bfloat16().sum()),
        {},
        memory=True,
    )
