"""Dense tensors by numpy alone: the limits of the tables."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
from numpy.typing import NDArray

from benchmark.files import ROW
from benchmark.machine import CORES

OFFSET = 48
"""Where the data of a TENS file of two dimensions begin."""

SLAB = 256
"""Rows of 32 MiB."""


def mapped(path: Path) -> NDArray[Any]:
    """The rows of a TENS file, by hand."""
    return np.memmap(path, np.float64, "r", OFFSET).reshape(-1, ROW)


def parallel(path: Path, add_up: Any, _: None) -> float:
    """Add up one contiguous part a thread."""
    parts = np.array_split(mapped(path), CORES)
    with ThreadPoolExecutor(CORES) as threads:
        return float(sum(threads.map(add_up, parts)))


def in_pieces(path: Path, add_up: Any, _: None) -> float:
    """Add up pieces of 32 MiB, on all cores."""
    # A nansum over 1 GiB at once would make a copy of 1 GiB.
    whole = mapped(path)
    pieces = [whole[first : first + SLAB] for first in range(0, len(whole), SLAB)]
    with ThreadPoolExecutor(CORES) as threads:
        return float(sum(threads.map(add_up, pieces)))


def from_array(path: Path, _: None) -> float:
    """Give dask the mapped file, which it copies into memory first."""
    array = dask.array.from_array(mapped(path), chunks=(SLAB, ROW))
    return float(array.sum().compute())


def read_into(path: Path, _: None) -> float:
    """Read into new memory, then add up."""
    values = np.empty(mapped(path).shape)
    with path.open("rb", buffering=0) as file:
        file.seek(OFFSET)
        view = values.data.cast("B")
        while view:
            view = view[file.readinto(view) :]
    return float(values.sum())
