"""Plan a PyCauset file of one matrix or vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from xarray import Variable

from xr_tensorfmt.core.container import EMBEDDED_KEY
from xr_tensorfmt.core.header import MAX_TENSOR_BYTES
from xr_tensorfmt.errors import did_you_mean
from xr_tensorfmt.formats.pycauset import NAME, spec
from xr_tensorfmt.formats.pycauset.container import pack_container
from xr_tensorfmt.formats.pycauset.matrices import build_layout
from xr_tensorfmt.formats.pycauset.metadata import OBJECT_TYPE, build_metadata
from xr_tensorfmt.formats.pycauset.spec import Matrix
from xr_tensorfmt.writing.checked_input import CheckedInput
from xr_tensorfmt.writing.conversion import Conversion
from xr_tensorfmt.writing.embedded_metadata import embed_tensor
from xr_tensorfmt.writing.encoding import get_file_info
from xr_tensorfmt.writing.file_plan import FilePlan, Piece, PlannedVariable

DATA_TYPES = {"bool": spec.BIT} | {np.dtype(code).name: t for t, code in spec.DTYPES.items()}
ELEMENTS = {name: spec.ELEMENTS[data_type] for name, data_type in DATA_TYPES.items()}
_INTEGERS = tuple(name for name in ELEMENTS if "int" in name)

# The dtypes that PyCauset loads unchanged. It reads triangles of numbers as int32 or float64.
WRITTEN: Mapping[str, tuple[str, ...]] = {
    "CAUSAL": ("bool",),
    "TRIANGULAR_FLOAT": ("float64",),
    "TRIANGULAR_INTEGER": ("int32",),
    "DENSE_FLOAT": tuple(name for name in ELEMENTS if "int" not in name),
    "INTEGER": _INTEGERS,
    "VECTOR": tuple(ELEMENTS),
}


def plan(
    checked: CheckedInput,
    *,
    matrix_type: str | None = None,
    seed: int | None = None,
) -> Sequence[FilePlan]:
    """Plan a PyCauset file."""
    is_integer = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if seed is not None and not (is_integer and 0 <= seed < 2**64):
        raise ValueError(f"seed={seed!r} is not an integer from 0 to 2**64 - 1")
    checked = checked.encode(ELEMENTS)
    types, conversion = _choose_types(checked, matrix_type)
    return [_plan_matrix(checked, conversion, matrix_type, seed) for matrix_type in types]


def _plan_matrix(
    checked: CheckedInput, conversion: Conversion, matrix_type: str, seed: int | None
) -> FilePlan:
    """Plan the file of a matrix."""
    _, variable = checked.single_variable
    file_info = _get_file_info(variable)
    if seed is None and file_info.get("matrix_type") != "UNIT_VECTOR":
        seed = file_info.get("seed")
    matrix = Matrix(
        version="r1",
        matrix_type=matrix_type,
        data_type=DATA_TYPES[conversion.element.name],
        rows=variable.shape[0],
        columns=1 if variable.ndim == 1 else variable.shape[1],
        offset=spec.HEADER_BYTES,
        limit=MAX_TENSOR_BYTES,
        types_offset=0,
        seed=int(seed or 0),
        row_bytes=spec.R1_BIT_ROW_BYTES if matrix_type == "DENSE_FLOAT" else spec.WORD_BYTES,
    )
    layout, payload_bytes = build_layout(matrix, checked.path)
    embedded = embed_tensor(checked).decode()
    metadata = build_metadata(matrix, file_info.get(OBJECT_TYPE, ""), variable.attrs)
    header, start, block = pack_container(metadata | {EMBEDDED_KEY: embedded}, payload_bytes)
    pieces = (Piece(0, header), Piece(start, block))
    planned = (PlannedVariable(variable, layout, conversion),)
    return FilePlan(start + len(block), pieces, planned)


def _check_shape(checked: CheckedInput, requested: str | None) -> None:
    """Raise ValueError if PyCauset, or the requested matrix type, does not support the shape."""
    name, variable = checked.single_variable
    if variable.ndim not in (1, 2):
        actual, call = "no dimension", "expand_dims('index')"
        if variable.ndim:
            actual = f"{variable.ndim} dimensions"
            call = f"stack(row={variable.dims[:-1]!r}, create_index=False)"
        raise ValueError(
            f"{checked.path}: {name!r} has {actual}, expected one or two; call {call} first, or "
            "write MAG"
        )
    if requested is not None and requested not in WRITTEN:
        raise ValueError(
            f"matrix_type={requested!r}{did_you_mean(requested, WRITTEN)} is not supported by "
            f"PyCauset; choose from {', '.join(WRITTEN)}"
        )
    if requested and (mismatch := _find_mismatch(requested, variable.shape)):
        raise ValueError(
            f"{checked.path}: {name!r} has shape {variable.shape}, and {mismatch}; leave out "
            "matrix_type="
        )


def _choose_types(
    checked: CheckedInput, requested: str | None
) -> tuple[tuple[str, ...], Conversion]:
    """Return the matrix types to try, in order, and the conversion to the stored dtype."""
    _check_shape(checked, requested)
    name, variable = checked.single_variable
    if requested is not None:
        elements = {dtype: ELEMENTS[dtype] for dtype in WRITTEN[requested]}
        checked = replace(checked, format=f"PyCauset's {requested}")
        return (requested,), checked.choose_conversion(name, variable, elements)
    conversion = checked.choose_conversion(name, variable, ELEMENTS)
    dtype = conversion.element.name
    plain = "INTEGER" if dtype in _INTEGERS else "DENSE_FLOAT"
    if variable.ndim == 1:
        plain = "VECTOR"
    special = _guess_type(variable)
    is_special = special in WRITTEN and not _find_mismatch(special, variable.shape)
    if is_special and dtype in WRITTEN[special] and dtype == variable.dtype.name:
        return tuple(dict.fromkeys((special, plain))), conversion
    return (plain,), conversion


def _find_mismatch(matrix_type: str, shape: tuple[int, ...]) -> str:
    """Return the reason why a shape does not fit a matrix type, or an empty string."""
    is_vector = matrix_type in spec.VECTORS
    if is_vector != (len(shape) == 1):
        return f"{matrix_type} is a type of {'vectors' if is_vector else 'matrices'}"
    required = "" if is_vector else spec.find_required_shape(matrix_type, *shape)
    return required and f"{matrix_type} requires {required}"


def _get_file_info(variable: Variable) -> Mapping[str, Any]:
    """Return the properties of the opened file if the variable is the whole matrix."""
    file_info = get_file_info(variable, NAME)
    shape = tuple(file_info.get("shape", ()))
    return file_info if shape[: variable.ndim] == variable.shape else {}


def _guess_type(variable: Variable) -> str:
    """Return the type in the opened file, otherwise CAUSAL, which only fits bools."""
    file_info = _get_file_info(variable)
    view = tuple(map(file_info.get, ("scalar", "is_transposed", "is_conjugated")))
    # PyCauset loads triangles of numbers as if they had no diagonal.
    is_plain = view == ([1, 0], 0, 0) and not file_info.get("has_diagonal")
    return str(file_info["matrix_type"]) if is_plain else "CAUSAL"
