"""Which types of matrix are written, and the shapes, dtypes and values that each can have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from xr_tensorfmt.core.elements import Array, Boolean, Element, Plain
from xr_tensorfmt.core.layout import Layout, within
from xr_tensorfmt.core.selection import MOST_RUNS, Selection
from xr_tensorfmt.formats.pycauset.rows import PartlyStored
from xr_tensorfmt.formats.pycauset.spec import BIT, DTYPES, VECTORS
from xr_tensorfmt.formats.pycauset.triangle import Mirrored

Version = Literal["r1", "v2"]

MatrixType = Literal[
    "CAUSAL",
    "TRIANGULAR_FLOAT",
    "TRIANGULAR_INTEGER",
    "DENSE_FLOAT",
    "INTEGER",
    "SYMMETRIC",
    "ANTISYMMETRIC",
    "DIAGONAL",
    "IDENTITY",
    "VECTOR",
    "UNIT_VECTOR",
]

ELEMENTS: Mapping[str, Element] = {
    "bool": Boolean(),
    **{np.dtype(code).name: Plain(np.dtype(code)) for code in DTYPES.values()},
}
DATA_TYPE_OF = {"bool": BIT, **{np.dtype(code).name: name for name, code in DTYPES.items()}}

_INTEGERS = tuple(name for name in ELEMENTS if "int" in name)
_OTHERS = tuple(name for name in ELEMENTS if "int" not in name)
_DOUBLE = ("float64",)

# What PyCauset loads as it is: it takes all triangles of numbers for int32 or float64.
WRITTEN: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "r1": {
        **dict.fromkeys(get_args(MatrixType), _DOUBLE),
        "CAUSAL": ("bool",),
        "TRIANGULAR_INTEGER": ("int32",),
        "DENSE_FLOAT": _OTHERS,
        "INTEGER": _INTEGERS,
        "VECTOR": tuple(ELEMENTS),
    },
    # PyCauset 0.2.8 takes matrices of int32 for float64.
    "v2": {
        "CAUSAL": ("bool",),
        "TRIANGULAR_FLOAT": _DOUBLE,
        "DENSE_FLOAT": ("bool", "float64"),
        "IDENTITY": _DOUBLE,
        "VECTOR": ("bool", "int32", "float64"),
    },
}
_LEAVE_OUT = "leave out matrix_type="
_NOT_ONLY_SQUARE = ("DENSE_FLOAT", "INTEGER", "IDENTITY")

# Elements that are looked at, or compared with their mirror image, at a time.
_AT_A_TIME = 1 << 19


def program(version: Version) -> str:
    """The program that a version is written for."""
    return "PyCauset" if version == "r1" else "PyCauset 0.2"


def dense_type(dtype: str) -> str:
    """The type of a matrix of which all elements are stored."""
    return "INTEGER" if dtype in _INTEGERS else "DENSE_FLOAT"


def misfit(matrix_type: str, shape: tuple[int, ...], version: Version) -> str:
    """Why a shape does not fit a type of matrix; an empty string where it does."""
    is_vector, square = matrix_type in VECTORS, shape[0] == shape[-1]
    if is_vector != (len(shape) == 1):
        return f"{matrix_type} is a type of {'vectors' if is_vector else 'matrices'}; {_LEAVE_OUT}"
    if version == "v2" and not square:
        return f"{program(version)} has only square matrices; leave out version="
    if not (is_vector or square or matrix_type in _NOT_ONLY_SQUARE):
        return f"a {matrix_type} matrix has as many rows as columns; {_LEAVE_OUT}"
    if matrix_type == "UNIT_VECTOR" and not shape[0]:
        return f"a unit vector has at least one element; {_LEAVE_OUT}"
    return ""


def holds(layout: Layout, values: Array) -> bool:
    """Whether a layout gives values in memory back as they are once they are written."""
    if not values.size or not isinstance(layout, PartlyStored):
        return True
    whole = Selection.everything(layout.shape)
    try:
        for part in whole.batches(runs=MOST_RUNS, span=_AT_A_TIME):
            layout.check_implied(part, values[within(part, whole)])
    except ValueError:
        return False
    return not isinstance(layout, Mirrored) or _is_mirrored(values, layout.sign)


def _is_mirrored(values: Array, sign: int) -> bool:
    step = max(1, _AT_A_TIME // len(values))
    return all(
        np.array_equal(values[i : i + step], sign * values[:, i : i + step].T, equal_nan=True)
        for i in range(0, len(values), step)
    )
