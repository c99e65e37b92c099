"""The chunk grid: pure arithmetic on shapes and bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import gcd, isqrt, prod

import numpy as np

PAGE = 4096
"""Bytes of which chunk lengths are a multiple where possible."""

DEFAULT_CHUNK_BYTES = 31 << 20
"""Default size of a chunk in bytes.

Measured: sums become faster up to 64 MiB, operations with temporaries slower from 32 MiB on. From
32 MiB on glibc also returns freed memory to the system, so that each chunk causes new page faults:
where values are copied, chunks of 31 MiB are a quarter faster than those of 32.
"""


MAX_CHUNKS = 1 << 20
"""Limit on the chunks of a variable for ``chunks={}``, of which dask keeps some facts each."""


@lru_cache(maxsize=1024)  # many tensors of a file have one shape
def contiguous_chunk(shape: tuple[int, ...], item: int, target: int) -> tuple[int, ...]:
    """Shape of the chunks of a tensor, each of which is one contiguous range of its bytes."""
    return _cut(shape, item, target, _rows) or ()


def _cut(
    shape: tuple[int, ...], item: int, target: int, rows_of: Callable[[int, int, int], int | None]
) -> tuple[int, ...] | None:
    """Cut the slowest axis of which a row fits into a chunk, into as many rows as are wanted."""
    lengths = tuple(max(1, length) for length in shape)
    if item * prod(shape) <= target:
        return lengths
    for axis in range(len(lengths)):
        row = item * prod(lengths[axis + 1 :])
        if row <= target or axis == len(lengths) - 1:
            rows = rows_of(lengths[axis], row, target)
            return None if rows is None else (*(1,) * axis, rows, *lengths[axis + 1 :])
    return lengths


@lru_cache(maxsize=1024)
def chunk_count(shape: tuple[int, ...], chunk: tuple[int, ...]) -> int:
    """How many chunks of a shape a tensor has."""
    return prod(-(-length // step) for length, step in zip(shape, chunk, strict=True))


def _rows(length: int, row: int, target: int) -> int:
    most = max(1, target // row)
    if most >= length:
        return length
    whole_pages = PAGE // gcd(row, PAGE)
    step = whole_pages if whole_pages <= most else 1
    count = -(-length // (most - most % step))
    even = -(-length // count)
    return -(-even // step) * step


SMALLEST_DIVIDING = 64 << 10
"""Least bytes of a chunk whose length must be a divisor, where the target is not below."""

_MAX_TIMES_TARGET = 16
_LONGEST_DIVIDED = 1 << 44


def dividing_chunk(shape: tuple[int, ...], item: int, target: int) -> tuple[int, ...] | None:
    """As `contiguous_chunk`, with no chunk shorter than the others; None where that cannot be.

    Chunks may be up to 16 times as large as the target where the length of an axis has no better
    divisor.
    """
    return _cut(shape, item, target, _dividing_rows)


def _dividing_rows(length: int, row: int, target: int) -> int | None:
    """A divisor of a length: near the target, else smaller, else larger."""
    if length > _LONGEST_DIVIDED:
        return None  # only axes of terabytes, whose divisors take long to find
    tried = np.arange(1, isqrt(length) + 1)
    small = tried[length % tried == 0].tolist()
    divisors = {*small, *(length // each for each in small)}
    most = max(1, target // row)
    least = min(most, -(-SMALLEST_DIVIDING // row))
    near = max(least, most // 4)
    for low, high, pick in (
        (near, most, max),
        (most + 1, 4 * most, min),
        (least, near - 1, max),
        (4 * most + 1, _MAX_TIMES_TARGET * most, min),
    ):
        fitting = [each for each in divisors if low <= each <= high]
        if fitting:
            return int(pick(fitting))
    return None
