"""Layouts that are views of another layout, and values in memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Extents, Integers
from xr_tensorfmt.core.layout import Layout, SourceExtents, WritableLayout
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source


@dataclass(frozen=True)
class View(Layout):
    """A view of another layout, possibly with other indices."""

    inner: Layout

    def _inner_selection(self, selection: Selection) -> Selection:
        """Return the selection of the inner layout."""
        return selection

    def _inner_points(self, points: tuple[Integers, ...]) -> tuple[Integers, ...]:
        """Return the points of the inner layout."""
        return points

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the inner layout."""
        return self.inner.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the inner layout."""
        return self.inner.dtype

    @property
    def stop(self) -> int:
        """The same as for the inner layout."""
        return self.inner.stop

    def extents(self, selection: Selection) -> Extents:
        """Return the byte ranges of the inner selection."""
        return self.inner.extents(self._inner_selection(selection))

    def extents_by_source(self, source: Source, selection: Selection) -> list[SourceExtents]:
        """Return the byte ranges of the inner selection, grouped by source."""
        return self.inner.extents_by_source(source, self._inner_selection(selection))

    def point_extents_by_source(
        self, source: Source, points: tuple[Integers, ...]
    ) -> list[SourceExtents]:
        """Return the byte ranges of the inner points, grouped by source."""
        return self.inner.point_extents_by_source(source, self._inner_points(points))

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read the inner points."""
        return self.inner.read_points(source, self._inner_points(points))

    @property
    def prefers_points(self) -> bool:
        """Whether the inner layout prefers points."""
        return self.inner.prefers_points

    @property
    def layout_to_validate(self) -> Layout | None:
        """The layout that `validate` has to read."""
        return self.inner.layout_to_validate


@dataclass(frozen=True)
class Transposed(View):
    """A layout with reordered axes.

    Parameters
    ----------
    inner : Layout
        The layout in file order.
    axes : tuple of int
        The axis of `inner` for every axis of this layout, as in `numpy.transpose`.
    """

    axes: tuple[int, ...]

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """Identify the layout. dask would tokenize every field, which is slower."""
        return type(self).__name__, self.axes, self.inner

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape with reordered axes."""
        return tuple(self.inner.shape[axis] for axis in self.axes)

    @property
    def _inverse(self) -> list[int]:
        return [self.axes.index(axis) for axis in range(len(self.axes))]

    def _inner_selection(self, selection: Selection) -> Selection:
        return selection.transpose(self._inverse)

    def _inner_points(self, points: tuple[Integers, ...]) -> tuple[Integers, ...]:
        return tuple(points[axis] for axis in self._inverse)

    def read(self, source: Source, selection: Selection) -> Array:
        """Read in file order and return a transposed view."""
        return self.inner.read(source, self._inner_selection(selection)).transpose(self.axes)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return the chunk shape of the inner layout, reordered."""
        inner = self.inner.chunk_shape(target)
        return tuple(inner[axis] for axis in self.axes)


@dataclass(frozen=True)
class Elementwise(View):
    """A layout whose values are computed element by element from another layout."""

    @abstractmethod
    def apply(self, values: Array) -> Array:
        """Compute the values. The argument may be overwritten."""

    def read(self, source: Source, selection: Selection) -> Array:
        """Read and compute."""
        return self.apply(self.inner.read(source, selection))

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read and compute."""
        return self.apply(self.inner.read_points(source, points))

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return the inner chunk shape, smaller if values are larger than stored elements."""
        return self.inner.chunk_shape(
            max(1, target * self.inner.dtype.itemsize // self.dtype.itemsize)
        )


def file_order(layout: Layout) -> tuple[WritableLayout, tuple[int, ...]]:
    """Return the layout in file order and, for each of its axes, the axis of the argument.

    Raises
    ------
    TypeError
        The layout can only be read.
    """
    stored, axes = layout, tuple(range(len(layout.shape)))
    if isinstance(layout, Transposed):
        stored, axes = layout.inner, tuple(layout.axes.index(axis) for axis in axes)
    if not isinstance(stored, WritableLayout):
        raise TypeError(f"values in the layout {type(stored).__name__} can only be read")
    return stored, axes


def get_stored_layout(layout: Layout) -> Layout:
    """Return the innermost layout of nested views."""
    return get_stored_layout(layout.inner) if isinstance(layout, View) else layout


def transpose_layout(layout: Layout, axes: Sequence[int]) -> Layout:
    """Reorder the axes of a layout without nesting views.

    Parameters
    ----------
    layout : Layout
        The layout.
    axes : sequence of int
        The axis of `layout` for every axis of the result, as in `numpy.transpose`.

    Returns
    -------
    Layout
    """
    if isinstance(layout, Transposed):
        return transpose_layout(layout.inner, [layout.axes[axis] for axis in axes])
    order = tuple(axes)
    return layout if order == tuple(range(len(order))) else Transposed(layout, order)


def column_major(inner: Layout, *, trailing: int = 0) -> Layout:
    """Reverse the axes of a row-major layout, for files in column-major (Fortran) order.

    Parameters
    ----------
    inner : Layout
        The layout in file order, with reversed lengths.
    trailing : int
        Number of trailing axes that are not reversed, such as the components of an element.

    Returns
    -------
    Layout
    """
    rank = len(inner.shape)
    turned = rank - trailing
    return transpose_layout(inner, (*reversed(range(turned)), *range(turned, rank)))


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

    layout_to_validate = None

    def extents(self, selection: Selection) -> Extents:
        """Return no byte ranges."""
        return Extents.empty()

    def read(self, source: Source, selection: Selection) -> Array:
        """Copy the selected values."""
        part = self.values[np.ix_(*selection.index_arrays)]
        return np.array(part, dtype=self.dtype)  # keep the width of strings

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Copy single values."""
        picked: Array = self.values[points]
        return picked
