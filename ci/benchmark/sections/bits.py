"""Unpack and count the bits of causal matrices."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from benchmark.files import CAUSET_OFFSET, open_tensor, write_causal_matrix
from benchmark.job import Job, Prepared
from benchmark.report import format_bytes
from xr_tensorfmt.pycauset import popcount

TITLE = "Causal matrices of bits"
INTRO = """\
PyCauset containers with random bits. The files are open before the clock starts. The baseline of
unpacking is `numpy.unpackbits` of as many consecutive bits, and the baseline of counting is
`numpy.bitwise_count` of all words without adding them up."""
ORDERS = {"tiny": 2_000, "small": 20_000, "large": 100_000}
UNPACK, COUNT = "np.unpackbits", "np.bitwise_count"


@contextmanager
def provide(folder: Path, scale: int) -> Iterator[None]:
    """Write the files."""
    for name in ORDERS:
        write_causal_matrix(folder / f"{name}.pycauset", _get_order(name, scale))
    yield


def get_jobs(folder: Path, scale: int) -> Sequence[Job]:
    """Return the jobs."""
    tiny, small, large = (_get_order(name, scale) for name in ORDERS)
    return [
        _get_tiny_job(folder / "tiny.pycauset", tiny),
        *_get_unpack_jobs(folder, small),
        *_get_count_jobs(folder / "large.pycauset", large),
    ]


def _get_order(name: str, scale: int) -> int:
    return int(ORDERS[name] / scale**0.5)


def _map(path: Path, dtype: str) -> NDArray[Any]:
    count = (path.stat().st_size - CAUSET_OFFSET) // np.dtype(dtype).itemsize
    return np.memmap(path, dtype, "r", CAUSET_OFFSET, count)


def _unpack(path: Path, elements: int) -> Callable[[], float]:
    return lambda: _check(np.unpackbits(_map(path, "u1")[: elements // 8]))


def _check(values: Any) -> float:
    return float(np.size(values) > 0)


def _use(run: Callable[[xr.DataArray], Any], path: Path, **options: Any) -> Prepared:
    """Open a file before each run."""
    opener = partial(open_tensor, path, "tensorfmt", **options)
    return Prepared(lambda array: _check(run(array).values), opener)


def _get_tiny_job(path: Path, order: int) -> Job:
    def load() -> float:
        import pycauset  # noqa: PLC0415

        return _check(pycauset.to_numpy(pycauset.load(str(path))))

    peers = {"pycauset": load} if importlib.util.find_spec("pycauset") else {}
    text = f"unpack a matrix of {order:,} elements"
    ours = _use(lambda array: array[:], path)
    return Job("tiny", text, ours, UNPACK, _unpack(path, order**2 // 2), peers)


def _get_unpack_jobs(folder: Path, order: int) -> Iterator[Job]:
    size = order // 10
    rows, columns = slice(2 * size, 3 * size), slice(5 * size, 6 * size)
    part = np.sort(np.random.default_rng(0).permutation(order)[:-size])
    for name, what, key, elements in (
        ("whole", f"a matrix of {order:,} elements to {format_bytes(order**2)}", {}, order**2),
        ("rows", f"{size:,} rows of it", {"row": rows}, size * order),
        ("block", f"a block of {size:,} rows and columns", {"row": rows, "col": columns}, size**2),
        ("part", "nine of ten elements", {"row": part, "col": part}, part.size**2),
        ("column", "one column", {"col": 7 * size}, order),
    ):
        yield Job(
            name,
            f"unpack {what}",
            _use(partial(xr.DataArray.isel, indexers=key), folder / "small.pycauset"),
            UNPACK,
            _unpack(folder / "large.pycauset", elements),
            {},
            memory=name == "whole",
        )


def _get_count_jobs(path: Path, order: int) -> Iterator[Job]:
    count = f"count the relations of {order:,} elements"
    unpack = f"unpack {order:,} rows and sum them"
    add: Callable[..., Any] = xr.DataArray.sum
    for name, text, run, chunks in (
        ("row sums", f"{count} by row", partial(popcount, dim="col"), None),
        ("row sums with dask", f"{count} by row with dask", partial(popcount, dim="col"), {}),
        ("column sums", f"{count} by column", partial(popcount, dim="row"), None),
        ("column sums with dask", f"{count} by column with dask", partial(popcount, dim="row"), {}),
        ("total", f"{count} in total", popcount, None),
        ("unpacked sums", f"{unpack} with dask", partial(add, dim="col"), {}),
    ):
        yield Job(
            name,
            text,
            _use(run, path, chunks=chunks),
            COUNT,
            lambda: _check(np.bitwise_count(_map(path, "<u8"))),
            {},
            memory=chunks is not None,
        )
