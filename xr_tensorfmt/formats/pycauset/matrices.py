"""Layouts of matrices whose values are computed, implied, or put together of others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise, product
from typing import Any

import numpy as np

from xr_tensorfmt.core.chunk_grid import contiguous_chunk
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Extents, Integers
from xr_tensorfmt.core.layout import Encoded, Layout, Read
from xr_tensorfmt.core.selection import Selection, entry_indices, entry_of
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.formats.pycauset.rows import PartlyStored, on_diagonal, refuse_first


@dataclass(frozen=True)
class Elementwise(Layout):
    """A function of each value of another layout."""

    inner: Layout

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the inner layout."""
        return self.inner.shape

    @abstractmethod
    def apply(self, values: Array) -> Array:
        """Compute the values; those given may be overwritten."""

    def extents(self, selection: Selection) -> Extents:
        """Bytes of the inner layout."""
        return self.inner.extents(selection)

    def reads(self, source: Source, selection: Selection) -> list[Read]:
        """Those of the inner layout, which may be of other files."""
        return self.inner.reads(source, selection)

    def point_reads(self, source: Source, points: tuple[Integers, ...]) -> list[Read]:
        """Those of the inner layout."""
        return self.inner.point_reads(source, points)

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
    """Values times a number, in double precision. A zero becomes 0.0, never -0.0 or NaN."""

    scalar: complex

    @property
    def dtype(self) -> np.dtype[Any]:
        """complex128 where the values or the number are complex, else float64."""
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
    """Complex conjugates. Zeros keep their signs."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the inner layout."""
        return self.inner.dtype

    def apply(self, values: Array) -> Array:
        """Conjugate in place, as what a layout reads belongs to the reader."""
        return np.conjugate(values, out=values, where=values != 0)


@dataclass(frozen=True)
class ComplexPlanes(Layout):
    """Complex numbers of which all real parts are stored before all imaginary parts."""

    real: Layout
    imaginary: Layout

    @property
    def shape(self) -> tuple[int, ...]:
        """That of both parts."""
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


class Computed(PartlyStored):
    """Values of which none is stored."""

    @property
    def stored(self) -> Layout | None:
        """Nothing."""
        return None

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """No bytes, if the values are those that are implied."""
        self.check_implied(selection, values)
        return iter(())

    def check_implied(self, selection: Selection, values: Array) -> None:
        """All values are allowed."""


@dataclass(frozen=True)
class Ones(Computed):
    """A layout of ones only."""

    lengths: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths."""
        return self.lengths

    @property
    def dtype(self) -> np.dtype[Any]:
        """Double precision."""
        return np.dtype(np.float64)

    def extents(self, selection: Selection) -> Extents:
        """None."""
        return Extents.none()

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Whole rows."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def read(self, source: Source, selection: Selection) -> Array:
        """Ones, without reading."""
        return np.ones(selection.shape, dtype=self.dtype)

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Ones, without reading."""
        return np.ones(points[0].size, dtype=self.dtype)


@dataclass(frozen=True)
class Diagonal(PartlyStored):
    """A matrix of which only the diagonal is stored; all else is zero."""

    lengths: tuple[int, int]
    values: Layout

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        return self.lengths

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the diagonal."""
        return self.values.dtype

    def extents(self, selection: Selection) -> Extents:
        """Bytes of the selected part of the diagonal."""
        part, _ = on_diagonal(selection)
        return self.values.extents(part) if part.size else Extents.none()

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Whole rows."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def read(self, source: Source, selection: Selection) -> Array:
        """Zeros, and the selected part of the diagonal."""
        filled = np.zeros(selection.shape, dtype=self.dtype)
        part, places = on_diagonal(selection)
        if part.size:
            filled[places] = self.values.read(source, part)
        return filled

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Zeros, and those points that are on the diagonal."""
        filled = np.zeros(points[0].size, dtype=self.dtype)
        on = np.flatnonzero(points[0] == points[1])
        if on.size:
            filled[on] = self.values.read_points(source, (points[0][on],))
        return filled

    @property
    def stored(self) -> Layout | None:
        """That of the diagonal."""
        return self.values.stored

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """The diagonal."""
        self.check_implied(selection, values)
        part, places = on_diagonal(selection)
        if part.size:
            yield from self.values.encode(part, values[places])

    def check_implied(self, selection: Selection, values: Array) -> None:
        """Zeros beside the diagonal, and ones on the diagonal of an identity matrix."""
        wrong, (_, places) = values != 0, on_diagonal(selection)
        of_ones = isinstance(self.values, Ones)
        wrong[places] = values[places] != 1 if of_ones else False
        implied = "an identity matrix has 1 on its diagonal and 0 beside it"
        implied = implied if of_ones else "a diagonal matrix has 0"
        refuse_first(wrong, implied, self, selection, values)


