"""Layouts: the byte ranges and encoding of the values of a tensor in a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.extents import Bytes, Extents, contiguous_chunk
from xr_tensorfmt.core.selection import MAX_RUNS, Selection, compute_row_major_strides
from xr_tensorfmt.core.source import Plan, Source, Step, plan_steps, put_at
from xr_tensorfmt.errors import Finding, TensorFormatError

EncodedBatch = tuple[Extents, Bytes]
"""Byte ranges of a file and their concatenated bytes."""

BATCH_BYTES = 1 << 20
"""Bytes to encode at a time, to stay within a processor cache."""

CHECKED_BYTES = 16 << 20
"""Bytes to check at a time."""

WHOLE = 0
"""The write unit of an axis that can only be written as a whole."""


class Layout:
    """The byte ranges and encoding of the values of a tensor, immutable and picklable.

    A layout defines `locate` and `decode`, or another `plan`.

    Attributes
    ----------
    shape : tuple of int
        Lengths of the axes.
    dtype : numpy.dtype
        dtype of the values, in native byte order.
    element : Element
        Type of the stored elements, if values can be written.
    stop : int
        The byte after the last element, if values can be written.
    """

    if TYPE_CHECKING:  # a subclass has fields or properties

        @property
        def shape(self) -> tuple[int, ...]: ...  # noqa: D102

        @property
        def dtype(self) -> np.dtype[Any]: ...  # noqa: D102

        @property
        def element(self) -> Element: ...  # noqa: D102

        @property
        def stop(self) -> int: ...  # noqa: D102

    can_write: ClassVar[bool] = False
    """Whether `encode` and `element` are defined, so that values can be written."""

    def plan(self, source: Source, selection: Selection) -> Plan:
        """Plan the read of a selection, in batches if that needs less memory."""
        if not selection.size:
            return Plan(source, Extents.empty(), lambda _: np.empty(selection.shape, self.dtype))
        positions = None
        if selection.is_pointwise:
            selection, positions = selection.sort()
        size = self.batch_size(source, selection)
        if selection.size <= size:
            to_native = partial(np.require, dtype=self.dtype, requirements="CA")
            plan = self.plan_batch(source, selection).convert(to_native)
        else:
            steps = partial(self._plan_parts, source, selection, size)
            plan = plan_steps(source, selection.shape, self.dtype, steps)
        return plan if positions is None else plan.convert(lambda values: values[positions])

    def _plan_parts(self, source: Source, selection: Selection, size: int) -> Iterator[Step]:
        for part, index in selection.iterate_parts(size):
            yield self.plan_batch(source, part), put_at(index)

    def plan_batch(self, source: Source, batch: Selection) -> Plan:
        """Plan the read of a selection at once."""
        return Plan(source, self.locate(batch), lambda packed: self.decode(packed, batch))

    def locate(self, selection: Selection) -> Extents:
        """Return the byte ranges to read for a selection, which must not be empty."""
        raise NotImplementedError(f"{type(self).__name__} has no byte ranges of its own")

    def decode(self, packed: Bytes, selection: Selection) -> Array:
        """Convert bytes to values, which may share the memory of `packed` if they need all.

        Parameters
        ----------
        packed : ndarray of uint8
            The concatenated bytes of ``locate(selection)``. They may be overwritten.
        selection : Selection
            The elements. Single elements are different and sorted.
        """
        raise NotImplementedError(f"{type(self).__name__} does not decode bytes itself")

    def batch_size(self, source: Source, selection: Selection) -> int:
        """Return how many elements to fetch and decode at a time."""
        return source.batch_bytes // self.dtype.itemsize

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return the shape of contiguous chunks of up to `target` bytes, or of one longer row."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def validate(self, source: Source) -> Iterator[Finding]:
        """Yield a finding for every part of the values that cannot be read."""
        for part in Selection.everything(self.shape).divide(CHECKED_BYTES // self.dtype.itemsize):
            try:
                self.plan(source, part).read()
            except TensorFormatError as error:
                yield error.to_finding()

    def encode(self, selection: Selection, values: Array) -> Iterator[EncodedBatch]:
        """Yield byte ranges and their bytes, batch by batch, until they cover the selection.

        Raise ValueError if a value cannot be stored.

        Parameters
        ----------
        selection : Selection
            The elements: ranges of step 1 that start and stop at multiples of `write_units`, or
            other indices along axes of unit 1.
        values : ndarray of `dtype`
            The values, in the shape of the selection.
        """
        raise NotImplementedError(f"{type(self).__name__} can only be read")

    @property
    def write_units(self) -> tuple[int, ...]:
        """Elements per axis of whole bytes, or `WHOLE`. A region starts and stops at multiples."""
        return (1,) * len(self.shape)


@dataclass(frozen=True)
class Dense(Layout):
    """A contiguous row-major array of a `shape` (slowest axis first) at a byte offset."""

    shape: tuple[int, ...]
    element: Element
    offset: int

    can_write = True

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.element.dtype

    @property
    def stop(self) -> int:
        """The byte after the last element."""
        return self.offset + prod(self.shape) * self._item

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """Identify the layout. dask would tokenize every field, which is slower."""
        element = self.element.name, self.element.stored.str
        return type(self).__name__, self.shape, self.offset, element

    @property
    def _item(self) -> int:
        return self.element.stored.itemsize

    def locate(self, selection: Selection) -> Extents:
        """Return one range per run of consecutive elements."""
        return selection.runs(self._item, self.offset)

    def decode(self, packed: Bytes, selection: Selection) -> Array:
        """View the bytes as elements if they need no conversion, otherwise convert them."""
        return self.element.decode(packed.view(self.element.stored).reshape(selection.shape))

    def plan_batch(self, source: Source, batch: Selection) -> Plan:
        """Plan to fetch the runs, or the range with all of them if the gaps are short."""
        if not self._has_short_gaps(batch, source.short_gap):
            return super().plan_batch(source, batch)
        strides = [self._item * stride for stride in compute_row_major_strides(self.shape)]
        axes = list(zip(batch.indices, strides, strict=True))
        start = self.offset + sum([int(axis[0]) * stride for axis, stride in axes])
        steps = [axis.step * stride for axis, stride in axes if isinstance(axis, range)]

        def decode(packed: Bytes) -> Array:
            raw: Array = np.ndarray(batch.shape, self.element.stored, packed, strides=steps)
            return self.element.decode(raw)

        extents = Extents.single(start, start + batch.span * self._item)
        return Plan(source.allow_windows(), extents, decode, batch.size * self._item)

    def _has_short_gaps(self, selection: Selection, short_gap: int) -> bool:
        """Return whether there are gaps, and reading them is faster than leaving them out."""
        count = selection.run_count
        if count == 1 or not selection.is_strided:
            return False
        return (selection.span - selection.size) * self._item <= short_gap * (count - 1)

    def batch_size(self, source: Source, selection: Selection) -> int:
        """Limit the memory of ranges, conversions and gaps."""
        size, count = selection.size, selection.run_count
        limit = source.batch_bytes // max(self._item, self.dtype.itemsize)
        if self._has_short_gaps(selection, source.short_gap):
            return max(1, limit * size // selection.span)
        most = MAX_RUNS * size // count
        return most if self.element.is_native else min(most, limit)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return chunks of whole rows."""
        item = self._item
        return contiguous_chunk(self.shape, item, target * item // max(item, self.dtype.itemsize))

    def encode(self, selection: Selection, values: Array) -> Iterator[EncodedBatch]:
        """Convert the values in batches. Native contiguous values are one batch, not copied."""
        is_copied = not (self.element.is_native and values.flags.c_contiguous)
        max_size = BATCH_BYTES // self._item if is_copied else selection.size
        for batch, index in selection.iterate_parts(max_size):
            yield self.locate(batch), view_as_bytes(self.element.encode(values[index]))


@dataclass(frozen=True, eq=False)
class InMemory(Layout):
    """Values in memory, computed at opening or implied by the format."""

    values: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.values.dtype

    def plan(self, source: Source, selection: Selection) -> Plan:
        """Plan to copy the selected values."""
        return Plan(source, Extents.empty(), lambda _: pick_values(self.values, selection))


def pick_values(values: Array, selection: Selection) -> Array:
    """Copy the selected elements of an array."""
    if selection.is_strided and selection.size == values.size:
        return values.copy()
    key: tuple[Any, ...] = (*selection.mesh, ...)  # keep the array of a single object
    return np.array(values[key], dtype=values.dtype)


@dataclass(frozen=True)
class Transposed(Layout):
    """A layout with reordered axes, as in `numpy.transpose`."""

    inner: Layout
    axes: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape with reordered axes."""
        return tuple(self.inner.shape[axis] for axis in self.axes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.inner.dtype

    @property
    def stop(self) -> int:
        """The byte after the last element."""
        return self.inner.stop

    def plan(self, source: Source, selection: Selection) -> Plan:
        """Plan the read in file order, and transpose the values without a copy."""
        plan = self.inner.plan(source, self._turn(selection))
        if selection.is_pointwise:
            return plan
        return plan.convert(lambda values: values.transpose(self.axes))

    def locate(self, selection: Selection) -> Extents:
        """Return the byte ranges in file order."""
        return self.inner.locate(self._turn(selection))

    def _turn(self, selection: Selection) -> Selection:
        return selection.transpose([self.axes.index(axis) for axis in range(len(self.axes))])

    def validate(self, source: Source) -> Iterator[Finding]:
        """Validate the values in file order."""
        return self.inner.validate(source)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return the chunk shape of the inner layout, reordered."""
        inner = self.inner.chunk_shape(target)
        return tuple(inner[axis] for axis in self.axes)


def file_order(layout: Layout) -> tuple[Layout, Sequence[int]]:
    """Return the layout in file order and the argument's axis for each axis, or raise TypeError."""
    axes: Sequence[int] = range(len(layout.shape))
    stored = layout
    if isinstance(layout, Transposed):
        stored, axes = layout.inner, tuple(layout.axes.index(axis) for axis in axes)
    if not stored.can_write:
        raise TypeError(f"values in the layout {type(stored).__name__} can only be read")
    return stored, axes


def transpose_layout(layout: Layout, axes: Sequence[int]) -> Layout:
    """Reorder the axes of a layout as `numpy.transpose` does, without nesting views."""
    if isinstance(layout, Transposed):
        return transpose_layout(layout.inner, [layout.axes[axis] for axis in axes])
    return layout if list(axes) == sorted(axes) else Transposed(layout, tuple(axes))


def column_major(inner: Layout, *, trailing: int = 0) -> Layout:
    """Reverse the axes of a row-major layout, except the last `trailing` ones."""
    axes = range(len(inner.shape))
    turned = len(axes) - trailing
    return transpose_layout(inner, (*reversed(axes[:turned]), *axes[turned:]))


def view_as_bytes(stored: Array) -> Bytes:
    """View contiguous elements as bytes."""
    return stored.reshape(-1).view(np.uint8)


def read(layout: Layout, source: Source, selection: Selection) -> Array:
    """Read a selection into memory of its own."""
    return layout.plan(source, selection).read()
