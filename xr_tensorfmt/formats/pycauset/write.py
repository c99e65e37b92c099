"""Plan a PyCauset file of one matrix or vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

import numpy as np
from xarray import Variable

from xr_tensorfmt.core.embedded_metadata import embed_tensor
from xr_tensorfmt.core.extents import DEFAULT_CHUNK_BYTES
from xr_tensorfmt.core.file_format import EMBEDDED_KEY
from xr_tensorfmt.errors import build_choice_error
from xr_tensorfmt.formats import pycauset
from xr_tensorfmt.formats.pycauset import matrices
from xr_tensorfmt.writing.checked_input import CheckedInput, get_file_info
from xr_tensorfmt.writing.file_plan import Conversion, FilePlan, Piece, PlannedVariable

DATA_TYPES = {"bool": "BIT"} | {np.dtype(code).name: t for t, code in matrices.DTYPES.items()}
ELEMENTS = {name: matrices.STORED_ELEMENTS[data_type] for name, data_type in DATA_TYPES.items()}
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
    checked: CheckedInput, *, matrix_type: str | None = None, seed: int | None = None
) -> FilePlan:
    """Plan a PyCauset file."""
    is_integer = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if seed is not None and not (is_integer and 0 <= seed < 2**64):
        raise ValueError(f"seed={seed!r} is not an integer from 0 to 2**64 - 1")
    if matrix_type is not None and matrix_type not in WRITTEN:
        raise build_choice_error("matrix_type", matrix_type, WRITTEN)
    checked = checked.encode(ELEMENTS)
    name, variable = checked.single_variable
    checked.warn_of_order(name, variable)
    required = "one or two dimensions" if variable.ndim not in (1, 2) else ""
    if matrix_type is not None and not required:
        required = matrices.find_required_shape(matrix_type, variable.shape)
    if required:
        raise ValueError(
            f"{checked.path}: {name!r} has shape {variable.shape}, but "
            f"{matrix_type or 'PyCauset'} requires {required}; use another matrix_type= or "
            "--option matrix_type=, stack or expand_dims, or write MAG"
        )
    # The properties of the opened file, if the variable is the whole matrix.
    file_info = get_file_info(variable, pycauset.NAME)
    if tuple(file_info.get("shape", ()))[: variable.ndim] != variable.shape:
        file_info = {}
    if seed is None and file_info.get("matrix_type") != "UNIT_VECTOR":
        seed = file_info.get("seed")
    if matrix_type is None:
        conversion = checked.choose_conversion(name, variable, ELEMENTS)
        matrix_type = _choose_type(variable, conversion.element.name, file_info)
    else:
        elements = {dtype: ELEMENTS[dtype] for dtype in WRITTEN[matrix_type]}
        special = replace(checked, format=f"PyCauset's {matrix_type}")
        conversion = special.choose_conversion(name, variable, elements)
    is_causal_set = file_info.get(pycauset.OBJECT_TYPE) == "CausalSet"
    return _plan_matrix(checked, conversion, matrix_type, int(seed or 0), is_causal_set)


def _choose_type(variable: Variable, dtype: str, file_info: Mapping[str, Any]) -> str:
    """Return the type of the opened file, or CAUSAL, if it holds all values, or a general type."""
    view = tuple(map(file_info.get, ("scalar", "is_transposed", "is_conjugated")))
    # PyCauset loads triangles of numbers as if they had no diagonal.
    is_plain = view == ([1, 0], 0, 0) and not file_info.get("has_diagonal")
    special = str(file_info["matrix_type"]) if is_plain else "CAUSAL"
    plain = "INTEGER" if dtype in _INTEGERS else "DENSE_FLOAT"
    if variable.ndim == 1:
        plain = "VECTOR"
    is_supported = dtype == variable.dtype.name and dtype in WRITTEN.get(special, ())
    if not is_supported or special == plain:
        return plain
    if matrices.find_required_shape(special, variable.shape):
        return plain
    is_upper = is_plain if variable.chunks else _is_upper(variable)  # dask chunks are not computed
    return special if is_upper else plain


def _is_upper(variable: Variable) -> bool:
    """Return whether all elements on and below the diagonal are zero. Read some rows at a time."""
    count = max(1, DEFAULT_CHUNK_BYTES // max(1, variable.nbytes // max(1, len(variable))))
    starts = range(0, len(variable), count)
    return not any(np.tril(variable[row : row + count].values, row).any() for row in starts)


def _plan_matrix(
    checked: CheckedInput, conversion: Conversion, matrix_type: str, seed: int, is_causal_set: bool
) -> FilePlan:
    _, variable = checked.single_variable
    data_type, (rows, columns) = DATA_TYPES[conversion.element.name], (*variable.shape, 1)[:2]
    matrix = matrices.Matrix(matrix_type, data_type, rows, columns)
    layout, payload_bytes = matrices.build_layout(matrix, checked.path)
    kind = "raw_triangular" if matrix.stored == "triangle" else "raw_dense"
    scalar = {"real": 1.0, "imag": 0.0}
    # PyCauset needs these keys to load a matrix.
    metadata = {
        "rows": rows,
        "cols": columns,
        "seed": seed,
        "matrix_type": matrix_type,
        "data_type": data_type,
        "payload_uuid": uuid4().hex,
        "payload_layout": {"kind": kind, "params": {}},
        "view": {"is_transposed": False, "is_conjugated": False, "scalar": scalar},
        EMBEDDED_KEY: embed_tensor(checked).decode(),
    }
    if is_causal_set and matrix_type == "CAUSAL":
        metadata |= _build_causal_set(rows, variable.attrs)
    header, start, block = pycauset.pack_container(metadata, payload_bytes)
    pieces = (Piece(0, header), Piece(start, block))
    planned = (PlannedVariable(variable, layout, conversion),)
    return FilePlan(start + len(block), pieces, planned)


def _build_causal_set(count: int, attrs: Mapping[Any, Any]) -> dict[str, Any]:
    keys: dict[str, Any] = {pycauset.OBJECT_TYPE: "CausalSet", "n": count}
    if isinstance(attrs.get("spacetime"), str):
        arguments = {
            name.removeprefix(pycauset.ARGUMENT_PREFIX): value
            for name, value in attrs.items()
            if name.startswith(pycauset.ARGUMENT_PREFIX) and isinstance(value, int | float | str)
        }
        keys["spacetime"] = {"type": attrs["spacetime"], "args": arguments}
    return keys
