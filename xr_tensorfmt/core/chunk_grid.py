"""The chunk grid: pure arithmetic on shapes and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd, prod

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


def chunk_count(shape: Sequence[int], chunk: Sequence[int]) -> int:
    """How many chunks of a shape a tensor has."""
    return prod(-(-length // step) for length, step in zip(shape, chunk, strict=True))


def row_chunk(shape: tuple[int, int], item: int, stored: int, target: int) -> tuple[int, int]:
    """Shape of the chunks of a matrix whose rows take fewer bytes in the file than in memory."""
    rows, columns = (max(1, length) for length in shape)
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
