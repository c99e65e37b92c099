"""Counting the bits of a matrix in the packed bytes of its file."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import dask.array
import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray
from xarray import DataArray

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Bytes, Integers
from xr_tensorfmt.core.indexing import OuterPlan
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.selection import Entry, entry_indices
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import OnlyRow, Transposed
from xr_tensorfmt.datasets.lazy_array import Unread, unread
from xr_tensorfmt.formats.pycauset.column_sums import RowBlocks, column_sums
from xr_tensorfmt.formats.pycauset.packed import Bits, Pieces, Words, low_bits

# Bytes that are counted at a time, so that the counts of their words stay in the cache.
_BLOCK = 2 << 20
# Bytes of rows that are shifted at a time, to be added.
_SHIFTED = 1 << 22
_WORD = 8
# Packed bytes that a task of dask counts, and for column sums, of which each task makes a row.
_TASK = 16 << 20
_COLUMNS_TASK = 64 << 20


@dataclass(frozen=True)
class BitCounts:
    """Some rows and neighbouring columns of a matrix of bits, to be counted."""

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
        for block, window, positions in pieces.fetch(self.source, _BLOCK):
            words, begins, ends = _aligned(window, positions, pieces[block])
            counts[block] = _sums(np.bitwise_count(words), begins, ends)
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

    def _surplus(self, pieces: Pieces, edges: Words) -> NDArray[np.uint8]:
        """Bits that are set before the first column and after the last, in the words of both."""
        rows = self.rows[: len(pieces)]
        used = ((self.stop - self.bits.rows.firsts(rows) - 1) & 63) + 1
        surplus: NDArray[np.uint8] = np.bitwise_count(edges[0] & ~low_bits(used))
        for words in edges[1:]:
            surplus += np.bitwise_count(words & low_bits(pieces.bit))
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
    """The smallest type, which is the quickest, that holds counts up to the greatest one."""
    fits = (dtype for dtype in (np.uint16, np.uint32) if most <= np.iinfo(dtype).max)
    return next(fits, np.uint64)


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

    Examples
    --------
    >>> ds = xr.open_dataset("c.pycauset", engine="tensorfmt", chunks={})  # doctest: +SKIP
    >>> futures = xr_tensorfmt.popcount(ds.tensor, dim="col")  # doctest: +SKIP
    """
    if not isinstance(da, DataArray):
        raise TypeError(f"popcount takes a DataArray, not a {type(da).__name__}")
    if da.dtype != np.bool_:
        raise TypeError(
            f"popcount takes an array of bool, not of {da.dtype}; use da.sum(dim), or compare first"
        )
    counted = _counted(da, dim)
    found = unread(da.variable)
    axes = [da.get_axis_num(name) for name in counted]
    planned = None if found is None else _planned(found, axes)
    if planned is None:
        return da.sum(counted, keep_attrs=False).astype(np.int64, copy=False)
    dims = [name for name in da.dims if name not in counted]
    counts = planned.lazy() if da.chunks is not None else planned.compute()
    coords = {name: coord for name, coord in da.coords.items() if set(coord.dims) <= set(dims)}
    return DataArray(counts, coords, dims, da.name)


def _counted(da: DataArray, dim: Hashable | Iterable[Hashable] | None) -> tuple[Hashable, ...]:
    if dim is None or dim is ...:
        return da.dims
    names = (dim,) if isinstance(dim, str) or not isinstance(dim, Iterable) else tuple(dim)
    for name in names:
        if name not in da.dims:
            raise ValueError(f"dim={name!r} is not one of the dimensions {da.dims}")
    return names


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
        tasks = max(1, -(-self.counts.nbytes // (_COLUMNS_TASK if by_column else _TASK)))
        step = max(1, -(-rows // tasks))
        lengths = tuple(min(step, rows - begin) for begin in range(0, max(1, rows), step))
        width = self.counts.stop - self.counts.first
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
    part = counts.part(begin, begin + step)
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
    if isinstance(layout, Transposed):
        inner, axes = _stored_bits(layout.inner)
        return inner, tuple(axes[axis] for axis in layout.axes) if inner else ()
    if isinstance(layout, OnlyRow) and isinstance(layout.inner, Bits):
        return layout.inner, (1,)
    return (layout, (0, 1)) if isinstance(layout, Bits) else (None, ())
