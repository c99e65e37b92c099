"""Layout of the cells of all blocks of a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from xr_tensorfmt.core.chunk_grid import ceil_div, contiguous_chunk
from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.extents import Bytes, Extents, Integers
from xr_tensorfmt.core.layout import BATCH_BYTES, EncodedBatch, WritableLayout, view_as_bytes
from xr_tensorfmt.core.selection import Indices, Points, Selection, take_rows
from xr_tensorfmt.formats.vespa.spec import VespaHeader


@dataclass(frozen=True, eq=False)
class Blocks(WritableLayout):
    """The cells of all blocks. The first axis counts blocks, the others are indexed dimensions."""

    header: VespaHeader
    # Offset of every block with its labels, and the end of the last block.
    offsets: Integers

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of blocks, and lengths of the indexed dimensions."""
        return (self.header.blocks, *self.header.lengths)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.header.element.dtype

    @property
    def stop(self) -> int:
        """Byte after the last block."""
        return int(self.offsets[-1])

    def stored_element(self) -> Element:
        """Return the type of the cells."""
        return self.header.element

    @property
    def mean_bytes(self) -> int:
        """Mean size of a block."""
        count = self.header.blocks
        return ceil_div(self.stop - self.header.stop, count) if count else 1

    def find_cells(self, blocks: Indices) -> Integers:
        """Return the offsets of the cells of some blocks."""
        return take_rows(self.offsets[1:], blocks) - self.header.block_bytes

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return equal numbers of blocks, or parts of a block if it is larger than `target`."""
        header = self.header
        block_bytes = max(self.mean_bytes, header.cells * self.dtype.itemsize)
        if block_bytes <= target or not header.lengths:
            return (*contiguous_chunk((header.blocks,), block_bytes, target), *header.lengths)
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def locate(self, selection: Selection) -> Extents:
        """Return a range per block, from the first to the last selected cell, or one per point."""
        header, item = self.header, self.header.element.stored.itemsize
        if isinstance(selection, Points):
            cells = selection.flat % header.cells
            return Extents.uniform(self.find_cells(selection.indices[0]) + cells * item, item)
        start, stop = _select_inner(selection).runs().bounds
        starts = self.find_cells(selection.indices[0]) + start * item
        return Extents.uniform(starts, (stop - start) * item)

    def decode(self, packed: Bytes, selection: Selection, out: Array | None = None) -> Array:
        """Decode the selected cells of every block."""
        element = self.header.element
        raw = packed.view(element.stored)
        if not isinstance(selection, Points):
            runs = _select_inner(selection).runs()
            start, stop = runs.bounds
            raw = raw.reshape(-1, stop - start)
            if runs.starts.size > 1:
                picked = np.add.outer(runs.starts - start, np.arange(runs.lengths[0]))
                raw = raw[:, picked.ravel()]
        if out is None:
            return element.decode(raw).reshape(selection.shape)
        element.decode_into(out, raw.reshape(out.shape))
        return out

    def encode(self, selection: Selection, values: Array) -> Iterator[EncodedBatch]:
        """Encode cells without their labels, which a region does not change."""
        if not selection.size:
            return
        element, inner = self.header.element, _select_inner(selection)
        item, runs = element.stored.itemsize, inner.runs()
        offsets = self.find_cells(selection.indices[0])
        count = max(1, BATCH_BYTES // (inner.size * item))
        for first in range(0, offsets.size, count):
            starts = offsets[first : first + count, np.newaxis] + runs.starts * item
            cells = view_as_bytes(element.encode(values[first : first + count]))
            yield Extents.uniform(starts.ravel(), int(runs.lengths[0]) * item), cells


def _select_inner(selection: Selection) -> Selection:
    """Return the selection within a block."""
    return Selection(selection.tensor_shape[1:], selection.indices[1:])
