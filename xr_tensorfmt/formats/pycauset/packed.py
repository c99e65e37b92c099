"""Packed bits and numbers: matrices with padded rows, and upper triangles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from xr_tensorfmt.core.elements import Array, Boolean, Element
from xr_tensorfmt.core.extents import Bytes, Extents, Integers, ceil_div
from xr_tensorfmt.core.layout import BATCH_BYTES, WHOLE, EncodedBatch, Layout, view_as_bytes
from xr_tensorfmt.core.selection import MAX_RUNS, Indices, Selection
from xr_tensorfmt.core.source import Source

# Elements are fetched one by one if a row has more bytes than this per selected element.
_SPARSE_BYTES = 512
# With at least this many columns of a triangle, decoding rows is faster than single elements.
_MANY_COLUMNS = 32

Pieces = Integers
"""The bytes of rows among others, with a line per row: their position, the number of the first bit,
and the number of selected columns before the first stored one."""


@dataclass(frozen=True)
class Packed(Layout):
    """Matrix with padded rows, or upper triangle. Elements that are not stored are 0.

    Bit k of a row of bits is bit ``k % 8`` of its byte ``k // 8``.
    """

    count: int  # of rows
    columns: int
    element: Element  # `Boolean` means bits
    unit: int  # rows are padded to a multiple of these bytes
    offset: int
    diagonal: int | None = None  # in a triangle, row i begins with column i + diagonal
    is_vector: bool = False  # the only row

    can_write = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns, or the columns of a vector."""
        return (self.columns,) if self.is_vector else (self.count, self.columns)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.element.dtype

    @property
    def is_triangle(self) -> bool:
        """Whether rows have different lengths."""
        return self.diagonal is not None

    @property
    def nbytes(self) -> int:
        """Size of the rows in bytes."""
        return int(self.compute_starts(self.count)) - self.offset

    @property
    def item_bits(self) -> int:
        """Size of a stored element in bits."""
        return 1 if isinstance(self.element, Boolean) else 8 * self.element.stored.itemsize

    def _find_first_columns(self, rows: Integers) -> Integers:
        """Return the first stored column of rows. It ascends with the row in a triangle."""
        return np.zeros_like(rows) if self.diagonal is None else rows + self.diagonal

    def compute_starts(self, rows: Any) -> Any:
        """Return the offsets of rows. The offset of row `count` is the end of the last row."""
        if self.diagonal is None:
            stride = self.unit * ceil_div(self.columns * self.item_bits, 8 * self.unit)
            return self.offset + rows * stride
        # A triangle ends with rows of all lengths down to 0.
        longest, per_unit = max(0, self.columns - self.diagonal), self.unit * 8 // self.item_bits
        total = _count_units(longest, per_unit)
        remaining = _count_units(np.maximum(longest - rows, 0), per_unit)
        return self.offset + self.unit * (total - remaining)

    def find_pieces(
        self, rows: Integers, first: int, stop: int, word: int = 1
    ) -> tuple[Extents, Pieces]:
        """Return the words with the columns ``[first, stop)``. The last rows may store none."""
        firsts = self._find_first_columns(rows)
        stored = int(np.searchsorted(firsts, stop))
        rows, firsts = rows[:stored], firsts[:stored]
        starts = self.compute_starts(rows)
        stops = starts + word * ceil_div((stop - firsts) * self.item_bits, 8 * word)
        if stop == self.columns:
            stops = self.compute_starts(rows + 1)
        skipped = np.maximum(first - firsts, 0) * self.item_bits
        starts = starts + skipped // (8 * word) * word
        positions = np.cumsum(stops - starts) - (stops - starts)
        pieces = positions, skipped % (8 * word), np.maximum(firsts - first, 0)
        return Extents.from_bounds(starts, stops), np.stack(pieces, axis=1)

    def _find_selected(self, selection: Selection) -> tuple[Extents, Pieces]:
        """Return the bytes of the columns from the first to the last one, row by row."""
        rows, columns = selection.index_arrays
        return self.find_pieces(rows, int(columns[0]), int(columns[-1]) + 1)

    def _locate_elements(self, selection: Selection) -> tuple[Integers, Integers, Integers]:
        """Return which elements are stored, their offsets, and the number of their first bits."""
        rows, columns = map(np.ravel, np.broadcast_arrays(*selection.mesh))
        distance = columns - self._find_first_columns(rows)
        stored = np.flatnonzero(distance >= 0)
        bits = distance[stored] * self.item_bits
        return stored, self.compute_starts(rows[stored]) + (bits >> 3), bits & 7

    def _as_matrix(self, selection: Selection) -> Selection:
        if not self.is_vector:
            return selection
        row: Indices = np.zeros(selection.size, int) if selection.is_pointwise else range(1)
        return Selection((1, *self.shape), (row, *selection.indices), selection.is_pointwise)

    def _is_sparse(self, selection: Selection) -> bool:
        """Return whether the elements of a matrix are read one by one: they are few, or distant."""
        if selection.is_pointwise:
            return True
        columns = selection.indices[1]
        span = int(columns[-1] - columns[0]) + 1
        is_narrow = self.is_triangle and len(columns) < _MANY_COLUMNS
        return is_narrow or span * self.item_bits > 8 * _SPARSE_BYTES * len(columns)

    def locate(self, selection: Selection) -> Extents:
        """Return one range per row, or per element. Join adjacent ranges."""
        selection = self._as_matrix(selection)
        if self._is_sparse(selection):
            _, offsets, _ = self._locate_elements(selection)
            return Extents.from_bounds(offsets, offsets + self.element.stored.itemsize)
        return self._find_selected(selection)[0]

    def batch_size(self, source: Source, selection: Selection) -> int:
        """Limit the memory of indices, and of the columns from the first to the last one."""
        selection = self._as_matrix(selection)
        if self._is_sparse(selection):
            return MAX_RUNS
        columns = selection.indices[1]
        width = int(columns[-1] - columns[0]) + 1
        return super().batch_size(source, selection) * len(columns) // width

    def decode(self, packed: Bytes, selection: Selection) -> Array:
        """Decode the columns from the first to the last one, row by row."""
        shape, selection = selection.shape, self._as_matrix(selection)
        if self._is_sparse(selection):
            return self._decode_elements(packed, selection).reshape(shape)
        rows, columns = selection.index_arrays
        first, width = int(columns[0]), int(columns[-1] - columns[0]) + 1
        if self.is_triangle:
            # Memory pages of zeros that are not written to take no time.
            values = np.zeros((rows.size, width), dtype=self.dtype)
            self._fill(values, packed, self._find_selected(selection)[1])
        else:
            packed, bit = packed.reshape(rows.size, -1), first % 8
            unpacked = np.unpackbits(packed, axis=1, count=bit + width, bitorder="little")
            values = np.ascontiguousarray(unpacked[:, bit:]).view(np.bool_)
        if columns.size < width:
            values = values.take(columns - first, axis=1)
        return values.reshape(shape)

    def _fill(self, values: Array, packed: Bytes, pieces: Pieces) -> None:
        width, stored = values.shape[1], self.element.stored
        for row, (start, bit, lead) in zip(values, pieces.tolist(), strict=False):
            if self.item_bits == 1:
                stop = start + ceil_div(bit + width - lead, 8)
                unpacked = np.unpackbits(packed[start:stop], bitorder="little")
                row[lead:] = unpacked[bit : bit + width - lead].view(np.bool_)
            else:
                stop = start + (width - lead) * stored.itemsize
                row[lead:] = self.element.decode(packed[start:stop].view(stored))

    def _decode_elements(self, packed: Bytes, selection: Selection) -> Array:
        values = np.zeros(selection.size, dtype=self.dtype)
        stored, offsets, bits = self._locate_elements(selection)
        if stored.size:
            # The offsets ascend, because single elements are sorted.
            positions = np.cumsum(np.diff(offsets, prepend=offsets[:1]) > 0)
            raw = packed.view(self.element.stored)[positions]
            if self.item_bits == 1:
                raw = raw >> bits.astype(np.uint8) & 1
            values[stored] = self.element.decode(raw)
        return values

    def encode(self, selection: Selection, values: Array) -> Iterator[EncodedBatch]:
        """Encode batches of rows."""
        if not selection.size:
            return
        selection, values = self._as_matrix(selection), values.reshape(-1, selection.shape[-1])
        size = max(BATCH_BYTES // values.itemsize, selection.shape[1])
        for batch, index in selection.iterate_parts(size):
            part = values[index]
            if self.is_triangle:
                self._check_below(part, *batch.index_arrays)
            extents, pieces = self._find_selected(batch)
            if not isinstance(batch.indices[1], range):  # numbers in some columns of a triangle
                stored, offsets, _ = self._locate_elements(batch)
                raw = view_as_bytes(self.element.encode(part.ravel()[stored]))
                yield Extents.uniform(offsets, self.element.stored.itemsize), raw
            elif len(pieces):
                yield extents, self._pack(part, pieces, np.zeros(extents.nbytes, np.uint8))

    def _pack(self, values: Array, pieces: Pieces, filled: Bytes) -> Bytes:
        """Encode rows one after the other, padded with zeros."""
        if not self.is_triangle:
            packed = np.packbits(values, axis=1, bitorder="little")
            filled.reshape(len(values), -1)[:, : packed.shape[1]] = packed
            return filled
        for row, (position, _, lead) in zip(values, pieces.tolist(), strict=False):
            if self.item_bits == 1:
                stored = np.packbits(row[lead:], bitorder="little")
            else:
                stored = view_as_bytes(self.element.encode(row[lead:]))
            filled[position : position + stored.size] = stored
        return filled

    def _check_below(self, values: Array, rows: Integers, columns: Integers) -> None:
        """Raise ValueError if an element below a triangle is not zero."""
        firsts = self._find_first_columns(rows)
        wrong = np.logical_and(values, columns < firsts[:, np.newaxis])
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            name = "INTEGER" if self.dtype.kind in "iu" else "DENSE_FLOAT"
            triangle = "a strict upper triangle" if self.diagonal else "an upper triangle"
            raise ValueError(
                f"the element at {(int(rows[row]), int(columns[column]))} is "
                f"{values[row, column]}, but {triangle} has 0; pass matrix_type={name!r} or "
                f"--option matrix_type={name} to store all elements in a new file"
            )

    @property
    def write_units(self) -> tuple[int, ...]:
        """Eight columns of bits in a matrix, all columns in a triangle of bits."""
        columns = (WHOLE if self.is_triangle else 8) if self.item_bits == 1 else 1
        return (columns,) if self.is_vector else (1, columns)


def _count_units(longest: Any, per_unit: int) -> Any:
    """Return the total number of units of rows with 1, 2, ... `longest` elements."""
    full, rest = longest // per_unit, longest % per_unit
    return per_unit * full * (full + 1) // 2 + rest * (full + 1)
