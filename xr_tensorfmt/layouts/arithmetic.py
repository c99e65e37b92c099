"""Layouts whose values are those of others, computed on: scaled, conjugated, put together."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from xr_tensorfmt.elements import Array
from xr_tensorfmt.extents import Extents, Integers
from xr_tensorfmt.layouts.base import Layout
from xr_tensorfmt.selection import Selection
from xr_tensorfmt.sources.base import Source


@dataclass(frozen=True)
class Elementwise(Layout):
    """A function of each value of another layout.

    Parameters
    ----------
    inner : Layout
        The values as they are stored.
    """

    inner: Layout

    @property
    def shape(self) -> tuple[int, ...]:
        """As of the inner layout."""
        return self.inner.shape

    @abstractmethod
    def apply(self, values: Array) -> Array:
        """Compute the values; those given may be overwritten."""

    def extents(self, selection: Selection) -> Extents:
        """Bytes of the inner layout."""
        return self.inner.extents(selection)

    def read(self, source: Source, selection: Selection) -> Array:
        """Read, then compute."""
        return self.apply(self.inner.read(source, selection))

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read, then compute."""
        return self.apply(self.inner.read_points(source, points))

    @property
    def prefers_points(self) -> bool:
        """As the inner layout does."""
        return self.inner.prefers_points

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Chunks of the inner layout, smaller if values take more bytes than stored ones."""
        return self.inner.chunk_shape(
            max(1, target * self.inner.dtype.itemsize // self.dtype.itemsize)
        )

    @property
    def stored(self) -> Layout | None:
        """That of the inner layout."""
        return self.inner.stored


@dataclass(frozen=True)
class Scaled(Elementwise):
    """Values times a number, in double precision. Zeros stay zero, and 0.0 never becomes -0.0.

    Parameters
    ----------
    inner : Layout
        The values as they are stored.
    scalar : complex
        The number.
    """

    scalar: complex

    @property
    def dtype(self) -> np.dtype[Any]:
        """Complex where the values or the number are; float64 else."""
        is_complex = self.inner.dtype.kind == "c" or self.scalar.imag != 0
        return np.dtype(np.complex128 if is_complex else np.float64)

    def apply(self, values: Array) -> Array:
        """Multiply; a part that is zero multiplies nothing."""
        scaled = np.empty(values.shape, dtype=self.dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            self._multiply(values, scaled)
        if not np.isfinite(self.scalar):
            scaled[values == 0] = 0
        elif self.scalar.imag or self.scalar.real <= 0:
            scaled += 0.0  # makes 0.0 of -0.0, and changes nothing else
        return scaled

    def _multiply(self, values: Array, scaled: Array) -> None:
        real, imaginary = self.scalar.real, self.scalar.imag
        if scaled.dtype.kind == "f":
            np.multiply(values, real, out=scaled, dtype=np.float64)
        elif imaginary == 0:
            np.multiply(values.real, real, out=scaled.real, dtype=np.float64)
            np.multiply(values.imag, real, out=scaled.imag, dtype=np.float64)
        elif values.dtype.kind != "c":
            np.multiply(values, real, out=scaled.real, dtype=np.float64)
            np.multiply(values, imaginary, out=scaled.imag, dtype=np.float64)
        else:
            np.multiply(values, self.scalar, out=scaled, dtype=np.complex128)


@dataclass(frozen=True)
class Conjugated(Elementwise):
    """Complex conjugates. Zeros stay as they are, sign included."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the inner layout."""
        return self.inner.dtype

    def apply(self, values: Array) -> Array:
        """Conjugate in place: what a layout reads is the reader's own."""
        return np.conjugate(values, out=values, where=values != 0)


@dataclass(frozen=True)
class ComplexPlanes(Layout):
    """Complex numbers whose real parts are stored apart from their imaginary parts.

    Parameters
    ----------
    real, imaginary : Layout
        Two layouts of one shape and of one dtype, of single precision at most.
    """

    real: Layout
    imaginary: Layout

    @property
    def shape(self) -> tuple[int, ...]:
        """As of each part."""
        return self.real.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The narrowest complex type that numpy has."""
        return np.dtype(np.complex64)

    def extents(self, selection: Selection) -> Extents:
        """Bytes of the real parts, then those of the imaginary ones."""
        return Extents.union([self.real.extents(selection), self.imaginary.extents(selection)])

    def read(self, source: Source, selection: Selection) -> Array:
        """Read one part after the other."""
        values = np.empty(selection.shape, dtype=self.dtype)
        values.real = self.real.read(source, selection)
        values.imag = self.imaginary.read(source, selection)
        return values

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read one part after the other."""
        values = np.empty(points[0].size, dtype=self.dtype)
        values.real = self.real.read_points(source, points)
        values.imag = self.imaginary.read_points(source, points)
        return values

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Chunks of the real parts, by what the numbers take in memory."""
        narrower = self.real.dtype.itemsize
        return self.real.chunk_shape(max(1, target * narrower // self.dtype.itemsize))
