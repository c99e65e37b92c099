"""A matrix that is put together of others, each in a file of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np

from xr_tensorfmt.chunks import contiguous_chunk
from xr_tensorfmt.elements import Array
from xr_tensorfmt.extents import Extents, Integers
from xr_tensorfmt.layouts.base import Layout, Read
from xr_tensorfmt.selection import Selection, entry_indices, entry_of
from xr_tensorfmt.sources.base import Source


@dataclass(frozen=True)
class Tile:
    """One of the matrices.

    Parameters
    ----------
    source : Source
        Its file.
    layout : Layout
        How it lies there.
    """

    source: Source
    layout: Layout


@dataclass(frozen=True)
class Mosaic(Layout):
    """Matrices side by side.

    Parameters
    ----------
    row_edges, column_edges : tuple of int
        Where they begin, from 0 on, and where the last one ends.
    tiles : tuple of tuple of Tile
        Row by row; their shapes fit the edges.
    """

    row_edges: tuple[int, ...]
    column_edges: tuple[int, ...]
    tiles: tuple[tuple[Tile, ...], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns of all together."""
        return self.row_edges[-1], self.column_edges[-1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that holds the values of all tiles."""
        return np.result_type(*{each.layout.dtype for row in self.tiles for each in row})

    def extents(self, selection: Selection) -> Extents:
        """None in this file: each block has a file of its own."""
        return Extents.none()

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Whole rows."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def _places(self) -> Iterator[tuple[Tile, tuple[int, int], tuple[int, int]]]:
        """Each block with its first row and column, and those after its last."""
        rows, columns = list(pairwise(self.row_edges)), list(pairwise(self.column_edges))
        for i, j in product(range(len(rows)), range(len(columns))):
            yield (
                self.tiles[i][j],
                (rows[i][0], columns[j][0]),
                (rows[i][1], columns[j][1]),
            )

    def _parts(self, selection: Selection) -> Iterator[tuple[Tile, tuple[slice, ...], Selection]]:
        """Each tile that a selection meets, where its values go, and what is selected of it."""
        indices = [entry_indices(entry) for entry in selection.entries]
        for tile, begin, end in self._places():
            parts = tuple(
                slice(*np.searchsorted(each, (low, high)).tolist())
                for each, low, high in zip(indices, begin, end, strict=True)
            )
            entries = tuple(
                entry_of(each[part] - low)
                for each, part, low in zip(indices, parts, begin, strict=True)
            )
            inner = Selection(tile.layout.shape, entries)
            if inner.size:
                yield tile, parts, inner

    def _points(
        self, points: tuple[Integers, ...]
    ) -> Iterator[tuple[Tile, Integers, tuple[Integers, ...]]]:
        """Each tile that a point is in, which points those are, and where they are in it."""
        rows, columns = points
        for tile, (top, left), (bottom, right) in self._places():
            inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
            here = np.flatnonzero(inside)
            if here.size:
                yield tile, here, (rows[here] - top, columns[here] - left)

    def reads(self, source: Source, selection: Selection) -> list[Read]:
        """Those of every tile that the selection meets."""
        return [
            read
            for tile, _, inner in self._parts(selection)
            for read in tile.layout.reads(tile.source, inner)
        ]

    def point_reads(self, source: Source, points: tuple[Integers, ...]) -> list[Read]:
        """Those of every tile that a point is in."""
        return [
            read
            for tile, _, moved in self._points(points)
            for read in tile.layout.point_reads(tile.source, moved)
        ]

    def read(self, source: Source, selection: Selection) -> Array:
        """Read from every tile that the selection meets."""
        values = np.empty(selection.shape, dtype=self.dtype)
        for tile, parts, inner in self._parts(selection):
            values[parts] = tile.layout.read(tile.source, inner)
        return values

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read from every tile that a point is in."""
        values = np.empty(points[0].size, dtype=self.dtype)
        for tile, here, moved in self._points(points):
            values[here] = tile.layout.read_points(tile.source, moved)
        return values
