"""What every generation of the format says about its matrix, in the words of the newest one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
"""numpy's words for the data types that it knows."""

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

VECTORS = ("VECTOR", "UNIT_VECTOR")

TRIANGLES = ("TRIANGULAR_INTEGER", "TRIANGULAR_FLOAT")
"""Triangles of numbers, with or without a diagonal; that of bits never has one."""


@dataclass(frozen=True)
class Matrix:
    """A matrix, or a vector of one column.

    Parameters
    ----------
    generation : str
        ``"v1"``, ``"v2"``, ``"zip"`` or ``"r1"``.
    matrix_type, data_type : str
        In the words of R1, the present container.
    rows, columns : int
        The shape as it is stored, before a transposition.
    seed : int
        Seed of the random numbers; the active index of a unit vector.
    scalar : complex
        Values are the stored ones times this.
    transposed, conjugated : bool
        What is done to them then.
    offset : int
        Byte of the file at which the payload begins.
    limit : int
        The byte before which it must end.
    fields : int
        Byte of the file at which shape and types are, for errors.
    bit_row : int
        Dense rows of bits are padded to a multiple of so many bytes.
    triangle_row : int
        Rows of triangles are padded to a multiple of so many bytes.
    has_diagonal : bool
        Whether a triangle of numbers is stored with its diagonal.
    attrs : mapping
        What else the file says that matters to a user.
    facts : mapping
        What else it says about itself.
    note : object
        What our writers have noted of the Dataset; None where they have not.
    derived : tuple of str
        What the file keeps that depends on the values: a checksum, results, properties.
    """

    generation: str
    matrix_type: str
    data_type: str
    rows: int
    columns: int
    offset: int
    limit: int
    fields: int
    seed: int = 0
    scalar: complex = 1.0
    transposed: bool = False
    conjugated: bool = False
    bit_row: int = 8
    triangle_row: int = 8
    has_diagonal: bool = False
    attrs: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    note: Any = None
    derived: tuple[str, ...] = ()

    @property
    def is_vector(self) -> bool:
        """Whether it has one axis, or would have if it were not transposed."""
        return self.matrix_type in VECTORS
