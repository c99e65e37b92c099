"""Matrices whose rows are cut short or padded: where their rows are, and how they are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import TypeVar

import numpy as np

from xr_tensorfmt.core.chunk_grid import PAGE, row_chunk
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Bytes, Extents, Integers
from xr_tensorfmt.core.layout import Layout, raw_bytes
from xr_tensorfmt.core.selection import MOST_RUNS, Selection, entry_indices, entry_of
from xr_tensorfmt.core.source import LARGEST_WINDOW, Source

Number = TypeVar("Number", int, Integers)


class Rows(ABC):
    """The place of each row of a matrix in a file."""

    bits: int
    """Bits of one element."""
    stride: int
    """Bytes from one row to the next; 0 where they differ."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""

    @abstractmethod
    def firsts(self, rows: Integers) -> Integers:
        """First column that each row stores; it never falls from a row to the next."""

    @abstractmethod
    def starts(self, rows: Integers) -> Integers:
        """Byte of the file at which each row begins; the row after the last is one as well."""

    def pieces(self, rows: Integers, first: int, stop: int) -> Pieces:
        """The bytes of the columns ``[first, stop)`` of some rows, but for rows that store none."""
        firsts = self.firsts(rows)
        kept = int(np.searchsorted(firsts, stop))
        rows, firsts = rows[:kept], firsts[:kept]
        skipped = np.maximum(first - firsts, 0) * self.bits
        begins = self.starts(rows)
        following = self.starts(rows + 1)
        if stop == self.shape[1]:
            stops = following
        else:
            # One length for most rows, whatever bit they begin at, so that they gather at once.
            spare = 7 if self.bits < 8 else 0
            wanted = (stop - np.maximum(firsts, first)) * self.bits
            stops = np.minimum(begins + skipped // 8 + (wanted + spare + 7) // 8, following)
        return Pieces(begins + skipped // 8, stops, skipped % 8, np.maximum(firsts - first, 0))


@dataclass(frozen=True, eq=False)
class Pieces:
    """A range of bytes for each of some rows, in the order of the file, none overlapping.

    `bit` is the bit of the first byte with which the first element begins, and `lead` the number of
    wanted columns before the first stored one.
    """

    starts: Integers
    stops: Integers
    bit: Integers
    lead: Integers

    def __len__(self) -> int:
        return self.starts.size

    def __getitem__(self, part: slice) -> Pieces:
        return Pieces(self.starts[part], self.stops[part], self.bit[part], self.lead[part])

    @property
    def extents(self) -> Extents:
        """The ranges; those that touch are one."""
        return Extents.joined(self.starts, self.stops)


@dataclass(frozen=True)
class PaddedRows(Rows):
    """Rows of one length, each padded to a stride."""

    count: int
    columns: int
    stride: int
    offset: int
    bits: int = 1

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.count, self.columns

    def firsts(self, rows: Integers) -> Integers:
        """Every row begins with column 0."""
        return np.zeros(rows.size, dtype=np.int64)

    def starts(self, rows: Integers) -> Integers:
        """A multiple of the stride."""
        return self.offset + rows * self.stride


@dataclass(frozen=True)
class TriangleRows(Rows):
    """The upper triangle of a square matrix: each row is one element shorter than the last."""

    order: int
    diagonal: bool
    bits: int
    unit: int
    offset: int
    stride: int = field(default=0, init=False)

    @property
    def shape(self) -> tuple[int, int]:
        """A square."""
        return self.order, self.order

    @property
    def _longest(self) -> int:
        return max(0, self.order - (not self.diagonal))

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, in Python's unbounded integers."""
        return self.unit * _units(self._longest, self._per_unit)

    @property
    def _per_unit(self) -> int:
        return self.unit * 8 // self.bits

    def firsts(self, rows: Integers) -> Integers:
        """The column of the diagonal, or the one after it."""
        return rows + (not self.diagonal)

    def starts(self, rows: Integers) -> Integers:
        """By a closed form: the units of all rows without those of the rows that follow."""
        following = np.maximum(self._longest - rows, 0)
        whole = _units(self._longest, self._per_unit)
        starts: Integers = self.offset + self.unit * (whole - _units(following, self._per_unit))
        return starts


def _units(longest: Number, per_unit: int) -> Number:
    """Units that rows of 1, 2, ... up to `longest` elements take together."""
    full, rest = longest // per_unit, longest % per_unit
    return per_unit * full * (full + 1) // 2 + rest * (full + 1)


class PartlyStored(Layout):
    """A layout that stores some elements only; those at other places are implied."""

    @abstractmethod
    def check_implied(self, selection: Selection, values: Array) -> None:
        """Refuse values that would be lost: not stored, and other than what is implied."""


def not_stored(index: tuple[int, ...], found: object, implied: str, layout: Layout) -> ValueError:
    """An error about an element that a layout does not store."""
    dense = "INTEGER" if layout.dtype.kind in "iu" else "DENSE_FLOAT"
    name = "VECTOR" if len(index) == 1 else dense
    place = index[0] if len(index) == 1 else index
    return ValueError(
        f"the element at {place} is {found}, where {implied}; write the whole of it with "
        f"matrix_type={name!r} to keep it"
    )


def on_diagonal(selection: Selection) -> tuple[Selection, tuple[Integers, Integers]]:
    """What is selected of the diagonal, and where it is among the selected values."""
    rows, columns = map(entry_indices, selection.entries)
    common, *places = np.intersect1d(rows, columns, assume_unique=True, return_indices=True)
    length = min(selection.extent)
    return Selection((length,), (entry_of(common),)), (places[0], places[1])


def check_triangle(rows: Rows, layout: Layout, selection: Selection, values: Array) -> None:
    """Refuse anything but zeros before the first column that each row stores."""
    indices, columns = map(entry_indices, selection.entries)
    cuts = np.clip(rows.firsts(indices) - columns[0], 0, columns.size)
    # Columns that no row stores need no mask.
    block = slice(0, int(cuts[0]))
    corner = slice(block.stop, int(cuts[-1]))
    below = np.arange(corner.start, corner.stop) < cuts[:, np.newaxis]
    if values[:, block].any() or np.logical_and(values[:, corner], below).any():
        wrong = values.astype(np.bool_) & (np.arange(columns.size) < cuts[:, np.newaxis])
        complete = isinstance(rows, TriangleRows) and rows.diagonal
        implied = f"{'an' if complete else 'a strict'} upper triangle has 0"
        refuse_first(wrong, implied, layout, selection, values)


def refuse_first(
    wrong: Array, implied: str, layout: Layout, selection: Selection, values: Array
) -> None:
    """Raise an error about the first wrong value, if there is one."""
    if wrong.any():
        position = int(wrong.argmax())
        raise not_stored(selection.index_of(position), values.flat[position], implied, layout)


# Bytes of packed rows that are unpacked at a time, so that they and their values stay in the cache.
_BLOCK = 128 << 10
# Gaps that are larger than pieces by more than this are not mapped along with them.
_MOSTLY_GAPS = 16
# From so many columns for each wanted one on, the wanted ones are fetched one by one.
_FEW = 64


@dataclass(frozen=True)
class Packed(PartlyStored):
    """A matrix of rows that are cut short, padded, or both."""

    rows: Rows

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows.shape

    @abstractmethod
    def buffer(self, rows: int, columns: int) -> Array:
        """An array of zeros for some rows and neighbouring columns, which `fill` works on."""

    @abstractmethod
    def fill(self, buffer: Array, window: Bytes, positions: Integers, pieces: Pieces) -> None:
        """Set the stored elements of some rows."""

    @abstractmethod
    def finish(self, filled: Array, columns: int) -> Array:
        """The values of what `fill` has filled."""

    def extents(self, selection: Selection) -> Extents:
        """A range for each row; whole rows are one range."""
        rows, columns = map(entry_indices, selection.entries)
        return self.rows.pieces(rows, int(columns[0]), int(columns[-1]) + 1).extents

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Whole rows, by what they take in memory; whole pages of the file where rows allow it."""
        return row_chunk(self.shape, self.dtype.itemsize, self.rows.stride, target)

    def read(self, source: Source, selection: Selection) -> Array:
        """Read the columns from the first wanted one to the last, row by row."""
        if not selection.size:
            return np.zeros(selection.shape, dtype=self.dtype)
        rows, indices = map(entry_indices, selection.entries)
        first, stop = int(indices[0]), int(indices[-1]) + 1
        if self.rows.firsts(rows[:1])[0] >= stop:
            return np.zeros(selection.shape, dtype=self.dtype)
        if stop - first > _FEW * indices.size or stop - first == 1:
            return self._read_each(source, rows, indices)
        buffer = self.gathered(source, rows, first, stop)
        values = self.finish(buffer, stop - first)
        if indices.size == stop - first:
            return values
        return np.ascontiguousarray(values[:, indices - first])

    def _read_each(self, source: Source, rows: Integers, columns: Integers) -> Array:
        values = np.empty((rows.size, columns.size), dtype=self.dtype)
        step = max(1, MOST_RUNS // columns.size)
        for begin in range(0, rows.size, step):
            mesh = np.meshgrid(rows[begin : begin + step], columns, indexing="ij")
            points = (mesh[0].ravel(), mesh[1].ravel())
            values[begin : begin + step] = self.read_points(source, points).reshape(mesh[0].shape)
        return values

    def gathered(self, source: Source, rows: Integers, first: int, stop: int) -> Array:
        """Columns ``[first, stop)`` of some rows, as `fill` leaves them."""
        buffer = self.buffer(rows.size, stop - first)
        pieces = self.rows.pieces(rows, first, stop)
        for batch in batches(pieces):
            window, positions = fetch(source, pieces[batch])
            widest = int((pieces.stops[batch] - pieces.starts[batch]).max())
            step = max(1, _BLOCK // widest)
            for begin in range(batch.start, batch.stop, step):
                block = slice(begin, min(begin + step, batch.stop))
                here = positions[block.start - batch.start : block.stop - batch.start]
                self.fill(buffer[block], window, here, pieces[block])
        return buffer

    @property
    def bytes_per_element(self) -> float:
        """A mean over all rows."""
        begin, stop = self.rows.starts(np.array([0, self.shape[0]])).tolist()
        return float((stop - begin) / prod(self.shape))

    def check_implied(self, selection: Selection, values: Array) -> None:
        """There are zeros below a triangle."""
        if not self.rows.stride:
            check_triangle(self.rows, self, selection, values)


def row_batches(
    layout: PartlyStored, rows: Rows, selection: Selection, values: Array, most: int
) -> Iterator[tuple[Array, Pieces]]:
    """Some rows at a time, of at most so many values, and the bytes of those that store any."""
    indices, columns = map(entry_indices, selection.entries)
    step = max(1, most // max(1, columns.size))
    for begin in range(0, indices.size if columns.size else 0, step):
        part, some = values[begin : begin + step], indices[begin : begin + step]
        entries = (slice(int(some[0]), int(some[-1]) + 1, 1), selection.entries[1])
        layout.check_implied(Selection(selection.extent, entries), part)
        pieces = rows.pieces(some, int(columns[0]), int(columns[-1]) + 1)
        if len(pieces):
            yield part[: len(pieces)], pieces


def assembled(values: Array, pieces: Pieces, encode: Callable[[Array], Array]) -> Bytes:
    """The bytes of some rows of a triangle, one after the other, each padded with zeros."""
    lengths = pieces.stops - pieces.starts
    places = (np.cumsum(lengths) - lengths).tolist()
    filled = np.zeros(int(lengths.sum()), dtype=np.uint8)
    for row, place, lead in zip(values, places, pieces.lead.tolist(), strict=True):
        stored = raw_bytes(encode(row[lead:]))
        filled[place : place + stored.size] = stored
    return filled


def batches(pieces: Pieces) -> Iterator[slice]:
    """Parts of the rows whose windows and plans are small."""
    begin, count = 0, len(pieces)
    while begin < count:
        reach = pieces.starts[begin] + LARGEST_WINDOW
        end = int(np.searchsorted(pieces.stops, reach, side="right"))
        end = min(max(end, begin + 1), begin + MOST_RUNS)
        if not pieces.lead[begin]:
            end = min(end, int(np.searchsorted(pieces.lead, 0, side="right")))
        yield slice(begin, end)
        begin = end


def fetch(source: Source, pieces: Pieces) -> tuple[Bytes, Integers]:
    """A window or a copy with the bytes of some rows, and where in it each row begins."""
    first, stop = int(pieces.starts[0]), int(pieces.stops[-1])
    lengths = pieces.stops - pieces.starts
    wanted, span = int(lengths.sum()), stop - first
    # Nearly every page is needed for some row, or rows are too large to be copied twice.
    if wanted + len(pieces) * PAGE >= span or wanted * _MOSTLY_GAPS >= span:
        window = source.window(first, stop)
        if window is not None:
            return window, pieces.starts - first
    return source.read(pieces.extents), np.cumsum(lengths) - lengths
