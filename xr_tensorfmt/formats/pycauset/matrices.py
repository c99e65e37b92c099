"""Layouts of the matrix types."""

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
    EncodedBatch,
    Extents,
    Integers,
    Layout,
    Selection,
    Source,
    TensorFormatError,
    WritableLayout,
    array_to_indices,
    check_size,
)
from xr_tensorfmt.formats.pycauset import spec
from xr_tensorfmt.formats.pycauset.bits import Bits
from xr_tensorfmt.formats.pycauset.packed import Packed, PartlyStored
from xr_tensorfmt.formats.pycauset.rows import Rows
from xr_tensorfmt.formats.pycauset.spec import Matrix
from xr_tensorfmt.formats.pycauset.views import ComplexPlanes, OnlyRow


@dataclass(frozen=True)
class Diagonal(PartlyStored):
    """Matrix or vector with nonzero elements on one diagonal only.

    The diagonal begins in column `shift`. Its elements are 1 unless they are stored. A vector is
    the first row of a matrix.
    """

    lengths: tuple[int, ...]
    values: WritableLayout | None = None
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
        """Bytes of the selected part of the diagonal."""
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

    def encode(self, selection: Selection, values: Array) -> Iterator[EncodedBatch]:
        """Encode the diagonal, if it is stored."""
        self.check_implied(selection, values)
        part, indices = self._select_part(selection)
        if self.values and part.size:
            yield from self.values.encode(part, values[indices])

    def check_implied(self, selection: Selection, values: Array) -> None:
        """Check zeros off the diagonal, and ones on the diagonal if it is not stored."""
        wrong, (_, indices) = values != 0, self._select_part(selection)
        wrong[indices] = False if self.values else values[indices] != 1
        implied = "a diagonal matrix has 0"
        if len(self.lengths) == 1:
            implied = f"a unit vector has 1 at {self.shift}, 0 elsewhere"
        elif not self.values:
            implied = "an identity matrix has 1 on its diagonal, 0 elsewhere"
        self.refuse_first(wrong, implied, selection, values)


@dataclass(frozen=True)
class Mirrored(Packed):
    """Square matrix with a lower triangle that mirrors the upper one."""

    sign: int

    def extents(self, selection: Selection) -> Extents:
        """Return the stored bytes of the selection and of its mirror image."""
        mirror = selection.transpose((1, 0))
        return Extents.union([super().extents(selection), super().extents(mirror)])

    # A part cannot be written alone, because its mirror image may be outside.
    stored_element = WritableLayout.stored_element

    def read(self, source: Source, selection: Selection) -> Array:
        """Read the stored part. Elements below the diagonal come from their mirror image."""
        values = super().read(source, selection)
        rows, columns = selection.index_arrays
        if values.size and rows[-1] > columns[0]:
            image = super().read(source, selection.transpose((1, 0))).T
            below = rows[:, np.newaxis] > columns
            np.copyto(values, image if self.sign > 0 else 0 - image, where=below)
        return values

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read points below the diagonal from their mirror image."""
        rows, columns = points
        mirrored = (np.minimum(rows, columns), np.maximum(rows, columns))
        values = super().read_points(source, mirrored)
        if self.sign < 0:
            np.subtract(0, values, out=values, where=rows > columns)
        return values

    def check_implied(self, selection: Selection, values: Array) -> None:
        """Do nothing. `compare` checks the elements below the diagonal."""

    def compare(self, source: Source, selection: Selection, values: Array) -> None:
        """Raise UnrepresentableValueError if values are not mirror images of stored elements."""
        rows, columns = selection.index_arrays
        # Columns after the last row are above the diagonal.
        columns = columns[: np.searchsorted(columns, rows[-1], side="right")]
        if not columns.size:
            return
        part = Selection(selection.tensor_shape, (selection.indices[0], array_to_indices(columns)))
        image = self.sign * super().read(source, part.transpose((1, 0))).T
        values = values[:, : columns.size]
        wrong = (image != values) & ((image == image) | (values == values))
        wrong &= columns <= rows[:, np.newaxis]
        position = int(wrong.argmax())
        mirrored = f"its image {part.full_index(position)[::-1]} requires {image.flat[position]}"
        self.refuse_first(wrong, mirrored, part, values)


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
    matrix_type, data_type, types = matrix.matrix_type, matrix.data_type, spec.MATRIX_TYPES
    if matrix_type not in types:
        field, actual = "the matrix type", repr(matrix_type)
        expected = f"one of {', '.join(sorted(types))}"
    elif data_type not in types[matrix_type].data_types:
        field, actual = f"the data type of a {matrix_type} matrix", repr(data_type)
        expected = f"one of {', '.join(sorted(types[matrix_type].data_types))}"
    else:
        field = f"the shape of a {matrix_type}"
        actual = f"{matrix.rows} rows and {matrix.columns} columns"
        expected = spec.find_shape_fault(matrix_type, matrix.rows, matrix.columns)
        if matrix_type == "UNIT_VECTOR" and not 0 <= matrix.seed < matrix.rows:
            expected = f"more rows than the active index {matrix.seed}"
    if expected:
        hint = "the header is corrupt, or of an unsupported version"
        raise TensorFormatError(path, field, actual, expected, hint, offset=matrix.types_offset)


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
        layout = Bits(rows) if matrix.data_type == spec.BIT else Packed(rows, element)
        if properties.mirror_sign:
            layout = Mirrored(rows, element, properties.mirror_sign)
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
    properties, diagonal = spec.MATRIX_TYPES[matrix.matrix_type], None
    if properties.stored == "triangle":
        diagonal = 0 if matrix.has_diagonal or properties.mirror_sign else 1
    return Rows(*shape, bits, matrix.row_bytes, matrix.offset, diagonal)
