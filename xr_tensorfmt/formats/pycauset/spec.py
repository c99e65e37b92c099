"""The matrix and data types of PyCauset, and the parsed header of any version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from zipfile import ZipInfo

import numpy as np

from xr_tensorfmt.contract import Boolean, Element, Finding, Plain, TensorFormatError, shorten

NAME = "pycauset"
MAGIC = b"PYCAUSET"

STORAGE_ATTRS = frozenset(
    {"matrix_type", "data_type", "scalar", "is_transposed", "is_conjugated", "is_temporary"}
)
"""Attributes about the storage of a matrix. A reader sets them for every file."""

Value = TypeVar("Value")

HEADER_BYTES = 4096
"""Header size of versions 1, 2 and R1 in bytes. The values follow."""

MIN_PAYLOAD_BYTES = 8
"""Size of a triangle without elements in bytes."""

BIT = "BIT"
COMPLEX_FLOAT16 = "COMPLEX_FLOAT16"

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
"""NumPy dtypes of the data types, if NumPy has the type."""

ELEMENTS: Mapping[str, Element] = {
    BIT: Boolean(),
    COMPLEX_FLOAT16: Plain(np.dtype("<f2")),
    **{name: Plain(np.dtype(code)) for name, code in DTYPES.items()},
}
"""Stored elements by data type. Real and imaginary halves of COMPLEX_FLOAT16 are apart."""

_INTEGERS = frozenset(name for name in DTYPES if "INT" in name)
_REALS = frozenset({"FLOAT16", "FLOAT32", "FLOAT64"})
_ALL = frozenset({BIT, COMPLEX_FLOAT16, *DTYPES})
_DOUBLE = frozenset({"FLOAT64"})

DATA_TYPES: Mapping[str, frozenset[str]] = {
    "CAUSAL": frozenset({BIT}),
    "TRIANGULAR_INTEGER": _INTEGERS,
    "TRIANGULAR_FLOAT": _REALS,
    "DENSE_FLOAT": _ALL,
    "INTEGER": _INTEGERS,
    "VECTOR": _ALL,
    "UNIT_VECTOR": _DOUBLE,
    "IDENTITY": _DOUBLE,
    "DIAGONAL": _DOUBLE,
    "SYMMETRIC": _DOUBLE,
    "ANTISYMMETRIC": _DOUBLE,
}
"""Allowed data types by matrix type."""

BLOCK = "BLOCK"
"""Matrix type of a file with its values in other files."""

VECTORS = ("VECTOR", "UNIT_VECTOR")

NUMBER_TRIANGLES = ("TRIANGULAR_INTEGER", "TRIANGULAR_FLOAT")
"""Triangles of numbers, with or without a diagonal. A triangle of bits has no diagonal."""

MIRROR_SIGNS = {"SYMMETRIC": 1, "ANTISYMMETRIC": -1}
"""Factor of the lower triangle, by matrix type. Only the upper triangle is stored."""

TRIANGLES = ("CAUSAL", *NUMBER_TRIANGLES, *MIRROR_SIGNS)
"""Matrix types stored as an upper triangle."""

SQUARE = (*TRIANGLES, "DIAGONAL")
"""Matrix types that must be square."""

WORD_BYTES = 8
"""Row alignment of triangles and, before R1, of bits."""

R1_BIT_ROW_BYTES = 64
"""Row alignment of dense bits in R1 since 2026-01-05."""


@dataclass(frozen=True)
class Metadata:
    """Metadata of a file: values by key, decoded from JSON or from the binary encoding."""

    values: Mapping[str, Any]
    path: str
    offset: int

    def error(
        self,
        key: str,
        actual: object,
        expected: str,
        hint: str = "the file is corrupt; save it again",
    ) -> TensorFormatError:
        """Return an error about the value of a key."""
        field = f"the metadata key {key!r}"
        return TensorFormatError(self.path, field, actual, expected, hint, offset=self.offset)

    def get(self, key: str, expected: type[Value], default: Value | None = None) -> Value:
        """Return the value of a key, or raise TensorFormatError if it has another type."""
        value = self.values.get(key, default)
        type_name = f"a value of type {expected.__name__}"
        if value is None:
            hint = "the matrix cannot be read without this key; save it again with a newer PyCauset"
            raise self.error(key, "missing", type_name, hint)
        if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
            raise self.error(key, shorten(repr(value)), type_name)
        return value

    def get_length(self, key: str) -> int:
        """Return a number of rows or columns."""
        value = self.get(key, int)
        if value < 0:
            raise self.error(key, value, "a non-negative integer")
        return value

    def get_map(self, key: str) -> Metadata:
        """Return the map of a key, empty if the key is missing."""
        return Metadata(self.get(key, dict, {}), self.path, self.offset)

    def get_scalar(self, key: str) -> complex:
        """Return a number, stored as one or as a map of real and imaginary part; default 1."""
        value = self.values.get(key, 1.0)
        parts: list[Any] = [value, 0]
        if isinstance(value, dict):
            parts = [value.get("real"), value.get("imag")]
        try:
            return complex(*(part + 0.0 for part in parts))
        except (TypeError, OverflowError):
            expected = "a number, or its real and imaginary parts, in double precision"
            raise self.error(key, shorten(repr(value)), expected) from None

    def build_matrix(self, version: str, view: Metadata, offset: int, limit: int) -> Matrix:
        """Return the matrix. `view` holds scalar, transposition and conjugation."""
        return Matrix(
            version=version,
            matrix_type=self.get("matrix_type", str),
            data_type=self.get("data_type", str),
            rows=self.get_length("rows"),
            columns=self.get_length("cols"),
            offset=offset,
            limit=limit,
            types_offset=self.offset,
            seed=self.get("seed", int, 0),
            scalar=view.get_scalar("scalar"),
            is_transposed=view.get("is_transposed", bool, False),
            is_conjugated=view.get("is_conjugated", bool, False),
        )


@dataclass(frozen=True)
class Matrix:
    """Parsed header of a file: a matrix, or a vector with one column.

    The values are in the bytes ``[offset, limit)``. `payload_length` is their size according to
    the header. `types_offset` is the offset of type and shape. Rows of bits and of triangles are
    padded to a multiple of `row_bytes`. `manifest` describes the blocks of a BLOCK matrix.
    The file ends with the values, but not before `min_stop`. `encoding` has entries for
    ``encoding["tensorfmt"]`` of one version only.
    """

    version: str
    matrix_type: str
    data_type: str
    rows: int
    columns: int
    offset: int
    limit: int
    types_offset: int
    seed: int = 0
    scalar: complex = 1.0
    is_transposed: bool = False
    is_conjugated: bool = False
    row_bytes: int = WORD_BYTES
    has_diagonal: bool = False
    is_temporary: bool = False
    attrs: Mapping[str, Any] = field(default_factory=dict)
    encoding: Mapping[str, Any] = field(default_factory=dict)
    embedded: Any = None
    derived: tuple[str, ...] = ()
    payload_length: int | None = None
    manifest: Metadata | None = None
    findings: tuple[Finding, ...] = ()
    min_stop: int = 0
    members: Sequence[ZipInfo] = ()

    @property
    def is_vector(self) -> bool:
        """Whether the file holds a vector, transposed or not."""
        return self.matrix_type in VECTORS
