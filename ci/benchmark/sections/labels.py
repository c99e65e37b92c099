"""Open, select and load a table of labelled vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from dask.system import CPU_COUNT
from numpy.typing import NDArray

from benchmark.files import add_in_threads, open_tensor
from benchmark.job import Job, Prepared

TITLE = "Labelled vectors"
INTRO = """\
A Vespa tensor with a block of 128 numbers of float32 for each label (`doc17`), and an uncompressed
zarr store with a coordinate of texts. The baselines are numpy scripts that know the offsets of all
blocks. The package has to find them when it opens the file. The other jobs start with an open
file."""
COUNT, WIDTH = 10**6, 128
NO_INDEX: dict[str, Any] = {"create_default_indexes": False}
PIECE = 1 << 16


@contextmanager
def provide(folder: Path, scale: int) -> Iterator[None]:
    """Write the files."""
    count = COUNT // scale
    labels = [f"doc{number}" for number in range(count)]
    values = da.random.default_rng(0).random(  # type: ignore[attr-defined]
        (count, WIDTH), dtype=np.float32, chunks=(PIECE, WIDTH)
    )
    ds = xr.Dataset({"tensor": (("user", "x"), values)}, {"user": labels})
    ds.tensorfmt.to_file(folder / "table.tbf")
    encoding = {"tensor": {"compressors": None}, "user": {"compressors": None, "chunks": (count,)}}
    ds.to_zarr(folder / "table.zarr", encoding=encoding)
    # One byte before each label is its length.
    ends = np.cumsum([1 + len(label) + 4 * WIDTH for label in labels])
    header_bytes = (folder / "table.tbf").stat().st_size - ends[-1]
    np.save(folder / "offsets.npy", header_bytes + ends - 4 * WIDTH)
    yield


def get_jobs(folder: Path, scale: int) -> Sequence[Job]:
    """Return the jobs."""
    return [*_get_open_jobs(folder, COUNT // scale), *_get_read_jobs(folder, COUNT // scale)]


def _get_open_jobs(folder: Path, count: int) -> Iterator[Job]:
    def scan(offsets: NDArray[np.int64]) -> float:
        return float(np.memmap(folder / "table.tbf", np.uint8, "r")[offsets - 1].size)

    for name, text, options in (
        ("open", "with an index", {}),
        ("open without index", "without an index", NO_INDEX),
    ):
        yield Job(
            name,
            f"open {count:,} labelled vectors {text}",
            partial(_open_only, folder / "table.tbf", "tensorfmt", options),
            "one byte per block",
            Prepared(scan, partial(np.load, folder / "offsets.npy")),
            {"zarr": partial(_open_only, folder / "table.zarr", "zarr", options)},
            memory=True,
        )


def _open_only(path: Path, engine: str, options: dict[str, Any]) -> float:
    return float(len(open_tensor(path, engine, **options)))


def _get_read_jobs(folder: Path, count: int) -> Iterator[Job]:
    number = count * 7 // 9

    def select(array: xr.DataArray) -> float:
        return float(array.sel(user=f"doc{number}").values.sum())

    def select_by_hand(offsets: NDArray[np.int64]) -> float:
        return float(_gather(folder, offsets[[number]]).sum())

    def load(array: xr.DataArray) -> float:
        return float(array.values[-1].sum())

    def load_by_hand(offsets: NDArray[np.int64]) -> float:
        return float(_gather(folder, offsets)[-1].sum())

    def average(array: xr.DataArray) -> float:
        return float(array.mean(skipna=False, dtype=np.float64))

    load_options = {**NO_INDEX, "cache": False}
    dask_options = {**NO_INDEX, "chunks": {}}
    average_by_hand = partial(_average_by_hand, folder)
    for name, text, options, run, by_hand in (
        ("sel", "select the first vector by label", {}, select, select_by_hand),
        ("load", f"load {count:,} vectors", load_options, load, load_by_hand),
        ("mean", f"average {count:,} vectors with dask", dask_options, average, average_by_hand),
    ):
        yield Job(
            name,
            text,
            Prepared(run, partial(open_tensor, folder / "table.tbf", "tensorfmt", **options)),
            f"numpy, {CPU_COUNT} threads" if name == "mean" else "numpy",
            Prepared(by_hand, partial(np.load, folder / "offsets.npy")),
            {"zarr": Prepared(run, partial(open_tensor, folder / "table.zarr", "zarr", **options))},
            memory=name == "load",
        )


def _gather(folder: Path, offsets: NDArray[np.int64]) -> NDArray[np.float32]:
    content = np.memmap(folder / "table.tbf", np.uint8, "r")
    size = 4 * WIDTH
    windows: NDArray[Any] = np.ndarray(
        (content.size - size + 1,), np.dtype((np.void, size)), content, strides=(1,)
    )
    return windows[offsets].view(">f4").astype(np.float32).reshape(-1, WIDTH)


def _average_by_hand(folder: Path, offsets: NDArray[np.int64]) -> float:
    pieces = [offsets[first : first + PIECE] for first in range(0, offsets.size, PIECE)]
    total = add_in_threads(lambda piece: _gather(folder, piece).sum(dtype=np.float64), pieces)
    return total / (offsets.size * WIDTH)
