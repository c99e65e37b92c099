"""What a file of any PyCauset version describes: a matrix of some type with some data type."""

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
"""Attributes of every file that say how the matrix is stored."""

Value = TypeVar("Value")

HEADER_BYTES = 4096
"""Bytes of the header of versions 1, 2 and R1, after which the values begin."""

LEAST_PAYLOAD = 8
"""Bytes that PyCauset writes of a triangle even where it has no element."""

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
"""numpy's dtypes of the data types that numpy has."""

ELEMENTS: Mapping[str, Element] = {
    BIT: Boolean(),
    COMPLEX_FLOAT16: Plain(np.dtype("<f2")),
    **{name: Plain(np.dtype(code)) for name, code in DTYPES.items()},
}
"""How the numbers of each data type are stored; complex ones in half precision are two each."""

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
"""Matrix types, and the data types that each can have."""

BLOCK = "BLOCK"
"""The matrix type of a file whose values are in other files."""

VECTORS = ("VECTOR", "UNIT_VECTOR")

NUMBER_TRIANGLES = ("TRIANGULAR_INTEGER", "TRIANGULAR_FLOAT")
"""Triangles of numbers, with or without a diagonal; a triangle of bits never has one."""

MIRROR_SIGNS = {"SYMMETRIC": 1, "ANTISYMMETRIC": -1}
"""Matrix types of which the upper triangle is stored, and the factor of the lower one."""

TRIANGLES = ("CAUSAL", *NUMBER_TRIANGLES, *MIRROR_SIGNS)
"""Matrix types that are stored as an upper triangle."""

SQUARE = (*TRIANGLES, "DIAGONAL")
"""Matrix types that have as many rows as columns."""

WORD_BYTES = 8
"""Rows of a triangle and, before R1, of bits are padded to a multiple of these bytes."""

R1_BIT_ROW_BYTES = 64
"""Rows of a dense matrix of bits in R1, since 2026-01-05, are padded to a multiple of these."""


@dataclass(frozen=True)
class Metadata:
    """What a file says under keys, of types that JSON and the binary encoding have in common."""

    values: Mapping[str, Any]
    path: str
    offset: int

    def error(
        self, key: str, found: object, expected: str, hint: str = "the file is damaged"
    ) -> TensorFormatError:
        """An error about one key."""
        field = f"the metadata key {key!r}"
        return TensorFormatError(self.path, field, found, expected, hint, offset=self.offset)

    def get(self, key: str, expected: type[Value], default: Value | None = None) -> Value:
        """The value of a key, which must be of a type."""
        value = self.values.get(key, default)
        type_name = f"a value of type {expected.__name__}"
        if value is None:
            hint = "without it the matrix cannot be read; save it again with a newer PyCauset"
            raise self.error(key, "missing", type_name, hint)
        if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
            raise self.error(key, shorten(repr(value)), type_name)
        return value

    def length(self, key: str) -> int:
        """The value of a key that is a number of rows or columns."""
        value = self.get(key, int)
        if value < 0:
            raise self.error(key, value, "an integer of at least 0")
        return value

    def nested(self, key: str) -> Metadata:
        """The map under a key; an empty one where it is missing."""
        return Metadata(self.get(key, dict, {}), self.path, self.offset)

    def scalar(self, key: str) -> complex:
        """A number, or a map of its real and imaginary parts; 1 where it is missing."""
        value = self.values.get(key, 1.0)
        parts: list[Any] = [value, 0]
        if isinstance(value, dict):
            parts = [value.get("real"), value.get("imag")]
        try:
            return complex(*(part + 0.0 for part in parts))
        except (TypeError, OverflowError):
            expected = "a number, or its real and imaginary parts, that fit double precision"
            raise self.error(key, shorten(repr(value)), expected) from None

    def matrix(self, version: str, view: Metadata, offset: int, limit: int) -> Matrix:
        """What they say of a matrix in every version; `view` is how its values are shown."""
        return Matrix(
            version=version,
            matrix_type=self.get("matrix_type", str),
            data_type=self.get("data_type", str),
            rows=self.length("rows"),
            columns=self.length("cols"),
            offset=offset,
            limit=limit,
            stated_at=self.offset,
            seed=self.get("seed", int, 0),
            scalar=view.scalar("scalar"),
            is_transposed=view.get("is_transposed", bool, False),
            is_conjugated=view.get("is_conjugated", bool, False),
        )


@dataclass(frozen=True)
class Matrix:
    """What the header of a file says: a matrix, or a vector of one column.

    `offset` and `limit` bound the values in the file, and `stated_bytes` is how many bytes of them
    it states; `stated_at` is where type and shape are. Rows of bits and of triangles are padded to
    a multiple of `row_bytes`. `manifest` is what a file says of its blocks. The file ends at
    `least_stop`, or where the values end if that is later.
    """

    version: str
    matrix_type: str
    data_type: str
    rows: int
    columns: int
    offset: int
    limit: int
    stated_at: int
    seed: int = 0
    scalar: complex = 1.0
    is_transposed: bool = False
    is_conjugated: bool = False
    row_bytes: int = WORD_BYTES
    has_diagonal: bool = False
    is_temporary: bool = False
    attrs: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    embedded: Any = None
    derived: tuple[str, ...] = ()
    stated_bytes: int | None = None
    manifest: Metadata | None = None
    findings: tuple[Finding, ...] = ()
    least_stop: int = 0
    members: Sequence[ZipInfo] = ()

    @property
    def is_vector(self) -> bool:
        """Whether it has one axis, or would have if it were not transposed."""
        return self.matrix_type in VECTORS
