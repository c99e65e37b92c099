"""Byte offsets of the rows of a packed matrix or triangle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from xr_tensorfmt.core.chunk_grid import ceil_div
from xr_tensorfmt.core.extents import Extents, Integers

Number = TypeVar("Number", int, Integers)


@dataclass(frozen=True)
class Rows:
    """Offsets of the rows of a matrix, or of an upper triangle.

    An element has `bits` bits. Rows are padded to a multiple of `unit` bytes. In a triangle, row i
    begins with column ``i + diagonal``, so that rows become shorter. `diagonal` is 0 or 1, and
    None for a matrix.
    """

    count: int
    columns: int
    bits: int
    unit: int
    offset: int
    diagonal: int | None = None

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
        """Return the bytes of the columns ``[first, stop)``, omitting rows that store none of them.

        The pieces are whole words of `word` bytes. Whole rows include their padding.
        """
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
    """Byte ranges of rows, sorted and disjoint.

    The first element begins at bit number `bit`. `lead` is the number of selected columns before
    the first stored one.
    """

    starts: Integers
    stops: Integers
    bit: Integers
    lead: Integers

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
