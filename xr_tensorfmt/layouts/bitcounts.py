"""How many bits are set, row by row or column by column, without unpacking them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.extents import Bytes, Integers
from xr_tensorfmt.layouts.bits import Bits, Words
from xr_tensorfmt.layouts.packed import batches, fetch
from xr_tensorfmt.layouts.rows import Pieces
from xr_tensorfmt.sources.base import Source

# Bytes that are counted at a time, so that the counts of their words stay in the cache.
_BLOCK = 1 << 20
# Bytes of shifted rows that are added at a time.
_ADDED = 1 << 20
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
        for batch in batches(pieces):
            window, positions = fetch(self.source, pieces[batch])
            for block in _blocks(pieces, batch):
                here = positions[block.start - batch.start : block.stop - batch.start]
                counts[block] = self._count(window, here, pieces[block], self.rows[block])
        return counts

    def by_column(self) -> Integers:
        """Rows in which the bit of each column is set."""
        counts = np.zeros(self.stop - self.first, dtype=np.int64)
        rows = self.rows[: np.searchsorted(self.bits.rows.firsts(self.rows), self.stop)]
        step = max(1, _SHIFTED * 8 // max(1, counts.size))
        for begin in range(0, rows.size if counts.size else 0, step):
            block = rows[begin : begin + step]
            # No row of the block stores the columns before.
            first = max(self.first, int(self.bits.rows.firsts(block[:1])[0]))
            words = self.bits.gathered(self.source, block, first, self.stop)
            counts[first - self.first :] += column_sums(words, self.stop - first)
        return counts

    def _words(self) -> Pieces:
        """The words of each row that hold its columns; `bit` is the first wanted one's."""
        rows = self.bits.rows
        firsts = rows.firsts(self.rows)
        kept = self.rows[: np.searchsorted(firsts, self.stop)]
        skipped = np.maximum(self.first - firsts[: kept.size], 0)
        begins = rows.starts(kept)
        wanted = self.stop - firsts[: kept.size]
        return Pieces(
            begins + skipped // 64 * _WORD,
            begins + (wanted + 63) // 64 * _WORD,
            skipped % 64,
            np.zeros_like(begins),
        )

    def _count(
        self, window: Bytes, positions: Integers, pieces: Pieces, rows: Integers
    ) -> NDArray[np.unsignedinteger]:
        lengths = (pieces.stops - pieces.starts) // _WORD
        origin = int(positions[0])
        begins = (positions - origin) // _WORD
        ends = begins + lengths
        words: Words = window[origin : origin + int(ends[-1]) * _WORD].view("<u8")
        counted = np.bitwise_count(words)
        # Words between the end of a row and the next are summed apart, and left out.
        edges = np.stack([begins, ends], axis=1).ravel()[:-1]
        narrow = np.uint16 if int(lengths.max()) < 1 << 10 else np.uint32
        if (begins[1:] == ends[:-1]).all():
            sums = np.add.reduceat(counted, begins, dtype=narrow)
        else:
            sums = np.add.reduceat(counted, edges, dtype=narrow)[::2]
        used = (self.stop - self.bits.rows.firsts(rows) - 1) % 64 + 1
        sums -= np.bitwise_count(words[ends - 1] & ~_low_bits(used))
        if pieces.bit.any():
            sums -= np.bitwise_count(words[begins] & _low_bits(pieces.bit))
        return sums


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


def column_sums(words: Words, width: int) -> NDArray[np.uint32]:
    """Add up rows of bits, column by column.

    Parameters
    ----------
    words : ndarray of uint64
        Less than 2**32 rows.
    width : int
        Columns that count.

    Returns
    -------
    ndarray of uint32
    """
    step = max(1, _ADDED // max(1, words.shape[1] * _WORD))
    waiting: dict[int, list[Words]] = {}
    for begin in range(0, len(words), step):
        for weight, digit in enumerate(binary_digits(words[begin : begin + step])):
            waiting.setdefault(weight, []).append(digit)
    sums = np.zeros(width, dtype=np.uint32)
    weight = 0
    while weight in waiting:
        digit, *carried = binary_digits(np.stack(waiting[weight]))
        for higher, each in enumerate(carried, weight + 1):
            waiting.setdefault(higher, []).append(each)
        bits = np.unpackbits(digit.view(np.uint8), count=width, bitorder="little")
        sums += bits * np.uint32(1 << weight)
        weight += 1
    return sums


def binary_digits(words: Words) -> list[Words]:
    """Add up rows of bits, column by column.

    Parameters
    ----------
    words : ndarray of uint64
        At least one row.

    Returns
    -------
    list of ndarray
        The binary digits of the sums, least significant first, each a row of bits.
    """
    digits = []
    while len(words):
        carries = []
        while len(words) > 1:
            words, carry = _add(words)
            carries.append(carry)
        digits.append(words[0])
        words = np.concatenate(carries) if carries else words[:0]
    return digits


def _add(words: Words) -> tuple[Words, Words]:
    """Add rows three by three, or the two that there are: digits of one third, and carries."""
    third = len(words) // 3
    if not third:
        return words[:1] ^ words[1:], words[:1] & words[1:]
    one, two, three = words[:third], words[third : 2 * third], words[2 * third : 3 * third]
    carry = one & two
    either = one ^ two
    rest = len(words) - 3 * third
    digit = np.empty((third + rest, words.shape[1]), dtype=words.dtype)
    np.bitwise_xor(either, three, out=digit[:third])
    digit[third:] = words[3 * third :]
    either &= three
    carry |= either
    return digit, carry
