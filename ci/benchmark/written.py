"""What is written: arrays of dask whose chunks are there already; and the same bytes by hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from numpy.typing import NDArray

from benchmark.machine import CORES

CHUNK = 31 << 20
"""Bytes of a chunk."""

COLUMNS = 4096
BLOCK = 128
"""Numbers behind each label."""

_LABEL = "document {:07}"


@cache
def block(columns: int = COLUMNS) -> NDArray[np.float32]:
    """A chunk of whole rows of numbers."""
    rows = CHUNK // (4 * columns)
    return np.random.default_rng(0).random((rows, columns), dtype=np.float32)


@cache
def bits_block(columns: int) -> NDArray[np.bool_]:
    """A chunk of whole rows of bools."""
    return np.random.default_rng(0).random((CHUNK // columns, columns)) < 0.5


def floats(rows: int) -> xr.Dataset:
    """Many chunks of numbers."""
    return xr.Dataset({"tensor": (("x", "y"), _repeated(block(), rows))})


def labelled(rows: int) -> xr.Dataset:
    """Many chunks of numbers, with a label for each row."""
    labels = np.array([_LABEL.format(number) for number in range(rows)])
    return xr.Dataset(
        {"tensor": (("document", "x"), _repeated(block(BLOCK), rows))}, {"document": labels}
    )


def bits(size: int) -> xr.DataArray:
    """Many chunks of bools, together a square."""
    order = _order(size)
    return xr.DataArray(_repeated(bits_block(order), order), dims=("row", "col"), name="tensor")


def _order(size: int) -> int:
    return int(size**0.5) // 512 * 512


def _repeated(values: NDArray[Any], rows: int) -> Any:
    """An array whose chunks are all the same block in memory."""
    full, rest = divmod(rows, len(values))
    chunks = ((len(values),) * full + ((rest,) if rest else ()), values.shape[1:])

    def part(block_info: Any = None) -> NDArray[Any]:
        return values[: block_info[None]["chunk-shape"][0]]

    return da.map_blocks(part, chunks=chunks, dtype=values.dtype, meta=values[:0])


def floats_by_hand(size: int, path: Path) -> None:
    """Write the bytes of numbers."""
    raw = block().reshape(-1).view(np.uint8)
    count = size // raw.size
    _by_hand(lambda _: raw, count, count * raw.size, path)


def labelled_by_hand(rows: int, path: Path) -> None:
    """Write as many bytes as a file of labels and their numbers has."""
    # Before each label stands its length, in a byte.
    floats_by_hand(rows * (1 + len(_LABEL.format(0)) + 4 * BLOCK), path)


def bits_by_hand(size: int, path: Path) -> None:
    """Pack bools, and write what comes out."""
    values = bits_block(_order(size))

    def packed(_: int) -> NDArray[np.uint8]:
        return np.packbits(values, axis=1, bitorder="little").reshape(-1)

    count = values.shape[1] // len(values)
    _by_hand(packed, count, count * values.size // 8, path)


def _by_hand(parts: Callable[[int], NDArray[np.uint8]], count: int, size: int, path: Path) -> None:
    """Parts of one length, each written in its place."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, size)
    step = size // count

    def write(number: int) -> None:
        raw = parts(number)
        position = 0
        while position < raw.size:
            position += os.pwrite(descriptor, raw[position:].data, number * step + position)
        os.posix_fadvise(descriptor, number * step, raw.size, os.POSIX_FADV_DONTNEED)

    with ThreadPoolExecutor(CORES) as threads:
        list(threads.map(write, range(count)))
    os.fsync(descriptor)
    os.close(descriptor)
