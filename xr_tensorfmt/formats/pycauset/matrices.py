"""Layouts of the matrix types: diagonals, and views of stored rows and planes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xr_tensorfmt.core.chunk_grid import contiguous_chunk
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.header import MAX_ITEM_BYTES, check_size
from xr_tensorfmt.core.layout import EncodedBatch, Layout, WritableLayout
from xr_tensorfmt.core.selection import Points, Selection, array_to_indices
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import Composite, InMemory, Part, View
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.pycauset import spec
from xr_tensorfmt.formats.pycauset.packed import Bits, Packed, Rows
from xr_tensorfmt.formats.pycauset.spec import Matrix


@dataclass(frozen=True)
class Diagonal(Composite):
    """Matrix, or its first row, with one nonzero diagonal from column `shift`, 1 if not stored."""

    shape: tuple[int, ...]
    values: Dense | None = None
    shift: int = 0

    dtype = np.dtype(np.float64)

    def split(self, selection: Selection) -> Iterator[Part]:
        """Yield the selected part of the diagonal."""
        rows, columns = (np.zeros(1, dtype=np.int64), *selection.mesh)[-2:]
        target = np.nonzero(rows + self.shift == columns)
        numbers = np.broadcast_to(rows, selection.shape)[target]
        if numbers.size:
            stored = self.values or InMemory(np.broadcast_to(1.0, (min(self.shape),)))
            yield Part(stored, Points(stored.shape, (numbers,)), target)

    @property
    def layout_to_validate(self) -> Layout | None:
        """The diagonal, if it is stored."""
        return self.values


@dataclass(frozen=True)
class Mirrored(View):
    """Square matrix whose lower triangle is the upper one times `sign`."""

    inner: Packed
    sign: int

    def select(self, selection: Selection) -> Sequence[Selection]:
        """Return the selection, and its mirror image if elements are below the diagonal."""
        rows, columns = selection.index_arrays
        if isinstance(selection, Points):
            return (Points(self.shape, (np.minimum(rows, columns), np.maximum(rows, columns))),)
        if rows[-1] > columns[0]:
            return selection, selection.transpose((1, 0))
        return (selection,)

    def apply(self, selection: Selection, *values: Array) -> Array:
        """Copy elements below the diagonal from their mirror image."""
        rows, columns = selection.mesh
        upper, image = values[0], values[-1].T
        if len(values) > 1 or isinstance(selection, Points):
            np.copyto(upper, image if self.sign > 0 else 0 - image, where=rows > columns)
        return upper


@dataclass(frozen=True)
class OnlyRow(View, WritableLayout):
    """Vector stored as a matrix with one row."""

    inner: WritableLayout

    @property
    def shape(self) -> tuple[int, ...]:
        """The columns."""
        return self.inner.shape[1:]

    def select(self, selection: Selection) -> Sequence[Selection]:
        """Return the selection in the only row."""
        return (selection.prepend(0, 1),)

    def apply(self, selection: Selection, *values: Array) -> Array:
        """Drop the axis of the row."""
        return values[0].reshape(selection.shape)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return the columns of a chunk of the inner layout."""
        return self.inner.chunk_shape(target)[1:]

    def encode(self, selection: Selection, values: Array) -> Iterator[EncodedBatch]:
        """Encode the row."""
        return self.inner.encode(selection.prepend(0, 1), values[np.newaxis])

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

    dtype = np.dtype(np.complex64)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of either part."""
        return self.inner.shape[1:]

    def select(self, selection: Selection) -> Sequence[Selection]:
        """Return the selections in both planes."""
        return selection.prepend(0, 2), selection.prepend(1, 2)

    def apply(self, selection: Selection, *values: Array) -> Array:
        """Combine real and imaginary parts."""
        combined = np.empty(selection.shape, dtype=self.dtype)
        combined.real, combined.imag = (plane.reshape(selection.shape) for plane in values)
        return combined

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return a chunk of whole rows."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)


@dataclass(frozen=True)
class BlockMatrix(Composite):
    """Matrix assembled from blocks in other files."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blocks: tuple[tuple[Source, Layout, tuple[int, int]], ...]  # with the first row and column

    layout_to_validate = None  # the check of PyCauset reads the stored elements of the blocks

    def split(self, selection: Selection) -> Iterator[Part]:
        """Yield the selected parts of blocks."""
        for source, layout, corner in self.blocks:
            shape = layout.shape
            corners = zip(selection.index_arrays, corner, strict=True)
            moved = [indices - low for indices, low in corners]
            target: Any
            if isinstance(selection, Points):
                inside = [(m >= 0) & (m < length) for m, length in zip(moved, shape, strict=True)]
                target = np.flatnonzero(np.logical_and(*inside))
                inner: Selection = Points(shape, tuple(indices[target] for indices in moved))
            else:
                axes = zip(moved, shape, strict=True)
                target = tuple(slice(*m.searchsorted((0, length)).tolist()) for m, length in axes)
                parts = zip(moved, target, strict=True)
                inner = Selection(shape, tuple(array_to_indices(m[part]) for m, part in parts))
            if inner.size:
                yield Part(layout, inner, target, source)


