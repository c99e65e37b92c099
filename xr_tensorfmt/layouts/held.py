"""A few values that are in memory already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from xr_tensorfmt.chunks import contiguous_chunk
from xr_tensorfmt.elements import Array
from xr_tensorfmt.extents import Extents, Integers
from xr_tensorfmt.layouts.base import Layout
from xr_tensorfmt.selection import Selection, entry_indices
from xr_tensorfmt.sources.base import Source


@dataclass(frozen=True, eq=False)
class Held(Layout):
    """Values that were worked out when the file was opened, or that its format takes for granted.

    Parameters
    ----------
    values : ndarray
        The values; no reader gets at this array itself.
    """

    values: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.values.dtype

    def extents(self, selection: Selection) -> Extents:
        """None at all."""
        return Extents.none()

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """As if the values were in the file."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def read(self, source: Source, selection: Selection) -> Array:
        """Copy what is selected."""
        part = self.values[np.ix_(*map(entry_indices, selection.entries))]
        return np.array(part, dtype=self.dtype)  # numpy would narrow a single text

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Copy single values."""
        picked: Array = self.values[points]
        return picked
