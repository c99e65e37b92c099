"""Byte ranges of a file, the ranges to fetch at once, and chunks that are one range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import gcd, prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]

Transfer = tuple[int, int, "Extents", Bytes]
"""Start and stop of bytes to fetch, the ranges in them, and the memory for the ranges."""

# Length of a range in bytes from which slicing is as fast as fancy indexing.
_LONG_PIECE = 1 << 14
# Bytes of short ranges to gather at a time. More would need new pages, which cost more than copies.
_BATCH_BYTES = 1 << 18


@dataclass(frozen=True, eq=False)
class Extents:
    """Byte ranges ``[start, start + length)``, sorted and disjoint.

    Parameters
    ----------
    starts : ndarray of int64
        First byte of every range.
    lengths : ndarray of int64
        Positive length of every range in bytes. May be a broadcast scalar.

    Examples
    --------
    Bytes 100 to 107 and 300 to 307:

    >>> extents = Extents.uniform(np.array([100, 300]), 8)
    >>> extents.nbytes, extents.bounds
    (16, (100, 308))
    >>> extents.merge(gap=200, limit=1 << 20).lengths.tolist()
    [208]
    """

    starts: Integers
    lengths: Integers

    @classmethod
    def uniform(cls, starts: Integers, length: int) -> Extents:
        """Create ranges of one length, without an array of lengths."""
        # `numpy.broadcast_to` takes several times as long.
        return cls(starts, np.ndarray(starts.shape, np.int64, np.int64(length), strides=(0,)))

    @classmethod
    def from_bounds(cls, starts: Integers, stops: Integers) -> Extents:
        """Create ranges ``[start, stop)``. Join adjacent ranges and drop empty ones."""
        starts, stops = starts[starts < stops], stops[starts < stops]
        begins, ends = np.ones((2, starts.size), dtype=np.bool_)
        begins[1:] = ends[:-1] = starts[1:] > stops[:-1]
        return cls(starts[begins], stops[ends] - starts[begins])

    @classmethod
    def empty(cls) -> Extents:
        """Create no range, for values that are not stored."""
        empty = np.zeros(0, dtype=np.int64)
        return cls(empty, empty)

    @classmethod
    def single(cls, start: int, stop: int) -> Extents:
        """Create the range ``[start, stop)``."""
        return cls(np.array([start], np.int64), np.array([stop - start], np.int64))

    def __len__(self) -> int:
        return self.starts.size

    @property
    def nbytes(self) -> int:
        """Total length in bytes."""
        return int(self.lengths.sum())

    @property
    def bounds(self) -> tuple[int, int]:
        """First byte, and the byte after the last one."""
        return int(self.starts[0]), int(self.starts[-1] + self.lengths[-1])

    def merge(self, *, gap: int, limit: int, max_length: int | None = None) -> Extents:
        """Merge ranges across gaps, within `limit`; `max_length` divides longer ones as well."""
        if len(self) == 1 and (max_length is None or self.nbytes <= limit):
            return self
        starts, stops = self.starts, self.starts + self.lengths
        opens = np.zeros(starts.size, dtype=np.bool_)  # whether a range begins a merged one
        if max_length is not None:
            starts, stops, opens = _divide(starts, self.lengths, limit)
        opens[0] = True
        opens[1:] |= starts[1:] - stops[:-1] > gap
        firsts = starts[opens][np.cumsum(opens) - 1]
        opens[1:] |= np.diff((starts - firsts) // limit) != 0
        if max_length is not None:
            # Only the last range of a merged one can make it too long.
            closes = np.flatnonzero(np.append(opens[1:], True))
            opens[closes] |= stops[closes] - starts[opens] > max_length
        return Extents(starts[opens], stops[np.append(opens[1:], True)] - starts[opens])

    def iterate_transfers(self, requests: Extents, packed: Bytes) -> Iterator[Transfer]:
        """Yield the transfer of each range that `merge` returned, for the result `packed`."""
        if requests is self and len(self) == 1:
            yield *self.bounds, self, packed
            return
        stops = self.starts + self.lengths
        positions = np.cumsum(self.lengths) - self.lengths
        lows = np.searchsorted(stops, requests.starts, side="right").tolist()
        highs = np.searchsorted(self.starts, requests.starts + requests.lengths).tolist()
        bounds = zip(requests.starts.tolist(), requests.lengths.tolist(), strict=True)
        for low, high, (start, length) in zip(lows, highs, bounds, strict=True):
            stop = start + length
            ranges = Extents(self.starts[low:high], self.lengths[low:high])
            skipped = max(0, start - int(self.starts[low]))
            if skipped or stops[high - 1] > stop:  # a part of a long range
                starts = np.maximum(ranges.starts, start)
                ranges = Extents(starts, np.minimum(stops[low:high], stop) - starts)
            position = int(positions[low]) + skipped
            yield start, stop, ranges, packed[position : position + ranges.nbytes]

    def gather(self, window: Bytes, origin: int, out: Bytes) -> None:
        """Copy the ranges from a window of the file that begins at `origin` to `out`."""
        starts = self.starts - origin if origin else self.starts
        length = int(self.lengths[0])
        # Comparing is unnecessary if the lengths are a broadcast scalar.
        if length < _LONG_PIECE and (not self.lengths.strides[0] or (self.lengths == length).all()):
            count, dtype = window.size - length + 1, np.dtype((np.void, length))
            overlapping: Any = np.ndarray((count,), dtype, buffer=window, strides=(1,))
            step = _BATCH_BYTES // length
            for first in range(0, starts.size, step):
                part = overlapping[starts[first : first + step]].view(np.uint8)
                out[first * length :][: part.size] = part
            return
        stop = 0
        for start, size in zip(starts.tolist(), self.lengths.tolist(), strict=True):
            out[stop : stop + size] = window[start : start + size]
            stop += size


def _divide(
    starts: Integers, lengths: Integers, limit: int
) -> tuple[Integers, Integers, NDArray[np.bool_]]:
    """Divide long ranges. Return starts, stops, and whether a part is not the first one."""
    counts = ceil_div(lengths, limit)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts, lengths, counts = (np.repeat(array, counts) for array in (starts, lengths, counts))
    part_starts = starts + lengths * number // counts
    part_stops = starts + lengths * (number + 1) // counts
    return part_starts, part_stops, number > 0


def format_size(count: int) -> str:
    """Format a byte count with a binary unit, such as "1.5 MiB"."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = min(max(0, count.bit_length() - 1) // 10, len(units) - 1)
    return f"{count / 1024**power:.{1 if power else 0}f} {units[power]}"


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
    """Return the shape of contiguous chunks of a row-major array, of up to `target` bytes.

    The slowest axis whose rows fit into a chunk is divided.
    """
    lengths = tuple(max(1, length) for length in shape)
    if item * prod(shape) <= target:
        return lengths
    for axis in range(len(lengths)):
        row = item * prod(lengths[axis + 1 :])
        if row <= target or axis == len(lengths) - 1:
            return (*(1,) * axis, _count_rows(lengths[axis], row, target), *lengths[axis + 1 :])
    return lengths  # a scalar that is larger than the target


def iterate_chunks(shape: Sequence[int], chunk: Sequence[int]) -> Iterator[tuple[range, ...]]:
    """Yield the indices of every chunk of an array, in C order."""
    axes = (
        [range(start, min(start + step, length)) for start in range(0, length, max(1, step))]
        for length, step in zip(shape, chunk, strict=True)
    )
    return product(*axes)


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
