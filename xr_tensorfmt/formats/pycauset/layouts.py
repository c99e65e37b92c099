"""How the values of each type of matrix lie in a file."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Plain, StoredDtype
from xr_tensorfmt.core.header import WIDEST, check_size
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.views import OnlyRow, transposed
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.pycauset.bits import Bits
from xr_tensorfmt.formats.pycauset.matrices import (
    ComplexPlanes,
    Conjugated,
    Diagonal,
    Ones,
    Scaled,
    UnitVector,
)
from xr_tensorfmt.formats.pycauset.rows import PaddedRows, TriangleRows
from xr_tensorfmt.formats.pycauset.spec import (
    BIT,
    COMPLEX_FLOAT16,
    DATA_TYPES,
    DTYPES,
    MIRROR_SIGNS,
    TRIANGLES,
    WORD_BYTES,
    Matrix,
)
from xr_tensorfmt.formats.pycauset.triangle import Mirrored, Triangle


def sized_layout(matrix: Matrix, path: str) -> tuple[Layout, int]:
    """The stored values and their bytes, whether or not the file is long enough."""
    _check_types(matrix, path)
    _check_shape(matrix, path)
    check_size(path, (matrix.rows, matrix.columns), WIDEST, matrix.stated_at)
    layout, size = _layout(matrix)
    if matrix.offset + size > matrix.limit and matrix.bit_row_bytes > WORD_BYTES:
        # Unreleased containers pad rows of bits as the versions before them.
        return _layout(replace(matrix, bit_row_bytes=WORD_BYTES))
    return layout, size


def check_complete(matrix: Matrix, size: int, path: str) -> None:
    """Refuse a file whose values take more bytes than there are."""
    if matrix.offset + size > matrix.limit:
        raise TensorFormatError(
            path,
            f"the payload of {matrix.rows} x {matrix.columns} {matrix.matrix_type} values of type "
            f"{matrix.data_type}",
            f"{max(0, matrix.limit - matrix.offset)} bytes",
            f"{size} bytes",
            "the file was cut off or never written completely, or its header is damaged",
            offset=matrix.offset,
        )


def viewed(layout: Layout, matrix: Matrix) -> Layout:
    """What the file says to do with the stored values: transpose, scale, conjugate."""
    if matrix.is_transposed and not matrix.is_vector:
        layout = transposed(layout, (1, 0))
    if matrix.scalar != 1:
        layout = Scaled(layout, matrix.scalar)
    if matrix.is_conjugated and layout.dtype.kind == "c":
        layout = Conjugated(layout)
    return layout


def stored_dtype(matrix: Matrix, layout: Layout) -> np.dtype[np.generic] | StoredDtype:
    """The dtype in the file, for ``encoding["dtype"]``; values of another are never cut to it."""
    dtype = np.dtype(DTYPES.get(matrix.data_type, "V1"))
    if dtype == layout.dtype:
        return dtype
    return StoredDtype(matrix.data_type.lower(), layout.dtype)


def _check_types(matrix: Matrix, path: str) -> None:
    for name, found, known in (
        ("the matrix type", matrix.matrix_type, DATA_TYPES),
        (
            f"the data type of a {matrix.matrix_type} matrix",
            matrix.data_type,
            DATA_TYPES.get(matrix.matrix_type, ()),
        ),
    ):
        if found not in known:
            raise TensorFormatError(
                path,
                name,
                repr(found),
                "one of " + ", ".join(sorted(known)),
                "the header is damaged, or of a version that is not known",
                offset=matrix.stated_at,
            )


def _check_shape(matrix: Matrix, path: str) -> None:
    expected = None
    if matrix.matrix_type in (*TRIANGLES, "DIAGONAL") and matrix.rows != matrix.columns:
        expected = "as many rows as columns"
    elif matrix.is_vector and matrix.columns != 1:
        expected = "one column"
    elif matrix.matrix_type == "UNIT_VECTOR" and not 0 <= matrix.seed < matrix.rows:
        expected = f"more rows than the active index {matrix.seed}"
    if expected is not None:
        raise TensorFormatError(
            path,
            f"the shape of a {matrix.matrix_type}",
            f"{matrix.rows} rows and {matrix.columns} columns",
            expected,
            "the header is damaged",
            offset=matrix.stated_at,
        )


def _layout(matrix: Matrix) -> tuple[Layout, int]:
    shape = (matrix.rows, matrix.columns)
    if matrix.is_vector:
        shape = (1, matrix.rows)
    # A transposed vector is a matrix of one row.
    is_flat = matrix.is_vector and not matrix.is_transposed
    lengths = shape[1:] if is_flat else shape
    if matrix.matrix_type == "IDENTITY":
        return Diagonal(shape, Ones((min(shape),))), 0
    if matrix.matrix_type == "UNIT_VECTOR":
        return UnitVector(lengths, matrix.seed), 0
    if matrix.matrix_type == "DIAGONAL":
        element = _element(matrix)
        size = matrix.rows * element.stored.itemsize
        return Diagonal(shape, Dense((matrix.rows,), element, matrix.offset)), size
    if matrix.matrix_type in TRIANGLES:
        return _triangle(matrix)
    if matrix.data_type == BIT:
        stride = -(-shape[1] // (8 * matrix.bit_row_bytes)) * matrix.bit_row_bytes
        bits = Bits(PaddedRows(*shape, stride, matrix.offset))
        return OnlyRow(bits) if is_flat else bits, shape[0] * stride
    return _dense(matrix, lengths)


def _triangle(matrix: Matrix) -> tuple[Layout, int]:
    sign = MIRROR_SIGNS.get(matrix.matrix_type)
    is_bits = matrix.data_type == BIT
    rows = TriangleRows(
        matrix.rows,
        diagonal=sign is not None or matrix.has_diagonal,
        bits=1 if is_bits else 8 * _element(matrix).stored.itemsize,
        unit=matrix.triangle_row_bytes,
        offset=matrix.offset,
    )
    if is_bits:
        return Bits(rows), rows.nbytes
    triangle = Triangle(rows, _element(matrix))
    return triangle if sign is None else Mirrored(triangle, sign), rows.nbytes


def _dense(matrix: Matrix, lengths: tuple[int, ...]) -> tuple[Layout, int]:
    count = prod(lengths)
    if matrix.data_type == COMPLEX_FLOAT16:
        half = Plain(np.dtype(DTYPES["FLOAT16"]))
        plane = count * half.stored.itemsize
        real, imaginary = (Dense(lengths, half, matrix.offset + i * plane) for i in range(2))
        return ComplexPlanes(real, imaginary), 2 * plane
    element = _element(matrix)
    return Dense(lengths, element, matrix.offset), count * element.stored.itemsize


def _element(matrix: Matrix) -> Plain:
    return Plain(np.dtype(DTYPES[matrix.data_type]))
