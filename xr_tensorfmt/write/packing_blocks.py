"""Blocks with their labels as they are written: whole ones, or cells into their places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from xr_tensorfmt.elements import Array, Element
from xr_tensorfmt.extents import (
    LONG_PIECE,
    Bytes,
    Extents,
    Integers,
    gather_uniform,
    scatter_uniform,
)
from xr_tensorfmt.layouts import Blocks
from xr_tensorfmt.layouts.base import BATCH, Encoded, raw_bytes
from xr_tensorfmt.layouts.blocktable import BlockTable, Listed
from xr_tensorfmt.layouts.labelled import BlockForm
from xr_tensorfmt.layouts.texts import alike
from xr_tensorfmt.selection import Selection, entry_part
from xr_tensorfmt.write.vespa.labels import TextBytes


@dataclass(frozen=True, eq=False)
class LabelledBlocks(Blocks):
    """Blocks of a file to be.

    Parameters
    ----------
    table : BlockTable
        Where the blocks are.
    lengths : tuple of int
        Lengths of the axes of a block, slowest first.
    element : Element
        What a cell is.
    heads : ndarray of uint8
        What each block begins with, one after the other.
    """

    heads: Bytes

    def extents(self, selection: Selection) -> Extents:
        """The labels as well, which go with the first cell of each block."""
        cells = super().extents(selection)
        if not begins_blocks(self.inner(selection)):
            return cells
        starts = self.table.places.starts(selection.entries[0])
        return Extents.joined(starts, cells.starts + cells.lengths)

    def heads_at(self, starts: Integers, first: int) -> Integers:
        """Where the heads of blocks are among all heads.

        Parameters
        ----------
        starts : ndarray of int64
            Where in the file consecutive blocks begin.
        first : int
            The number of the first of them.

        Returns
        -------
        ndarray of int64
        """
        cells = np.arange(first, first + starts.size) * self.table.form.cell_bytes
        return starts - self.table.offset - cells

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """Labels and cells: small blocks as one range each, large ones in pieces."""
        inner = self.inner(selection)
        is_whole = inner.shape == self.lengths
        if is_whole and self.table.form.cell_bytes < LONG_PIECE:
            count = max(1, BATCH // self.table.mean_bytes)
            for first in range(0, len(values), count):
                entry = entry_part(selection.entries[0], first, count)
                assert isinstance(entry, slice)
                yield _joined(self, entry, values[first : first + count])
            return
        if len(values) and begins_blocks(inner):
            yield _heads(self, selection)
        yield from super().encode(selection, values)


def labelled_blocks(
    offset: int, lengths: tuple[int, ...], element: Element, labels: int, heads: TextBytes
) -> LabelledBlocks:
    """Arrange blocks one after the other.

    Parameters
    ----------
    offset : int
        Where the first one begins.
    lengths : tuple of int
        Lengths of the axes of a block, slowest first.
    element : Element
        What a cell is.
    labels : int
        Labels of a block.
    heads : TextBytes
        What each block begins with.

    Returns
    -------
    LabelledBlocks
    """
    form = BlockForm(labels, prod(lengths) * element.stored.itemsize)
    edges = np.full(heads.lengths.size + 1, offset, dtype=np.int64)
    edges[1:] += np.cumsum(heads.lengths + form.cell_bytes)
    table = BlockTable(form, offset, heads.lengths.size, int(edges[-1]), Listed(edges))
    return LabelledBlocks(table, lengths, element, heads.content)


def begins_blocks(inner: Selection) -> bool:
    """Whether what is selected of each block begins with its first cell."""
    return all(isinstance(entry, slice) and entry.start == 0 for entry in inner.entries)


def _heads(layout: LabelledBlocks, selection: Selection) -> Encoded:
    entry = selection.entries[0]
    assert isinstance(entry, slice)
    starts = layout.table.places.starts(entry)
    lengths = layout.cells_at(entry) - starts
    first = int(layout.heads_at(starts[:1], entry.start)[0])
    return Extents(starts, lengths), layout.heads[first : first + int(lengths.sum())]


def _joined(layout: LabelledBlocks, entry: slice, values: Array) -> Encoded:
    """Whole blocks as the one range that they are in the file."""
    starts, cells = layout.table.places.starts(entry), layout.cells_at(entry)
    cell_bytes = layout.table.form.cell_bytes
    begin, end = int(starts[0]), int(cells[-1]) + cell_bytes
    joined = np.empty(end - begin, dtype=np.uint8)
    heads, lengths = layout.heads_at(starts, entry.start), cells - starts
    for numbers, part in alike(lengths):
        length = int(lengths[numbers[0]])
        pieces = gather_uniform(layout.heads, heads[part], length)
        scatter_uniform(joined, starts[part] - begin, pieces, length)
    scatter_uniform(joined, cells - begin, raw_bytes(layout.element.encode(values)), cell_bytes)
    return Extents.single(begin, end), joined
