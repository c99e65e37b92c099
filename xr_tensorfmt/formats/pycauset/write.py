"""Plan a PyCauset file of one matrix or vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any
from uuid import uuid4
from zlib import crc32

import numpy as np
from xarray import Variable

from xr_tensorfmt.core.container import EMBEDDED_KEY
from xr_tensorfmt.core.embedded_metadata import embed_tensor
from xr_tensorfmt.core.header import MAX_TENSOR_BYTES
from xr_tensorfmt.errors import did_you_mean
from xr_tensorfmt.formats.pycauset import NAME
from xr_tensorfmt.formats.pycauset.headers import (
    ARGUMENT_PREFIX,
    BLOCK_HEADER,
    BLOCK_MAGIC,
    BLOCK_VERSIONS,
    BOOL,
    FLOAT,
    KEY_LENGTH,
    LENGTH,
    MAP,
    METADATA_ALIGNMENT,
    NUMBERS,
    OBJECT_TYPE,
    PREAMBLE,
    SIGNED,
    SLOT_OFFSETS,
    STRING,
    UNSIGNED,
    Slot,
)
from xr_tensorfmt.formats.pycauset.matrices import (
    BIT,
    DTYPES,
    HEADER_BYTES,
    MATRIX_TYPES,
    R1_BIT_ROW_BYTES,
    STORED_ELEMENTS,
    VECTORS,
    WORD_BYTES,
    Matrix,
    build_layout,
    find_required_shape,
)
from xr_tensorfmt.writing.checked_input import CheckedInput
from xr_tensorfmt.writing.encoding import Conversion, get_file_info
from xr_tensorfmt.writing.file_plan import FilePlan, Piece, PlannedVariable

DATA_TYPES = {"bool": BIT} | {np.dtype(code).name: t for t, code in DTYPES.items()}
ELEMENTS = {name: STORED_ELEMENTS[data_type] for name, data_type in DATA_TYPES.items()}
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
    name, variable = checked.single_variable
    checked.warn_of_order(name, variable.dims)
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
        offset=HEADER_BYTES,
        limit=MAX_TENSOR_BYTES,
        types_offset=0,
        seed=int(seed or 0),
        row_bytes=R1_BIT_ROW_BYTES if matrix_type == "DENSE_FLOAT" else WORD_BYTES,
    )
    layout, payload_bytes = build_layout(matrix, checked.path)
    embedded = embed_tensor(checked).decode()
    metadata = _build_metadata(matrix, file_info.get(OBJECT_TYPE, ""), variable.attrs)
    header, start, block = _pack_container(metadata | {EMBEDDED_KEY: embedded}, payload_bytes)
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
    is_vector = matrix_type in VECTORS
    if is_vector != (len(shape) == 1):
        return f"{matrix_type} is a type of {'vectors' if is_vector else 'matrices'}"
    required = "" if is_vector else find_required_shape(matrix_type, *shape)
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


def _build_metadata(matrix: Matrix, object_type: str, attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the metadata that PyCauset needs to load a matrix, or a causal set."""
    is_triangle = MATRIX_TYPES[matrix.matrix_type].stored == "triangle"
    layout = "raw_triangular" if is_triangle else "raw_dense"
    return {
        "rows": matrix.rows,
        "cols": matrix.columns,
        "seed": matrix.seed,
        "matrix_type": matrix.matrix_type,
        "data_type": matrix.data_type,
        "payload_uuid": uuid4().hex,
        "payload_layout": {"kind": layout, "params": {}},
        "view": {
            "is_transposed": False,
            "is_conjugated": False,
            "scalar": {"real": 1.0, "imag": 0.0},
        },
        **_build_causal_set(matrix, object_type, attrs),
    }


def _build_causal_set(matrix: Matrix, object_type: str, attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the metadata of a causal set, empty for other matrices."""
    if (matrix.matrix_type, object_type) != ("CAUSAL", "CausalSet"):
        return {}
    keys: dict[str, Any] = {OBJECT_TYPE: "CausalSet", "n": matrix.rows}
    if isinstance(attrs.get("spacetime"), str):
        arguments = {
            name.removeprefix(ARGUMENT_PREFIX): value
            for name, value in attrs.items()
            if name.startswith(ARGUMENT_PREFIX) and isinstance(value, int | float | str)
        }
        keys["spacetime"] = {"type": attrs["spacetime"], "args": arguments}
    return keys


def _pack_container(metadata: Mapping[str, Any], payload_bytes: int) -> tuple[bytes, int, bytes]:
    """Return the header, and the offset and content of the metadata block."""
    encoded = encode_map(metadata)
    fields = (BLOCK_MAGIC, *BLOCK_VERSIONS, 0, len(encoded), crc32(encoded), 0)
    block = BLOCK_HEADER.pack(*fields) + encoded
    payload_stop = HEADER_BYTES + payload_bytes
    start = payload_stop + -payload_stop % METADATA_ALIGNMENT
    header = bytearray(PREAMBLE.ljust(HEADER_BYTES, b"\0"))
    # PyCauset writes both slots with the same pointers.
    for generation, (name, offset) in zip((1, 0), SLOT_OFFSETS.items(), strict=True):
        slot = Slot(name, generation, HEADER_BYTES, payload_bytes, start, len(block))
        slot = replace(slot, checksum=slot.computed_checksum)
        Slot.STRUCT.pack_into(header, offset, *astuple(slot)[1:])
    return bytes(header), start, block


def encode_map(values: Mapping[str, Any]) -> bytes:
    """Encode a map. The keys ascend, as in files written by PyCauset."""
    encoded = bytes([MAP]) + LENGTH.pack(len(values))
    for key, value in sorted(values.items()):
        raw = key.encode()
        encoded += KEY_LENGTH.pack(len(raw)) + raw + _encode(value)
    return encoded


def _encode(value: Any) -> bytes:
    if isinstance(value, Mapping):
        return encode_map(value)
    if isinstance(value, str):
        raw = value.encode()
        return bytes([STRING]) + LENGTH.pack(len(raw)) + raw
    tag = FLOAT if isinstance(value, float) else BOOL
    if not isinstance(value, bool | float):
        tag = SIGNED if value < 0 else UNSIGNED
    return bytes([tag]) + NUMBERS[tag].pack(value)
