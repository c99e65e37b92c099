"""The matrix and data types of PyCauset, and the parsed header of any version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from zipfile import ZipInfo

import numpy as np

from xr_tensorfmt.core.elements import Boolean, Element, Plain
from xr_tensorfmt.core.findings import Finding

# Header size of versions 1, 2 and R1 in bytes. The values follow.
HEADER_BYTES = 4096
MIN_PAYLOAD_BYTES = 8

BIT = "BIT"
COMPLEX_FLOAT16 = "COMPLEX_FLOAT16"

# NumPy dtypes of the data types, if NumPy has the type.
DTYPES = {
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "FLOAT16": "<f2",
    "FLOAT32": "<f4",
    "FLOAT64": "<f8",
    "COMPLEX_FLOAT32": "<c8",
    "COMPLEX_FLOAT64": "<c16",
}
# Stored elements by data type. Real and imaginary halves of COMPLEX_FLOAT16 are apart.
ELEMENTS: Mapping[str, Element] = {
    BIT: Boolean(),
    COMPLEX_FLOAT16: Plain(np.dtype("<f2")),
    **{name: Plain(np.dtype(code)) for name, code in DTYPES.items()},
}

_INTEGERS = frozenset(name for name in DTYPES if "INT" in name)
_ALL = frozenset(ELEMENTS)
_DOUBLE = frozenset({"FLOAT64"})


@dataclass(frozen=True)
class MatrixType:
    """Data types and stored part. The lower triangle is the upper one times `mirror_sign`."""

    data_types: frozenset[str]
    stored: Literal["all", "triangle", "diagonal", "none"] = "all"
    mirror_sign: int = 0


# Matrix types with all values in one file.
MATRIX_TYPES = {
    "CAUSAL": MatrixType(frozenset({BIT}), "triangle"),
    "TRIANGULAR_INTEGER": MatrixType(_INTEGERS, "triangle"),
    "TRIANGULAR_FLOAT": MatrixType(frozenset({"FLOAT16", "FLOAT32", "FLOAT64"}), "triangle"),
    "DENSE_FLOAT": MatrixType(_ALL),
    "INTEGER": MatrixType(_INTEGERS),
    "VECTOR": MatrixType(_ALL),
    "UNIT_VECTOR": MatrixType(_DOUBLE, "none"),
    "IDENTITY": MatrixType(_DOUBLE, "none"),
    "DIAGONAL": MatrixType(_DOUBLE, "diagonal"),
    "SYMMETRIC": MatrixType(_DOUBLE, "triangle", 1),
    "ANTISYMMETRIC": MatrixType(_DOUBLE, "triangle", -1),
}
# Matrix type of a file with its values in other files.
BLOCK = "BLOCK"

VECTORS = ("VECTOR", "UNIT_VECTOR")

# Triangles of numbers, with or without a diagonal. A triangle of bits has no diagonal.
NUMBER_TRIANGLES = ("TRIANGULAR_INTEGER", "TRIANGULAR_FLOAT")


def find_required_shape(matrix_type: str, rows: int, columns: int) -> str:
    """Return the shape that a matrix type requires, or an empty string if the shape fits."""
    if matrix_type in VECTORS and columns != 1:
        return "one column"
    if MATRIX_TYPES[matrix_type].stored in ("triangle", "diagonal") and rows != columns:
        return "a square matrix"
    return ""


# Row alignment of triangles and, before R1, of bits.
WORD_BYTES = 8
# Row alignment of dense bits in R1 since 2026-01-05.
R1_BIT_ROW_BYTES = 64


@dataclass(frozen=True)
class Matrix:
    """Parsed header of a file: a matrix, or a vector with one column."""

    version: str
    matrix_type: str
    data_type: str
    rows: int
    columns: int
    offset: int
    limit: int  # the values are in the bytes [offset, limit)
    types_offset: int  # of type and shape
    seed: int = 0
    scalar: complex = 1.0
    is_transposed: bool = False
    is_conjugated: bool = False
    row_bytes: int = WORD_BYTES  # rows of bits and of triangles are padded to a multiple
    has_diagonal: bool = False
    attrs: Mapping[str, Any] = field(default_factory=dict)
    encoding: Mapping[str, Any] = field(default_factory=dict)  # entries of this version only
    embedded: Any = None
    derived: tuple[str, ...] = ()
    payload_length: int | None = None  # size of the values according to the header
    manifest: Mapping[str, Any] | None = None  # of the blocks of a BLOCK matrix
    findings: tuple[Finding, ...] = ()
    min_stop: int = 0  # the file does not end before
    members: Sequence[ZipInfo] = ()

    @property
    def is_vector(self) -> bool:
        """Whether the file holds a vector, transposed or not."""
        return self.matrix_type in VECTORS
