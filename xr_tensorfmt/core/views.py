"""Layouts that are views of another layout, and values in memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.core.layout import Layout, WritableLayout
from xr_tensorfmt.core.selection import Points, Selection
from xr_tensorfmt.core.source import Source


@dataclass(frozen=True)
class View(Layout):
    """Values computed from selections of another layout."""

    inner: Layout

    def select(self, selection: Selection) -> Sequence[Selection]:
        """Return the selections of the inner layout."""
        return (selection,)

    @abstractmethod
    def apply(self, selection: Selection, *values: Array) -> Array:
        """Compute values from an array per inner selection. The arrays may be overwritten."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the inner layout."""
        return self.inner.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the inner layout."""
        return self.inner.dtype

    def locate(self, selection: Selection) -> Extents:
        """Return the byte ranges of the inner selections."""
        return Extents.union([self.inner.locate(part) for part in self.select(selection)])

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return the inner chunk shape, smaller if values are larger than stored elements."""
        stored = target * self.inner.dtype.itemsize // self.dtype.itemsize
        return self.inner.chunk_shape(max(1, stored))

    @property
    def layout_to_validate(self) -> Layout | None:
        """The layout that `validate` has to read."""
        return self.inner.layout_to_validate


@dataclass(frozen=True, eq=False)
class Part:
    """A selection of another layout, the index of its values in the result, and another file."""

    layout: Layout
    selection: Selection
    target: Any
    source: Source | None = None


class Composite(Layout):
    """Values from parts of other layouts. Elements outside the parts have a fill value."""

    fill_value: float = 0

    @abstractmethod
    def split(self, selection: Selection) -> Iterable[Part]:
        """Return the parts of a selection that are stored."""

    def put(self, values: Array, target: Any, stored: Array) -> None:
        """Set the values of a part."""
        values[target] = stored

    def locate(self, selection: Selection) -> Extents:
        """Return the byte ranges in the file of the layout, without those in other files."""
        parts = [part for part in self.split(selection) if part.source is None]
        return Extents.union([p.layout.locate(p.selection) for p in parts if p.selection.size])


@dataclass(frozen=True)
class Transposed(View):
    """A layout with reordered axes, as in `numpy.transpose`."""

    axes: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape with reordered axes."""
        return tuple(self.inner.shape[axis] for axis in self.axes)

    def select(self, selection: Selection) -> tuple[Selection]:
        """Return the selection in file order."""
        return (selection.transpose([self.axes.index(axis) for axis in range(len(self.axes))]),)

    def apply(self, selection: Selection, *values: Array) -> Array:
        """Return a transposed view."""
        return values[0] if isinstance(selection, Points) else values[0].transpose(self.axes)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return the chunk shape of the inner layout, reordered."""
        inner = self.inner.chunk_shape(target)
        return tuple(inner[axis] for axis in self.axes)


@dataclass(frozen=True)
class Scaled(View):
    """Values times a number in double precision, conjugated or not. Zeros stay 0.0."""

    scalar: complex
    is_conjugated: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """The inner dtype if the number is 1, otherwise complex128 or float64."""
        if self.scalar == 1:
            return self.inner.dtype
        is_complex = self.inner.dtype.kind == "c" or self.scalar.imag != 0
        return np.dtype(np.complex128 if is_complex else np.float64)

    def apply(self, selection: Selection, *values: Array) -> Array:
        """Multiply, then conjugate, in place if the dtypes are equal."""
        scaled = np.asarray(values[0], dtype=self.dtype, order="C")
        is_plain = not self.scalar.imag and 0 < self.scalar.real < np.inf
        zeros = False if is_plain else scaled == 0
        with np.errstate(invalid="ignore", over="ignore"):
            if self.scalar.imag:
                scaled *= self.scalar
            elif self.scalar != 1:
                parts = scaled.reshape(-1).view(np.float64)
                parts *= self.scalar.real
        if not is_plain:
            np.copyto(scaled, 0, where=zeros)
        # Zeros keep their signs.
        is_conjugated = self.is_conjugated and scaled.dtype.kind == "c"
        return np.conjugate(scaled, out=scaled, where=scaled != 0) if is_conjugated else scaled


def file_order(layout: Layout) -> tuple[WritableLayout, Sequence[int]]:
    """Return the layout in file order and the argument's axis for each axis, or raise TypeError."""
    axes: Sequence[int] = range(len(layout.shape))
    stored = layout
    if isinstance(layout, Transposed):
        stored, axes = layout.inner, tuple(layout.axes.index(axis) for axis in axes)
    if not isinstance(stored, WritableLayout):
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

    def locate(self, selection: Selection) -> Extents:
        """Return no byte ranges."""
        return Extents.empty()

    def decode(self, packed: Bytes, selection: Selection, out: Array | None = None) -> Array:
        """Copy the selected values."""
        if selection.is_strided and selection.size == self.values.size:
            return self.values.copy()
        key: tuple[Any, ...] = (*selection.mesh, ...)  # keep the array of a single object
        return np.array(self.values[key], dtype=self.dtype)
