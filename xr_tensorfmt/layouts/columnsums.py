"""Adding up rows of bits, column by column, in binary digits that are rows of bits themselves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.layouts.bits import Words

# Bytes of shifted rows that are added at a time.
_ADDED = 1 << 20
# Words of a block that are added at a time, so that all operands stay in the cache.
_STEP = 1 << 15


class Planes:
    """The sum of blocks of bits, place by place: a block for each binary digit.

    A digit takes two blocks at a time, and gives one to the next digit: five logical operations
    for two blocks.

    Parameters
    ----------
    rows, words : int
        Shape of the sum.
    """

    def __init__(self, rows: int, words: int) -> None:
        self.digits: list[Words] = []
        self._waiting: list[Words | None] = []
        self._carries: list[list[Words]] = []
        self.words = words
        self._shape = (rows, words)
        self._step = max(1, _STEP // words)
        self._scratch: Words = np.empty((2, self._step, words), dtype="<u8")

    def add(self, block: Words, weight: int = 0) -> None:
        """Add a block, which may lack the first columns; all end at the same one.

        Parameters
        ----------
        block : ndarray of uint64
            Is kept until the next one comes.
        weight : int
            The digit to which it adds.
        """
        while weight >= len(self.digits):
            self.digits.append(np.zeros(self._shape, dtype="<u8"))
            self._waiting.append(None)
            self._carries.append([np.empty(self._shape, dtype="<u8") for _ in range(2)])
        before, self._waiting[weight] = self._waiting[weight], None
        if before is None:
            self._waiting[weight] = block
        else:
            wide, narrow = sorted((before, block), key=np.size, reverse=True)
            self.add(self._full(wide, narrow, weight), weight + 1)

    def include(self, others: Planes) -> None:
        """Add what others hold, which are not wider; they are of no use afterwards."""
        for weight, digit in enumerate(others.finish()):
            self.add(digit, weight)

    def finish(self) -> list[Words]:
        """Add what still waits, and give the digits, least significant first."""
        nothing: Words = np.zeros((self._shape[0], 0), dtype="<u8")
        weight = 0
        while weight < len(self.digits):
            last, self._waiting[weight] = self._waiting[weight], None
            if last is not None:
                carry = self._full(last, nothing, weight)
                if carry.any():
                    self.add(carry, weight + 1)
            weight += 1
        return self.digits

    def _full(self, one: Words, two: Words, weight: int) -> Words:
        """Add two blocks to a digit; give the carry."""
        # The carry before this one may still wait.
        self._carries[weight].reverse()
        carries, digits = self._carries[weight][0], self.digits[weight]
        for begin in range(0, len(digits), self._step):
            part = slice(begin, begin + self._step)
            digit, carry = digits[part], carries[part]
            either, both = self._scratch[:, : len(digit)]
            _half(one[part], two[part], either, carry)
            np.bitwise_and(digit, either, out=both)
            np.bitwise_or(carry, both, out=carry)
            np.bitwise_xor(digit, either, out=digit)
        return carries


def _half(one: Words, two: Words, either: Words, both: Words) -> None:
    """Add two blocks, of which the second may lack columns that the first one has."""
    begin = either.shape[1] - one.shape[1]
    common = either.shape[1] - two.shape[1]
    if common:
        both[:, :common] = 0
        either[:, :begin] = 0
        either[:, begin:common] = one[:, : common - begin]
    np.bitwise_xor(one[:, common - begin :], two, out=either[:, common:])
    np.bitwise_and(one[:, common - begin :], two, out=both[:, common:])


def column_sums(digits: list[Words], width: int) -> NDArray[np.uint32]:
    """Add up rows of bits, column by column.

    Parameters
    ----------
    digits : list of ndarray of uint64
        Rows, less than 2**32 of them; those of each item weigh twice what those before do.
    width : int
        Columns that count.

    Returns
    -------
    ndarray of uint32
    """
    waiting: dict[int, list[Words]] = {}
    for least, words in enumerate(digits):
        step = max(1, _ADDED // max(1, words.nbytes // max(1, len(words))))
        for begin in range(0, len(words), step):
            for weight, digit in enumerate(binary_digits(words[begin : begin + step]), least):
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
