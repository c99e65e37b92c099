"""The layout of a row-major array."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.chunk_grid import contiguous_chunk
from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.core.layout import (
    BATCH_BYTES,
    EncodedBatch,
    WritableLayout,
    compute_relative_slices,
    view_as_bytes,
)
from xr_tensorfmt.core.selection import MAX_RUNS, Selection, compute_row_major_strides

# Mean bytes of gaps from which single ranges are faster than a strided view.
_LONG_GAP = 16 << 10
# Bytes of a strided view per byte of its values.
_MAX_SPAN_RATIO = 8


@dataclass(frozen=True)
class Dense(WritableLayout):
    """A contiguous row-major array of `lengths` (slowest first) at a byte offset."""

    lengths: tuple[int, ...]
    element: Element
    offset: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self.lengths

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.element.dtype

    @property
    def stop(self) -> int:
        """The byte after the last element."""
        return self.offset + prod(self.lengths) * self._item

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """Identify the layout. dask would tokenize every field, which is slower."""
        element = self.element.name, self.element.stored.str
        return type(self).__name__, self.lengths, self.offset, element

    @property
    def _item(self) -> int:
        return self.element.stored.itemsize

    @property
    def _strides(self) -> list[int]:
        item = self._item
        return [item * stride for stride in compute_row_major_strides(self.lengths)]

    def locate(self, selection: Selection) -> Extents:
        """Return one range per run of consecutive elements."""
        if selection.size == prod(self.lengths):
            return Extents.single(self.offset, self.stop)
        return selection.runs(self._item, self.offset)

    def locate_span(self, selection: Selection) -> Extents | None:
        """Return the range from the first to the last run of a strided selection."""
        if selection.run_count == 1 or not selection.is_strided:
            return None
        indices = zip(selection.indices, self._strides, strict=True)
        start = self.offset + sum(axis[0] * stride for axis, stride in indices)
        return Extents.single(start, start + selection.span * self._item)

    def decode(self, packed: Bytes, selection: Selection, out: Array | None = None) -> Array:
        """View the bytes as elements if they need no conversion, otherwise convert them."""
        stored = self.element.stored
        if packed.size == selection.size * self._item:
            raw = packed.view(stored).reshape(selection.shape)
        else:
            ranges = [axis for axis in selection.indices if isinstance(axis, range)]
            strides = [axis.step * n for axis, n in zip(ranges, self._strides, strict=True)]
            raw = np.ndarray(selection.shape, stored, packed, strides=strides)
        if out is not None:
            self.element.decode_into(out, raw)
            return out
        return self.element.decode(raw)

    def batch_size(self, selection: Selection, max_bytes: int) -> int:
        """Limit the memory of ranges, conversions and gaps."""
        size, is_native = selection.size, self.element.is_native
        if is_native and selection.is_compact:
            return size
        limit = max_bytes // max(self._item, self.dtype.itemsize)
        sizes = [MAX_RUNS * size // selection.run_count]
        if not is_native:
            sizes.append(limit)
        if selection.is_strided and selection.mean_gap * self._item <= _LONG_GAP:
            sizes.append(_MAX_SPAN_RATIO * limit * size // selection.span)
        return min(sizes)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return chunks of whole rows."""
        item = self._item
        widest = max(item, self.dtype.itemsize)
        return contiguous_chunk(self.lengths, item, target * item // widest)

    def encode(self, selection: Selection, values: Array) -> Iterator[EncodedBatch]:
        """Yield native values as they are, and convert others in batches."""
        if not selection.size:
            return
        if self.element.is_native and values.flags.c_contiguous:
            yield self.locate(selection), view_as_bytes(values)
            return
        for batch in selection.divide(max(1, BATCH_BYTES // self._item)):
            part = values[compute_relative_slices(batch, selection)]
            yield self.locate(batch), view_as_bytes(self.element.encode(part))

    def stored_element(self) -> Element:
        """Return the type of the elements."""
        return self.element
