"""Counting the bits of a matrix in the packed bytes of its file.

Sums of columns are computed in binary digits that are rows of bits themselves.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import dask.array
import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray
from xarray import DataArray

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.core.indexing import OuterPlan
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.selection import Entry, entry_indices
from xr_tensorfmt.core.source import LARGEST_WINDOW, Source
from xr_tensorfmt.core.views import OnlyRow, Transposed
from xr_tensorfmt.datasets.lazy_array import Unread, unread
from xr_tensorfmt.formats.pycauset.packed import Bits, Pieces, Rows, Words, low_bits

# Bytes that are counted at a time, so that the counts of their words stay in the cache.
_BLOCK = 3 << 20
# Bytes of rows that are shifted at a time, to be added.
_SHIFTED = 1 << 22
_WORD = 8
# Packed bytes that a task of dask counts, and for column sums, of which each task makes a row.
_TASK = 16 << 20
_COLUMNS_TASK = 64 << 20
# Bytes of shifted rows that are added at a time.
_ADDED = 1 << 20
# Words of a block that are added at a time, so that all operands stay in the cache.
_STEP = 1 << 15
_BLOCK_ROWS = 64
# Sums of blocks that are narrower by this factor begin anew.
_NARROWER = 0.75


@dataclass(frozen=True)
class BitCounts:
    """Some rows and neighbouring columns of a matrix of bits, to be counted."""

    source: Source
    bits: Bits
    rows: Integers
    first: int
    stop: int

    def by_row(self) -> Integers:
        """Bits that are set in each row."""
        counts = np.zeros(self.rows.size, dtype=np.int64)
        if not counts.size or self.first == self.stop:
            return counts
        pieces = self._words()
        used = ((self.stop - self.bits.rows.firsts(self.rows[: len(pieces)]) - 1) & 63) + 1
        skips = bool(pieces.bit.any())
        for block, window, positions in pieces.fetch(self.source, _BLOCK):
            begins = (positions - positions[0]) >> 3
            ends = begins + ((pieces.stops[block] - pieces.starts[block]) >> 3)
            words = window[positions[0] :][: int(ends[-1]) * _WORD].view("<u8")
            counts[block] = _sums(np.bitwise_count(words), begins, ends)
            # The words in which a row begins and ends may also hold bits that do not count.
            counts[block] -= np.bitwise_count(words[ends - 1] & ~low_bits(used[block]))
            if skips:
                counts[block] -= np.bitwise_count(words[begins] & low_bits(pieces.bit[block]))
        return counts

    def by_column(self) -> Integers:
        """Rows in which the bit of each column is set."""
        counts = np.zeros(self.stop - self.first, dtype=np.int64)
        if not counts.size:
            return counts
        rows = self.rows[: np.searchsorted(self.bits.rows.firsts(self.rows), self.stop)]
        blocks = None
        if 2 * counts.size >= self.bits.shape[1]:
            blocks = RowBlocks.among(self.bits.rows, rows)
        if blocks is None:
            self._add_shifted(rows, counts)
            return counts
        self._add_shifted(rows[: blocks.first - rows[0]], counts)
        self._add_shifted(rows[blocks.stop - rows[0] :], counts)
        sums, column = blocks.sums(self.source)
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


def _sums(
    counted: NDArray[np.uint8], begins: Integers, ends: Integers
) -> NDArray[np.unsignedinteger]:
    """Add up the counts of the words of each row."""
    # The smallest type that holds all counts is the quickest.
    narrow = np.min_scalar_type(8 * _WORD * int((ends - begins).max()))
    if (begins[1:] == ends[:-1]).all():
        return np.add.reduceat(counted, begins, dtype=narrow)
    # Words between the end of a row and the next are summed apart, and left out.
    bounds = np.stack([begins, ends], axis=1).ravel()[:-1]
    return np.add.reduceat(counted, bounds, dtype=narrow)[::2]


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
        parts: list[BitwiseSum] = []
        for block in self._blocks(source):
            if not parts or block.shape[1] < parts[-1].words * _NARROWER:
                if len(parts) > 1:
                    parts[0].include(parts.pop())
                parts.append(BitwiseSum(*block.shape))
            parts[-1].add(block)
        for part in parts[1:]:
            parts[0].include(part)
        columns = self.rows.firsts(np.arange(self.first, self.first + _BLOCK_ROWS))
        digits = [_shifted(digit, columns - columns[0]) for digit in parts[0].finish()]
        return column_sums(digits, 64 * digits[0].shape[1]), int(columns[0])

    def _blocks(self, source: Source) -> Iterator[Words]:
        """The words of each block, a row for each of its rows."""
        edges = self.rows.starts(np.arange(self.first, self.stop + 1, _BLOCK_ROWS))
        nothing = np.zeros_like(edges[1:])
        pieces = Pieces(edges[:-1], edges[1:], nothing, nothing)
        for block, window, positions in pieces.fetch(source, LARGEST_WINDOW):
            lengths = np.diff(edges)[block].tolist()
            for begin, length in zip(positions.tolist(), lengths, strict=True):
                yield window[begin : begin + length].view("<u8").reshape(_BLOCK_ROWS, -1)


def _shifted(words: Words, counts: Integers) -> Words:
    """Move the bits of each row to higher places, by less than a word."""
    up = counts.astype(np.uint64)[:, np.newaxis]
    shifted: Words = np.zeros((len(words), words.shape[1] + 1), dtype="<u8")
    np.left_shift(words, up, out=shifted[:, :-1])
    # A shift by 64 is undefined, so that it takes two steps.
    shifted[:, 1:] |= (words >> np.uint64(1)) >> (np.uint64(63) - up)
    return shifted


def popcount(da: DataArray, dim: Hashable | Iterable[Hashable] | None = None) -> DataArray:
    """Count the elements that are True along dimensions, as ``da.sum(dim)`` does.

    Of a matrix or vector of bits that has not been read yet, the packed bytes of the file are
    counted, eight and more elements at a time: nothing is unpacked. That holds for an array as it
    was opened, with ``chunks={}`` or without; for one that was opened without chunks, and then
    transposed or cut down to ranges of its columns and any of its rows; and for such an array
    after its ``chunk``. All other arrays of bool are summed as they are, with the same result.

    Parameters
    ----------
    da : DataArray
        Of dtype bool.
    dim : hashable or iterable of hashable, optional
        The dimensions to count along; all of them by default. ``dim="col"`` gives one count a
        row, and ``dim="row"`` one a column.

    Returns
    -------
    DataArray
        Counts of dtype int64, without attributes. They are a dask array if `da` is one, in chunks
        that the file suggests, not those of `da`; they are computed at once if not.

    Raises
    ------
    TypeError
        `da` is not a DataArray, or not of dtype bool.
    ValueError
        `da` has no such dimension.

    See Also
    --------
    xr_tensorfmt.to_pycauset : Write bits.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import xr_tensorfmt
    >>> order = xr.DataArray(np.triu(np.ones((4, 4), bool), 1), dims=("row", "col"))
    >>> xr_tensorfmt.to_pycauset(order, "order.pycauset")
    >>> causal = xr.open_dataarray("order.pycauset", engine="tensorfmt")
    >>> xr_tensorfmt.popcount(causal, dim="col").values
    array([3, 2, 1, 0])
    """
    if not isinstance(da, DataArray):
        raise TypeError(f"popcount takes a DataArray, not a {type(da).__name__}")
    if da.dtype != np.bool_:
        raise TypeError(
            f"popcount takes an array of bool, not of {da.dtype}; use da.sum(dim), or compare first"
        )
    if dim is None or dim is ...:
        counted: tuple[Hashable, ...] = da.dims
    else:
        counted = (dim,) if isinstance(dim, str) or not isinstance(dim, Iterable) else tuple(dim)
    found, axes = unread(da.variable), [da.get_axis_num(name) for name in counted]
    planned = None if found is None else _planned(found, axes)
    if planned is None:
        return da.sum(counted, keep_attrs=False).astype(np.int64, copy=False)
    dims = [name for name in da.dims if name not in counted]
    counts = planned.lazy() if da.chunks is not None else planned.compute()
    coords = {name: coord for name, coord in da.coords.items() if set(coord.dims) <= set(dims)}
    return DataArray(counts, coords, dims, da.name)


@dataclass(frozen=True)
class _PlannedCount:
    """Counts along axes of the stored matrix, and what the key of the array does to them."""

    counts: BitCounts
    kept: int | None
    then: Any

    def compute(self) -> Array:
        """Count now."""
        if self.kept == 1:
            return np.asarray(self.counts.by_column()[self.then])
        by_row = self.counts.by_row()
        return np.asarray(by_row[self.then] if self.kept == 0 else by_row.sum())

    def lazy(self) -> Any:
        """Count by rows in dask, a block of them a task."""
        by_column, rows = self.kept == 1, self.counts.rows.size
        width, bits = self.counts.stop - self.counts.first, self.counts.bits
        nbytes = bits.rows.nbytes * rows * width // max(1, prod(bits.shape))
        tasks = max(1, -(-nbytes // (_COLUMNS_TASK if by_column else _TASK)))
        step = max(1, -(-rows // tasks))
        lengths = tuple(min(step, rows - begin) for begin in range(0, max(1, rows), step))
        counts: Any = dask.array.map_blocks(  # type: ignore[no-untyped-call]
            partial(_count_block, self.counts, step, by_column),
            chunks=((1,) * len(lengths), (width,)) if by_column else (lengths,),
            name=f"popcount-{tokenize(self.counts, step, by_column)}",
            dtype=np.int64,
            meta=np.empty((0,) * (1 + by_column), dtype=np.int64),
        )
        if self.kept is None:
            return counts.sum()
        return (counts.sum(axis=0) if by_column else counts)[self.then]


def _count_block(
    counts: BitCounts, step: int, by_column: bool, block_id: tuple[int, ...]
) -> Integers:
    """The counts of the rows of one task: one a row, or a matrix of one row of column sums."""
    begin = block_id[0] * step
    part = replace(counts, rows=counts.rows[begin : begin + step])
    return part.by_column()[np.newaxis] if by_column else part.by_row()


def _planned(found: Unread, counted: list[int]) -> _PlannedCount | None:
    """Express counting along axes of the array as counting along those of the stored matrix."""
    bits, axes = _stored_bits(found.layout)
    if bits is None or not isinstance(found.plan, OuterPlan):
        return None
    picks = dict(zip(axes, found.plan.picks, strict=True))
    # What a key keeps of the axes of the layout are the axes of the array, in their order.
    remaining = [axis for axis in axes if not isinstance(picks[axis].then, int)]
    summed = [remaining[number] for number in counted]
    kept = [axis for axis in remaining if axis not in summed]
    entries: list[Entry] = [slice(0, 1, 1), slice(0, 0, 1)]
    for axis, pick in picks.items():
        entries[axis] = pick.entry
    columns = entries[1]
    repeats = any(isinstance(picks[axis].then, np.ndarray) for axis in summed)
    if len(kept) > 1 or repeats or not isinstance(columns, slice) or columns.step != 1:
        return None
    rows = entry_indices(entries[0])
    counts = BitCounts(found.source, bits, rows, columns.start, columns.stop)
    if not kept:
        return _PlannedCount(counts, None, None)
    return _PlannedCount(counts, kept[0], picks[kept[0]].then)


def _stored_bits(layout: Layout) -> tuple[Bits | None, tuple[int, ...]]:
    """The stored matrix, and the axis of it that each axis of the layout is."""
    inner: Layout = layout
    axes: tuple[int, ...] = (0, 1)
    if isinstance(layout, Transposed):
        inner, axes = layout.inner, layout.axes
    elif isinstance(layout, OnlyRow):
        inner, axes = layout.inner, (1,)
    return (inner if isinstance(inner, Bits) else None), axes
