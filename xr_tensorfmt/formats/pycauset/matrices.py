"""Layouts of the matrix types: diagonals, mirrored triangles, planes and blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.header import MAX_ITEM_BYTES, check_size
from xr_tensorfmt.core.layout import Dense, Gathered, InMemory, Layout, Part, Transposed, put_at
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.pycauset import spec
from xr_tensorfmt.formats.pycauset.packed import Packed, Rows
from xr_tensorfmt.formats.pycauset.spec import Matrix


def build_diagonal(shape: tuple[int, ...], stored: Dense | None = None, shift: int = 0) -> Gathered:
    """Return a matrix, or its first row, with a diagonal from column `shift`, 1 if not stored."""
    gather = partial(_gather_diagonal, stored, shift)
    inner = () if stored is None else (stored,)
    return Gathered(shape, np.dtype(np.float64), gather, inner)


def _gather_diagonal(stored: Dense | None, shift: int, selection: Selection) -> Iterator[Part]:
    rows, columns = (np.zeros(1, dtype=np.int64), *selection.mesh)[-2:]
    target = np.nonzero(rows + shift == columns)
    numbers = np.broadcast_to(rows, selection.shape)[target]
    if numbers.size:
        ones = np.broadcast_to(1.0, (min(selection.tensor_shape),))
        values: Layout = InMemory(ones) if stored is None else stored
        points = Selection(values.shape, (numbers,), is_pointwise=True)
        yield Part(values, points, put_at(target))


def build_mirrored(stored: Layout, sign: int) -> Gathered:
    """Return a square matrix whose lower triangle is the stored upper one times `sign`."""
    gather = partial(_gather_mirrored, stored, sign)
    return Gathered(stored.shape, stored.dtype, gather, (stored,))


def _gather_mirrored(stored: Layout, sign: int, selection: Selection) -> Iterator[Part]:
    yield Part(stored, selection)
    rows, columns = selection.mesh
    if rows.max() > columns.min():
        yield Part(Transposed(stored, (1, 0)), selection, partial(_mirror, sign, rows > columns))


def _mirror(sign: int, is_below: NDArray[np.bool_], values: Array, image: Array) -> None:
    np.copyto(values, image if sign > 0 else 0 - image, where=is_below)


def build_complex(real: Dense, imaginary: Dense) -> Gathered:
    """Return complex numbers that are stored as all real parts, then all imaginary parts."""
    planes = real, imaginary
    return Gathered(real.shape, np.dtype(np.complex64), partial(_gather_planes, planes), planes)


def _gather_planes(planes: tuple[Dense, Dense], selection: Selection) -> Iterator[Part]:
    for number, plane in enumerate(planes):
        yield Part(plane, selection, partial(_put_plane, number))


def _put_plane(number: int, values: Array, stored: Array) -> None:
    values.view(np.float32).reshape(*values.shape, 2)[..., number] = stored


@dataclass(frozen=True)
class BlockMatrix:
    """Blocks of a matrix in other files."""

    blocks: tuple[tuple[Source, Layout, tuple[int, int]], ...]  # with the first row and column

    def build_layout(self, shape: tuple[int, int]) -> Gathered:
        """Return the layout. The check of PyCauset reads the stored elements of the blocks."""
        dtype = np.result_type(*(layout.dtype for _, layout, _ in self.blocks))
        return Gathered(shape, dtype, self.gather)

    def gather(self, selection: Selection) -> Iterator[Part]:
        """Yield the selected parts of blocks."""
        for source, layout, corner in self.blocks:
            inner, target = selection.crop(corner, layout.shape)
            yield Part(layout, inner, put_at(target), source)


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
        return build_diagonal(lengths, shift=matrix.seed if matrix.is_vector else 0), 0
    if properties.stored == "triangle" or matrix.data_type == spec.BIT:
        bits = 1 if matrix.data_type == spec.BIT else 8 * element.stored.itemsize
        diagonal = None
        if properties.stored == "triangle":
            diagonal = 0 if matrix.has_diagonal or properties.mirror_sign else 1
        rows = Rows(*shape, bits, matrix.row_bytes, offset, diagonal)
        layout: Layout = Packed(rows, element, is_flat)
        if properties.mirror_sign:
            layout = build_mirrored(layout, properties.mirror_sign)
        return layout, rows.nbytes
    if properties.stored == "diagonal":
        dense = Dense(lengths[:1], element, offset)
        return build_diagonal(shape, dense), dense.stop - offset
    if matrix.data_type == spec.COMPLEX_FLOAT16:
        real = Dense(lengths, element, offset)
        imaginary = Dense(lengths, element, real.stop)
        return build_complex(real, imaginary), imaginary.stop - offset
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
