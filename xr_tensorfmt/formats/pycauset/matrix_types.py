"""Which type of matrix a variable is written as: by its shape, its dtype and its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
from xarray import Variable

from xr_tensorfmt.core.elements import Array, Boolean, Element, Plain
from xr_tensorfmt.core.layout import Layout, within
from xr_tensorfmt.core.selection import MOST_RUNS, Selection
from xr_tensorfmt.datasets.lazy_array import wrapped_data
from xr_tensorfmt.formats.pycauset.rows import PartlyStored
from xr_tensorfmt.formats.pycauset.spec import BIT, DTYPES, VECTORS
from xr_tensorfmt.formats.pycauset.triangle import Mirrored
from xr_tensorfmt.writing.checked_input import CheckedInput
from xr_tensorfmt.writing.conversion import Conversion

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

_ELEMENTS: Mapping[str, Element] = {
    "bool": Boolean(),
    **{np.dtype(code).name: Plain(np.dtype(code)) for code in DTYPES.values()},
}
_DATA_TYPES = {"bool": BIT, **{np.dtype(code).name: name for name, code in DTYPES.items()}}

_INTEGERS = tuple(name for name in _ELEMENTS if "int" in name)
_OTHERS = tuple(name for name in _ELEMENTS if "int" not in name)
_DOUBLE = ("float64",)

# What PyCauset loads as it is: it takes all triangles of numbers for int32 or float64.
_WRITTEN: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "r1": {
        **dict.fromkeys(get_args(MatrixType), _DOUBLE),
        "CAUSAL": ("bool",),
        "TRIANGULAR_INTEGER": ("int32",),
        "DENSE_FLOAT": _OTHERS,
        "INTEGER": _INTEGERS,
        "VECTOR": tuple(_ELEMENTS),
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
_DENSE = "DENSE_FLOAT"
_LEAVE_OUT = "leave out matrix_type="
_NOT_ONLY_SQUARE = ("DENSE_FLOAT", "INTEGER", "IDENTITY")

# Elements that are looked at, or compared with their mirror image, at a time.
_AT_A_TIME = 1 << 19


def program(version: Version) -> str:
    """The program that a version is written for."""
    return "PyCauset" if version == "r1" else "PyCauset 0.2"


def data_type(conversion: Conversion) -> str:
    """What PyCauset calls the dtype that values are converted to."""
    return _DATA_TYPES[conversion.element.name]


def matrix_types(
    checked: CheckedInput, version: Version, requested: str | None
) -> tuple[tuple[str, ...], Conversion]:
    """The types that a variable can have by its shape and dtype, the one to prefer first."""
    name, variable = checked.only
    fitting = _by_shape(checked.path, name, variable, version, requested)
    written = _WRITTEN[version]
    dtypes = {dtype for matrix_type in fitting for dtype in written[matrix_type]}
    holder = program(version) + (f"'s {requested}" if requested else "")
    conversion: Conversion = replace(checked, format=holder).conversion(
        name, variable, {dtype: each for dtype, each in _ELEMENTS.items() if dtype in dtypes}
    )
    if requested is not None:
        return (requested,), conversion
    dtype = conversion.element.name
    plain = "VECTOR" if variable.ndim == 1 else "INTEGER" if dtype in _INTEGERS else _DENSE
    special = _special(variable)
    if special in fitting and dtype in written[special] and dtype == variable.dtype.name:
        return (special, plain), conversion
    return (plain,), conversion


def _by_shape(
    path: str, name: str, variable: Variable, version: Version, requested: str | None
) -> list[str]:
    """The types that fit the shape of a variable; only the one that was asked for, if any."""
    _check_rank(path, name, variable)
    written = _WRITTEN[version]
    if requested is not None and requested not in written:
        raise ValueError(
            f"matrix_type={requested!r} is not one of those that {program(version)} loads as they "
            f"are: {', '.join(written)}"
        )
    candidates = list(written) if requested is None else [requested]
    faults = {each: _misfit(each, variable.shape, version) for each in candidates}
    fitting = [matrix_type for matrix_type, fault in faults.items() if not fault]
    if not fitting:
        fault = faults[requested or _DENSE]
        raise ValueError(f"{path}: {name!r} has shape {variable.shape}, and {fault}")
    return fitting


def _special(variable: Variable) -> str:
    """The type that it had in the file that it was opened from, or that its values may be of."""
    facts = variable.encoding.get("tensorfmt", {})
    if facts.get("format") == "pycauset":
        as_seen = (facts.get("scalar"), facts.get("is_transposed"), facts.get("is_conjugated"))
        whole = tuple(facts["shape"])[: variable.ndim] == variable.shape
        # PyCauset loads all triangles of numbers as if they had no diagonal.
        if as_seen == (1, 0, 0) and whole and not facts.get("has_diagonal"):
            return str(facts["matrix_type"])
    return "CAUSAL" if isinstance(wrapped_data(variable), np.ndarray) else ""


def _misfit(matrix_type: str, shape: tuple[int, ...], version: Version) -> str:
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


def _check_rank(path: str, name: str, variable: Variable) -> None:
    if variable.ndim == 0:
        raise ValueError(
            f"{path}: {name!r} has no dimension, and PyCauset holds vectors and matrices; call "
            "expand_dims('index') first, or write MAG"
        )
    if variable.ndim > 2:
        raise ValueError(
            f"{path}: {name!r} has {variable.ndim} dimensions, and PyCauset holds vectors and "
            f"matrices; call stack(row={variable.dims[:-1]!r}, create_index=False) first, or "
            "write MAG"
        )


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
