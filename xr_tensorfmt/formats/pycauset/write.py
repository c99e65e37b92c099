"""Whether values in memory are such as a type of matrix implies."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace
from struct import pack
from typing import Any, Literal
from zlib import crc32

import numpy as np
from dask.delayed import Delayed
from xarray import DataArray, Dataset, Variable

from xr_tensorfmt.core.elements import Array, Boolean, Element, Plain
from xr_tensorfmt.core.embedded_metadata import KEY as EMBEDDED_KEY
from xr_tensorfmt.core.header import MOST_BYTES
from xr_tensorfmt.core.layout import Layout, within
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.core.selection import MOST_RUNS, Selection
from xr_tensorfmt.datasets.lazy_array import wrapped_data
from xr_tensorfmt.formats.pycauset import MAGIC, PycausetFormat
from xr_tensorfmt.formats.pycauset.containers import (
    BLOCK_HEADER,
    BLOCK_MAGIC,
    DATA_TYPES,
    FIELDS,
    KNOWN_VERSION,
    MATRIX_TYPES,
)
from xr_tensorfmt.formats.pycauset.read import (
    BIT_ROW,
    default_dims,
    shown_attrs,
    sized_layout,
)
from xr_tensorfmt.formats.pycauset.rows import PartlyStored
from xr_tensorfmt.formats.pycauset.spec import (
    BIT,
    CHECKSUM,
    DTYPES,
    HEADER_BYTES,
    METADATA_ALIGNMENT,
    POINTERS,
    PREAMBLE,
    SLOTS,
    VECTORS,
    Matrix,
    encode_map,
)
from xr_tensorfmt.formats.pycauset.triangle import Mirrored
from xr_tensorfmt.writing.atomic_file import Piece
from xr_tensorfmt.writing.checked_input import CheckedInput, Encoding, Part
from xr_tensorfmt.writing.conversion import Conversion
from xr_tensorfmt.writing.embedded_metadata import encoded, one_tensor
from xr_tensorfmt.writing.file_plan import FilePlan, Placed
from xr_tensorfmt.writing.to_file import Mode, write

# Elements that are looked at, or compared with their mirror image, before the next ones.
_AT_A_TIME = 1 << 19


def holds(layout: Layout, values: Array) -> bool:
    """Whether a layout shows values as they are, once they are written."""
    if not values.size:
        return True
    if not isinstance(layout, PartlyStored):
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
    checked: CheckedInput, version: Version, requested: str | None
) -> tuple[tuple[str, ...], Conversion]:
    """The types of matrix that a variable can become, by all but its values."""
    name, variable = checked.only
    _check_shape(checked.path, name, variable)
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
        raise ValueError(f"{checked.path}: {name!r} has shape {variable.shape}, and {fault}")
    elements = [each for each in _ELEMENTS if any(each in written[kind] for kind in fitting)]
    holder = program(version) + (f"'s {requested}" if requested else "")
    conversion = replace(checked, format=holder).conversion(
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
    return ["CAUSAL"] if isinstance(wrapped_data(variable), np.ndarray) else []


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


_VIEW = {"is_transposed": False, "is_conjugated": False, "scalar": {"real": 1.0, "imag": 0.0}}
_STORED = ("CAUSAL", "TRIANGULAR_FLOAT", "TRIANGULAR_INTEGER", "SYMMETRIC", "ANTISYMMETRIC")


def metadata_of(matrix: Matrix, uuid: str) -> dict[str, Any]:
    """The keys that every container has."""
    kinds = {"DIAGONAL": "raw_diagonal", **dict.fromkeys(_STORED, "raw_triangular")}
    return {
        "rows": matrix.rows,
        "cols": matrix.columns,
        "seed": matrix.seed,
        "matrix_type": matrix.matrix_type,
        "data_type": matrix.data_type,
        "payload_uuid": uuid,
        "payload_layout": {"kind": kinds.get(matrix.matrix_type, "raw_dense"), "params": {}},
        "view": _VIEW,
    }


def container(metadata: Mapping[str, Any], payload: int) -> tuple[int, tuple[Piece, ...]]:
    """A container without its values."""
    encoded = encode_map(metadata)
    versions = (KNOWN_VERSION, KNOWN_VERSION, 0)
    facts = (*versions, len(encoded), crc32(encoded), 0)
    block = BLOCK_HEADER.pack(BLOCK_MAGIC, *facts) + encoded
    end = HEADER_BYTES + payload
    place = end + -end % METADATA_ALIGNMENT
    header = bytearray((MAGIC + pack("<I", 1) + PREAMBLE).ljust(HEADER_BYTES, b"\0"))
    # Both slots lead to the same, as PyCauset writes them.
    for generation, offset in zip((1, 0), SLOTS.values(), strict=True):
        pointers = POINTERS.pack(generation, HEADER_BYTES, payload, place, len(block), 0, 0)
        slot = pointers + CHECKSUM.pack(crc32(pointers))
        header[offset : offset + len(slot)] = slot
    return place + len(block), (Piece(0, bytes(header)), Piece(place, block))


def version_2(matrix: Matrix, payload: int) -> tuple[int, tuple[Piece, ...]]:
    """A file of version 2 without its values."""
    kinds = {word: number for number, word in MATRIX_TYPES.items()}
    types = {word: number for number, word in DATA_TYPES.items()}
    words = pack("<4I", 2, kinds[matrix.matrix_type], types[matrix.data_type], 0)
    shape = (matrix.rows, matrix.columns)
    header = MAGIC + words + FIELDS[2].pack(*shape, matrix.seed, 1.0, 0, 0)
    size = HEADER_BYTES + max(payload, _least_payload(matrix))
    return size, (Piece(0, header.ljust(HEADER_BYTES, b"\0")),)


def _least_payload(matrix: Matrix) -> int:
    """Bytes that version 2 has for no element at all."""
    if matrix.matrix_type == "IDENTITY":
        return 0
    return 4 if matrix.data_type == "INT32" else 8


MOST_SEED = 2**64 - 1


def to_pycauset(
    data: Dataset | DataArray,
    path: Any,
    *,
    version: Version | None = None,
    matrix_type: MatrixType | None = None,
    seed: int | None = None,
    mode: Mode = "w",
    compute: bool = True,
    region: Mapping[Any, slice] | None = None,
    encoding: Encoding | None = None,
    drop: Collection[Part] = (),
    storage_options: Mapping[str, Any] | None = None,
    fs: Any = None,
) -> Delayed | None:
    """Write a PyCauset file: one matrix or vector.

    Parameters
    ----------
    data : Dataset or DataArray
        What to write: one variable of one or two dimensions.
    path : str or PathLike
        The file, or its URL.
    version : {"r1", "v2"}
        The container that PyCauset 0.5 and later load, or the format of 0.2, which holds only
        some kinds of square matrices and no names, coordinates or attributes.
    matrix_type : str, optional
        How to store it: ``"CAUSAL"``, ``"TRIANGULAR_FLOAT"``, ``"TRIANGULAR_INTEGER"``,
        ``"DENSE_FLOAT"``, ``"INTEGER"``, ``"SYMMETRIC"``, ``"ANTISYMMETRIC"``, ``"DIAGONAL"``,
        ``"IDENTITY"``, ``"VECTOR"`` or ``"UNIT_VECTOR"``. The values must be of that kind. By
        default what it was in the file that it was opened from; ``"CAUSAL"`` for a strict upper
        triangle of bools in memory; else every element is stored.
    seed : int, optional
        Of the random numbers that the values come from; by default the attribute ``seed``.
    mode, compute, region, encoding, drop, storage_options, fs
        As for `to_file`.

    Returns
    -------
    Delayed or None
        What writes the file when it is computed, where ``compute=False``.

    Raises
    ------
    ValueError
        The format cannot hold something, or the values are not of the kind that was asked for;
        the message says what, and what would work.
    OSError
        The system refuses; what was there before is unchanged.

    Notes
    -----
    Of a symmetric or antisymmetric matrix one half is stored. To see that the other half is its
    mirror image, every chunk is computed a second time.
    """
    return write(
        data,
        path,
        PycausetFormat(),
        {"version": version, "matrix_type": matrix_type, "seed": seed},
        mode=mode,
        compute=compute,
        region=region,
        encoding=encoding,
        drop=drop,
        storage_options=storage_options,
        fs=fs,
    )


def plan(
    checked: CheckedInput,
    *,
    version: Version = "r1",
    matrix_type: MatrixType | None = None,
    seed: int | None = None,
) -> FilePlan:
    """Arrange a Dataset as a PyCauset file."""
    if seed is not None and not _is_seed(seed):
        raise ValueError(f"seed={seed!r} is not an integer from 0 to 2**64 - 1")
    _, variable = checked.only
    types, conversion = matrix_types(checked, version, matrix_type)
    matrices = [_matrix(checked, version, each, data_type(conversion), seed) for each in types]
    matrix = next((each for each in matrices if _may_hold(checked, each)), matrices[-1])
    layout, payload = sized_layout(matrix, checked.path)
    if version == "v2":
        _check_forgotten(checked, matrix)
        size, pieces = version_2(matrix, payload)
    else:
        embedded = encoded(checked, one_tensor(checked, OpenOptions.name)).decode()
        metadata = metadata_of(matrix, uuid.uuid4().hex) | _causal_set(matrix, variable.attrs)
        size, pieces = container(metadata | {EMBEDDED_KEY: embedded}, payload)
    return FilePlan(size, pieces, (Placed(variable, layout, conversion),))


def _may_hold(checked: CheckedInput, matrix: Matrix) -> bool:
    """Whether values in memory are those of a matrix; others are looked at when written."""
    values = wrapped_data(checked.only[1])
    in_memory = isinstance(values, np.ndarray)
    return not in_memory or holds(sized_layout(matrix, checked.path)[0], values)


def _matrix(
    checked: CheckedInput, version: Version, matrix_type: str, data_type: str, seed: int | None
) -> Matrix:
    """The matrix that a reader will find."""
    _, variable = checked.only
    inherited: Any = variable.attrs.get("seed")
    if matrix_type == "UNIT_VECTOR":
        if seed is not None:
            raise ValueError(
                f"seed={seed!r} has no place in a UNIT_VECTOR, which has its active index there; "
                "leave it out, or pass matrix_type='VECTOR'"
            )
        seed = _place_of_one(variable)
    elif seed is None and _is_seed(inherited):
        seed = int(inherited)
    is_vector = matrix_type in VECTORS
    return Matrix(
        version,
        matrix_type,
        data_type,
        variable.shape[0],
        1 if is_vector else variable.shape[1],
        HEADER_BYTES,
        limit=MOST_BYTES,  # as much as it takes; there is no file yet
        fields=0,
        seed=seed or 0,
        bit_row=BIT_ROW if version == "r1" and not is_vector else 8,
        attrs={"is_temporary": 0},
    )


def _place_of_one(variable: Variable) -> int:
    """Where the one of a unit vector is; that all else is zero is seen when it is written."""
    return int(np.asarray(variable.data.argmax()))


def _is_seed(value: Any) -> bool:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_integer and 0 <= value <= MOST_SEED


def _causal_set(matrix: Matrix, attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """What makes a causal set of a matrix for PyCauset, where the attributes say so."""
    is_set = attrs.get("object_type") == "CausalSet" and attrs.get("n") == matrix.rows
    if not is_set or matrix.matrix_type != "CAUSAL":
        return {}
    facts: dict[str, Any] = {"object_type": "CausalSet", "n": matrix.rows}
    if isinstance(attrs.get("spacetime"), str):
        arguments = {
            name.removeprefix(_ARGUMENT): value
            for name, value in attrs.items()
            if name.startswith(_ARGUMENT) and isinstance(value, int | float | str)
        }
        facts["spacetime"] = {"type": attrs["spacetime"], "args": arguments}
    return facts


_ARGUMENT = "spacetime_"


def _check_forgotten(checked: CheckedInput, matrix: Matrix) -> None:
    """Refuse to lose what version 2 has no place for."""
    checked = replace(checked, format=program("v2"))
    name, variable = checked.only
    known, dims = shown_attrs(matrix), default_dims(variable.ndim)
    if name != OpenOptions.name:
        checked.dropping("name", f"the name {name!r}", f"rename it to {OpenOptions.name!r}")
    if variable.dims != dims:
        checked.dropping("dims", f"the dims {variable.dims}", f"rename them to {dims}")
    for coordinate in checked.coordinates:
        checked.dropping("coords", f"the coordinate {coordinate!r}", _NEWER)
    for attribute, value in {**checked.attrs, **variable.attrs}.items():
        if attribute not in known or not np.array_equal(known[attribute], value):
            checked.dropping("attrs", f"the attribute {attribute!r}", _NEWER)


_NEWER = "leave out version="
