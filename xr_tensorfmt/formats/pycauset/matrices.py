"""The matrix and data types of PyCauset, the parsed header of any version, and the layouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from zipfile import ZipInfo

import numpy as np

from xr_tensorfmt.core.elements import Array, Boolean, Element, Plain
from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.core.gathered import Gathered
from xr_tensorfmt.core.header import MAX_ITEM_BYTES, MAX_TENSOR_BYTES, Fields, check_size
from xr_tensorfmt.core.layout import Dense, InMemory, Layout, Transposed
from xr_tensorfmt.core.selection import Selection, array_to_indices
from xr_tensorfmt.core.source import Source, Step, put_at
from xr_tensorfmt.errors import Finding
from xr_tensorfmt.formats.pycauset import HEADER_BYTES
from xr_tensorfmt.formats.pycauset.packed import Packed

MIN_PAYLOAD_BYTES = 8
# Row alignment of triangles and, before R1, of bits.
WORD_BYTES = 8
# Row alignment of dense bits in R1 since 2026-01-05.
R1_BIT_ROW_BYTES = 64

# NumPy dtypes of the data types, if NumPy has the type.
DTYPES = {
    **{f"INT{8 * size}": f"<i{size}" for size in (1, 2, 4, 8)},
    **{f"UINT{8 * size}": f"<u{size}" for size in (1, 2, 4, 8)},
    **{f"FLOAT{8 * size}": f"<f{size}" for size in (2, 4, 8)},
    **{f"COMPLEX_FLOAT{4 * size}": f"<c{size}" for size in (8, 16)},
}
# Stored elements by data type. Real and imaginary halves of COMPLEX_FLOAT16 are apart.
STORED_ELEMENTS: Mapping[str, Element] = {
    "BIT": Boolean(),
    "COMPLEX_FLOAT16": Plain(np.dtype("<f2")),
    **{name: Plain(np.dtype(code)) for name, code in DTYPES.items()},
}

_INTEGERS = tuple(name for name in DTYPES if "INT" in name)
_DOUBLE = ("FLOAT64",)
# The stored part, and the data types, of matrix types.
MATRIX_TYPES: Mapping[str, tuple[str, Sequence[str]]] = {
    "CAUSAL": ("triangle", ("BIT",)),
    "TRIANGULAR_INTEGER": ("triangle", _INTEGERS),
    "TRIANGULAR_FLOAT": ("triangle", ("FLOAT16", "FLOAT32", "FLOAT64")),
    "DENSE_FLOAT": ("all", tuple(STORED_ELEMENTS)),
    "INTEGER": ("all", _INTEGERS),
    "VECTOR": ("all", tuple(STORED_ELEMENTS)),
    "UNIT_VECTOR": ("none", _DOUBLE),
    "IDENTITY": ("none", _DOUBLE),
    "DIAGONAL": ("diagonal", _DOUBLE),
    "SYMMETRIC": ("triangle", _DOUBLE),
    "ANTISYMMETRIC": ("triangle", _DOUBLE),
    "BLOCK": ("blocks", ()),
}
VECTORS = ("VECTOR", "UNIT_VECTOR")
# Factors of the mirror image below the diagonal.
_MIRROR_SIGNS = {"SYMMETRIC": 1, "ANTISYMMETRIC": -1}


def find_required_shape(matrix_type: str, shape: tuple[int, ...]) -> str:
    """Return the shape that a matrix type requires, or an empty string if the shape fits."""
    rank = 1 if matrix_type in VECTORS else 2
    if len(shape) != rank:
        return "one dimension" if rank == 1 else "two dimensions"
    is_square = MATRIX_TYPES[matrix_type][0] in ("triangle", "diagonal")
    return "a square matrix" if is_square and shape[0] != shape[1] else ""


@dataclass(frozen=True)
class Matrix:
    """Parsed header of a file: a matrix, or a vector with one column."""

    matrix_type: str
    data_type: str
    rows: int
    columns: int
    version: str = "r1"
    offset: int = HEADER_BYTES
    limit: int = MAX_TENSOR_BYTES  # the values are in the bytes [offset, limit)
    types_offset: int = 0  # of type and shape
    seed: int = 0
    scalar: complex = 1.0
    is_transposed: bool = False
    is_conjugated: bool = False
    row_bytes: int = 0  # rows of bits and of triangles are padded to a multiple, by default of R1
    has_diagonal: bool = False
    metadata: Fields = field(default_factory=partial(Fields, "", {}))  # as in R1
    encoding: Mapping[str, Any] = field(default_factory=dict)  # entries of this version only
    payload_length: int | None = None  # size of the values according to the header
    findings: tuple[Finding, ...] = ()
    min_stop: int = 0  # the file does not end before
    members: Sequence[ZipInfo] = ()

    @property
    def is_vector(self) -> bool:
        """Whether the file holds a vector, transposed or not."""
        return self.matrix_type in VECTORS

    @property
    def stored(self) -> str:
        """The stored part of the values, or an empty string if the type is unknown."""
        return MATRIX_TYPES.get(self.matrix_type, ("", ()))[0]


def build_layout(matrix: Matrix, path: str) -> tuple[Layout, int]:
    """Return the layout of the stored values and their size, which the file may not have."""
    _check_types(matrix, path)
    check_size(path, (matrix.rows, matrix.columns), MAX_ITEM_BYTES, matrix.types_offset)
    element, offset, stored = STORED_ELEMENTS[matrix.data_type], matrix.offset, matrix.stored
    shape = (1, matrix.rows) if matrix.is_vector else (matrix.rows, matrix.columns)
    # A transposed vector is a matrix with one row.
    is_flat = matrix.is_vector and not matrix.is_transposed
    lengths = shape[1:] if is_flat else shape
    if stored == "none":
        return build_diagonal(lengths, shift=matrix.seed if matrix.is_vector else 0), 0
    if stored == "triangle" or matrix.data_type == "BIT":
        sign = _MIRROR_SIGNS.get(matrix.matrix_type, 0)
        diagonal = None if stored == "all" else int(not (matrix.has_diagonal or sign))
        unit = R1_BIT_ROW_BYTES if matrix.matrix_type == "DENSE_FLOAT" else WORD_BYTES
        packed = Packed(*shape, element, matrix.row_bytes or unit, offset, diagonal, is_flat)
        return build_mirrored(packed, sign) if sign else packed, packed.nbytes
    dense = Dense(lengths[:1] if stored == "diagonal" else lengths, element, offset)
    if stored == "diagonal":
        return build_diagonal(shape, dense), dense.stop - offset
    if matrix.data_type == "COMPLEX_FLOAT16":
        imaginary = Dense(lengths, element, dense.stop)
        return build_complex(dense, imaginary), imaginary.stop - offset
    return dense, dense.stop - offset


def _check_types(matrix: Matrix, path: str) -> None:
    matrix_type, rows, columns = matrix.matrix_type, matrix.rows, matrix.columns
    hint = "the header is corrupt, or of an unsupported version"
    header = Fields(path, {}, matrix.types_offset, hint=hint)
    types = f"one of {', '.join(sorted(MATRIX_TYPES))}"
    header.check(matrix_type in MATRIX_TYPES, "the matrix type", repr(matrix_type), types)
    _, data_types = MATRIX_TYPES[matrix_type]
    is_known, field = matrix.data_type in data_types, f"the data type of a {matrix_type} matrix"
    header.check(is_known, field, repr(matrix.data_type), f"one of {', '.join(data_types)}")
    is_vector = matrix.is_vector and columns == 1
    required = find_required_shape(matrix_type, (rows,) if is_vector else (rows, columns))
    if matrix_type == "UNIT_VECTOR" and not 0 <= matrix.seed < rows:
        required = f"more rows than the active index {matrix.seed}"
    actual = f"{rows} rows and {columns} columns"
    header.check(not required, f"the shape of a {matrix_type}", actual, required)


def build_diagonal(shape: tuple[int, ...], stored: Dense | None = None, shift: int = 0) -> Gathered:
    """Return a matrix, or its first row, with a diagonal from column `shift`, 1 if not stored."""
    gather = partial(_gather_diagonal, stored, shift)
    inner = () if stored is None else (stored,)
    return Gathered(shape, np.dtype(np.float64), gather, inner)


def _gather_diagonal(
    stored: Dense | None, shift: int, source: Source, selection: Selection
) -> Iterator[Step]:
    rows, columns = (np.zeros(1, dtype=np.int64), *selection.mesh)[-2:]
    target = np.nonzero(rows + shift == columns)
    numbers = np.broadcast_to(rows, selection.shape)[target]
    if numbers.size:
        ones = np.broadcast_to(1.0, (min(selection.tensor_shape),))
        values: Layout = InMemory(ones) if stored is None else stored
        points = Selection(values.shape, (numbers,), is_pointwise=True)
        yield values.plan(source, points), put_at(target)


def build_mirrored(stored: Layout, sign: int) -> Gathered:
    """Return a square matrix whose lower triangle is the stored upper one times `sign`."""
    gather = partial(_gather_mirrored, stored, sign)
    return Gathered(stored.shape, stored.dtype, gather, (stored,))


def _gather_mirrored(
    stored: Layout, sign: int, source: Source, selection: Selection
) -> Iterator[Step]:
    yield stored.plan(source, selection), put_at(...)
    rows, columns = selection.mesh
    if rows.max() > columns.min():

        def mirror(values: Array, image: Array) -> None:
            np.copyto(values, image if sign > 0 else 0 - image, where=rows > columns)

        yield Transposed(stored, (1, 0)).plan(source, selection), mirror


def build_complex(real: Dense, imaginary: Dense) -> Gathered:
    """Return complex numbers that are stored as all real parts, then all imaginary parts."""
    gather = partial(_gather_planes, (real, imaginary))
    return Gathered(real.shape, np.dtype(np.complex64), gather, (real, imaginary))


def _gather_planes(
    planes: tuple[Dense, Dense], source: Source, selection: Selection
) -> Iterator[Step]:
    real, imaginary = (plane.plan(source, selection) for plane in planes)
    yield real, lambda values, stored: np.copyto(values.real, stored)
    yield imaginary, lambda values, stored: np.copyto(values.imag, stored)


Block = tuple[Source, Layout, tuple[int, int]]
"""The file and layout of a block of a matrix, and its first row and column."""


def build_blocks(shape: tuple[int, int], blocks: Sequence[Block]) -> Gathered:
    """Return a matrix of blocks. The check of the format reads the stored elements of blocks."""
    dtype = np.result_type(*(layout.dtype for _, layout, _ in blocks))
    return Gathered(shape, dtype, partial(_gather_blocks, blocks))


def _gather_blocks(blocks: Sequence[Block], _: Source, selection: Selection) -> Iterator[Step]:
    for source, layout, corner in blocks:
        moved = [x - low for x, low in zip(selection.index_arrays, corner, strict=True)]
        inner, target = _crop(moved, layout.shape, is_pointwise=selection.is_pointwise)
        yield layout.plan(source, inner), put_at(target)


def _crop(
    moved: Sequence[Integers], shape: tuple[int, ...], *, is_pointwise: bool
) -> tuple[Selection, Any]:
    """Return the selection inside a block, and the index of its elements in the values."""
    axes = list(zip(moved, shape, strict=True))
    if is_pointwise:
        inside = [(indices >= 0) & (indices < length) for indices, length in axes]
        target = np.flatnonzero(np.logical_and.reduce(inside))
        return Selection(shape, tuple(indices[target] for indices in moved), True), target
    parts = tuple(slice(*np.searchsorted(indices, (0, length))) for indices, length in axes)
    inner = (indices[part] for indices, part in zip(moved, parts, strict=True))
    return Selection(shape, tuple(map(array_to_indices, inner))), parts
