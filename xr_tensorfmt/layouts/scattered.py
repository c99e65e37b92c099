"""Blocks at their places in the outer product of their labels, with a filling between them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.chunks import contiguous_chunk
from xr_tensorfmt.elements import Array
from xr_tensorfmt.extents import Extents, Integers
from xr_tensorfmt.layouts.base import Layout
from xr_tensorfmt.layouts.blocks import Blocks
from xr_tensorfmt.selection import Entry, Selection, entry_indices
from xr_tensorfmt.sources.base import Source


@dataclass(frozen=True, eq=False)
class Scattered(Layout):
    """Each block at one place of a grid; where there is none, a filling.

    Parameters
    ----------
    blocks : Blocks
        What is stored.
    grid : tuple of int
        Lengths of the axes in place of that which counts the blocks.
    places : ndarray of int64
        Flat indices in the grid, ascending, none twice.
    numbers : ndarray of int64
        The block at each of these places.
    filling : int or float
        The value of all elements that are not stored.
    """

    blocks: Blocks
    grid: tuple[int, ...]
    places: Integers
    numbers: Integers
    filling: float

    @property
    def shape(self) -> tuple[int, ...]:
        """The grid, and the axes of a block."""
        return (*self.grid, *self.blocks.lengths)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.blocks.dtype

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Equal parts of the slowest axis that fits."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def extents(self, selection: Selection) -> Extents:
        """The cells of those blocks that lie in the selection."""
        numbers = np.sort(self._stored(selection)[0])
        if not numbers.size:
            return Extents.none()
        return self.blocks.extents(self._of_blocks(numbers, selection))

    def read(self, source: Source, selection: Selection) -> Array:
        """Fill a selection and put the blocks in their places."""
        values = np.full(selection.shape, self.filling, dtype=self.dtype)
        numbers, positions = self._stored(selection)
        if not numbers.size or not values.size:
            return values
        order = np.argsort(numbers)
        stored = self.blocks.read(source, self._of_blocks(numbers[order], selection))
        rank = len(self.grid)
        flat = values.reshape(prod(selection.shape[:rank]), *selection.shape[rank:])
        flat[positions[order]] = stored
        return values

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Look up the block of each point."""
        rank = len(self.grid)
        values = np.full(points[0].shape, self.filling, dtype=self.dtype)
        if not self.places.size:
            return values
        wanted = np.ravel_multi_index(points[:rank], self.grid)
        nearest = np.minimum(np.searchsorted(self.places, wanted), self.places.size - 1)
        found = self.places[nearest] == wanted
        if found.any():
            cells = (axis[found] for axis in points[rank:])
            number = self.numbers[nearest[found]]
            values[found] = self.blocks.read_points(source, (number, *cells))
        return values

    @property
    def prefers_points(self) -> bool:
        """Whether many points at once are better: each read looks for its blocks."""
        return True

    def _of_blocks(self, numbers: Integers, selection: Selection) -> Selection:
        return Selection(self.blocks.shape, (numbers, *selection.entries[len(self.grid) :]))

    def _stored(self, selection: Selection) -> tuple[Integers, Integers]:
        """Blocks in a selection, and where each is in the grid of what is selected."""
        rank = len(self.grid)
        entries = selection.entries[:rank]
        if not all(selection.shape[:rank]):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        # Places are sorted, so that those along the first axis are one range.
        row = prod(self.grid[1:])
        along = entry_indices(entries[0])
        bounds = np.array([along[0] * row, (along[-1] + 1) * row])
        first, last = np.searchsorted(self.places, bounds).tolist()
        numbers = self.numbers[first:last]
        indices = np.unravel_index(self.places[first:last], self.grid)
        position = np.zeros(numbers.shape, dtype=np.int64)
        inside = np.ones(numbers.shape, dtype=np.bool_)
        for entry, index, length in zip(entries, indices, selection.shape[:rank], strict=True):
            within, is_in = _position(entry, index)
            inside &= is_in
            position = position * length + within
        return numbers[inside], position[inside]


def _position(entry: Entry, index: Integers) -> tuple[Integers, NDArray[np.bool_]]:
    """Where indices are among those that an entry selects, and whether they are at all."""
    if isinstance(entry, slice):
        position, rest = np.divmod(index - entry.start, entry.step)
        return position, (rest == 0) & (position >= 0) & (index < entry.stop)
    nearest = np.minimum(np.searchsorted(entry, index), entry.size - 1)
    return nearest, entry[nearest] == index
