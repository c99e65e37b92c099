"""Sums of the columns of bits, in binary digits that are rows of bits themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.core.source import LARGEST_WINDOW, Source
from xr_tensorfmt.formats.pycauset.packed import Pieces, Rows, Words

# Bytes of shifted rows that are added at a time.
_ADDED = 1 << 20
# Words of a block that are added at a time, so that all operands stay in the cache.
_STEP = 1 << 15


class BitwiseSum:
    """The sum of blocks of bits, bit by bit: a block for each binary digit of the sums."""

    def __init__(self, rows: int, words: int) -> None:
        self.digits: list[Words] = []
        self._pending: list[Words | None] = []
        self._carries: list[list[Words]] = []
        self.words = words
        self._shape = (rows, words)
        self._step = max(1, _STEP // words)
        self._scratch: Words = np.empty((2, self._step, words), dtype="<u8")

    def add(self, block: Words, weight: int = 0) -> None:
        """Add a block, which may lack the first columns; all end at the same one."""
        while weight >= len(self.digits):
            self.digits.append(np.zeros(self._shape, dtype="<u8"))
            self._pending.append(None)
            self._carries.append([np.empty(self._shape, dtype="<u8") for _ in range(2)])
        before, self._pending[weight] = self._pending[weight], None
        if before is None:
            self._pending[weight] = block
        else:
            wide, narrow = sorted((before, block), key=np.size, reverse=True)
            self.add(self._full_add(wide, narrow, weight), weight + 1)

    def include(self, other: BitwiseSum) -> None:
        """Add another sum that is not wider, and that is not used afterwards."""
        for weight, digit in enumerate(other.finish()):
            self.add(digit, weight)

    def finish(self) -> list[Words]:
        """Add the blocks that are still pending; the digits, least significant first."""
        nothing: Words = np.zeros((self._shape[0], 0), dtype="<u8")
        weight = 0
        while weight < len(self.digits):
            last, self._pending[weight] = self._pending[weight], None
            if last is not None:
                carry = self._full_add(last, nothing, weight)
                if carry.any():
                    self.add(carry, weight + 1)
            weight += 1
        return self.digits

    def _full_add(self, one: Words, two: Words, weight: int) -> Words:
        """Add two blocks to a digit in place; the carry is for the next one."""
        # The carry before this one may still be pending.
        self._carries[weight].reverse()
        carries, digits = self._carries[weight][0], self.digits[weight]
        for begin in range(0, len(digits), self._step):
            part = slice(begin, begin + self._step)
            digit, carry = digits[part], carries[part]
            either, both = self._scratch[:, : len(digit)]
            _half_add(one[part], two[part], either, carry)
            np.bitwise_and(digit, either, out=both)
            np.bitwise_or(carry, both, out=carry)
            np.bitwise_xor(digit, either, out=digit)
        return carries


def _half_add(one: Words, two: Words, either: Words, both: Words) -> None:
    """The digit and the carry of two blocks, of which the second may lack the first columns."""
    begin = either.shape[1] - one.shape[1]
    common = either.shape[1] - two.shape[1]
    if common:
        both[:, :common] = 0
        either[:, :begin] = 0
        either[:, begin:common] = one[:, : common - begin]
    np.bitwise_xor(one[:, common - begin :], two, out=either[:, common:])
    np.bitwise_and(one[:, common - begin :], two, out=both[:, common:])


def column_sums(digits: list[Words], width: int) -> NDArray[np.uint32]:
    """The sums of the columns of digits, each a matrix of bits, least significant first."""
    pending: dict[int, list[Words]] = {}
    for least, words in enumerate(digits):
        step = max(1, _ADDED // max(1, words.nbytes // max(1, len(words))))
        for begin in range(0, len(words), step):
            for weight, digit in enumerate(binary_digits(words[begin : begin + step]), least):
                pending.setdefault(weight, []).append(digit)
    sums = np.zeros(width, dtype=np.uint32)
    weight = 0
    while weight in pending:
        digit, *carried = binary_digits(np.stack(pending[weight]))
        for higher, carry in enumerate(carried, weight + 1):
            pending.setdefault(higher, []).append(carry)
        bits = np.unpackbits(digit.view(np.uint8), count=width, bitorder="little")
        sums += bits * np.uint32(1 << weight)
        weight += 1
    return sums


def binary_digits(words: Words) -> list[Words]:
    """The sums of the columns of a matrix of bits, as rows of bits: one for each binary digit."""
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
    """Add rows three by three, or the two that there are: a third as many digits, and carries."""
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


_BLOCK_ROWS = 64
# Sums of blocks that are narrower by this factor begin anew.
_NARROWER = 0.75


@dataclass(frozen=True)
class RowBlocks:
    """Blocks of 64 rows that take equally many words, one row right after the other."""

    rows: Rows
    first: int
    stop: int

    @classmethod
    def among(cls, rows: Rows, wanted: Integers) -> RowBlocks | None:
        """The blocks among some rows; None where there are none."""
        if wanted.size < _BLOCK_ROWS or int(wanted[-1] - wanted[0]) >= wanted.size:
            return None
        lengths = rows.starts(wanted + 1) - rows.starts(wanted)
        changes = np.flatnonzero(np.diff(lengths)) + 1
        begin = int(changes[0]) % _BLOCK_ROWS if changes.size else 0
        count = (wanted.size - begin) // _BLOCK_ROWS
        if not count or not lengths[begin] or ((changes - begin) % _BLOCK_ROWS).any():
            return None
        ends = (rows.firsts(wanted) + 8 * lengths)[begin::_BLOCK_ROWS][:count]
        if (ends != ends[0]).any():
            return None
        first = int(wanted[0]) + begin
        return cls(rows, first, first + count * _BLOCK_ROWS)

    def sums(self, source: Source) -> tuple[NDArray[np.uint32], int]:
        """The sums of the columns over all blocks, and the column of the first sum."""
        columns = self.rows.firsts(np.arange(self.first, self.first + _BLOCK_ROWS))
        total = part = BitwiseSum(_BLOCK_ROWS, self._words)
        for block in self._blocks(source):
            if block.shape[1] < part.words * _NARROWER:
                if part is not total:
                    total.include(part)
                part = BitwiseSum(*block.shape)
            part.add(block)
        if part is not total:
            total.include(part)
        digits = [_shifted(digit, columns - columns[0]) for digit in total.finish()]
        return column_sums(digits, 64 * digits[0].shape[1]), int(columns[0])

    @property
    def _words(self) -> int:
        """Words of the longest row, which is the first."""
        start, stop = self.rows.starts(np.array([self.first, self.first + 1]))
        return int(stop - start) // 8

    def _blocks(self, source: Source) -> Iterator[Words]:
        """The words of each block, a row for each of its rows."""
        starts = self.rows.starts(np.arange(self.first, self.stop + 1, _BLOCK_ROWS))
        nothing = np.zeros(len(starts) - 1, dtype=np.int64)
        pieces = Pieces(starts[:-1], starts[1:], nothing, nothing)
        for block, window, positions in pieces.fetch(source, LARGEST_WINDOW):
            lengths = pieces.stops[block] - pieces.starts[block]
            for begin, length in zip(positions.tolist(), lengths.tolist(), strict=True):
                yield window[begin : begin + length].view("<u8").reshape(_BLOCK_ROWS, -1)


def _shifted(words: Words, counts: Integers) -> Words:
    """Move the bits of each row to higher places, by less than a word."""
    up = counts.astype(np.uint64)[:, np.newaxis]
    shifted: Words = np.zeros((len(words), words.shape[1] + 1), dtype="<u8")
    np.left_shift(words, up, out=shifted[:, :-1])
    # A shift by 64 is undefined, so that it takes two steps.
    shifted[:, 1:] |= (words >> np.uint64(1)) >> (np.uint64(63) - up)
    return shifted
