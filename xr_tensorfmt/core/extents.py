"""Byte ranges: union, merging for requests, and packing of their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]

LONG_PIECE = 1 << 14
"""Least bytes of a range for which slice assignment is as fast as fancy indexing."""


@dataclass(frozen=True, eq=False)
class Extents:
    """Byte ranges ``[start, start + length)`` in ascending order, none of them overlapping.

    Parameters
    ----------
    starts : ndarray of int64
        First byte of each range.
    lengths : ndarray of int64
        Bytes of each range, each at least 1; a broadcast scalar where all are equal.
    """

    starts: Integers
    lengths: Integers

    @classmethod
    def uniform(cls, starts: Integers, length: int) -> Extents:
        """Ranges of one length, without an array of lengths."""
        return cls(starts, np.broadcast_to(np.int64(length), starts.shape))

    @classmethod
    def joined(cls, starts: Integers, stops: Integers) -> Extents:
        """Ascending ranges ``[start, stop)``; those that touch are joined, empty ones left out."""
        starts, stops = starts[starts < stops], stops[starts < stops]
        begins, ends = np.ones((2, starts.size), dtype=np.bool_)
        begins[1:] = ends[:-1] = starts[1:] > stops[:-1]
        return cls(starts[begins], stops[ends] - starts[begins])

    @classmethod
    def none(cls) -> Extents:
        """No range, for values that are not stored."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls(nothing, nothing)

    @classmethod
    def single(cls, start: int, stop: int) -> Extents:
        """The one range from ``start`` up to ``stop``."""
        return cls.uniform(np.array([start], dtype=np.int64), stop - start)

    @classmethod
    def union(cls, many: Sequence[Extents]) -> Extents:
        """The union of several Extents; ranges that overlap or touch are joined."""
        if not many:
            return cls.none()
        starts = np.concatenate([extents.starts for extents in many])
        stops = starts + np.concatenate([extents.lengths for extents in many])
        order = np.argsort(starts, kind="stable")
        return cls.joined(starts[order], np.maximum.accumulate(stops[order]))

    def __len__(self) -> int:
        return self.starts.size

    @property
    def nbytes(self) -> int:
        """Bytes in all ranges together."""
        return int(self.lengths.sum())

    @property
    def bounds(self) -> tuple[int, int]:
        """First byte of the first range and the byte after the last one."""
        return int(self.starts[0]), int(self.starts[-1] + self.lengths[-1])

    @property
    def gaps(self) -> Integers:
        """Bytes between each range and the next."""
        return self.starts[1:] - (self.starts + self.lengths)[:-1]

    def blocks(self, size: int) -> int:
        """Number of blocks of the file, such as pages, that the ranges touch."""
        first = self.starts // size
        last = (self.starts + self.lengths - 1) // size
        again = np.count_nonzero(first[1:] == last[:-1])
        return int((last - first + 1).sum()) - int(again)

    def merged(self, *, gap: int, limit: int) -> Iterator[Extents]:
        """Group ranges with gaps up to `gap`; only the last one of a group may exceed `limit`."""
        if len(self) == 1:
            yield self
            return
        apart = self.gaps > gap
        group = np.concatenate(([0], np.cumsum(apart)))
        firsts = np.flatnonzero(np.concatenate(([True], apart)))
        part = (self.starts - self.starts[firsts][group]) // limit
        cuts = np.flatnonzero(apart | (part[1:] != part[:-1])) + 1
        edges = [0, *cuts.tolist(), len(self)]
        for lower, upper in pairwise(edges):
            yield Extents(self.starts[lower:upper], self.lengths[lower:upper])

    def gather(self, window: Bytes, origin: int) -> Bytes:
        """Copy the ranges, packed, from a window of the file that begins at `origin`."""
        starts = self.starts - origin if origin else self.starts
        length = int(self.lengths[0])
        # A broadcast scalar needs no comparison.
        if length < LONG_PIECE and (not self.lengths.strides[0] or (self.lengths == length).all()):
            return gather_uniform(window, starts, length)
        packed = np.empty(self.nbytes, dtype=np.uint8)
        position = 0
        for start, size in zip(starts.tolist(), self.lengths.tolist(), strict=True):
            packed[position : position + size] = window[start : start + size]
            position += size
        return packed


def gather_uniform(window: Bytes, starts: Integers, length: int) -> Bytes:
    """Copy pieces of one length, packed."""
    return _pieces(window, length)[starts].view(np.uint8)


def scatter_uniform(window: Bytes, starts: Integers, pieces: Bytes, length: int) -> None:
    """Copy packed pieces of one length to their positions; the inverse of `gather_uniform`."""
    if starts.size:
        _pieces(window, length)[starts] = pieces.view(np.dtype((np.void, length)))


def _pieces(window: Bytes, length: int) -> NDArray[Any]:
    """Overlapping items of numpy's void type, one at each byte, so that indexing copies pieces."""
    return np.ndarray(
        (window.size - length + 1,), dtype=np.dtype((np.void, length)), buffer=window, strides=(1,)
    )


def format_size(count: int) -> str:
    """A number of bytes in the largest binary unit of which there is at least one."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = min(max(0, count.bit_length() - 1) // 10, len(units) - 1)
    return f"{count / 1024**power:.{1 if power else 0}f} {units[power]}"
