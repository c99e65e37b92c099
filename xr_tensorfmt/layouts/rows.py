"""Where the rows of a matrix begin, where rows are cut short or padded. Closed forms alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from xr_tensorfmt.extents import Extents, Integers

Number = TypeVar("Number", int, Integers)


class Rows(ABC):
    """The place of each row of a matrix in a file.

    A row stores its columns from the first one that it has to the last one of the matrix, without
    gaps; padding may follow. What a row does not store is zero.
    """

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
        """What of some rows lies in the columns ``[first, stop)``.

        Parameters
        ----------
        rows : ndarray of int64
            The rows, strictly ascending.
        first, stop : int
            The columns; at least one.

        Returns
        -------
        Pieces
            Of the rows that store any of these columns, which are the first ones of `rows`.
        """
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
    """One range of bytes for each of some rows, in the order of the file, none overlapping.

    Parameters
    ----------
    starts, stops : ndarray of int64
        The bytes.
    bit : ndarray of int64
        Bit of its first byte at which the first wanted element of each piece begins.
    lead : ndarray of int64
        Wanted columns of the row before the first that is stored.
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
        """The bytes; pieces that touch are one range."""
        return Extents.joined(self.starts, self.stops)


@dataclass(frozen=True)
class PaddedRows(Rows):
    """Rows of one length, each padded to a stride.

    Parameters
    ----------
    count, columns : int
        The shape.
    stride : int
        Bytes from one row to the next.
    offset : int
        Byte of the file at which the first row begins.
    bits : int
        Bits of one element.
    """

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
    """The upper triangle of a square matrix: each row is one element shorter than the one before.

    Parameters
    ----------
    order : int
        Rows, and columns.
    diagonal : bool
        Whether the diagonal is stored; the triangle is a strict one if not.
    bits : int
        Bits of one element.
    unit : int
        Each row is padded to a multiple of so many bytes.
    offset : int
        Byte of the file at which the first row begins.
    """

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
        """The diagonal, or the column after it."""
        return rows + (not self.diagonal)

    def starts(self, rows: Integers) -> Integers:
        """Byte of each row, from the closed form: what all rows take, without those that follow."""
        following = np.maximum(self._longest - rows, 0)
        whole = _units(self._longest, self._per_unit)
        starts: Integers = self.offset + self.unit * (whole - _units(following, self._per_unit))
        return starts


def _units(longest: Number, per_unit: int) -> Number:
    """Units that rows of 1, 2, ... up to `longest` elements take together."""
    full, rest = longest // per_unit, longest % per_unit
    return per_unit * full * (full + 1) // 2 + rest * (full + 1)
