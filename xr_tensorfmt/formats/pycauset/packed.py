"""The layout of packed rows: a matrix with padded rows, or a triangle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from xr_tensorfmt.core.chunk_grid import PAGE, contiguous_chunk
from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.extents import Bytes, Extents, Integers, gather_uniform
from xr_tensorfmt.core.layout import (
    BATCH_BYTES,
    EncodedBatch,
    UnrepresentableValueError,
    WritableLayout,
    compute_relative_slices,
    view_as_bytes,
)
from xr_tensorfmt.core.selection import Points, Selection
from xr_tensorfmt.formats.pycauset.rows import Pieces, Rows

# Elements are fetched one by one if a row has more bytes than this per selected element.
_SPARSE_BYTES = 512
# Bytes of packed rows to write at a time. From 4 MiB on, numpy allocates large memory pages.
_BATCH_BYTES = 4 << 20


@dataclass(frozen=True)
class Packed(WritableLayout):
    """Matrix with padded rows, or upper triangle. Elements that are not stored are 0."""

    rows: Rows
    element: Element

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows.count, self.rows.columns

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.element.dtype

    def stored_element(self) -> Element:
        """Return the element."""
        return self.element

    def locate(self, selection: Selection) -> Extents:
        """Return one range per row, or per element if they are far apart. Join adjacent ranges."""
        if self._is_sparse(selection):
            _, offsets, _ = self._locate_elements(selection.to_points())
            is_new = np.diff(offsets, prepend=-1) > 0
            return Extents.uniform(offsets[is_new], self.element.stored.itemsize)
        return self.find_pieces(selection).extents

    def find_pieces(self, selection: Selection) -> Pieces:
        """Return the bytes of the columns from the first to the last one, row by row."""
        rows, columns = selection.index_arrays
        return self.rows.find_pieces(rows, int(columns[0]), int(columns[-1]) + 1)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return a chunk of whole rows, and of whole pages of the file if possible."""
        count, columns = self.shape
        max_rows = target // (columns * self.dtype.itemsize) if count and columns else 0
        if not max_rows:
            return contiguous_chunk(self.shape, self.dtype.itemsize, target)
        stored = PAGE if self.rows.is_triangle else self.rows.stride
        return *contiguous_chunk((count,), stored, max_rows * stored), columns

    def decode(self, packed: Bytes, selection: Selection, out: Array | None = None) -> Array:
        """Decode the columns from the first to the last one, row by row."""
        if self._is_sparse(selection):
            return self._decode_elements(packed, selection.to_points()).reshape(selection.shape)
        rows, columns = selection.index_arrays
        first, stop = int(columns[0]), int(columns[-1]) + 1
        is_complete = columns.size == stop - first
        if out is None or not is_complete:
            out = np.empty((rows.size, stop - first), dtype=self.dtype)
        pieces = self.find_pieces(selection)
        out[len(pieces) :] = 0
        if len(pieces):
            self._fill(out[: len(pieces)], packed, pieces.packed_starts, pieces.lead)
        return out if is_complete else out.take(columns - first, axis=1)

    def _fill(self, values: Array, packed: Bytes, positions: Integers, leads: Integers) -> None:
        """Set the stored elements of rows."""
        stored, width = self.element.stored, values.shape[1]
        if not leads[-1]:  # the leads ascend, so all of them are 0
            raw = gather_uniform(packed, positions, width * stored.itemsize).view(stored)
            self.element.decode_into(values, raw.reshape(values.shape))
            return
        for row, position, lead in zip(values, positions.tolist(), leads.tolist(), strict=True):
            stop = position + (width - lead) * stored.itemsize
            row[:lead] = 0
            self.element.decode_into(row[lead:], packed[position:stop].view(stored))

    def _is_sparse(self, selection: Selection) -> bool:
        """Return whether the selected elements of a row are far apart."""
        if isinstance(selection, Points):
            return True
        columns = selection.indices[1]
        span = int(columns[-1] - columns[0]) + 1
        return span * self.rows.bits > 8 * _SPARSE_BYTES * len(columns)

    def _locate_elements(self, points: Points) -> tuple[Integers, Integers, Integers]:
        """Return which points are stored, their offsets, and the number of their first bits."""
        rows, columns = points.indices
        distance = columns - self.rows.find_first_columns(rows)
        stored = np.flatnonzero(distance >= 0)
        bits = distance[stored] * self.rows.bits
        return stored, self.rows.compute_starts(rows[stored]) + (bits >> 3), bits & 7

    def _decode_elements(self, packed: Bytes, points: Points) -> Array:
        values = np.zeros(points.size, dtype=self.dtype)
        stored, offsets, bits = self._locate_elements(points)
        if stored.size:
            # The offsets ascend, because the points are sorted.
            positions = np.cumsum(np.diff(offsets, prepend=offsets[:1]) > 0)
            values[stored] = self.pick(packed.view(self.element.stored)[positions], bits)
        return values

    def pick(self, raw: Array, bits: Integers) -> Array:
        """Decode single elements. `bits` are the positions in their first bytes."""
        return self.element.decode(raw)

    def pack_row(self, row: Array) -> Bytes:
        """Encode the stored elements of a row."""
        return view_as_bytes(self.element.encode(row))

    def pack(self, values: Array, pieces: Pieces) -> Bytes:
        """Encode rows one after the other, padded with zeros."""
        filled = np.zeros(int((pieces.stops - pieces.starts).sum()), dtype=np.uint8)
        columns = pieces.packed_starts.tolist(), pieces.lead.tolist()
        for row, position, lead in zip(values, *columns, strict=True):
            stored = self.pack_row(row[lead:])
            filled[position : position + stored.size] = stored
        return filled

    def encode(self, selection: Selection, values: Array) -> Iterator[EncodedBatch]:
        """Encode batches of rows."""
        if not selection.size:
            return
        elements = BATCH_BYTES // values.itemsize  # checking a triangle takes a byte per element
        if not self.rows.is_triangle:
            elements = 8 * _BATCH_BYTES // self.rows.bits
        for batch in selection.divide(max(elements, selection.shape[1])):
            part = values[compute_relative_slices(batch, selection)]
            if self.rows.is_triangle:
                self._check_below(part, *batch.index_arrays)
            pieces = self.find_pieces(batch)
            if len(pieces):
                yield pieces.extents, self.pack(part[: len(pieces)], pieces)

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
