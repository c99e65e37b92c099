"""Layouts of the matrix types: diagonals, and views of stored rows and planes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xr_tensorfmt.contract import (
    MAX_ITEM_BYTES,
    Array,
    Dense,
    Element,
    Elementwise,
    EncodedBatch,
    Extents,
    Integers,
    Layout,
    Selection,
    Source,
    SourceExtents,
    TensorFormatError,
    View,
    WritableLayout,
    array_to_indices,
    check_size,
    contiguous_chunk,
)
from xr_tensorfmt.formats.pycauset import spec
from xr_tensorfmt.formats.pycauset.bits import Bits
from xr_tensorfmt.formats.pycauset.packed import Packed
from xr_tensorfmt.formats.pycauset.rows import Rows
from xr_tensorfmt.formats.pycauset.spec import Matrix


@dataclass(frozen=True)
class Diagonal(Layout):
    """Matrix or vector with nonzero elements on one diagonal only.

    The diagonal begins in column `shift`. Its elements are 1 unless they are stored. A vector is
    the first row of a matrix.
    """

    lengths: tuple[int, ...]
    values: Dense | None = None
    shift: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns, or the length of a vector."""
        return self.lengths

    @property
    def dtype(self) -> np.dtype[Any]:
        """Double precision."""
        return np.dtype(np.float64)

    def _select_part(self, selection: Selection) -> tuple[Selection, tuple[Integers, ...]]:
        """Return the selected part of the diagonal, and its indices in the selected values."""
        rows, columns = (np.zeros(1, dtype=np.int64), *selection.index_arrays)[-2:]
        common, *indices = np.intersect1d(
            rows + self.shift, columns, assume_unique=True, return_indices=True
        )
        part = Selection((min(self.lengths),), (array_to_indices(common - self.shift),))
        return part, tuple(indices[-len(self.lengths) :])

    def extents(self, selection: Selection) -> Extents:
        """Return the byte ranges of the selected part of the diagonal."""
        part, _ = self._select_part(selection)
        return self.values.extents(part) if self.values and part.size else Extents.empty()

    def read(self, source: Source, selection: Selection) -> Array:
        """Read the selected part of the diagonal, and fill the rest with zeros."""
        filled = np.zeros(selection.shape, dtype=self.dtype)
        part, indices = self._select_part(selection)
        if part.size:
            filled[indices] = self.values.read(source, part) if self.values else 1
        return filled

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read the points on the diagonal, and fill the rest with zeros."""
        filled = np.zeros(points[0].size, dtype=self.dtype)
        rows = points[0] if len(points) > 1 else np.zeros_like(points[0])
        on_diagonal = np.flatnonzero(rows + self.shift == points[-1])
        if on_diagonal.size:
            filled[on_diagonal] = (
                self.values.read_points(source, (rows[on_diagonal],)) if self.values else 1
            )
        return filled

    @property
    def layout_to_validate(self) -> Layout | None:
        """The diagonal, if it is stored."""
        return self.values


@dataclass(frozen=True)
class Mirrored(View):
    """Square matrix whose lower triangle is the upper one times `sign`."""

    inner: Packed
    sign: int

    def extents(self, selection: Selection) -> Extents:
        """Return the stored bytes of the selection and of its mirror image."""
        mirror = selection.transpose((1, 0))
        return Extents.union([self.inner.extents(selection), self.inner.extents(mirror)])

    def extents_by_source(self, source: Source, selection: Selection) -> list[SourceExtents]:
        """Return the byte ranges of `extents`."""
        return Layout.extents_by_source(self, source, selection)

    def read(self, source: Source, selection: Selection) -> Array:
        """Read the stored part. Elements below the diagonal come from their mirror image."""
        values = self.inner.read(source, selection)
        rows, columns = selection.index_arrays
        if values.size and rows[-1] > columns[0]:
            image = self.inner.read(source, selection.transpose((1, 0))).T
            below = rows[:, np.newaxis] > columns
            np.copyto(values, image if self.sign > 0 else 0 - image, where=below)
        return values

    def _inner_points(self, points: tuple[Integers, ...]) -> tuple[Integers, ...]:
        """Return the points in the upper triangle."""
        return np.minimum(*points), np.maximum(*points)

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read points below the diagonal from their mirror image."""
        values = super().read_points(source, points)
        if self.sign < 0:
            np.subtract(0, values, out=values, where=points[0] > points[1])
        return values

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return the chunk shape of the stored triangle."""
        return self.inner.chunk_shape(target)


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


def build_layout(matrix: Matrix, path: str) -> tuple[Layout, int]:
    """Return the layout of the stored values and their size in bytes.

    The file may be shorter. The caller checks that.
    """
    _check_types(matrix, path)
    check_size(path, (matrix.rows, matrix.columns), MAX_ITEM_BYTES, matrix.types_offset)
    layout, size = _choose_layout(matrix)
    if matrix.offset + size > matrix.limit and matrix.row_bytes > spec.WORD_BYTES:
        # Development versions of the container padded rows of bits to words, like earlier formats.
        return _choose_layout(replace(matrix, row_bytes=spec.WORD_BYTES))
    return layout, size


def _check_types(matrix: Matrix, path: str) -> None:
    """Raise TensorFormatError if matrix type, data type and shape do not match."""
    matrix_type, rows, columns = matrix.matrix_type, matrix.rows, matrix.columns

    def error(field: str, actual: str, expected: str) -> TensorFormatError:
        hint = "the header is corrupt, or of an unsupported version"
        return TensorFormatError(path, field, actual, expected, hint, matrix.types_offset)

    if matrix_type not in spec.MATRIX_TYPES:
        expected = f"one of {', '.join(sorted(spec.MATRIX_TYPES))}"
        raise error("the matrix type", repr(matrix_type), expected)
    data_types = spec.MATRIX_TYPES[matrix_type].data_types
    if matrix.data_type not in data_types:
        field, expected = f"the data type of a {matrix_type} matrix", ", ".join(sorted(data_types))
        raise error(field, repr(matrix.data_type), f"one of {expected}")
    required = spec.find_required_shape(matrix_type, rows, columns)
    if matrix_type == "UNIT_VECTOR" and not 0 <= matrix.seed < rows:
        required = f"more rows than the active index {matrix.seed}"
    if required:
        raise error(f"the shape of a {matrix_type}", f"{rows} rows and {columns} columns", required)


def _choose_layout(matrix: Matrix) -> tuple[Layout, int]:
    """Return the layout of the stored values and their size in bytes."""
    element, offset = spec.ELEMENTS[matrix.data_type], matrix.offset
    properties = spec.MATRIX_TYPES[matrix.matrix_type]
    shape = (1, matrix.rows) if matrix.is_vector else (matrix.rows, matrix.columns)
    # A transposed vector is a matrix with one row.
    is_flat = matrix.is_vector and not matrix.is_transposed
    lengths = shape[1:] if is_flat else shape
    if properties.stored == "none":
        return Diagonal(lengths, shift=matrix.seed if matrix.is_vector else 0), 0
    if properties.stored == "triangle" or matrix.data_type == spec.BIT:
        rows = _build_rows(matrix, shape, element)
        layout: Any = Bits(rows) if matrix.data_type == spec.BIT else Packed(rows, element)
        if properties.mirror_sign:
            layout = Mirrored(Packed(rows, element), properties.mirror_sign)
        return OnlyRow(layout) if is_flat else layout, rows.nbytes
    if properties.stored == "diagonal":
        dense = Dense(lengths[:1], element, offset)
        return Diagonal(lengths, dense), dense.stop - offset
    if matrix.data_type == spec.COMPLEX_FLOAT16:
        dense = Dense((2, *lengths), element, offset)
        return ComplexPlanes(dense), dense.stop - offset
    dense = Dense(lengths, element, offset)
    return dense, dense.stop - offset


def _build_rows(matrix: Matrix, shape: tuple[int, int], element: Element) -> Rows:
    bits = 1 if matrix.data_type == spec.BIT else 8 * element.stored.itemsize
    properties = spec.MATRIX_TYPES[matrix.matrix_type]
    diagonal = None
    if properties.stored == "triangle":
        diagonal = 0 if matrix.has_diagonal or properties.mirror_sign else 1
    return Rows(*shape, bits, matrix.row_bytes, matrix.offset, diagonal)
