"""How many bits are set, row by row or column by column, without unpacking them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.extents import Bytes, Integers
from xr_tensorfmt.layouts.bits import Bits, Words
from xr_tensorfmt.layouts.columnsums import column_sums
from xr_tensorfmt.layouts.packed import batches, fetch
from xr_tensorfmt.layouts.rows import Pieces
from xr_tensorfmt.layouts.stripes import Stripes
from xr_tensorfmt.sources.base import Source

# Bytes that are counted at a time, so that the counts of their words stay in the cache.
_BLOCK = 2 << 20
# Bytes of rows that are shifted at a time, to be added.
_SHIFTED = 1 << 22
_WORD = 8


@dataclass(frozen=True)
class BitCounts:
    """Some rows and neighbouring columns of a matrix of bits, to be counted.

    Parameters
    ----------
    source : Source
        The file.
    bits : Bits
        The matrix; its rows begin at words of 8 bytes.
    rows : ndarray of int64
        The rows, strictly ascending.
    first, stop : int
        The columns ``[first, stop)``.
    """

    source: Source
    bits: Bits
    rows: Integers
    first: int
    stop: int

    @property
    def nbytes(self) -> int:
        """About how many bytes hold them."""
        place = self.bits.rows.starts(np.array([0, self.bits.shape[0]]))
        total = int(place[1] - place[0]) * self.rows.size // max(1, self.bits.shape[0])
        return total * (self.stop - self.first) // max(1, self.bits.shape[1])

    def part(self, begin: int, end: int) -> BitCounts:
        """Only the rows from one number to another."""
        return BitCounts(self.source, self.bits, self.rows[begin:end], self.first, self.stop)

    def by_row(self) -> Integers:
        """Bits that are set in each row."""
        counts = np.zeros(self.rows.size, dtype=np.int64)
        if not counts.size or self.first == self.stop:
            return counts
        pieces = self._words()
        skips = bool(pieces.bit.any())
        # The words in which a row begins and ends may also hold bits that do not count.
        edges: Words = np.zeros((1 + skips, len(pieces)), dtype="<u8")
        longest = int((pieces.stops - pieces.starts).max(initial=_BLOCK))
        scratch = np.empty(longest // _WORD, dtype=np.uint8)
        for batch in batches(pieces):
            window, positions = fetch(self.source, pieces[batch])
            for block in _blocks(pieces, batch):
                here = positions[block.start - batch.start : block.stop - batch.start]
                words, begins, ends = _aligned(window, here, pieces[block])
                counted = np.bitwise_count(words, out=scratch[: words.size])
                counts[block] = _sums(counted, begins, ends)
                edges[0, block] = words[ends - 1]
                if skips:
                    edges[1, block] = words[begins]
        counts[: len(pieces)] -= self._surplus(pieces, edges)
        return counts

    def by_column(self) -> Integers:
        """Rows in which the bit of each column is set."""
        counts = np.zeros(self.stop - self.first, dtype=np.int64)
        if not counts.size:
            return counts
        rows = self.rows[: np.searchsorted(self.bits.rows.firsts(self.rows), self.stop)]
        stripes = None
        if 2 * counts.size >= self.bits.shape[1]:
            stripes = Stripes.among(self.bits.rows, rows)
        if stripes is None:
            self._add_shifted(rows, counts)
            return counts
        self._add_shifted(rows[: stripes.first - rows[0]], counts)
        self._add_shifted(rows[stripes.stop - rows[0] :], counts)
        sums, column = stripes.sums(self.source)
        begin, end = max(column, self.first), min(column + sums.size, self.stop)
        counts[begin - self.first : end - self.first] += sums[begin - column : end - column]
        return counts

    def _add_shifted(self, rows: Integers, counts: Integers) -> None:
        """Add any rows to the counts of columns, each shifted to the first of them."""
        step = max(1, _SHIFTED * 8 // counts.size)
        for begin in range(0, rows.size, step):
            block = rows[begin : begin + step]
            # No row of the block stores the columns before.
            first = max(self.first, int(self.bits.rows.firsts(block[:1])[0]))
            words = self.bits.gathered(self.source, block, first, self.stop)
            counts[first - self.first :] += column_sums([words], self.stop - first)

    def _words(self) -> Pieces:
        """The words of each row that hold its columns; `bit` is the first wanted one's."""
        rows = self.bits.rows
        firsts = rows.firsts(self.rows)
        kept = self.rows[: np.searchsorted(firsts, self.stop)]
        skipped = np.maximum(self.first - firsts[: kept.size], 0)
        begins = rows.starts(kept)
        wanted = self.stop - firsts[: kept.size]
        return Pieces(
            begins + (skipped >> 6) * _WORD,
            begins + ((wanted + 63) >> 6) * _WORD,
            skipped & 63,
            np.zeros_like(begins),
        )

    def _surplus(self, pieces: Pieces, edges: Words) -> NDArray[np.uint8]:
        """Bits that are set before the first column and after the last, in the words of both."""
        rows = self.rows[: len(pieces)]
        used = ((self.stop - self.bits.rows.firsts(rows) - 1) & 63) + 1
        surplus: NDArray[np.uint8] = np.bitwise_count(edges[0] & ~_low_bits(used))
        for each in edges[1:]:
            surplus += np.bitwise_count(each & _low_bits(pieces.bit))
        return surplus


def _aligned(
    window: Bytes, positions: Integers, pieces: Pieces
) -> tuple[Words, Integers, Integers]:
    """The words of some rows, and which of them each row begins with and ends before."""
    origin = int(positions[0])
    begins = (positions - origin) >> 3
    ends = begins + ((pieces.stops - pieces.starts) >> 3)
    return window[origin : origin + int(ends[-1]) * _WORD].view("<u8"), begins, ends


def _sums(
    counted: NDArray[np.uint8], begins: Integers, ends: Integers
) -> NDArray[np.unsignedinteger]:
    """Add up the counts of the words of each row."""
    narrow = smallest_count(8 * _WORD * int((ends - begins).max()))
    if (begins[1:] == ends[:-1]).all():
        return np.add.reduceat(counted, begins, dtype=narrow)
    # Words between the end of a row and the next are summed apart, and left out.
    bounds = np.stack([begins, ends], axis=1).ravel()[:-1]
    return np.add.reduceat(counted, bounds, dtype=narrow)[::2]


def smallest_count(most: int) -> type[np.unsignedinteger]:
    """The quickest type that holds all counts up to the greatest one."""
    fits = (each for each in (np.uint16, np.uint32) if most <= np.iinfo(each).max)
    return next(fits, np.uint64)


def _blocks(pieces: Pieces, batch: slice) -> Iterator[slice]:
    """Rows of a batch whose span is small, at least one at a time."""
    begin = batch.start
    while begin < batch.stop:
        reach = pieces.starts[begin] + _BLOCK
        end = int(np.searchsorted(pieces.stops[: batch.stop], reach, side="right"))
        yield slice(begin, max(end, begin + 1))
        begin = max(end, begin + 1)


def _low_bits(counts: Integers) -> Words:
    """Words whose first bits are set, from none to all 64."""
    half = (counts >> 1).astype(np.uint64)
    rest = counts.astype(np.uint64) - half
    mask: Words = ~((np.uint64(2**64 - 1) << half) << rest)
    return mask
