"""A table of (global index, value) pairs, and which of its blocks can hold which indices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.elements import Array
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.extents import Extents, Integers
from xr_tensorfmt.selection import Runs
from xr_tensorfmt.sources.base import Source

BLOCK = 1 << 16
"""Pairs a block."""

_BLOCKS_AT_ONCE = 16
# Two binary searches cost about as much as looking at this many pairs.
_SEARCHES_A_SCAN = 16
INDEX_BYTES = 8


@dataclass(frozen=True)
class PairTable:
    """Where the pairs are.

    Parameters
    ----------
    offset : int
        Byte of the file at which the first pair begins.
    count : int
        Number of pairs.
    value : dtype
        The stored value; it follows its 8-byte little-endian index without padding.
    total : int
        Indices are below this.
    """

    offset: int
    count: int
    value: np.dtype[Any]
    total: int

    @property
    def stride(self) -> int:
        """Bytes from one pair to the next."""
        return INDEX_BYTES + self.value.itemsize

    @property
    def extents(self) -> Extents:
        """Bytes of all pairs."""
        return Extents.single(self.offset, self.offset + self.count * self.stride)

    def read(self, source: Source, first: int, stop: int) -> Array:
        """Pairs ``[first, stop)`` as an array with fields ``index`` and ``value``."""
        offset = self.offset + first * self.stride
        raw = source.read(Extents.single(offset, self.offset + stop * self.stride))
        # Values are looked at as opaque bytes: numpy copies those four times faster.
        opaque = np.dtype((np.void, self.value.itemsize))
        return raw.view(np.dtype([("index", "<u8"), ("value", opaque)]))

    def scan(self, source: Source) -> BlockIndex:
        """Find the smallest and the largest index of each block, in one pass over the file.

        Parameters
        ----------
        source : Source
            The file.

        Returns
        -------
        BlockIndex

        Raises
        ------
        TensorFormatError
            An index is too large, or two neighbours are equal.
        """
        lowest, highest = [], []
        ascending, last = True, -1
        size = BLOCK * _BLOCKS_AT_ONCE
        for first in range(0, self.count, size):
            index = self.read(source, first, min(first + size, self.count))["index"]
            edges = np.arange(0, index.size, BLOCK)
            lowest.append(np.minimum.reduceat(index, edges))
            highest.append(np.maximum.reduceat(index, edges))
            if highest[-1].max() >= self.total:
                self._refuse_range(source, first, index)
            rising = bool((index[1:] > index[:-1]).all())
            if not rising:
                self._refuse_equal_neighbours(source, first, index)
            ascending &= rising and int(index[0]) > last
            if int(index[0]) == last:
                raise self.duplicate(source, first, last)
            last = int(index[-1])
        if not lowest:
            return BlockIndex(np.empty(0, np.int64), np.empty(0, np.int64), ascending=True)
        return BlockIndex(
            np.concatenate(lowest).astype(np.int64),
            np.concatenate(highest).astype(np.int64),
            ascending=ascending,
        )

    def _refuse_range(self, source: Source, first: int, index: NDArray[np.uint64]) -> None:
        within = int(np.argmax(index >= np.uint64(self.total)))
        raise TensorFormatError(
            source.name,
            f"the index of pair {first + within}",
            int(index[within]),
            f"a global index below {self.total}",
            "the file is damaged, or its dimension headers are wrong",
            offset=self.offset + (first + within) * self.stride,
        )

    def _refuse_equal_neighbours(
        self, source: Source, first: int, index: NDArray[np.uint64]
    ) -> None:
        equal = index[1:] == index[:-1]
        if equal.any():
            within = int(np.argmax(equal)) + 1
            raise self.duplicate(source, first + within, int(index[within]))

    def duplicate(self, source: Source, number: int, index: int) -> TensorFormatError:
        """The error for a pair whose index another pair has too."""
        return TensorFormatError(
            source.name,
            f"the index of pair {number}",
            f"{index}, as in another pair",
            "an index that occurs once",
            "the value there is undefined; open with sparse='stored' to see all pairs",
            offset=self.offset + number * self.stride,
        )


@dataclass(frozen=True, eq=False)
class BlockIndex:
    """What a pass over the pairs finds out.

    Parameters
    ----------
    lowest, highest : ndarray of int64
        The smallest and the largest global index of each block.
    ascending : bool
        Whether each index of the file is larger than the one before.
    """

    lowest: NDArray[np.int64]
    highest: NDArray[np.int64]
    ascending: bool

    def candidates(self, runs: Runs) -> Iterator[tuple[int, int]]:
        """Ranges of pairs that can lie in some ranges of indices.

        Parameters
        ----------
        runs : Runs
            The indices that are wanted.

        Yields
        ------
        first, stop : int
            Numbers of pairs, at most 16 blocks of them; `stop` may pass the end of the table.
        """
        before = np.searchsorted(runs.starts + (runs.length - 1), self.lowest, side="left")
        upto = np.searchsorted(runs.starts, self.highest, side="right")
        blocks = np.flatnonzero(upto > before)
        breaks = np.flatnonzero(np.diff(blocks) > 1) + 1
        for group in np.split(blocks, breaks) if blocks.size else ():
            for first in range(0, group.size, _BLOCKS_AT_ONCE):
                part = group[first : first + _BLOCKS_AT_ONCE]
                yield int(part[0]) * BLOCK, (int(part[-1]) + 1) * BLOCK


def within(index: NDArray[np.uint64], runs: Runs) -> Integers:
    """Positions of an ascending column whose indices lie in some ranges.

    Parameters
    ----------
    index : ndarray of uint64
        The column; of a mapped one, only the pages are touched that the search comes to.
    runs : Runs
        The ranges.

    Returns
    -------
    ndarray of int64
        The positions, ascending. Where there are many ranges, those between them are included.
    """
    ends = runs.starts + runs.length
    first = np.searchsorted(ends, index[0], side="right")
    last = np.searchsorted(runs.starts, index[-1], side="right")
    starts, ends = runs.starts[first:last], ends[first:last]
    if starts.size * _SEARCHES_A_SCAN > index.size:
        starts, ends = starts[:1], ends[-1:]
    # The keys must be uint64: any other type makes numpy convert the whole column.
    lower = np.searchsorted(index, starts.astype(np.uint64))
    counts = np.searchsorted(index, ends.astype(np.uint64)) - lower
    before = np.cumsum(counts) - counts
    return np.repeat(lower - before, counts) + np.arange(counts.sum())
