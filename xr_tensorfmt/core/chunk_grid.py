"""The chunk grid: pure arithmetic on shapes and bytes."""

from __future__ import annotations

from functools import lru_cache
from math import gcd, prod

import numpy as np

PAGE = 4096
"""Bytes of which chunk lengths are a multiple where possible."""

TARGET = 31 << 20
"""Default size of a chunk in bytes.

Measured: sums become faster up to 64 MiB, operations with temporaries slower from 32 MiB on. From
32 MiB on glibc also returns freed memory to the system, so that each chunk causes new page faults:
where values are copied, chunks of 31 MiB are a quarter faster than those of 32.
"""


MOST_CHUNKS = 1 << 20
"""Limit on the chunks of a variable for ``chunks={}``, of which dask keeps some facts each."""


@lru_cache(maxsize=1024)  # many tensors of a file have one shape
def contiguous_chunk(shape: tuple[int, ...], item: int, target: int) -> tuple[int, ...]:
    """Shape of the chunks of a tensor, each of which is one contiguous range of its bytes."""
    lengths = tuple(max(1, length) for length in shape)
    if item * prod(shape) <= target:
        return lengths
    for axis in range(len(lengths)):
        row = item * prod(lengths[axis + 1 :])
        if row <= target or axis == len(lengths) - 1:
            rows = _rows(lengths[axis], row, target)
            return (*(1,) * axis, rows, *lengths[axis + 1 :])
    return ()


@lru_cache(maxsize=1024)
def chunk_count(shape: tuple[int, ...], chunk: tuple[int, ...]) -> int:
    """How many chunks of a shape a tensor has."""
    return prod(-(-length // step) for length, step in zip(shape, chunk, strict=True))


def row_chunk(shape: tuple[int, int], item: int, stored: int, target: int) -> tuple[int, int]:
    """Shape of the chunks of a matrix whose rows take fewer bytes in the file than in memory."""
    rows, columns = (max(1, length) for length in shape)
    if not prod(shape):
        return rows, columns
    row = item * columns
    if row > target:
        return 1, contiguous_chunk((columns,), item, target)[0]
    return _rows(rows, row, target, stored or PAGE), columns


def _rows(length: int, row: int, target: int, stored: int | None = None) -> int:
    most = max(1, target // row)
    if most >= length:
        return length
    whole_pages = PAGE // gcd(stored or row, PAGE)
    step = whole_pages if whole_pages <= most else 1
    count = -(-length // (most - most % step))
    even = -(-length // count)
    return -(-even // step) * step


SMALLEST_DIVIDING = 64 << 10
"""Least bytes of a chunk whose length must be a divisor, where the target is not below."""

_MOST_TIMES_TARGET = 16
_MOST_TRIED = 1 << 22


def dividing_chunk(shape: tuple[int, ...], item: int, target: int) -> tuple[int, ...] | None:
    """As `contiguous_chunk`, with no chunk shorter than the others; None where that cannot be.

    Chunks may be up to 16 times as large as the target where the length of an axis has no better
    divisor.
    """
    lengths = tuple(max(1, length) for length in shape)
    if item * prod(shape) <= target:
        return lengths
    for axis in range(len(lengths)):
        row = item * prod(lengths[axis + 1 :])
        if row <= target or axis == len(lengths) - 1:
            rows = _dividing_rows(lengths[axis], row, target)
            return None if rows is None else (*(1,) * axis, rows, *lengths[axis + 1 :])
    return lengths


def _dividing_rows(length: int, row: int, target: int) -> int | None:
    """A divisor of a length: near the target, else smaller, else larger."""
    most = max(1, target // row)
    least = min(most, -(-SMALLEST_DIVIDING // row))
    near = max(least, most // 4)
    for low, high, pick in (
        (near, most, max),
        (most + 1, 4 * most, min),
        (least, near - 1, max),
        (4 * most + 1, _MOST_TIMES_TARGET * most, min),
    ):
        divisors = _divisors_between(length, low, min(high, length))
        if divisors:
            return pick(divisors)
    return None


def _divisors_between(number: int, low: int, high: int) -> list[int]:
    """The divisors in a range, found by trying those or the quotients, whichever are fewer."""
    if low > high:
        return []
    first, last = -(-number // high), number // low
    if min(last - first, high - low) > _MOST_TRIED:
        return []  # only of axes of terabytes
    if last - first < high - low:
        quotients = np.arange(first, last + 1)
        return [number // quotient for quotient in quotients[number % quotients == 0].tolist()]
    candidates = np.arange(low, high + 1)
    found: list[int] = candidates[number % candidates == 0].tolist()
    return found
