"""Counting the bits of a matrix in the packed bytes of its file.

Sums of columns are computed in binary digits that are rows of bits themselves.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import dask.array
import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray
from xarray import DataArray

from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.core.selection import KEEP, Entry, Then, entry_indices
from xr_tensorfmt.core.source import LARGEST_WINDOW, Source
from xr_tensorfmt.core.views import Transposed
from xr_tensorfmt.datasets.lazy_array import Unread, unread
from xr_tensorfmt.formats.pycauset.matrices import OnlyRow
from xr_tensorfmt.formats.pycauset.packed import Bits, Pieces, Rows, Words, low_bits

# Bytes that are counted at a time, so that the counts of their words stay in the cache.
_BLOCK = 3 << 20
# Bytes of rows that are shifted at a time, to be added.
_SHIFTED = 1 << 20
_WORD = 8
# Packed bytes that a task of dask counts, and for column sums, of which each task makes a row.
_TASK = 16 << 20
_COLUMNS_TASK = 64 << 20
_BLOCK_ROWS = 64

Digits = list[list[Words]]
"""Matrices of bits, those of each binary digit in a list, least significant first."""


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
            # The smallest type that holds all counts is the quickest.
            narrow = np.min_scalar_type(8 * _WORD * int((ends - begins).max()))
            # Words between the end of a row and the next are summed apart, and left out.
            bounds = np.stack([begins, ends], axis=1).ravel()[:-1]
            sums = np.add.reduceat(np.bitwise_count(words), bounds, dtype=narrow)
            counts[block] = sums[::2]
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
        blocks = slice(0, 0)
        if 2 * counts.size >= self.bits.shape[1]:
            blocks = blocks_of_rows(self.bits.rows, rows)
        self._add_shifted(rows[: blocks.start], counts)
        self._add_shifted(rows[blocks.stop :], counts)
        if blocks.start < blocks.stop:
            self._add_blocks(rows[blocks], counts)
        return counts

    def _add_blocks(self, rows: Integers, counts: Integers) -> None:
        """Add blocks of 64 rows to the counts of columns: all columns of them, as they lie."""
        digits: Digits = []
        edges = self.bits.rows.starts(np.append(rows[::_BLOCK_ROWS], rows[-1] + 1))
        nothing = np.zeros_like(edges[1:])
        pieces = Pieces(edges[:-1], edges[1:], nothing, nothing)
        for block, window, positions in pieces.fetch(self.source, LARGEST_WINDOW):
            lengths = np.diff(edges)[block].tolist()
            for begin, length in zip(positions.tolist(), lengths, strict=True):
                words = window[begin : begin + length].view("<u8")
                add_block(digits, words.reshape(_BLOCK_ROWS, -1))
        # Where each row begins a column later than the one before, bits are moved to their columns.
        firsts = self.bits.rows.firsts(rows[:_BLOCK_ROWS])
        width, column = digits[0][0].shape[1], int(firsts[0])
        moved = [[_moved(each, firsts - column, width) for each in same] for same in digits]
        sums = column_sums(moved, 64 * (width + 1))
        begin, end = max(column, self.first), min(column + sums.size, self.stop)
        counts[begin - self.first : end - self.first] += sums[begin - column : end - column]

    def _add_shifted(self, rows: Integers, counts: Integers) -> None:
        """Add any rows to the counts of columns, each shifted to the first of them."""
        step = max(1, _SHIFTED * 8 // counts.size)
        for begin in range(0, rows.size, step):
            block = rows[begin : begin + step]
            # No row of the block stores the columns before.
            first = max(self.first, int(self.bits.rows.firsts(block[:1])[0]))
            words = self.bits.gathered(self.source, block, first, self.stop)
            counts[first - self.first :] += column_sums([[words]], self.stop - first)

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


def blocks_of_rows(rows: Rows, wanted: Integers) -> slice:
    """The part of some rows that is blocks of 64 neighbours of equally many words each."""
    if not wanted.size or int(wanted[-1] - wanted[0]) >= wanted.size:
        return slice(0, 0)
    # Rows of a triangle become a word shorter where a whole number of words is left.
    begin = 0 if rows.stride else (rows.columns - int(rows.firsts(wanted[:1])[0])) % _BLOCK_ROWS
    count = max(0, wanted.size - begin) // _BLOCK_ROWS
    return slice(begin, begin + count * _BLOCK_ROWS)


def add_block(digits: Digits, block: Words, weight: int = 0) -> None:
    """Add bits to their sums, in which each bit has its own; the first block is the widest.

    Other blocks may lack the first columns. Of each binary digit there is the sum of all blocks but
    the last one, which waits for another.
    """
    if weight == len(digits):
        digits.append([np.zeros_like(digits[0][0] if digits else block)])
    if len(digits[weight]) == 1:
        digits[weight].append(block)
    else:
        digit, waiting = digits[weight]
        digits[weight] = [digit]
        add_block(digits, _full_add(digit, *sorted((waiting, block), key=np.size)), weight + 1)


def _full_add(digit: Words, narrow: Words, wide: Words) -> Words:
    """Add two blocks to a digit in place; the carry is for the next one."""
    digit, common = digit[:, -wide.shape[1] :], wide.shape[1] - narrow.shape[1]
    either, carry = np.empty_like(wide), np.empty_like(wide)
    either[:, :common], carry[:, :common] = wide[:, :common], 0
    np.bitwise_xor(wide[:, common:], narrow, out=either[:, common:])
    np.bitwise_and(wide[:, common:], narrow, out=carry[:, common:])
    carry |= digit & either
    digit ^= either
    return carry


def _moved(words: Words, counts: Integers, width: int) -> Words:
    """Move the bits of each row to higher places, by less than a word; zeros before them."""
    up = counts.astype(np.uint64)[:, np.newaxis]
    moved: Words = np.zeros((len(words), width + 1), dtype="<u8")
    begin = width - words.shape[1]
    np.left_shift(words, up, out=moved[:, begin:-1])
    # A shift by 64 is undefined, so that it takes two steps.
    moved[:, begin + 1 :] |= (words >> np.uint64(1)) >> (np.uint64(63) - up)
    return moved


def column_sums(digits: Digits, width: int) -> NDArray[np.uint32]:
    """The sums of the columns of matrices of bits, those of each binary digit in a list."""
    sums = np.zeros(width, dtype=np.uint32)
    pending, weight = [list(matrices) for matrices in digits], 0
    while pending:
        words = np.concatenate(pending[0]) if len(pending[0]) > 1 else pending[0][0]
        carries: list[Words] = []
        while len(words) > 1:
            words, carry = _add(words)
            carries.append(carry)
        bits = np.unpackbits(words.view(np.uint8), count=width, bitorder="little")
        sums += bits * np.uint32(1 << weight)
        weight += 1
        pending[:2] = [carries + pending[1]] if len(pending) > 1 else [carries] if carries else []
    return sums


def _add(words: Words) -> tuple[Words, Words]:
    """Add rows three by three, or the two that there are: a third as many digits, and carries."""
    third = len(words) // 3
    if not third:
        return words[:1] ^ words[1:], words[:1] & words[1:]
    digit = words[2 * third :].copy()
    return digit, _full_add(digit[:third], words[:third], words[third : 2 * third])


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
    counts, kept, then = planned
    count = _lazy if da.chunks is not None else _count
    values = count(counts, kept == 1)
    dims = [name for name in da.dims if name not in counted]
    coords = {name: coord for name, coord in da.coords.items() if set(coord.dims) <= set(dims)}
    return DataArray(values.sum() if kept is None else values[then], coords, dims, da.name)


def _planned(found: Unread, counted: list[int]) -> tuple[BitCounts, int | None, Then] | None:
    """What to count of the stored matrix, along which axis counts are kept, and the key of that."""
    view = found.layout
    axes: tuple[int, ...] = (1,) if isinstance(view, OnlyRow) else (0, 1)
    if isinstance(view, Transposed):
        axes = view.axes
    bits = view.inner if isinstance(view, OnlyRow | Transposed) else view
    if not isinstance(bits, Bits):
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
    return (counts, kept[0], picks[kept[0]].then) if kept else (counts, None, KEEP)


def _count(counts: BitCounts, by_column: bool) -> Any:
    """One count a column, or one a row."""
    return counts.by_column() if by_column else counts.by_row()


def _lazy(counts: BitCounts, by_column: bool) -> Any:
    """The counts in dask, a block of rows a task."""
    rows, width, bits = counts.rows.size, counts.stop - counts.first, counts.bits
    nbytes = bits.rows.nbytes * rows * width // max(1, prod(bits.shape))
    tasks = max(1, -(-nbytes // (_COLUMNS_TASK if by_column else _TASK)))
    step = max(1, -(-rows // tasks))
    lengths = tuple(min(step, rows - begin) for begin in range(0, max(1, rows), step))
    values: Any = dask.array.map_blocks(  # type: ignore[no-untyped-call]
        partial(_count_block, counts, step, by_column),
        chunks=((1,) * len(lengths), (width,)) if by_column else (lengths,),
        name=f"popcount-{tokenize(counts, step, by_column)}",
        dtype=np.int64,
        meta=np.empty((0,) * (1 + by_column), dtype=np.int64),
    )
    return values.sum(axis=0) if by_column else values


def _count_block(
    counts: BitCounts, step: int, by_column: bool, block_id: tuple[int, ...]
) -> Integers:
    """The counts of the rows of one task: one a row, or a matrix of one row of column sums."""
    begin = block_id[0] * step
    values: Integers = _count(replace(counts, rows=counts.rows[begin : begin + step]), by_column)
    return values[np.newaxis] if by_column else values
