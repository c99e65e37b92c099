"""How the values of a Matrix lie in its file, as Layouts. The size of the file is checked first."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from xr_tensorfmt.elements import Plain, StoredDtype
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.limits import WIDEST, check_size
from xr_tensorfmt.formats.pycauset.matrix import BIT, COMPLEX_FLOAT16, DATA_TYPES, DTYPES, Matrix
from xr_tensorfmt.layouts import (
    Bits,
    ComplexPlanes,
    Conjugated,
    Dense,
    Diagonal,
    Layout,
    Mirrored,
    Ones,
    OnlyRow,
    PaddedRows,
    Scaled,
    Triangle,
    TriangleRows,
    UnitVector,
    transposed,
)

_SQUARE = ("CAUSAL", "TRIANGULAR_INTEGER", "TRIANGULAR_FLOAT", "SYMMETRIC", "ANTISYMMETRIC")
_HALF = "<f2"


def stored_layout(matrix: Matrix, path: str) -> Layout:
    """The values as they lie in the file, before transposition, scale and conjugation.

    Parameters
    ----------
    matrix : Matrix
        What the file says.
    path : str
        The file, for errors.

    Returns
    -------
    Layout

    Raises
    ------
    TensorFormatError
        The types do not go together, the shape does not fit them, or the file is too short.
    """
    layout, size = sized_layout(matrix, path)
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
    return layout


_WORD = 8


def sized_layout(matrix: Matrix, path: str) -> tuple[Layout, int]:
    """The stored values, whether or not the file is long enough.

    Parameters
    ----------
    matrix : Matrix
        What the file says, or is to say.
    path : str
        The file, for errors.

    Returns
    -------
    layout : Layout
        How they lie.
    size : int
        Bytes that they need from the payload's first one on.

    Raises
    ------
    TensorFormatError
        The types do not go together, or the shape does not fit them.
    """
    _check_types(matrix, path)
    _check_shape(matrix, path)
    check_size(path, (matrix.rows, matrix.columns), WIDEST, matrix.fields)
    layout, size = _layout(matrix)
    if matrix.offset + size > matrix.limit and matrix.bit_row > _WORD:
        # Unreleased containers pad rows of bits as the generations before them.
        return _layout(replace(matrix, bit_row=_WORD))
    return layout, size


def view_of(layout: Layout, matrix: Matrix) -> Layout:
    """What the file says to do with the stored values: transpose, scale, conjugate.

    Parameters
    ----------
    layout : Layout
        The stored values.
    matrix : Matrix
        What the file says.

    Returns
    -------
    Layout
    """
    if matrix.transposed and not matrix.is_vector:
        layout = transposed(layout, (1, 0))
    if matrix.scalar != 1:
        layout = Scaled(layout, matrix.scalar)
    if matrix.conjugated and layout.dtype.kind == "c":
        layout = Conjugated(layout)
    return layout


def stored_dtype(matrix: Matrix, layout: Layout) -> np.dtype[np.generic] | StoredDtype:
    """What the file holds, for ``encoding["dtype"]``; values of another type are never cut to it.

    Parameters
    ----------
    matrix : Matrix
        What the file says.
    layout : Layout
        The values.

    Returns
    -------
    dtype or StoredDtype
    """
    dtype = np.dtype(DTYPES.get(matrix.data_type, "V1"))
    if dtype == layout.dtype:
        return dtype
    return StoredDtype(matrix.data_type.lower(), layout.dtype)


def _check_types(matrix: Matrix, path: str) -> None:
    for field, found, known in (
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
                field,
                repr(found),
                "one of " + ", ".join(sorted(known)),
                "the header is damaged, or of a version that is not known",
                offset=matrix.fields,
            )


def _check_shape(matrix: Matrix, path: str) -> None:
    expected = None
    if matrix.matrix_type in (*_SQUARE, "DIAGONAL") and matrix.rows != matrix.columns:
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
            offset=matrix.fields,
        )


def _layout(matrix: Matrix) -> tuple[Layout, int]:
    """The layout, and the bytes that it needs."""
    shape = (matrix.rows, matrix.columns)
    if matrix.is_vector:
        shape = (1, matrix.rows)
    if matrix.matrix_type == "IDENTITY":
        return Diagonal(shape, Ones((min(shape),))), 0
    if matrix.matrix_type == "UNIT_VECTOR":
        return UnitVector(shape if matrix.transposed else shape[1:], matrix.seed), 0
    if matrix.matrix_type == "DIAGONAL":
        element = Plain(np.dtype(DTYPES[matrix.data_type]))
        size = matrix.rows * element.stored.itemsize
        return Diagonal(shape, Dense((matrix.rows,), element, matrix.offset)), size
    if matrix.matrix_type in _SQUARE:
        return _triangle(matrix)
    if matrix.data_type == BIT:
        stride = -(-shape[1] // (8 * matrix.bit_row)) * matrix.bit_row
        bits = Bits(PaddedRows(*shape, stride, matrix.offset))
        is_flat = matrix.is_vector and not matrix.transposed
        return OnlyRow(bits) if is_flat else bits, shape[0] * stride
    return _dense(matrix, shape if not matrix.is_vector or matrix.transposed else shape[1:])


def _triangle(matrix: Matrix) -> tuple[Layout, int]:
    if matrix.data_type == BIT:
        rows = TriangleRows(matrix.rows, False, 1, matrix.triangle_row, matrix.offset)
        return Bits(rows), rows.nbytes
    element = Plain(np.dtype(DTYPES[matrix.data_type]))
    mirrored = matrix.matrix_type in ("SYMMETRIC", "ANTISYMMETRIC")
    diagonal = mirrored or matrix.has_diagonal
    rows = TriangleRows(
        matrix.rows, diagonal, 8 * element.stored.itemsize, matrix.triangle_row, matrix.offset
    )
    triangle = Triangle(rows, element)
    if mirrored:
        return Mirrored(triangle, 1 if matrix.matrix_type == "SYMMETRIC" else -1), rows.nbytes
    return triangle, rows.nbytes


def _dense(matrix: Matrix, lengths: tuple[int, ...]) -> tuple[Layout, int]:
    count = prod(lengths)
    if matrix.data_type == COMPLEX_FLOAT16:
        half = Plain(np.dtype(_HALF))
        planes = (Dense(lengths, half, matrix.offset + 2 * count * part) for part in range(2))
        return ComplexPlanes(*planes), 4 * count
    element = Plain(np.dtype(DTYPES[matrix.data_type]))
    return Dense(lengths, element, matrix.offset), count * element.stored.itemsize
