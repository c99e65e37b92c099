"""The bytes of the rows of a matrix, which are padded, and may become shorter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from xr_tensorfmt.contract import MAX_WINDOW, PAGE, Bytes, Extents, Integers, Source

Number = TypeVar("Number", int, Integers)

# Gaps that are larger than pieces by more than this are not mapped along with them.
_MOSTLY_GAPS = 16
# Bytes of packed rows that are decoded at a time, so that they stay in the cache.
_BLOCK = 512 << 10


@dataclass(frozen=True)
class Rows:
    """The place of each row of a matrix in a file.

    An element has `bits`, and rows are padded to a multiple of `unit` bytes. Of an upper triangle,
    each row of which is one element shorter than the last, `diagonal` is the first column that row
    0 stores, 0 or 1; it is None where all columns of every row are stored.
    """

    count: int
    columns: int
    bits: int
    unit: int
    offset: int
    diagonal: int | None = None

    @property
    def stride(self) -> int:
        """Bytes from one row to the next; 0 where they differ."""
        return self.unit * -(-self.columns // self._per_unit) if self.diagonal is None else 0

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, in Python's unbounded integers."""
        if self.diagonal is None:
            return self.count * self.stride
        return self.unit * _units(self._longest, self._per_unit)

    @property
    def _longest(self) -> int:
        return max(0, self.columns - (self.diagonal or 0))

    @property
    def _per_unit(self) -> int:
        return self.unit * 8 // self.bits

    def firsts(self, rows: Integers) -> Integers:
        """First column that each row stores; it never falls from a row to the next."""
        return np.zeros_like(rows) if self.diagonal is None else rows + self.diagonal

    def starts(self, rows: Integers) -> Integers:
        """Byte of the file at which each row begins; the row after the last is one as well.

        In a triangle these are the units of all rows without those of the rows that follow.
        """
        if self.diagonal is None:
            return self.offset + rows * self.stride
        following = np.maximum(self._longest - rows, 0)
        whole = _units(self._longest, self._per_unit)
        starts: Integers = self.offset + self.unit * (whole - _units(following, self._per_unit))
        return starts

    def pieces(self, rows: Integers, first: int, stop: int) -> Pieces:
        """The bytes of the columns ``[first, stop)`` of some rows, but for rows that store none."""
        firsts = self.firsts(rows)
        kept = int(np.searchsorted(firsts, stop))
        rows, firsts = rows[:kept], firsts[:kept]
        skipped = np.maximum(first - firsts, 0) * self.bits
        begins = self.starts(rows)
        following = self.starts(rows + 1)
        if stop == self.columns:
            stops = following
        else:
            # One length for most rows of a triangle, whatever bit they begin at, so that they
            # gather at once; all rows of one stride begin at the same bit.
            spare = skipped % 8 if self.stride else 7 if self.bits < 8 else 0
            wanted = (stop - np.maximum(firsts, first)) * self.bits
            stops = np.minimum(begins + skipped // 8 + (wanted + spare + 7) // 8, following)
        return Pieces(begins + skipped // 8, stops, skipped % 8, np.maximum(firsts - first, 0))


def _units(longest: Number, per_unit: int) -> Number:
    """Units that rows of 1, 2, ... up to `longest` elements take together."""
    full, rest = longest // per_unit, longest % per_unit
    return per_unit * full * (full + 1) // 2 + rest * (full + 1)


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

    def fetch(self, source: Source) -> Iterator[tuple[slice, Bytes, Integers]]:
        """Yield some rows at a time: which ones, bytes, and the position of each row in these."""
        begin = 0
        while begin < len(self):
            reach = self.starts[begin] + MAX_WINDOW
            stop = max(begin + 1, int(np.searchsorted(self.stops, reach, side="right")))
            if not self.lead[begin]:
                stop = min(stop, int(np.searchsorted(self.lead, 0, side="right")))
            part = self[begin:stop]
            window, positions = part.window(source)
            step = max(1, _BLOCK // int((part.stops - part.starts).max()))
            for first in range(0, len(part), step):
                some = positions[first : first + step]
                yield slice(begin + first, begin + first + some.size), window, some
            begin = stop

    def window(self, source: Source) -> tuple[Bytes, Integers]:
        """A window or a copy with the bytes of all rows, and where in it each row begins."""
        first, stop = int(self.starts[0]), int(self.stops[-1])
        lengths = self.stops - self.starts
        wanted, span = int(lengths.sum()), stop - first
        # Nearly every page is needed for some row, or rows are too large to be copied twice.
        if wanted + len(self) * PAGE >= span or wanted * _MOSTLY_GAPS >= span:
            window = source.window(first, stop)
            if window is not None:
                return window, self.starts - first
        return source.read(self.extents), np.cumsum(lengths) - lengths
