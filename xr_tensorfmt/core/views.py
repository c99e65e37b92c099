"""Layouts that are views of another layout, and values in memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xr_tensorfmt.core.chunk_grid import contiguous_chunk
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Extents, Integers
from xr_tensorfmt.core.layout import ByteRead, Layout, WritableLayout
from xr_tensorfmt.core.selection import Selection, entry_indices
from xr_tensorfmt.core.source import Source


@dataclass(frozen=True)
class View(Layout):
    """Another layout, whose elements may have other indices."""

    inner: Layout

    def _inward(self, selection: Selection) -> Selection:
        """The selection of the inner layout."""
        return selection

    def _points_inward(self, points: tuple[Integers, ...]) -> tuple[Integers, ...]:
        """The points of the inner layout."""
        return points

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the inner layout."""
        return self.inner.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the inner layout."""
        return self.inner.dtype

    def extents(self, selection: Selection) -> Extents:
        """Bytes of the inner selection."""
        return self.inner.extents(self._inward(selection))

    def reads(self, source: Source, selection: Selection) -> list[ByteRead]:
        """Those of the inner selection."""
        return self.inner.reads(source, self._inward(selection))

    def point_reads(self, source: Source, points: tuple[Integers, ...]) -> list[ByteRead]:
        """Those of the inner layout's points."""
        return self.inner.point_reads(source, self._points_inward(points))

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read the inner layout's points."""
        return self.inner.read_points(source, self._points_inward(points))

    @property
    def prefers_points(self) -> bool:
        """As the inner layout does."""
        return self.inner.prefers_points

    @property
    def unchecked(self) -> Layout | None:
        """The same as for the inner layout."""
        return self.inner.unchecked


@dataclass(frozen=True)
class Transposed(View):
    """Axes in another order than in the file; nothing is moved.

    Parameters
    ----------
    inner : Layout
        The layout in file order.
    axes : tuple of int
        For each axis of this layout the one of `inner` that it is.
    """

    axes: tuple[int, ...]

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """What tells two layouts apart; dask would look at each field, which takes longer."""
        return type(self).__name__, self.axes, self.inner

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes, reordered."""
        return tuple(self.inner.shape[axis] for axis in self.axes)

    @property
    def _inverse(self) -> list[int]:
        return [self.axes.index(axis) for axis in range(len(self.axes))]

    def _inward(self, selection: Selection) -> Selection:
        return selection.permuted(self._inverse)

    def _points_inward(self, points: tuple[Integers, ...]) -> tuple[Integers, ...]:
        return tuple(points[axis] for axis in self._inverse)

    def read(self, source: Source, selection: Selection) -> Array:
        """Read in file order and hand out a transposed view."""
        return self.inner.read(source, self._inward(selection)).transpose(self.axes)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Chunks of the inner layout, reordered."""
        inner = self.inner.chunk_shape(target)
        return tuple(inner[axis] for axis in self.axes)


@dataclass(frozen=True)
class Elementwise(View):
    """A function of each value of another layout."""

    @abstractmethod
    def apply(self, values: Array) -> Array:
        """Compute the values; those given may be overwritten."""

    def read(self, source: Source, selection: Selection) -> Array:
        """Read, then compute."""
        return self.apply(self.inner.read(source, selection))

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read, then compute."""
        return self.apply(self.inner.read_points(source, points))

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Chunks of the inner layout, smaller if values take more bytes than stored ones."""
        return self.inner.chunk_shape(
            max(1, target * self.inner.dtype.itemsize // self.dtype.itemsize)
        )


def file_order(layout: Layout) -> tuple[WritableLayout, tuple[int, ...]]:
    """Return a layout with its axes in file order, and the axis of `layout` for each of these.

    Raises
    ------
    TypeError
        The layout can only be read.
    """
    axes = tuple(range(len(layout.shape)))
    if isinstance(layout, Transposed):
        axes = tuple(layout.axes.index(axis) for axis in axes)
        layout = layout.inner
    if not isinstance(layout, WritableLayout):
        raise TypeError(f"values in the layout {type(layout).__name__} can only be read")
    return layout, axes


def stored_layout(layout: Layout) -> Layout:
    """Return the layout that is stored: the innermost one of nested views."""
    return stored_layout(layout.inner) if isinstance(layout, View) else layout


def transpose_layout(layout: Layout, axes: Sequence[int]) -> Layout:
    """Reorder axes; a view of a view becomes one view, and one without effect is left out.

    Parameters
    ----------
    layout : Layout
        The layout.
    axes : sequence of int
        For each axis of the result the one of `layout` that it is.

    Returns
    -------
    Layout
    """
    if isinstance(layout, Transposed):
        return transpose_layout(layout.inner, [layout.axes[axis] for axis in axes])
    order = tuple(axes)
    return layout if order == tuple(range(len(order))) else Transposed(layout, order)


def column_major(inner: Layout, *, trailing: int = 0) -> Layout:
    """View a layout whose axes are stored last one slowest in the order of their names.

    Parameters
    ----------
    inner : Layout
        The layout in file order.
    trailing : int
        How many of the fastest axes keep their place at the end.

    Returns
    -------
    Layout
    """
    rank = len(inner.shape)
    turned = rank - trailing
    return transpose_layout(inner, (*reversed(range(turned)), *range(turned, rank)))


@dataclass(frozen=True, eq=False)
class InMemory(Layout):
    """Values that were computed when the file was opened, or that its format implies."""

    values: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.values.dtype

    unchecked = None  # nothing is stored

    def extents(self, selection: Selection) -> Extents:
        """None at all."""
        return Extents.none()

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """As if the values were in the file."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def read(self, source: Source, selection: Selection) -> Array:
        """Copy what is selected."""
        part = self.values[np.ix_(*map(entry_indices, selection.entries))]
        return np.array(part, dtype=self.dtype)  # numpy would narrow a single str

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Copy single values."""
        picked: Array = self.values[points]
        return picked
