"""Statistics of variables, computed block by block in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from xarray import Variable

from xr_tensorfmt.core.chunk_grid import DEFAULT_CHUNK_BYTES, contiguous_chunk, iterate_chunks
from xr_tensorfmt.writing.conversion import is_numeric


def iterate_blocks(variable: Variable) -> Iterator[tuple[slice, ...]]:
    """Yield blocks of a variable, to be read one by one."""
    default = contiguous_chunk(variable.shape, max(1, variable.dtype.itemsize), DEFAULT_CHUNK_BYTES)
    chunks = variable.encoding.get("preferred_chunks") or {}
    if set(chunks) != set(variable.dims):
        chunks = dict(zip(variable.dims, default, strict=True))
    steps = [int(np.max(chunks[dim])) for dim in variable.dims]
    for ranges in iterate_chunks(variable.shape, steps):
        yield tuple(slice(axis.start, axis.stop) for axis in ranges)


def compute_statistics(variable: Variable) -> dict[str, Any] | None:
    """Return minimum, maximum, mean and counts of NaN and zeros, or None if not numeric.

    Complex numbers are compared by their absolute values. NaN is ignored.
    """
    if not (is_numeric(variable.dtype) or variable.dtype.kind == "b"):
        return None
    minima, maxima = [], []
    total = 0.0 + 0.0j
    count = zeros = 0
    for block in iterate_blocks(variable):
        values = variable[block].values
        numbers = values[values == values]
        if not numbers.size:
            continue
        is_complex = numbers.dtype.kind == "c"
        ordered = np.abs(numbers) if is_complex else numbers
        minima.append(ordered.min().item())
        maxima.append(ordered.max().item())
        with np.errstate(all="ignore"):
            total += numbers.sum(dtype=np.complex128 if is_complex else np.float64).item()
        count += numbers.size
        zeros += numbers.size - int(np.count_nonzero(numbers))
    mean = total if variable.dtype.kind == "c" else total.real
    return {
        "min": min(minima, default=None),
        "max": max(maxima, default=None),
        "mean": mean / count if count else None,
        "nan": variable.size - count,
        "zeros": zeros,
    }
