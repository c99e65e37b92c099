"""Values that need not be stored, as they follow from where they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from xr_tensorfmt.chunks import contiguous_chunk
from xr_tensorfmt.elements import Array
from xr_tensorfmt.extents import Extents, Integers
from xr_tensorfmt.layouts.base import Encoded, Layout
from xr_tensorfmt.layouts.partial import PartlyStored, on_diagonal, refuse_first
from xr_tensorfmt.selection import Selection, entry_indices, entry_of
from xr_tensorfmt.sources.base import Source


class Computed(PartlyStored):
    """Values of which none is stored."""

    @property
    def stored(self) -> Layout | None:
        """Nothing."""
        return None

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """No bytes, if the values are those that are implied."""
        self.check_implied(selection, values)
        return iter(())

    def check_implied(self, selection: Selection, values: Array) -> None:
        """Anything goes."""


@dataclass(frozen=True)
class Ones(Computed):
    """Nothing but ones.

    Parameters
    ----------
    lengths : tuple of int
        Lengths of the axes.
    """

    lengths: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths."""
        return self.lengths

    @property
    def dtype(self) -> np.dtype[Any]:
        """Double precision."""
        return np.dtype(np.float64)

    def extents(self, selection: Selection) -> Extents:
        """None."""
        return Extents.none()

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Whole rows."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def read(self, source: Source, selection: Selection) -> Array:
        """Ones, without reading."""
        return np.ones(selection.shape, dtype=self.dtype)

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Ones, without reading."""
        return np.ones(points[0].size, dtype=self.dtype)


@dataclass(frozen=True)
class Diagonal(PartlyStored):
    """A matrix that is zero but on its diagonal.

    Parameters
    ----------
    lengths : tuple of int
        Rows and columns.
    values : Layout
        The diagonal, of one axis.
    """

    lengths: tuple[int, int]
    values: Layout

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        return self.lengths

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the diagonal."""
        return self.values.dtype

    def _crossed(self, selection: Selection) -> tuple[Selection, tuple[Integers, Integers]]:
        """What is selected of the diagonal, and where it is in the selection."""
        rows, columns = map(entry_indices, selection.entries)
        common, *places = np.intersect1d(rows, columns, assume_unique=True, return_indices=True)
        return Selection(self.values.shape, (entry_of(common),)), (places[0], places[1])

    def extents(self, selection: Selection) -> Extents:
        """Bytes of the selected part of the diagonal."""
        part, _ = self._crossed(selection)
        return self.values.extents(part) if part.size else Extents.none()

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Whole rows."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def read(self, source: Source, selection: Selection) -> Array:
        """Zeros, and the selected part of the diagonal."""
        filled = np.zeros(selection.shape, dtype=self.dtype)
        part, places = self._crossed(selection)
        if part.size:
            filled[places] = self.values.read(source, part)
        return filled

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Zeros, and those points that are on the diagonal."""
        filled = np.zeros(points[0].size, dtype=self.dtype)
        on = np.flatnonzero(points[0] == points[1])
        if on.size:
            filled[on] = self.values.read_points(source, (points[0][on],))
        return filled

    @property
    def stored(self) -> Layout | None:
        """That of the diagonal."""
        return self.values.stored

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """The diagonal."""
        self.check_implied(selection, values)
        part, places = on_diagonal(selection)
        if places[0].size:
            yield from self.values.encode(Selection(self.values.shape, (part,)), values[places])

    def check_implied(self, selection: Selection, values: Array) -> None:
        """There are zeros beside the diagonal, and ones on that of an identity matrix."""
        wrong, (_, places) = values != 0, on_diagonal(selection)
        of_ones = isinstance(self.values, Ones)
        wrong[places] = values[places] != 1 if of_ones else False
        implied = "an identity matrix has 1 on its diagonal and 0 beside it"
        implied = implied if of_ones else "a diagonal matrix has 0"
        refuse_first(wrong, implied, self, selection, values)


@dataclass(frozen=True)
class UnitVector(Computed):
    """A vector that is zero but for a one.

    Parameters
    ----------
    lengths : tuple of int
        Lengths of the axes; all but the last are 1.
    active : int
        Where along the last axis the one is.
    """

    lengths: tuple[int, ...]
    active: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths."""
        return self.lengths

    @property
    def dtype(self) -> np.dtype[Any]:
        """Double precision."""
        return np.dtype(np.float64)

    def extents(self, selection: Selection) -> Extents:
        """None."""
        return Extents.none()

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """As of a vector that is stored."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def read(self, source: Source, selection: Selection) -> Array:
        """Zeros and the one, without reading."""
        along = entry_indices(selection.entries[-1]) == self.active
        return np.broadcast_to(along, selection.shape).astype(self.dtype)

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Zeros and the one, without reading."""
        values: Array = (points[-1] == self.active).astype(self.dtype)
        return values

    def check_implied(self, selection: Selection, values: Array) -> None:
        """There are zeros but for a one."""
        expected = entry_indices(selection.entries[-1]) == self.active
        implied = f"a unit vector has 1 at {self.active}, 0 elsewhere"
        refuse_first(values != expected, implied, self, selection, values)