@dataclass(frozen=True)
class UnitVector(Computed):
    """A vector of zeros and a single one."""

    lengths: tuple[int, ...]
    active: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths."""
        return self.lengths

    @property
    def dtype(self) -> np.dtype[Any]:
        """Double precision."""
        return np.dtype(np.float64)

    def extents(self, selection: Selection) -> Extents:
        """None."""
        return Extents.none()

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Those of a vector that is stored."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def read(self, source: Source, selection: Selection) -> Array:
        """Zeros and the one, without reading."""
        along = entry_indices(selection.entries[-1]) == self.active
        return np.broadcast_to(along, selection.shape).astype(self.dtype)

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Zeros and the one, without reading."""
        values: Array = (points[-1] == self.active).astype(self.dtype)
        return values

    def check_implied(self, selection: Selection, values: Array) -> None:
        """Zeros and a single one."""
        expected = entry_indices(selection.entries[-1]) == self.active
        implied = f"a unit vector has 1 at {self.active}, 0 elsewhere"
        refuse_first(values != expected, implied, self, selection, values)


@dataclass(frozen=True)
class MatrixBlock:
    """A block of a BLOCK matrix: its file and its layout."""

    source: Source
    layout: Layout


@dataclass(frozen=True)
class BlockMatrix(Layout):
    """A matrix that is put together of others."""

    row_edges: tuple[int, ...]
    column_edges: tuple[int, ...]
    blocks: tuple[tuple[MatrixBlock, ...], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns of all blocks together."""
        return self.row_edges[-1], self.column_edges[-1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that holds the values of all blocks."""
        return np.result_type(*{each.layout.dtype for row in self.blocks for each in row})

    def extents(self, selection: Selection) -> Extents:
        """None in this file: each block has a file of its own."""
        return Extents.none()

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Whole rows."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def _places(self) -> Iterator[tuple[MatrixBlock, tuple[int, int], tuple[int, int]]]:
        """Each block with its first row and column, and those after its last."""
        places = product(pairwise(self.row_edges), pairwise(self.column_edges))
        for block, (rows, columns) in zip(chain(*self.blocks), places, strict=True):
            yield block, (rows[0], columns[0]), (rows[1], columns[1])

    def _parts(
        self, selection: Selection
    ) -> Iterator[tuple[MatrixBlock, tuple[slice, ...], Selection]]:
        """Each block that a selection meets, where its values go, and what is selected of it."""
        indices = [entry_indices(entry) for entry in selection.entries]
        for block, begin, end in self._places():
            parts = tuple(
                slice(*np.searchsorted(each, (low, high)).tolist())
                for each, low, high in zip(indices, begin, end, strict=True)
            )
            entries = tuple(
                entry_of(each[part] - low)
                for each, part, low in zip(indices, parts, begin, strict=True)
            )
            inner = Selection(block.layout.shape, entries)
            if inner.size:
                yield block, parts, inner

    def _points(
        self, points: tuple[Integers, ...]
    ) -> Iterator[tuple[MatrixBlock, Integers, tuple[Integers, ...]]]:
        """Each block that a point is in, which points those are, and where they are in it."""
        rows, columns = points
        for block, (top, left), (bottom, right) in self._places():
            inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
            here = np.flatnonzero(inside)
            if here.size:
                yield block, here, (rows[here] - top, columns[here] - left)

    def reads(self, source: Source, selection: Selection) -> list[Read]:
        """Those of every block that the selection meets."""
        return [
            read
            for block, _, inner in self._parts(selection)
            for read in block.layout.reads(block.source, inner)
        ]

    def point_reads(self, source: Source, points: tuple[Integers, ...]) -> list[Read]:
        """Those of every block that a point is in."""
        return [
            read
            for block, _, moved in self._points(points)
            for read in block.layout.point_reads(block.source, moved)
        ]

    def read(self, source: Source, selection: Selection) -> Array:
        """Read from every block that the selection meets."""
        values = np.empty(selection.shape, dtype=self.dtype)
        for block, parts, inner in self._parts(selection):
            values[parts] = block.layout.read(block.source, inner)
        return values

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read from every block that a point is in."""
        values = np.empty(points[0].size, dtype=self.dtype)
        for block, here, moved in self._points(points):
            values[here] = block.layout.read_points(block.source, moved)
        return values
