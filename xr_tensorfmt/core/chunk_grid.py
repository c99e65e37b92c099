"""Chunk shapes that follow the order of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import gcd, isqrt, prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", int, NDArray[Any])

PAGE = 4096
"""Size of a memory page in bytes. Chunks are whole pages if possible."""

DEFAULT_CHUNK_BYTES = 31 << 20
"""Default size of a chunk in bytes. glibc reuses blocks below 32 MiB, which is a quarter faster."""

MAX_CHUNKS = 1 << 20
"""Limit on the chunks of a variable for ``chunks={}``: dask holds about 1 kB for every chunk."""


def ceil_div(dividend: Number, divisor: int) -> Number:
    """Divide integers and round up."""
    return -(-dividend // divisor)


@lru_cache(maxsize=1024)  # many tensors of a file have one shape
def contiguous_chunk(shape: tuple[int, ...], item: int, target: int) -> tuple[int, ...]:
    """Return the shape of contiguous chunks of a row-major array, of up to `target` bytes."""
    return _divide(shape, item, target, _count_rows)


def iterate_chunks(shape: Sequence[int], chunk: Sequence[int]) -> Iterator[tuple[range, ...]]:
    """Yield the indices of every chunk of an array, in C order."""
    axes = (
        [range(start, min(start + step, length)) for start in range(0, length, max(1, step))]
        for length, step in zip(shape, chunk, strict=True)
    )
    return product(*axes)


def _divide(
    shape: tuple[int, ...], item: int, target: int, count_rows: Callable[[int, int, int], int]
) -> tuple[int, ...]:
    """Divide the slowest axis whose rows fit into a chunk."""
    lengths = tuple(max(1, length) for length in shape)
    if item * prod(shape) <= target:
        return lengths
    for axis in range(len(lengths)):
        row = item * prod(lengths[axis + 1 :])
        if row <= target or axis == len(lengths) - 1:
            rows = count_rows(lengths[axis], row, target)
            return (*(1,) * axis, rows, *lengths[axis + 1 :])
    return lengths  # a scalar that is larger than the target


@lru_cache(maxsize=1024)
def count_chunks(shape: tuple[int, ...], chunk: tuple[int, ...]) -> int:
    """Return the number of chunks of an array."""
    return prod(map(ceil_div, shape, chunk))


def _count_rows(length: int, row: int, target: int) -> int:
    """Return the number of rows per chunk: whole pages and chunks of similar size if possible."""
    max_rows = max(1, target // row)
    if max_rows >= length:
        return length
    whole_pages = PAGE // gcd(row, PAGE)
    step = whole_pages if whole_pages <= max_rows else 1
    count = ceil_div(length, max_rows - max_rows % step)
    even = ceil_div(length, count)
    return ceil_div(even, step) * step


# Minimum size of equal chunks in bytes, unless the target is smaller.
_MIN_EQUAL_CHUNK_BYTES = 64 << 10
_MAX_TIMES_TARGET = 16
_MAX_DIVIDED_LENGTH = 1 << 44


def find_dividing_chunk(shape: tuple[int, ...], item: int, target: int) -> tuple[int, ...] | None:
    """Return a shape of equal contiguous chunks, up to 16 times the target, or None."""
    chunk = _divide(shape, item, target, _find_divisor)
    return None if 0 in chunk else chunk


def _find_divisor(length: int, row: int, target: int) -> int:
    """Return the largest divisor up to the target, otherwise the next larger one, or 0."""
    if length > _MAX_DIVIDED_LENGTH:
        return 0  # finding the divisors of such a length takes seconds
    candidates = np.arange(1, isqrt(length) + 1)
    small = candidates[length % candidates == 0]
    divisors = np.union1d(small, length // small)
    max_rows = max(1, target // row)
    min_rows = min(max_rows, ceil_div(_MIN_EQUAL_CHUNK_BYTES, row))
    fitting = divisors[(min_rows <= divisors) & (divisors <= max_rows)]
    larger = divisors[(max_rows < divisors) & (divisors <= _MAX_TIMES_TARGET * max_rows)]
    return int(max(fitting, default=min(larger, default=0)))
