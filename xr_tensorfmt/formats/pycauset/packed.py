"""Layouts of packed rows: a matrix with padded rows, or a triangle, of bits or of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.extents import (
    PAGE,
    Bytes,
    Extents,
    Integers,
    ceil_div,
    contiguous_chunk,
    gather_uniform,
)
from xr_tensorfmt.core.layout import (
    BATCH_BYTES,
    WHOLE,
    EncodedBatch,
    Layout,
    UnrepresentableValueError,
    compute_relative_slices,
    view_as_bytes,
)
from xr_tensorfmt.core.selection import MAX_RUNS, Selection
from xr_tensorfmt.core.source import Source

Number = TypeVar("Number", int, Integers)

# Elements are fetched one by one if a row has more bytes than this per selected element.
_SPARSE_BYTES = 512
# Bytes of packed rows to write at a time. From 4 MiB on, numpy allocates large memory pages.
_BATCH_BYTES = 4 << 20
# Values keep at most 1/32 of their size in bits before the first column.
_MAX_SPARE = 32
# Unpacked bytes of a triangle to copy at a time, to stay within a processor cache.
_CACHED_BYTES = 2 << 20


@dataclass(frozen=True)
class Rows:
    """Offsets of the rows of a matrix, or of an upper triangle."""

    count: int
    columns: int
    bits: int  # of an element
    unit: int  # rows are padded to a multiple of these bytes
    offset: int
    diagonal: int | None = None  # in a triangle, row i begins with column i + diagonal

    @property
    def is_triangle(self) -> bool:
        """Whether rows have different lengths."""
        return self.diagonal is not None

    @property
    def stride(self) -> int:
        """Bytes from one row of a matrix to the next. A triangle has no stride."""
        return self.unit * ceil_div(self.columns, self._per_unit)

    @property
    def nbytes(self) -> int:
        """Size of the rows in bytes. Python integers do not overflow."""
        if self.diagonal is None:
            return self.count * self.stride
        return self.unit * _count_units(self._longest, self._per_unit)

    @property
    def _longest(self) -> int:
        return max(0, self.columns - (self.diagonal or 0))

    @property
    def _per_unit(self) -> int:
        return self.unit * 8 // self.bits

    def find_first_columns(self, rows: Integers) -> Integers:
        """Return the first stored column of rows. It ascends with the row in a triangle."""
        return np.zeros_like(rows) if self.diagonal is None else rows + self.diagonal

    def compute_starts(self, rows: Integers) -> Integers:
        """Return the offsets of rows. The offset of row `count` is the end of the last row."""
        if self.diagonal is None:
            return self.offset + rows * self.stride
        # A triangle ends with rows of all lengths down to 0.
        remaining = _count_units(np.maximum(self._longest - rows, 0), self._per_unit)
        return np.asarray(self.offset + self.nbytes - self.unit * remaining)

    def find_pieces(self, rows: Integers, first: int, stop: int, word: int = 1) -> Pieces:
        """Return the words of the columns ``[first, stop)``, omitting rows that store none."""
        firsts = self.find_first_columns(rows)
        stored = int(np.searchsorted(firsts, stop))
        rows, firsts = rows[:stored], firsts[:stored]
        word_bits = 8 * word
        starts = self.compute_starts(rows)
        stops = starts + ceil_div((stop - firsts) * self.bits, word_bits) * word
        if stop == self.columns:
            stops = self.compute_starts(rows + 1)
        skipped = np.maximum(first - firsts, 0) * self.bits
        starts = starts + skipped // word_bits * word
        return Pieces(starts, stops, bit=skipped % word_bits, lead=np.maximum(firsts - first, 0))


def _count_units(longest: Number, per_unit: int) -> Number:
    """Return the total number of units of rows with 1, 2, ... `longest` elements."""
    full, rest = longest // per_unit, longest % per_unit
    return per_unit * full * (full + 1) // 2 + rest * (full + 1)


@dataclass(frozen=True, eq=False)
class Pieces:
    """Byte ranges of rows, sorted and disjoint."""

    starts: Integers
    stops: Integers
    bit: Integers  # number of the bit at which the first element begins
    lead: Integers  # number of selected columns before the first stored one

    def __len__(self) -> int:
        return self.starts.size

    @property
    def extents(self) -> Extents:
        """The ranges, with touching ranges joined."""
        return Extents.from_bounds(self.starts, self.stops)

    @property
    def packed_starts(self) -> Integers:
        """Position of every row in the concatenated ranges."""
        lengths = self.stops - self.starts
        return np.asarray(np.cumsum(lengths) - lengths)


@dataclass(frozen=True)
class Packed(Layout):
    """Matrix with padded rows, or upper triangle. Elements that are not stored are 0.

    Bit k of a row of bits is bit ``k % 8`` of its byte ``k // 8``.
    """

    rows: Rows
    element: Element
    is_vector: bool = False  # the only row

    can_write = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns, or the columns of a vector."""
        columns = (self.rows.columns,)
        return columns if self.is_vector else (self.rows.count, *columns)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.element.dtype

    @property
    def has_bits(self) -> bool:
        """Whether an element is a bit."""
        return self.rows.bits == 1

    def stored_element(self) -> Element:
        """Return the element."""
        return self.element

    def _as_matrix(self, selection: Selection) -> Selection:
        return selection.prepend(0, 1) if self.is_vector else selection

    def locate(self, selection: Selection) -> Extents:
        """Return one range per row, or per element if they are far apart. Join adjacent ranges."""
        selection = self._as_matrix(selection)
        if self._is_sparse(selection):
            _, offsets, _ = self._locate_elements(selection)
            is_new = np.diff(offsets, prepend=-1) > 0
            return Extents.uniform(offsets[is_new], self.element.stored.itemsize)
        return self._find_pieces(selection).extents

    def _find_pieces(self, selection: Selection) -> Pieces:
        """Return the bytes of the columns from the first to the last one, row by row."""
        rows, columns = selection.index_arrays
        return self.rows.find_pieces(rows, int(columns[0]), int(columns[-1]) + 1)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return a chunk of whole rows, and of whole pages of the file if possible."""
        count, columns = self.rows.count, self.rows.columns
        max_rows = target // (columns * self.dtype.itemsize) if count and columns else 0
        if not max_rows or self.is_vector:
            return contiguous_chunk(self.shape, self.dtype.itemsize, target)
        stored = PAGE if self.rows.is_triangle else self.rows.stride
        return *contiguous_chunk((count,), stored, max_rows * stored), columns

    def batch_size(self, source: Source, selection: Selection) -> int:
        """Divide selections that need more memory than their packed rows and their values."""
        if not self.has_bits:
            return super().batch_size(source, selection)
        selection = self._as_matrix(selection)
        if self._is_sparse(selection):
            return MAX_RUNS
        columns = selection.indices[1]
        width = int(columns[-1] - columns[0]) + 1
        if width == len(columns):
            return selection.size
        return source.batch_bytes * len(columns) // width

    def decode(self, packed: Bytes, selection: Selection, out: Array | None = None) -> Array:
        """Decode the columns from the first to the last one, row by row."""
        shape, selection = selection.shape, self._as_matrix(selection)
        if self._is_sparse(selection):
            return self._decode_elements(packed, selection).reshape(shape)
        rows, columns = selection.index_arrays
        first, stop = int(columns[0]), int(columns[-1]) + 1
        is_complete = columns.size == stop - first
        if self.has_bits and is_complete and not self.rows.is_triangle:
            return _unpack(packed.reshape(rows.size, -1), first % 8, columns.size).reshape(shape)
        if out is None or not is_complete:
            # Memory pages of zeros that are not written to take no time.
            out = np.zeros((rows.size, stop - first), dtype=self.dtype)
        elif self.rows.is_triangle:
            out[...] = 0
        values = out.reshape(rows.size, stop - first)
        pieces = self._find_pieces(selection)
        if len(pieces):
            fill = self._fill_bits if self.has_bits else self._fill_numbers
            fill(values[: len(pieces)], packed, pieces)
        return out.reshape(shape) if is_complete else values.take(columns - first, 1).reshape(shape)

    def _fill_numbers(self, values: Array, packed: Bytes, pieces: Pieces) -> None:
        """Set the stored elements of rows. The others are 0."""
        stored, width = self.element.stored, values.shape[1]
        starts, leads = pieces.packed_starts, pieces.lead
        if not leads[-1]:  # the leads ascend, so all of them are 0
            raw = gather_uniform(packed, starts, width * stored.itemsize).view(stored)
            self.element.decode_into(values, raw.reshape(values.shape))
            return
        for row, position, lead in zip(values, starts.tolist(), leads.tolist(), strict=True):
            stop = position + (width - lead) * stored.itemsize
            self.element.decode_into(row[lead:], packed[position:stop].view(stored))

    def _fill_bits(self, values: Array, packed: Bytes, pieces: Pieces) -> None:
        """Unpack the stored bits of rows, many rows at a time."""
        width, starts, bits, leads = values.shape[1], pieces.packed_starts, pieces.bit, pieces.lead
        complete = int(np.searchsorted(leads, 1))  # the leads ascend
        for bit in np.unique(bits[:complete]).tolist():
            rows = np.flatnonzero(bits[:complete] == bit)
            length = ceil_div(bit + width, 8)
            raw = gather_uniform(packed, starts[rows], length).reshape(-1, length)
            values[rows] = _unpack(raw, bit, width)
        lengths = pieces.stops - pieces.starts
        is_new = (np.diff(lengths, prepend=0) != 0) | (np.diff(leads, prepend=0) != 1)
        is_new[complete :: max(1, _CACHED_BYTES // max(1, width))] = True
        bounds = *(np.flatnonzero(is_new[complete:]) + complete).tolist(), len(pieces)
        for first, stop in pairwise(bounds):  # of equal length, each begins a column later
            begin, length = int(starts[first]), int(lengths[first])
            stored = packed[begin : begin + (stop - first) * length]
            unpacked = np.unpackbits(stored, bitorder="little")
            target = values[first:stop, int(leads[first]) :]
            target[...] = np.ndarray(target.shape, np.bool_, unpacked, strides=(8 * length - 1, 1))
            corner = target[:, : stop - first]  # left of the first elements
            corner[np.tri(stop - first, corner.shape[1], -1, np.bool_)] = 0

    def _is_sparse(self, selection: Selection) -> bool:
        """Return whether the selected elements of a row are far apart."""
        if selection.is_pointwise:
            return True
        columns = selection.indices[1]
        span = int(columns[-1] - columns[0]) + 1
        return span * self.rows.bits > 8 * _SPARSE_BYTES * len(columns)

    def _locate_elements(self, selection: Selection) -> tuple[Integers, Integers, Integers]:
        """Return which elements are stored, their offsets, and the number of their first bits."""
        rows, columns = selection.to_points().index_arrays
        distance = columns - self.rows.find_first_columns(rows)
        stored = np.flatnonzero(distance >= 0)
        bits = distance[stored] * self.rows.bits
        return stored, self.rows.compute_starts(rows[stored]) + (bits >> 3), bits & 7

    def _decode_elements(self, packed: Bytes, selection: Selection) -> Array:
        values = np.zeros(selection.size, dtype=self.dtype)
        stored, offsets, bits = self._locate_elements(selection)
        if stored.size:
            # The offsets ascend, because single elements are sorted.
            positions = np.cumsum(np.diff(offsets, prepend=offsets[:1]) > 0)
            raw = packed.view(self.element.stored)[positions]
            if self.has_bits:
                raw = raw >> bits.astype(np.uint8) & 1
            values[stored] = self.element.decode(raw)
        return values

    def encode(self, selection: Selection, values: Array) -> Iterator[EncodedBatch]:
        """Encode batches of rows."""
        if not selection.size:
            return
        if self.is_vector:
            selection, values = self._as_matrix(selection), values[np.newaxis]
        elements = BATCH_BYTES // values.itemsize  # checking a triangle takes a byte per element
        if not self.rows.is_triangle:
            elements = 8 * _BATCH_BYTES // self.rows.bits
        for batch in selection.divide(max(elements, selection.shape[1])):
            part = values[compute_relative_slices(batch, selection)]
            if self.rows.is_triangle:
                self._check_below(part, *batch.index_arrays)
            pieces = self._find_pieces(batch)
            if len(pieces):
                yield pieces.extents, self._pack(part[: len(pieces)], pieces)

    def _pack(self, values: Array, pieces: Pieces) -> Bytes:
        """Encode rows one after the other, padded with zeros."""
        if self.has_bits and not self.rows.is_triangle:
            packed = np.packbits(values, axis=1, bitorder="little")
            # Padding follows the last columns.
            padding = int(pieces.stops[0] - pieces.starts[0]) - packed.shape[1]
            return (np.pad(packed, ((0, 0), (0, padding))) if padding else packed).reshape(-1)
        filled = np.zeros(int((pieces.stops - pieces.starts).sum()), dtype=np.uint8)
        columns = pieces.packed_starts.tolist(), pieces.lead.tolist()
        for row, position, lead in zip(values, *columns, strict=True):
            if self.has_bits:
                stored = np.packbits(row[lead:], bitorder="little")
            else:
                stored = view_as_bytes(self.element.encode(row[lead:]))
            filled[position : position + stored.size] = stored
        return filled

    def _check_below(self, values: Array, rows: Integers, columns: Integers) -> None:
        """Raise UnrepresentableValueError if an element below a triangle is not zero."""
        firsts = self.rows.find_first_columns(rows)
        wrong = np.argwhere(np.logical_and(values, columns < firsts[:, np.newaxis]))
        if len(wrong):
            row, column = wrong[0]
            name = "INTEGER" if self.dtype.kind in "iu" else "DENSE_FLOAT"
            triangle = "a strict upper triangle" if self.rows.diagonal else "an upper triangle"
            raise UnrepresentableValueError(
                f"the element at {(int(rows[row]), int(columns[column]))} is "
                f"{values[row, column]}, but {triangle} has 0; pass matrix_type={name!r} to store "
                "all elements"
            )

    @property
    def write_units(self) -> tuple[int, ...]:
        """Eight columns of bits in a matrix, all columns in a triangle of bits."""
        columns = (WHOLE if self.rows.is_triangle else 8) if self.has_bits else 1
        return (columns,) if self.is_vector else (1, columns)


def _unpack(packed: Bytes, bit: int, width: int) -> Array:
    """Unpack a row of bits from each row of bytes, in memory of their own size."""
    unpacked = np.unpackbits(packed, axis=1, count=bit + width, bitorder="little")
    values: Array = unpacked[:, bit:].view(np.bool_)
    return values.copy() if bit * _MAX_SPARE > width else values
