"""Adding up rows of bits, column by column, in binary digits that are rows of bits themselves."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
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
from xr_tensorfmt.formats.pycauset.bits import Bits, Words
from xr_tensorfmt.formats.pycauset.rows import Pieces, Rows, batches, fetch

# Bytes of shifted rows that are added at a time.
_ADDED = 1 << 20
# Words of a block that are added at a time, so that all operands stay in the cache.
_STEP = 1 << 15


class Planes:
    """The sum of blocks of bits, place by place: a block for each binary digit."""

    def __init__(self, rows: int, words: int) -> None:
        self.digits: list[Words] = []
        self._waiting: list[Words | None] = []
        self._carries: list[list[Words]] = []
        self.words = words
        self._shape = (rows, words)
        self._step = max(1, _STEP // words)
        self._scratch: Words = np.empty((2, self._step, words), dtype="<u8")

    def add(self, block: Words, weight: int = 0) -> None:
        """Add a block, which may lack the first columns; all end at the same one."""
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
    """Add up rows of bits, column by column."""
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
    """Add up rows of bits, column by column."""
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


_HEIGHT = 64
# Sums of blocks that are narrower by this factor begin anew.
_NARROWER = 0.75


@dataclass(frozen=True)
class Stripes:
    """Rows of which 64 at a time take equally many words, one row right after the other."""

    rows: Rows
    first: int
    stop: int

    @classmethod
    def among(cls, rows: Rows, wanted: Integers) -> Stripes | None:
        """Find stripes."""
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
        """Add up the bits of all stripes."""
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


# Bytes that are counted at a time, so that the counts of their words stay in the cache.
_BLOCK = 2 << 20
# Bytes of rows that are shifted at a time, to be added.
_SHIFTED = 1 << 22
_WORD = 8


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


# Packed bytes that a task of dask counts.
_TASK = 16 << 20
# The same for column sums, of which each task makes a whole row.
_COLUMNS_TASK = 64 << 20


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
        `da` is no DataArray, or not of dtype bool.
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
    view = None if found is None else _viewed(found, [da.get_axis_num(each) for each in counted])
    if view is None:
        return da.sum(counted, keep_attrs=False).astype(np.int64, copy=False)
    dims = [name for name in da.dims if name not in counted]
    counts = view.lazy() if da.chunks is not None else view.compute()
    coords = {name: each for name, each in da.coords.items() if set(each.dims) <= set(dims)}
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
class _View:
    """Counts, and what the key of the array does to them."""

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
        rows = self.counts.rows.size
        task = _COLUMNS_TASK if self.kept == 1 else _TASK
        blocks = max(1, -(-self.counts.nbytes // task))
        step = max(1, -(-rows // blocks))
        tasks = _Tasks(self.counts, step, by_column=self.kept == 1)
        each: Any = dask.array.from_array(  # type: ignore[no-untyped-call]
            tasks,
            chunks=(1, -1) if tasks.by_column else step,
            name=f"popcount-{tokenize(self.counts, step, tasks.by_column)}",
            asarray=False,
            inline_array=True,
            meta=np.empty((0,) * tasks.ndim, dtype=np.int64),
        )
        if self.kept is None:
            return each.sum()
        return (each.sum(axis=0) if self.kept == 1 else each)[self.then]


class _Tasks:
    """Counts as an array that dask cuts: one a row, or a row of counts for each block of rows."""

    dtype = np.dtype(np.int64)

    def __init__(self, counts: BitCounts, step: int, *, by_column: bool) -> None:
        self.counts = counts
        self.step = step
        self.by_column = by_column
        rows = counts.rows.size
        shape = (-(-rows // step), counts.stop - counts.first)
        self.shape: tuple[int, ...] = shape if by_column else (rows,)
        self.ndim = len(self.shape)

    def __getitem__(self, key: tuple[slice, ...]) -> Array:
        if not self.by_column:
            return self.counts.part(key[0].start, key[0].stop).by_row()
        begin, end = key[0].start * self.step, key[0].stop * self.step
        return self.counts.part(begin, end).by_column()[np.newaxis]


def _viewed(found: Unread, counted: list[int]) -> _View | None:
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
    for axis, each in picks.items():
        entries[axis] = each.entry
    columns = entries[1]
    repeats = any(isinstance(picks[axis].then, np.ndarray) for axis in summed)
    if len(kept) > 1 or repeats or not isinstance(columns, slice) or columns.step != 1:
        return None
    rows = entry_indices(entries[0])
    counts = BitCounts(found.source, bits, rows, columns.start, columns.stop)
    if not kept:
        return _View(counts, None, None)
    return _View(counts, kept[0], picks[kept[0]].then)


def _stored_bits(layout: Layout) -> tuple[Bits | None, tuple[int, ...]]:
    """The stored matrix, and the axis of it that each axis of the layout is."""
    if isinstance(layout, Transposed):
        inner, axes = _stored_bits(layout.inner)
        return inner, tuple(axes[axis] for axis in layout.axes) if inner else ()
    if isinstance(layout, OnlyRow) and isinstance(layout.inner, Bits):
        return layout.inner, (1,)
    return (layout, (0, 1)) if isinstance(layout, Bits) else (None, ())
