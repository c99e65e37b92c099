"""Blocks of a file that is written: the cells, and the labels before them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.extents import (
    LONG_PIECE,
    Bytes,
    Extents,
    Integers,
    gather_uniform,
    scatter_uniform,
)
from xr_tensorfmt.core.layout import BATCH, Encoded, raw_bytes
from xr_tensorfmt.core.selection import Selection, entry_part
from xr_tensorfmt.formats.vespa.blocks import Blocks, BlockTable, Listed
from xr_tensorfmt.formats.vespa.spec import BlockForm
from xr_tensorfmt.formats.vespa.strings import ByteStrings, by_length, pack_together


@dataclass(frozen=True, eq=False)
class LabelledBlocks(Blocks):
    """Blocks of a file that is written; `labels` are the packed labels of all blocks."""

    labels: Bytes

    @classmethod
    def of(
        cls, offset: int, lengths: tuple[int, ...], element: Element, columns: list[ByteStrings]
    ) -> LabelledBlocks:
        """Arrange blocks one after the other, from their labels for each mapped dimension."""
        labels = pack_together(columns)
        form = BlockForm(len(columns), prod(lengths) * element.stored.itemsize)
        offsets = np.full(labels.lengths.size + 1, offset, dtype=np.int64)
        offsets[1:] += np.cumsum(labels.lengths + form.cell_bytes)
        places = Listed(offsets)
        table = BlockTable(form, offset, labels.lengths.size, int(offsets[-1]), places)
        return cls(table, lengths, element, labels.content)

    def extents(self, selection: Selection) -> Extents:
        """The labels as well, which are written with the first cell of each block."""
        cells = super().extents(selection)
        if not _begins_blocks(self.inner(selection)):
            return cells
        starts = self.table.places.starts(selection.entries[0])
        return Extents.joined(starts, cells.starts + cells.lengths)

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """Labels and cells: small blocks as one range each, large ones in pieces."""
        inner = self.inner(selection)
        is_whole = inner.shape == self.lengths
        if is_whole and self.table.form.cell_bytes < LONG_PIECE:
            count = max(1, BATCH // self.table.mean_bytes)
            for first in range(0, len(values), count):
                entry = entry_part(selection.entries[0], first, count)
                assert isinstance(entry, slice)
                yield self.encode_whole(entry, values[first : first + count])
            return
        if len(values) and _begins_blocks(inner):
            yield self._encode_labels(selection)
        yield from super().encode(selection, values)

    def encode_whole(self, entry: slice, values: Array) -> Encoded:
        """Consecutive whole blocks as the one range that they are in the file."""
        starts, cells = self.table.places.starts(entry), self.cells_at(entry)
        cell_bytes = self.table.form.cell_bytes
        begin, end = int(starts[0]), int(cells[-1]) + cell_bytes
        joined = np.empty(end - begin, dtype=np.uint8)
        labels, lengths = self._labels_at(starts, entry.start), cells - starts
        for numbers, part in by_length(lengths):
            length = int(lengths[numbers[0]])
            pieces = gather_uniform(self.labels, labels[part], length)
            scatter_uniform(joined, starts[part] - begin, pieces, length)
        scatter_uniform(joined, cells - begin, raw_bytes(self.element.encode(values)), cell_bytes)
        return Extents.single(begin, end), joined

    def _encode_labels(self, selection: Selection) -> Encoded:
        entry = selection.entries[0]
        assert isinstance(entry, slice)
        starts = self.table.places.starts(entry)
        lengths = self.cells_at(entry) - starts
        first = int(self._labels_at(starts[:1], entry.start)[0])
        return Extents(starts, lengths), self.labels[first : first + int(lengths.sum())]

    def _labels_at(self, starts: Integers, first: int) -> Integers:
        """Where the labels of consecutive blocks, from block `first` on, are in `labels`."""
        cells = np.arange(first, first + starts.size) * self.table.form.cell_bytes
        return starts - self.table.offset - cells


def _begins_blocks(inner: Selection) -> bool:
    """Whether what is selected of each block begins with its first cell."""
    return all(isinstance(entry, slice) and entry.start == 0 for entry in inner.entries)
