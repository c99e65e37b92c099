"""Merge and divide the byte ranges of a read into the ranges to fetch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from xr_tensorfmt.core.chunk_grid import ceil_div
from xr_tensorfmt.core.extents import Bytes, Extents


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
    """Divide the last range, the only one that can be long."""
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
