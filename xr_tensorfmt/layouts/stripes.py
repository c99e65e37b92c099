"""Stripes: neighbouring rows of bits of one length, which add up as they lie in the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.extents import Integers
from xr_tensorfmt.layouts.bits import Words
from xr_tensorfmt.layouts.columnsums import Planes, column_sums
from xr_tensorfmt.layouts.packed import batches, fetch
from xr_tensorfmt.layouts.rows import Pieces, Rows
from xr_tensorfmt.sources.base import Source

_HEIGHT = 64
# Sums of blocks that are narrower by this factor begin anew.
_NARROWER = 0.75


@dataclass(frozen=True)
class Stripes:
    """Rows of which 64 at a time take equally many words, one row right after the other.

    The first rows of all stripes begin at columns that differ by whole words, as do all second
    rows, and so on; and all of these end at one column. So stripes are added without a shift.

    Parameters
    ----------
    rows : Rows
        Where rows are.
    first, stop : int
        The rows ``[first, stop)``, at least one stripe and nothing but whole ones.
    """

    rows: Rows
    first: int
    stop: int

    @classmethod
    def among(cls, rows: Rows, wanted: Integers) -> Stripes | None:
        """Find stripes.

        Parameters
        ----------
        rows : Rows
            Where rows are; they begin at words of 8 bytes.
        wanted : ndarray of int64
            The rows to find them among, strictly ascending.

        Returns
        -------
        Stripes or None
            All stripes of neighbouring rows; None if there are gaps, or too few rows.
        """
        if wanted.size < _HEIGHT or int(wanted[-1] - wanted[0]) >= wanted.size:
            return None
        lengths = rows.starts(wanted + 1) - rows.starts(wanted)
        changes = np.flatnonzero(np.diff(lengths)) + 1
        begin = int(changes[0]) % _HEIGHT if changes.size else 0
        count = (wanted.size - begin) // _HEIGHT
        if not count or not lengths[begin] or ((changes - begin) % _HEIGHT).any():
            return None
        ends = (rows.firsts(wanted) + 8 * lengths)[begin::_HEIGHT][:count]
        if (ends != ends[0]).any():
            return None
        first = int(wanted[0]) + begin
        return cls(rows, first, first + count * _HEIGHT)

    def sums(self, source: Source) -> tuple[NDArray[np.uint32], int]:
        """Add up the bits of all stripes.

        Parameters
        ----------
        source : Source
            The file.

        Returns
        -------
        sums : ndarray of uint32
            One for each column. Those after the last column of the matrix are of padding.
        column : int
            The column of the first sum.
        """
        columns = self.rows.firsts(np.arange(self.first, self.first + _HEIGHT))
        total = planes = Planes(_HEIGHT, self._words)
        for block in self._blocks(source):
            if block.shape[1] < planes.words * _NARROWER:
                if planes is not total:
                    total.include(planes)
                planes = Planes(*block.shape)
            planes.add(block)
        if planes is not total:
            total.include(planes)
        digits = [_shifted(each, columns - columns[0]) for each in total.finish()]
        return column_sums(digits, 64 * digits[0].shape[1]), int(columns[0])

    @property
    def _words(self) -> int:
        """Words of the longest row, which is the first."""
        start, stop = self.rows.starts(np.array([self.first, self.first + 1]))
        return int(stop - start) // 8

    def _blocks(self, source: Source) -> Iterator[Words]:
        """The words of each stripe, a row for each of its rows."""
        starts = self.rows.starts(np.arange(self.first, self.stop + 1, _HEIGHT))
        nothing = np.zeros(len(starts) - 1, dtype=np.int64)
        pieces = Pieces(starts[:-1], starts[1:], nothing, nothing)
        for batch in batches(pieces):
            window, positions = fetch(source, pieces[batch])
            lengths = pieces.stops[batch] - pieces.starts[batch]
            for begin, length in zip(positions.tolist(), lengths.tolist(), strict=True):
                yield window[begin : begin + length].view("<u8").reshape(_HEIGHT, -1)


def _shifted(words: Words, counts: Integers) -> Words:
    """Move the bits of each row to higher places, by less than a word."""
    up = counts.astype(np.uint64)[:, np.newaxis]
    shifted: Words = np.zeros((len(words), words.shape[1] + 1), dtype="<u8")
    np.left_shift(words, up, out=shifted[:, :-1])
    # A shift by 64 is undefined, so that it takes two steps.
    shifted[:, 1:] |= (words >> np.uint64(1)) >> (np.uint64(63) - up)
    return shifted
