"""What matrices of packed rows share: which rows to fetch at a time, and from where."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from xr_tensorfmt.chunks import PAGE, row_chunk
from xr_tensorfmt.elements import Array
from xr_tensorfmt.extents import Bytes, Extents, Integers
from xr_tensorfmt.layouts.base import raw_bytes
from xr_tensorfmt.layouts.partial import PartlyStored, check_triangle
from xr_tensorfmt.layouts.rows import Pieces, Rows
from xr_tensorfmt.selection import MOST_RUNS, Selection, entry_indices
from xr_tensorfmt.sources.base import LARGEST_WINDOW, Source

# Bytes of packed rows that are unpacked at a time, so that they and their values stay in the cache.
_BLOCK = 128 << 10
# Gaps that are larger than pieces by more than this are not mapped along with them.
_MOSTLY_GAPS = 16
# From so many columns for each wanted one on, the wanted ones are fetched one by one.
_FEW = 64


@dataclass(frozen=True)
class Packed(PartlyStored):
    """A matrix of rows that are cut short, padded, or both.

    Parameters
    ----------
    rows : Rows
        Where they are.
    """

    rows: Rows

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows.shape

    @abstractmethod
    def blank(self, rows: int, columns: int) -> Array:
        """What `fill` works on, for some rows and neighbouring columns: zeros."""

    @abstractmethod
    def fill(self, blank: Array, window: Bytes, positions: Integers, pieces: Pieces) -> None:
        """Set the stored elements of some rows.

        Parameters
        ----------
        blank : ndarray
            Some rows of what `blank` gave, one a piece.
        window : ndarray of uint8
            Holds the pieces.
        positions : ndarray of int64
            Where in it each begins.
        pieces : Pieces
            Where their elements begin, and in which column.
        """

    @abstractmethod
    def finish(self, filled: Array, columns: int) -> Array:
        """Make values of what `fill` has filled."""

    def extents(self, selection: Selection) -> Extents:
        """A short piece a row; whole rows are one range."""
        rows, columns = map(entry_indices, selection.entries)
        return self.rows.pieces(rows, int(columns[0]), int(columns[-1]) + 1).extents

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Whole rows, by what they take in memory; whole pages of the file where rows allow it."""
        return row_chunk(self.shape, self.dtype.itemsize, self.rows.stride, target)

    def read(self, source: Source, selection: Selection) -> Array:
        """Read the columns from the first wanted one to the last, row by row."""
        if not selection.size:
            return np.zeros(selection.shape, dtype=self.dtype)
        rows, indices = map(entry_indices, selection.entries)
        first, stop = int(indices[0]), int(indices[-1]) + 1
        if self.rows.firsts(rows[:1])[0] >= stop:
            return np.zeros(selection.shape, dtype=self.dtype)
        if stop - first > _FEW * indices.size or stop - first == 1:
            return self._read_each(source, rows, indices)
        blank = self.gathered(source, rows, first, stop)
        values = self.finish(blank, stop - first)
        if indices.size == stop - first:
            return values
        return np.ascontiguousarray(values[:, indices - first])

    def _read_each(self, source: Source, rows: Integers, columns: Integers) -> Array:
        values = np.empty((rows.size, columns.size), dtype=self.dtype)
        step = max(1, MOST_RUNS // columns.size)
        for begin in range(0, rows.size, step):
            mesh = np.meshgrid(rows[begin : begin + step], columns, indexing="ij")
            points = (mesh[0].ravel(), mesh[1].ravel())
            values[begin : begin + step] = self.read_points(source, points).reshape(mesh[0].shape)
        return values

    def gathered(self, source: Source, rows: Integers, first: int, stop: int) -> Array:
        """Columns ``[first, stop)`` of some rows, as `fill` leaves them."""
        blank = self.blank(rows.size, stop - first)
        pieces = self.rows.pieces(rows, first, stop)
        for batch in batches(pieces):
            window, positions = fetch(source, pieces[batch])
            widest = int((pieces.stops[batch] - pieces.starts[batch]).max())
            step = max(1, _BLOCK // widest)
            for begin in range(batch.start, batch.stop, step):
                block = slice(begin, min(begin + step, batch.stop))
                here = positions[block.start - batch.start : block.stop - batch.start]
                self.fill(blank[block], window, here, pieces[block])
        return blank

    @property
    def bytes_per_element(self) -> float:
        """A mean over all rows."""
        begin, stop = self.rows.starts(np.array([0, self.shape[0]])).tolist()
        return float((stop - begin) / prod(self.shape))

    def check_implied(self, selection: Selection, values: Array) -> None:
        """Below a triangle there are zeros."""
        if not self.rows.stride:
            check_triangle(self.rows, self, selection, values)


def row_batches(
    layout: PartlyStored, rows: Rows, selection: Selection, values: Array, most: int
) -> Iterator[tuple[Array, Pieces]]:
    """Some rows at a time, of at most so many values, and the places of those that store any."""
    indices, columns = map(entry_indices, selection.entries)
    step = max(1, most // max(1, columns.size))
    for begin in range(0, indices.size if columns.size else 0, step):
        part, some = values[begin : begin + step], indices[begin : begin + step]
        entries = (slice(int(some[0]), int(some[-1]) + 1, 1), selection.entries[1])
        layout.check_implied(Selection(selection.extent, entries), part)
        pieces = rows.pieces(some, int(columns[0]), int(columns[-1]) + 1)
        if len(pieces):
            yield part[: len(pieces)], pieces


def assembled(values: Array, pieces: Pieces, encode: Callable[[Array], Array]) -> Bytes:
    """What is stored of some rows of a triangle, one after the other, each padded with zeros."""
    lengths = pieces.stops - pieces.starts
    places = (np.cumsum(lengths) - lengths).tolist()
    filled = np.zeros(int(lengths.sum()), dtype=np.uint8)
    for row, place, lead in zip(values, places, pieces.lead.tolist(), strict=True):
        stored = raw_bytes(encode(row[lead:]))
        filled[place : place + stored.size] = stored
    return filled


def batches(pieces: Pieces) -> Iterator[slice]:
    """Cut into parts whose windows and plans are small.

    Parameters
    ----------
    pieces : Pieces
        The rows.

    Yields
    ------
    slice
        Neighbouring rows; those that are cut by the diagonal of a triangle come apart from others,
        as all others are of one length.
    """
    begin, count = 0, len(pieces)
    while begin < count:
        reach = pieces.starts[begin] + LARGEST_WINDOW
        end = int(np.searchsorted(pieces.stops, reach, side="right"))
        end = min(max(end, begin + 1), begin + MOST_RUNS)
        if not pieces.lead[begin]:
            end = min(end, int(np.searchsorted(pieces.lead, 0, side="right")))
        yield slice(begin, end)
        begin = end


def fetch(source: Source, pieces: Pieces) -> tuple[Bytes, Integers]:
    """Get the bytes of some rows.

    Parameters
    ----------
    source : Source
        The file.
    pieces : Pieces
        The rows; at least one.

    Returns
    -------
    window : ndarray of uint8
        Bytes that hold all pieces.
    positions : ndarray of int64
        Where in `window` each begins.
    """
    first, stop = int(pieces.starts[0]), int(pieces.stops[-1])
    lengths = pieces.stops - pieces.starts
    wanted, span = int(lengths.sum()), stop - first
    # About every page is needed for some piece, or pieces are too large to be copied twice.
    if wanted + len(pieces) * PAGE >= span or wanted * _MOSTLY_GAPS >= span:
        window = source.window(first, stop)
        if window is not None:
            return window, pieces.starts - first
    return source.read(pieces.extents), np.cumsum(lengths) - lengths
