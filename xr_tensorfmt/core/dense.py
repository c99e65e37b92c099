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
from xr_tensorfmt.core.selection import Selection, compute_row_major_strides

# Mean bytes between runs below which a strided view is faster than gathering the runs.
_SHORT_GAP = 512


@dataclass(frozen=True)
class Dense(WritableLayout):
    """A contiguous row-major array. `column_major` views it as a column-major one.

    Parameters
    ----------
    lengths : tuple of int
        Lengths of the axes, slowest first.
    element : Element
        Type of the elements.
    offset : int
        Offset of the first element in bytes.
    """

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
        return type(self).__name__, self.lengths, self.offset, self.element.token

    @property
    def _item(self) -> int:
        return self.element.stored.itemsize

    @property
    def _strides(self) -> list[int]:
        return [self._item * stride for stride in compute_row_major_strides(self.shape)]

    def _find_extents(self, selection: Selection) -> Extents:
        """Return one range per run of consecutive elements."""
        runs = selection.runs()
        return Extents.uniform(self.offset + runs.starts * self._item, runs.length * self._item)

    def _has_short_gaps(self, selection: Selection) -> bool:
        """Return whether a strided selection is read with the elements between its runs."""
        gaps = selection.run_count - 1
        if not gaps or not selection.is_strided:
            return False
        return (selection.span - selection.size) * self._item <= gaps * _SHORT_GAP

    def locate(self, selection: Selection) -> Extents:
        """Return one range per run of consecutive elements, or one range if the gaps are short."""
        if not self._has_short_gaps(selection):
            return self._find_extents(selection)
        indices = zip(selection.indices, self._strides, strict=True)
        start = self.offset + sum(axis[0] * stride for axis, stride in indices)
        return Extents.single(start, start + selection.span * self._item)

    def decode(self, packed: Bytes, selection: Selection) -> Array:
        """View the bytes as elements if they need no conversion, otherwise convert them."""
        stored = self.element.stored
        if self._has_short_gaps(selection):
            ranges = [axis for axis in selection.indices if isinstance(axis, range)]
            strides = [axis.step * n for axis, n in zip(ranges, self._strides, strict=True)]
            raw: Array = np.ndarray(selection.shape, stored, packed, strides=strides)
        else:
            raw = packed.view(stored).reshape(selection.shape)
        # Changing a private map copies its pages, which is slower than converting to new memory.
        is_owned = packed.flags.owndata or self.element.is_native
        return self.element.adopt(raw) if is_owned else self.element.decode(raw)

    def divide(self, selection: Selection, max_bytes: int) -> Iterator[Selection]:
        """Divide to limit the memory of conversions, and of gaps between the elements."""
        has_gaps = self._has_short_gaps(selection)
        if self.element.is_native and (not has_gaps or selection.span <= 2 * selection.size):
            return selection.divide(selection.size)
        limit = max(1, max_bytes // max(self._item, self.dtype.itemsize))
        return selection.divide(limit, max_span=limit if has_gaps else None)

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
            yield self._find_extents(selection), view_as_bytes(values)
            return
        for batch in selection.divide(max(1, BATCH_BYTES // self._item)):
            part = values[compute_relative_slices(batch, selection)]
            yield self._find_extents(batch), view_as_bytes(self.element.encode(part))

    def stored_element(self) -> Element:
        """Return the type of the elements."""
        return self.element
