"""The upper triangle of a matrix of numbers, alone or completed by its mirror image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from xr_tensorfmt.core.chunk_grid import contiguous_chunk
from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.extents import Bytes, Extents, Integers, gather_uniform
from xr_tensorfmt.core.layout import BATCH, Encoded, Layout
from xr_tensorfmt.core.selection import Selection, entry_indices, entry_of
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.formats.pycauset.rows import (
    Packed,
    PartlyStored,
    Pieces,
    TriangleRows,
    assembled,
    not_stored,
    on_diagonal,
    refuse_first,
    row_batches,
)

# From so many bytes on, one copy a row is as fast as a gather by numpy.
_LONG_ROW = 8 << 10


@dataclass(frozen=True)
class Triangle(Packed):
    """A matrix of numbers of which only the upper triangle is stored; all else is zero."""

    rows: TriangleRows
    element: Element

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.element.dtype

    def buffer(self, rows: int, columns: int) -> Array:
        """The values themselves."""
        return np.zeros((rows, columns), dtype=self.dtype)

    def fill(self, buffer: Array, window: Bytes, positions: Integers, pieces: Pieces) -> None:
        """Copy short rows of one length by one gather, others one by one."""
        item = self.element.stored.itemsize
        width = buffer.shape[1]
        if not pieces.lead[-1] and width * item < _LONG_ROW:
            raw = gather_uniform(window, positions, width * item).view(self.element.stored)
            self.element.decode_into(buffer, raw.reshape(buffer.shape))
            return
        rows = zip(buffer, positions.tolist(), pieces.lead.tolist(), strict=True)
        for row, position, lead in rows:
            raw = window[position : position + (width - lead) * item].view(self.element.stored)
            self.element.decode_into(row[lead:], raw)

    def finish(self, filled: Array, columns: int) -> Array:
        """The values as they are."""
        return filled

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Fetch each stored point once, in the order of the file."""
        rows, columns = points
        values = np.zeros(rows.size, dtype=self.dtype)
        distance = columns - self.rows.firsts(rows)
        stored = np.flatnonzero(distance >= 0)
        if stored.size:
            item = self.element.stored.itemsize
            places = self.rows.starts(rows[stored]) + distance[stored] * item
            unique, inverse = np.unique(places, return_inverse=True)
            raw = source.read(Extents.uniform(unique, item)).view(self.element.stored)
            values[stored] = self.element.decode(raw)[inverse]
        return values

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """Row by row."""
        most = BATCH // values.itemsize
        for part, pieces in row_batches(self, self.rows, selection, values, most):
            yield pieces.extents, assembled(part, pieces, self.element.encode)

    def stored_element(self) -> Element:
        """The element."""
        return self.element


@dataclass(frozen=True)
class Mirrored(PartlyStored):
    """A square matrix whose lower triangle is its upper one, mirrored."""

    upper: Triangle
    sign: int

    @property
    def shape(self) -> tuple[int, ...]:
        """A square."""
        return self.upper.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the stored triangle."""
        return self.upper.dtype

    def extents(self, selection: Selection) -> Extents:
        """What is stored of the selection, and what is stored of its mirror image."""
        mirror = selection.permuted((1, 0))
        return Extents.union([self.upper.extents(selection), self.upper.extents(mirror)])

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Whole rows."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def read(self, source: Source, selection: Selection) -> Array:
        """Read the stored part, then what lies below the diagonal from its mirror image."""
        values = self.upper.read(source, selection)
        if not values.size:
            return values
        rows, columns = map(entry_indices, selection.entries)
        # Only rows below the first column, and columns before the last row, have a part there.
        row = int(np.searchsorted(rows, columns[0], side="right"))
        column = int(np.searchsorted(columns, rows[-1]))
        if row < rows.size and column > 0:
            mirror = Selection(selection.extent, (columns[:column], rows[row:]))
            image = self.upper.read(source, mirror).T
            if self.sign < 0:
                np.subtract(0, image, out=image)
            below = rows[row:, np.newaxis] > columns[np.newaxis, :column]
            np.copyto(values[row:, :column], image, where=below)
        return values

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read points below the diagonal from their mirror image."""
        rows, columns = points
        mirrored = (np.minimum(rows, columns), np.maximum(rows, columns))
        values = self.upper.read_points(source, mirrored)
        if self.sign < 0:
            np.subtract(0, values, out=values, where=rows > columns)
        return values

    @property
    def stored(self) -> Layout | None:
        """The upper triangle."""
        return self.upper

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """The upper triangle, row by row."""
        most, element = BATCH // values.itemsize, self.upper.element
        for part, pieces in row_batches(self, self.upper.rows, selection, values, most):
            yield pieces.extents, assembled(part, pieces, element.encode)

    def check_implied(self, selection: Selection, values: Array) -> None:
        """An antisymmetric matrix has zeros on its diagonal; `compare` looks at what is below."""
        if self.sign < 0:
            wrong, (_, places) = np.zeros(values.shape, dtype=np.bool_), on_diagonal(selection)
            wrong[places] = values[places] != 0
            refuse_first(wrong, "an antisymmetric matrix has 0", self, selection, values)

    @property
    def is_compared_after_writing(self) -> bool:
        """The mirror image of a value may be in any other chunk."""
        return True

    def compare(self, source: Source, selection: Selection, values: Array) -> None:
        """Refuse values below the diagonal that are not the mirror images of those above it."""
        rows, columns = map(entry_indices, selection.entries)
        # Only columns before the last row have a part below the diagonal.
        columns = columns[: np.searchsorted(columns, rows[-1])]
        if not columns.size:
            return
        below = values[:, : columns.size]
        mirror = Selection(selection.extent, (entry_of(columns), selection.entries[0]))
        image = self.sign * self.upper.read(source, mirror).T
        wrong = (image != below) & ((image == image) | (below == below))
        wrong &= columns < rows[:, np.newaxis]
        if wrong.any():
            row, column = np.unravel_index(int(wrong.argmax()), wrong.shape)
            index = int(rows[row]), int(columns[column])
            implied = f"that at {index[::-1]} makes it {image[row, column]}"
            raise not_stored(index, below[row, column], implied, self)
