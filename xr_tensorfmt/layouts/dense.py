"""Every element stored, slowest axis first, without gaps."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.chunks import contiguous_chunk
from xr_tensorfmt.elements import Array, Element
from xr_tensorfmt.extents import Extents, Integers
from xr_tensorfmt.layouts.base import Layout, values_of
from xr_tensorfmt.selection import MOST_RUNS, Runs, Selection
from xr_tensorfmt.sources.base import Source


@dataclass(frozen=True)
class Dense(Layout):
    """A row-major array; a column-major one is a `Transposed` view of it.

    Parameters
    ----------
    lengths : tuple of int
        Lengths of the axes, slowest first.
    element : Element
        What an element is.
    offset : int
        Byte of the file at which the first element begins.
    """

    lengths: tuple[int, ...]
    element: Element
    offset: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths."""
        return self.lengths

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.element.dtype

    @property
    def _item(self) -> int:
        return self.element.stored.itemsize

    def _extents(self, runs: Runs) -> Extents:
        return Extents.uniform(self.offset + runs.starts * self._item, runs.length * self._item)

    def _offset_of(self, index: tuple[int, ...]) -> int:
        return self.offset + sum(i * stride for i, stride in zip(index, self._strides, strict=True))

    @property
    def _strides(self) -> list[int]:
        return [self._item * prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]

    def extents(self, selection: Selection) -> Extents:
        """One range a run of consecutive elements."""
        return self._extents(selection.runs())

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Whole rows of the slowest axis that fits."""
        widest = max(self._item, self.dtype.itemsize)
        return contiguous_chunk(self.shape, self._item, target * self._item // widest)

    def read(self, source: Source, selection: Selection) -> Array:
        """Hand out a window where nothing needs to be copied, a copy elsewhere."""
        if not selection.size:
            return np.empty(selection.shape, dtype=self.dtype)
        values = self._read_window(source, selection) if selection.sliced else None
        return self._read_copy(source, selection) if values is None else values

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Fetch each point once, in the order of the file."""
        flat = np.ravel_multi_index(points, self.shape)
        unique, inverse = np.unique(flat, return_inverse=True)
        raw = source.read(self._extents(Runs(unique, 1))).view(self.element.stored)

        def offset_of(position: int) -> int:
            return self.offset + self._item * int(unique[position])

        return values_of(self.element.adopt, raw, source.name, offset_of)[inverse]

    def _read_window(self, source: Source, selection: Selection) -> Array | None:
        slices = [entry for entry in selection.entries if isinstance(entry, slice)]
        start = self._offset_of(tuple(entry.start for entry in slices))
        stop = self._offset_of(tuple(entry.stop - 1 for entry in slices)) + self._item
        window = source.window(start, stop, pieces=selection.run_count)
        if window is None:
            return None
        steps = [e.step * stride for e, stride in zip(slices, self._strides, strict=True)]
        raw: Array = np.ndarray(selection.shape, self.element.stored, window, strides=steps)
        # A view keeps the pages of its window in memory; one with large holes is better copied.
        if self.element.is_native and raw.flags.aligned and 2 * raw.nbytes >= window.nbytes:
            return raw
        return values_of(
            self.element.decode, raw, source.name, lambda i: self._offset_of(selection.index_of(i))
        )

    def _read_copy(self, source: Source, selection: Selection) -> Array:
        if selection.run_count <= MOST_RUNS:
            return self._read_batch(source, selection).reshape(selection.shape)
        values = np.empty(selection.size, dtype=self.dtype)
        position = 0
        for batch in selection.batches():
            values[position : position + batch.size] = self._read_batch(source, batch)
            position += batch.size
        return values.reshape(selection.shape)

    def _read_batch(self, source: Source, batch: Selection) -> Array:
        raw = source.read(self.extents(batch)).view(self.element.stored)
        return values_of(
            self.element.adopt, raw, source.name, lambda i: self._offset_of(batch.index_of(i))
        )
