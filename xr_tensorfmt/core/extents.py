"""Byte ranges of a file, and how to merge and divide them into ranges to fetch at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.chunk_grid import ceil_div

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]

LONG_PIECE = 1 << 14
"""Minimum length of a range in bytes for which slicing is as fast as fancy indexing."""


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
    >>> extents.nbytes, extents.bounds, extents.gaps.tolist()
    (16, (100, 308), [192])
    >>> [part.bounds for part in extents.group(gap=64, limit=1 << 20)]
    [(100, 108), (300, 308)]
    """

    starts: Integers
    lengths: Integers

    @classmethod
    def uniform(cls, starts: Integers, length: int) -> Extents:
        """Create ranges of one length, without an array of lengths."""
        return cls(starts, np.broadcast_to(np.int64(length), starts.shape))

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
        return cls.uniform(np.array([start], dtype=np.int64), stop - start)

    @classmethod
    def union(cls, many: Sequence[Extents]) -> Extents:
        """Return the union of several Extents. Join ranges that overlap or touch."""
        if not many:
            return cls.empty()
        starts = np.concatenate([extents.starts for extents in many])
        stops = starts + np.concatenate([extents.lengths for extents in many])
        order = np.argsort(starts, kind="stable")
        return cls.from_bounds(starts[order], np.maximum.accumulate(stops[order]))

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

    @property
    def gaps(self) -> Integers:
        """Bytes between consecutive ranges."""
        return self.starts[1:] - (self.starts + self.lengths)[:-1]

    def count_pages(self, size: int) -> int:
        """Count the pages of the file that the ranges touch."""
        first = self.starts // size
        last = (self.starts + self.lengths - 1) // size
        again = np.count_nonzero(first[1:] == last[:-1])
        return int((last - first + 1).sum()) - int(again)

    def group(self, *, gap: int, limit: int) -> Iterator[Extents]:
        """Group ranges with gaps up to `gap`.

        Parameters
        ----------
        gap : int
            The longest gap within a group, in bytes.
        limit : int
            The longest group in bytes. The last range of a group is not split and may exceed it.

        Yields
        ------
        Extents
            Consecutive ranges, in the order of the file.
        """
        start, stop = self.bounds
        if len(self) == 1 or stop - start <= min(gap, limit):
            yield self  # the gaps are shorter than the whole
            return
        apart = self.gaps > gap
        group = np.concatenate(([0], np.cumsum(apart)))
        firsts = np.flatnonzero(np.concatenate(([True], apart)))
        part = (self.starts - self.starts[firsts][group]) // limit
        splits = np.flatnonzero(apart | (part[1:] != part[:-1])) + 1
        edges = [0, *splits.tolist(), len(self)]
        for lower, upper in pairwise(edges):
            yield Extents(self.starts[lower:upper], self.lengths[lower:upper])

    def gather(self, window: Bytes, origin: int) -> Bytes:
        """Copy the ranges from a window of the file that begins at `origin`."""
        starts = self.starts - origin if origin else self.starts
        length = int(self.lengths[0])
        # Comparing is unnecessary if the lengths are a broadcast scalar.
        if length < LONG_PIECE and (not self.lengths.strides[0] or (self.lengths == length).all()):
            return gather_uniform(window, starts, length)
        packed = np.empty(self.nbytes, dtype=np.uint8)
        stop = 0
        for start, size in zip(starts.tolist(), self.lengths.tolist(), strict=True):
            packed[stop : stop + size] = window[start : start + size]
            stop += size
        return packed


@dataclass(frozen=True, eq=False)
class Fetch:
    """The bytes ``[start, stop)`` to fetch at once, and the requested ranges in them.

    A reader returns the requested ranges *packed*: end to end, in one array. The first range of
    this fetch begins at `packed_start` in that array.
    """

    start: int
    stop: int
    extents: Extents
    packed_start: int

    @property
    def size(self) -> int:
        """Bytes to fetch."""
        return self.stop - self.start

    def allocate(self, packed: Bytes) -> Bytes:
        """Return a buffer for the bytes: a slice of `packed`, or new memory if there are gaps."""
        has_gaps = self.extents.nbytes < self.size
        return np.empty(self.size, dtype=np.uint8) if has_gaps else self.view(packed)

    def copy_ranges(self, buffer: Bytes, packed: Bytes) -> None:
        """Copy the ranges from a buffer of `allocate` to `packed`, unless the buffer is a slice."""
        if self.extents.nbytes < self.size:
            self.view(packed)[:] = self.extents.gather(buffer, self.start)

    def view(self, packed: Bytes) -> Bytes:
        """Return the slice of `packed` for the ranges."""
        return packed[self.packed_start : self.packed_start + self.extents.nbytes]


def merge_fetches(extents: Extents, *, gap: int, limit: int) -> Iterator[Fetch]:
    """Merge neighbouring ranges, without dividing long ones."""
    packed_start = 0
    for group in extents.group(gap=gap, limit=limit):
        yield Fetch(*group.bounds, group, packed_start)
        packed_start += group.nbytes


def balance_fetches(
    extents: Extents, *, gap: int, min_size: int, max_size: int, count: int
) -> list[Fetch]:
    """Merge and divide ranges into about `count` of similar size, for concurrent requests."""
    gaps = extents.gaps
    fetched = extents.nbytes + int(gaps[gaps <= gap].sum())
    size = min(max(fetched // count, min_size), max_size)
    fetches: list[Fetch] = []
    for fetch in merge_fetches(extents, gap=gap, limit=size):
        fetches += [fetch] if fetch.size <= size else _divide(fetch, size, max_size)
    return fetches


def _divide(fetch: Fetch, size: int, max_size: int) -> Iterator[Fetch]:
    """Divide the last range of a fetch, the only one that can be long."""
    extents = fetch.extents
    if len(extents) > 1:
        if fetch.size <= max_size:
            yield fetch
            return
        before = Extents(extents.starts[:-1], extents.lengths[:-1])
        yield Fetch(*before.bounds, before, fetch.packed_start)
    start, length = int(extents.starts[-1]), int(extents.lengths[-1])
    packed_start = fetch.packed_start + extents.nbytes - length
    count = ceil_div(length, size)
    edges = [length * number // count for number in range(count + 1)]
    for lower, upper in pairwise(edges):
        piece = Extents.single(start + lower, start + upper)
        yield Fetch(start + lower, start + upper, piece, packed_start + lower)


def gather_uniform(window: Bytes, starts: Integers, length: int) -> Bytes:
    """Copy ranges of one length into contiguous memory."""
    return _pieces(window, length)[starts].view(np.uint8)


def scatter_uniform(window: Bytes, starts: Integers, pieces: Bytes, length: int) -> None:
    """Copy contiguous memory to ranges of one length: the inverse of `gather_uniform`."""
    if starts.size:
        _pieces(window, length)[starts] = pieces.view(np.dtype((np.void, length)))


def _pieces(window: Bytes, length: int) -> NDArray[Any]:
    """View a window as overlapping items of `length` bytes, one per byte."""
    return np.ndarray(
        (window.size - length + 1,), dtype=np.dtype((np.void, length)), buffer=window, strides=(1,)
    )


def format_size(count: int) -> str:
    """Format a byte count with a binary unit, such as "1.5 MiB"."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = min(max(0, count.bit_length() - 1) // 10, len(units) - 1)
    return f"{count / 1024**power:.{1 if power else 0}f} {units[power]}"
