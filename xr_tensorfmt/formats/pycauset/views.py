"""Views of other layouts: scaled values, vectors of bits, and complex numbers in two planes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from xr_tensorfmt.contract import (
    Array,
    Element,
    Elementwise,
    EncodedBatch,
    Integers,
    Selection,
    Source,
    View,
    WritableLayout,
    contiguous_chunk,
)


@dataclass(frozen=True)
class Scaled(Elementwise):
    """Values of another layout times a number, conjugated or not.

    Products are in double precision. Zeros stay 0.0, even if the number is negative or not finite.
    """

    scalar: complex
    is_conjugated: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """The inner dtype if the number is 1, otherwise complex128 or float64."""
        if self.scalar == 1:
            return self.inner.dtype
        is_complex = self.inner.dtype.kind == "c" or self.scalar.imag != 0
        return np.dtype(np.complex128 if is_complex else np.float64)

    def apply(self, values: Array) -> Array:
        """Multiply, then conjugate."""
        if self.scalar != 1:
            values = self._multiply(values)
        # In place, because the caller owns the values. Zeros keep their signs.
        is_conjugated = self.is_conjugated and values.dtype.kind == "c"
        return np.conjugate(values, out=values, where=values != 0) if is_conjugated else values

    def _multiply(self, values: Array) -> Array:
        real, imaginary = self.scalar.real, self.scalar.imag
        with np.errstate(invalid="ignore", over="ignore"):
            if imaginary:
                scaled = np.multiply(values, self.scalar, dtype=np.complex128)
            else:
                scaled = np.array(values, dtype=self.dtype, order="C")
                scaled.view(np.float64)[...] *= real
        if imaginary or not 0 < real < np.inf:
            np.copyto(scaled, 0, where=values == 0)
        return scaled


@dataclass(frozen=True)
class OnlyRow(View, WritableLayout):
    """Vector stored as a matrix with one row."""

    inner: WritableLayout

    @property
    def shape(self) -> tuple[int, ...]:
        """The columns."""
        return self.inner.shape[1:]

    def _inner_selection(self, selection: Selection) -> Selection:
        return Selection(self.inner.shape, (range(1), *selection.indices))

    def _inner_points(self, points: tuple[Integers, ...]) -> tuple[Integers, ...]:
        return np.zeros_like(points[0]), *points

    def read(self, source: Source, selection: Selection) -> Array:
        """Read the row."""
        return np.asarray(self.inner.read(source, self._inner_selection(selection))[0])

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return the columns of a chunk of the inner layout."""
        return self.inner.chunk_shape(target)[1:]

    def encode(self, selection: Selection, values: Array) -> Iterator[EncodedBatch]:
        """Encode the row."""
        return self.inner.encode(self._inner_selection(selection), values[np.newaxis])

    def stored_element(self) -> Element:
        """Return the element of the matrix."""
        return self.inner.stored_element()

    @property
    def write_units(self) -> tuple[int, ...]:
        """The write units of the columns."""
        return self.inner.write_units[1:]


@dataclass(frozen=True)
class ComplexPlanes(View):
    """Complex numbers stored as all real parts, then all imaginary parts."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of either part."""
        return self.inner.shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's smallest complex type."""
        return np.dtype(np.complex64)

    def _inner_selection(self, selection: Selection) -> Selection:
        return Selection(self.inner.shape, (range(2), *selection.indices))

    def _inner_points(self, points: tuple[Integers, ...]) -> tuple[Integers, ...]:
        return np.repeat([0, 1], points[0].size), *(np.tile(indices, 2) for indices in points)

    def read(self, source: Source, selection: Selection) -> Array:
        """Read both parts."""
        return _build_complex(*self.inner.read(source, self._inner_selection(selection)))

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read both parts."""
        return _build_complex(*super().read_points(source, points).reshape(2, -1))

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return a chunk of whole rows."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)


def _build_complex(real: Array, imaginary: Array) -> Array:
    values = np.empty(real.shape, dtype=np.complex64)
    values.real, values.imag = real, imaginary
    return values
