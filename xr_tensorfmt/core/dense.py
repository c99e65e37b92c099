"""The layout of a row-major array."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.chunk_grid import PAGE, contiguous_chunk
from xr_tensorfmt.core.elements import Array, Element, ElementError
from xr_tensorfmt.core.extents import Extents, Integers
from xr_tensorfmt.core.layout import (
    BATCH_BYTES,
    EncodedBatch,
    SourceExtents,
    WritableLayout,
    compute_relative_slices,
    view_as_bytes,
)
from xr_tensorfmt.core.selection import MAX_RUNS, Runs, Selection, compute_row_major_strides
from xr_tensorfmt.core.source import MAX_WINDOW, Source
from xr_tensorfmt.errors import TensorFormatError


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

    def _compute_extents(self, runs: Runs) -> Extents:
        return Extents.uniform(self.offset + runs.starts * self._item, runs.length * self._item)

    def _compute_offset(self, index: tuple[int, ...]) -> int:
        return self.offset + sum(i * stride for i, stride in zip(index, self._strides, strict=True))

    @property
    def _strides(self) -> list[int]:
        return [self._item * stride for stride in compute_row_major_strides(self.shape)]

    def extents(self, selection: Selection) -> Extents:
        """Return one range per run of consecutive elements."""
        return self._compute_extents(selection.runs())

    def point_extents_by_source(
        self, source: Source, points: tuple[Integers, ...]
    ) -> list[SourceExtents]:
        """Return one range per distinct element."""
        unique = np.unique(np.ravel_multi_index(points, self.shape))
        return [(source, self._compute_extents(Runs(unique, 1)))]

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return chunks of whole rows."""
        item = self._item
        widest = max(item, self.dtype.itemsize)
        return contiguous_chunk(self.lengths, item, target * item // widest)

    def read(self, source: Source, selection: Selection) -> Array:
        """Return the bytes of the file if the values need no conversion, otherwise a copy."""
        if not selection.size:
            return np.empty(selection.shape, dtype=self.dtype)
        view = self._read_native(source, selection) if self.element.is_native else None
        if view is not None and view.flags.aligned:
            return view
        return self._copy(source, selection)

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read every distinct point once, in file order."""
        flat = np.ravel_multi_index(points, self.shape)
        unique, inverse = np.unique(flat, return_inverse=True)
        raw = source.read(self._compute_extents(Runs(unique, 1))).view(self.element.stored)
        with self._locate_errors(
            source, lambda position: np.unravel_index(unique[position], self.shape)
        ):
            return self.element.adopt(raw)[inverse]

    def _read_native(self, source: Source, selection: Selection) -> Array | None:
        """Return one range as it is, or a strided view of a window that may be kept."""
        if selection.run_count == 1:
            return self._read_raw(source, selection)
        is_dense = selection.is_strided and 2 * selection.size >= selection.span
        return self._read_view(source, selection) if source.lends_windows and is_dense else None

    def _read_view(self, source: Source, selection: Selection) -> Array | None:
        """Return the elements as a strided view of one window."""
        ranges = [indices for indices in selection.indices if isinstance(indices, range)]
        start = self._compute_offset(tuple(indices.start for indices in ranges))
        window = source.window(start, start + selection.span * self._item)
        if window is None:
            return None
        steps = [r.step * stride for r, stride in zip(ranges, self._strides, strict=True)]
        return np.ndarray(selection.shape, self.element.stored, window, strides=steps)

    def _copy(self, source: Source, selection: Selection) -> Array:
        """Copy in batches, to bound the memory of extents and windows."""
        # Without windows, gaps between the ranges need no memory.
        max_span = MAX_WINDOW // self._item if source.mapped else selection.span
        batches = list(selection.split_into_batches(max_runs=MAX_RUNS, max_span=max_span))
        if len(batches) == 1 and not (source.mapped and self._fills_window(selection)):
            with self._locate_errors(source, selection.full_index):
                return self.element.adopt(self._read_raw(source, selection))
        values = np.empty(selection.size, dtype=self.dtype)
        position = 0
        for batch in batches:
            piece = values[position : position + batch.size].reshape(batch.shape)
            raw = self._read_view(source, batch) if self._fills_window(batch) else None
            with self._locate_errors(source, batch.full_index):
                self.element.decode_into(
                    piece, self._read_raw(source, batch) if raw is None else raw
                )
            position += batch.size
        return values.reshape(selection.shape)

    def _fills_window(self, batch: Selection) -> bool:
        """Return whether nearly every page of a window contains requested bytes."""
        needed = batch.size * self._item + batch.run_count * PAGE
        return batch.is_strided and needed >= batch.span * self._item

    def _read_raw(self, source: Source, selection: Selection) -> Array:
        raw = source.read(self.extents(selection)).view(self.element.stored)
        return raw.reshape(selection.shape)

    @contextmanager
    def _locate_errors(
        self, source: Source, full_index: Callable[[int], tuple[Any, ...]]
    ) -> Iterator[None]:
        """Add the path and offset to an error about an element."""
        try:
            yield
        except ElementError as error:
            raise TensorFormatError(
                source.name,
                field="the element",
                actual=error.actual,
                expected=error.expected,
                hint=error.hint,
                offset=int(self._compute_offset(full_index(error.position))),
            ) from error

    def encode(self, selection: Selection, values: Array) -> Iterator[EncodedBatch]:
        """Yield native values as they are, and convert others in batches."""
        if not selection.size:
            return
        if self.element.is_native and values.flags.c_contiguous:
            yield self.extents(selection), view_as_bytes(values)
            return
        elements = max(1, BATCH_BYTES // self._item)
        runs = selection.run_count
        per_batch = max(1, elements * runs // selection.size) if runs > 1 else MAX_RUNS
        max_span = elements if runs == 1 else selection.span
        for batch in selection.split_into_batches(max_runs=per_batch, max_span=max_span):
            part = values[compute_relative_slices(batch, selection)]
            yield self.extents(batch), view_as_bytes(self.element.encode(part))

    def stored_element(self) -> Element:
        """Return the type of the elements."""
        return self.element
