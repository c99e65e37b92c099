"""Which type of matrix a variable becomes in a PyCauset file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
from xarray import Variable

from xr_tensorfmt.elements import Element, Plain
from xr_tensorfmt.formats.pycauset.matrix import BIT, DTYPES, VECTORS
from xr_tensorfmt.lazyarray import held
from xr_tensorfmt.narrow import Boolean
from xr_tensorfmt.write.conversion import Conversion
from xr_tensorfmt.write.subject import Subject

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
_DATA_TYPES = {"bool": BIT, **{np.dtype(code).name: word for word, code in DTYPES.items()}}

_INTEGERS = tuple(name for name in _ELEMENTS if "int" in name)
_OTHERS = tuple(name for name in _ELEMENTS if "int" not in name)

# What PyCauset loads as it is: it takes all triangles of numbers for int32 or float64.
_WRITTEN: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "r1": {
        "CAUSAL": ("bool",),
        "TRIANGULAR_FLOAT": ("float64",),
        "TRIANGULAR_INTEGER": ("int32",),
        "DENSE_FLOAT": _OTHERS,
        "INTEGER": _INTEGERS,
        "SYMMETRIC": ("float64",),
        "ANTISYMMETRIC": ("float64",),
        "DIAGONAL": ("float64",),
        "IDENTITY": ("float64",),
        "VECTOR": tuple(_ELEMENTS),
        "UNIT_VECTOR": ("float64",),
    },
    # PyCauset 0.2.8 takes matrices of int32 for float64.
    "v2": {
        "CAUSAL": ("bool",),
        "TRIANGULAR_FLOAT": ("float64",),
        "DENSE_FLOAT": ("bool", "float64"),
        "IDENTITY": ("float64",),
        "VECTOR": ("bool", "int32", "float64"),
    },
}
_DENSE = "DENSE_FLOAT"
_LEAVE_OUT = "leave out matrix_type="
_OF_TWO_LENGTHS = ("DENSE_FLOAT", "INTEGER", "IDENTITY")


def program(version: Version) -> str:
    """The program that a version is written for."""
    return "PyCauset" if version == "r1" else "PyCauset 0.2"


def data_type(conversion: Conversion) -> str:
    """What PyCauset calls the dtype that values are converted to."""
    return _DATA_TYPES[conversion.element.name]


def matrix_types(
    subject: Subject, version: Version, requested: str | None
) -> tuple[tuple[str, ...], Conversion]:
    """The types of matrix that a variable can become, by all but its values.

    Parameters
    ----------
    subject : Subject
        What is written.
    version : {"r1", "v2"}
        Of the format.
    requested : str, optional
        The one that the user wants.

    Returns
    -------
    types : tuple of str
        The best one first, the one that holds any values last.
    conversion : Conversion
        What becomes of the values.

    Raises
    ------
    ValueError
        The format has nothing for its shape or dtype, or not what the user wants.
    """
    name, variable = subject.only
    _check_shape(subject.path, name, variable)
    written = _WRITTEN[version]
    if requested is not None and requested not in written:
        raise ValueError(
            f"matrix_type={requested!r} is none of those that {program(version)} loads as they "
            f"are: {', '.join(written)}"
        )
    faults = {each: _misfit(each, variable.shape, version) for each in written}
    fitting = [each for each, fault in faults.items() if not fault]
    if requested is not None:
        fitting = [each for each in fitting if each == requested]
    if not fitting:
        fault = faults[requested or _DENSE]
        raise ValueError(f"{subject.path}: {name!r} has shape {variable.shape}, and {fault}")
    elements = [each for each in _ELEMENTS if any(each in written[kind] for kind in fitting)]
    holder = program(version) + (f"'s {requested}" if requested else "")
    conversion = replace(subject, format=holder).conversion(
        name, variable, {each: _ELEMENTS[each] for each in elements}
    )
    if requested is not None:
        return (requested,), conversion
    dtype = conversion.element.name
    plain = "VECTOR" if variable.ndim == 1 else "INTEGER" if dtype in _INTEGERS else _DENSE
    special = [each for each in _special(variable) if each in fitting and dtype in written[each]]
    return (*(special if dtype == variable.dtype.name else ()), plain), conversion


def _special(variable: Variable) -> list[str]:
    """What the variable was in the file that it was opened from, and what its values may tell."""
    facts = variable.encoding.get("tensorfmt", {})
    if facts.get("format") == "pycauset":
        as_seen = (facts.get("scalar"), facts.get("is_transposed"), facts.get("is_conjugated"))
        whole = tuple(facts["shape"])[: variable.ndim] == variable.shape
        # What PyCauset loads has no place for the diagonal of a triangle.
        if as_seen == (1, 0, 0) and whole and not facts.get("has_diagonal"):
            return [facts["matrix_type"]]
    return ["CAUSAL"] if isinstance(held(variable), np.ndarray) else []


def _misfit(matrix_type: str, shape: tuple[int, ...], version: Version) -> str:
    """Why a shape is none for a type of matrix; an empty text where it is one."""
    is_vector, square = matrix_type in VECTORS, shape[0] == shape[-1]
    if is_vector != (len(shape) == 1):
        return f"{matrix_type} is a type of {'vectors' if is_vector else 'matrices'}; {_LEAVE_OUT}"
    if version == "v2" and not square:
        return f"{program(version)} has only square matrices; leave out version="
    if not (is_vector or square or matrix_type in _OF_TWO_LENGTHS):
        return f"a {matrix_type} matrix has as many rows as columns; {_LEAVE_OUT}"
    if matrix_type == "UNIT_VECTOR" and not shape[0]:
        return f"a unit vector has at least one element; {_LEAVE_OUT}"
    return ""


def _check_shape(path: str, name: str, variable: Variable) -> None:
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