def build_layout(matrix: Matrix, path: str) -> tuple[Layout, int]:
    """Return the layout of the stored values and their size, which the file may not have."""
    _check_types(matrix, path)
    check_size(path, (matrix.rows, matrix.columns), MAX_ITEM_BYTES, matrix.types_offset)
    element, offset = spec.ELEMENTS[matrix.data_type], matrix.offset
    properties = spec.MATRIX_TYPES[matrix.matrix_type]
    shape = (1, matrix.rows) if matrix.is_vector else (matrix.rows, matrix.columns)
    # A transposed vector is a matrix with one row.
    is_flat = matrix.is_vector and not matrix.is_transposed
    lengths = shape[1:] if is_flat else shape
    if properties.stored == "none":
        return Diagonal(lengths, shift=matrix.seed if matrix.is_vector else 0), 0
    if properties.stored == "triangle" or matrix.data_type == spec.BIT:
        bits = 1 if matrix.data_type == spec.BIT else 8 * element.stored.itemsize
        diagonal = None
        if properties.stored == "triangle":
            diagonal = 0 if matrix.has_diagonal or properties.mirror_sign else 1
        rows = Rows(*shape, bits, matrix.row_bytes, offset, diagonal)
        layout: Any = Bits(rows) if matrix.data_type == spec.BIT else Packed(rows, element)
        if properties.mirror_sign:
            layout = Mirrored(layout, properties.mirror_sign)
        return OnlyRow(layout) if is_flat else layout, rows.nbytes
    if properties.stored == "diagonal":
        dense = Dense(lengths[:1], element, offset)
        return Diagonal(shape, dense), dense.stop - offset
    if matrix.data_type == spec.COMPLEX_FLOAT16:
        dense = Dense((2, *lengths), element, offset)
        return ComplexPlanes(dense), dense.stop - offset
    dense = Dense(lengths, element, offset)
    return dense, dense.stop - offset


def _check_types(matrix: Matrix, path: str) -> None:
    """Raise TensorFormatError if matrix type, data type and shape do not match."""
    matrix_type, rows, columns = matrix.matrix_type, matrix.rows, matrix.columns

    def check(field: str, actual: str, expected: str, holds: bool) -> None:
        if not holds:
            hint = "the header is corrupt, or of an unsupported version"
            raise TensorFormatError(path, field, actual, expected, hint, matrix.types_offset)

    types = ", ".join(sorted(spec.MATRIX_TYPES))
    check("the matrix type", repr(matrix_type), f"one of {types}", matrix_type in spec.MATRIX_TYPES)
    data_types = spec.MATRIX_TYPES[matrix_type].data_types
    field, expected = f"the data type of a {matrix_type} matrix", ", ".join(sorted(data_types))
    is_known = matrix.data_type in data_types
    check(field, repr(matrix.data_type), f"one of {expected}", is_known)
    required = spec.find_required_shape(matrix_type, rows, columns)
    if matrix_type == "UNIT_VECTOR" and not 0 <= matrix.seed < rows:
        required = f"more rows than the active index {matrix.seed}"
    actual = f"{rows} rows and {columns} columns"
    check(f"the shape of a {matrix_type}", actual, required, not required)
