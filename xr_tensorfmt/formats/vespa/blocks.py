"""Layout of the cells of all blocks of a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from xr_tensorfmt.contract import (
    BATCH_BYTES,
    Array,
    Element,
    EncodedBatch,
    Extents,
    Indices,
    Integers,
    Selection,
    Source,
    WritableLayout,
    ceil_div,
    contiguous_chunk,
    take_rows,
    view_as_bytes,
)
from xr_tensorfmt.formats.vespa.spec import VespaHeader

# Bytes to read at a time from a local file, and from a remote file, to send several requests.
_BATCH_BYTES, _REMOTE_BATCH_BYTES = 4 << 20, 16 << 20
# Number of blocks to read at a time, because their offsets take memory too.
_MAX_BATCH_BLOCKS = 1 << 20
# Bytes to decode at a time, to stay within a processor cache.
_DECODED_BYTES = 128 << 10


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

    def find_labels(self, blocks: Indices) -> Extents:
        """Return the byte ranges of the labels of some blocks."""
        starts = take_rows(self.offsets[:-1], blocks)
        return Extents(starts, self.find_cells(blocks) - starts)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return equal numbers of blocks, or parts of a block if it is larger than `target`."""
        header = self.header
        block_bytes = max(self.mean_bytes, header.cells * self.dtype.itemsize)
        if block_bytes <= target or not header.lengths:
            return (*contiguous_chunk((header.blocks,), block_bytes, target), *header.lengths)
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def extents(self, selection: Selection) -> Extents:
        """Return a range per block, from the first to the last selected cell."""
        return self._cell_extents(selection.indices[0], _select_inner(selection))

    def _cell_extents(self, blocks: Indices, inner: Selection) -> Extents:
        item = self.header.element.stored.itemsize
        start, stop = inner.runs().bounds
        return Extents.uniform(self.find_cells(blocks) + start * item, (stop - start) * item)

    def read(self, source: Source, selection: Selection) -> Array:
        """Read many blocks at a time, and decode them in smaller parts."""
        values = np.empty(selection.shape, dtype=self.dtype)
        if not selection.size:
            return values
        element, inner = self.header.element, _select_inner(selection)
        runs = inner.runs()
        start, stop = runs.bounds
        length = (stop - start) * element.stored.itemsize
        batch_bytes = _REMOTE_BATCH_BYTES if source.high_latency else _BATCH_BYTES
        count = min(_MAX_BATCH_BLOCKS, max(1, batch_bytes // length))
        step = max(1, _DECODED_BYTES // length)
        picked: slice | Integers = slice(None)
        if runs.starts.size > 1:
            picked = np.add.outer(runs.starts - start, np.arange(runs.length)).ravel()
        rows = values.reshape(len(values), -1)
        filled = 0
        for blocks in split_indices(selection.indices[0], count):
            raw = source.read(self._cell_extents(blocks, inner)).view(element.stored)
            batch = raw.reshape(-1, stop - start)
            for first in range(0, len(batch), step):
                cells = batch[first : first + step]
                target = rows[filled : filled + len(cells)]
                element.decode_into(target, cells[:, picked])
                filled += len(cells)
        return values

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read single cells, in the order of the file."""
        header, stored = self.header, self.header.element.stored
        cell = np.ravel_multi_index(points[1:], header.lengths) if header.lengths else 0
        unique, inverse = np.unique(points[0] * header.cells + cell, return_inverse=True)
        block, within = np.divmod(unique, header.cells)
        starts = self.find_cells(block) + within * stored.itemsize
        raw = source.read(Extents.uniform(starts, stored.itemsize))
        return np.asarray(header.element.decode(raw.view(stored))[inverse])

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
            yield Extents.uniform(starts.ravel(), runs.length * item), cells


def _select_inner(selection: Selection) -> Selection:
    """Return the selection within a block."""
    return Selection(selection.tensor_shape[1:], selection.indices[1:])


def split_indices(indices: Indices, count: int) -> Iterator[Indices]:
    """Split indices into parts of up to `count`."""
    for first in range(0, len(indices), count):
        yield indices[first : first + count]
