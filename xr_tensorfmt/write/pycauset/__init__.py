"""PyCauset: matrices and vectors."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Unpack, get_args

import numpy as np
from dask.delayed import Delayed
from xarray import DataArray, Dataset, Variable

from xr_tensorfmt.formats.annotation import KEY as NOTE_KEY
from xr_tensorfmt.formats.base import OpenOptions
from xr_tensorfmt.formats.limits import MOST_BYTES
from xr_tensorfmt.formats.pycauset import default_dims, shown_attrs
from xr_tensorfmt.formats.pycauset.facts import BIT_ROW
from xr_tensorfmt.formats.pycauset.matrix import VECTORS, Matrix
from xr_tensorfmt.formats.pycauset.slots import HEADER_BYTES
from xr_tensorfmt.formats.pycauset.storage import sized_layout
from xr_tensorfmt.lazyarray import held
from xr_tensorfmt.write.blueprint import Blueprint, Placed
from xr_tensorfmt.write.job import Job, SaveOptions
from xr_tensorfmt.write.notes import encoded, one_tensor
from xr_tensorfmt.write.pycauset.container import container, metadata_of, version_2
from xr_tensorfmt.write.pycauset.holding import holds
from xr_tensorfmt.write.pycauset.kinds import (
    MatrixType,
    Version,
    data_type,
    matrix_types,
    program,
)
from xr_tensorfmt.write.subject import Subject

MOST_SEED = 2**64 - 1


def to_pycauset(
    data: Dataset | DataArray,
    path: Any,
    *,
    version: Version = "r1",
    matrix_type: MatrixType | None = None,
    seed: int | None = None,
    **options: Unpack[SaveOptions],
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
    **options
        As for `to_file`: mode, compute, region, encoding, drop, storage_options, fs.

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
    if version not in get_args(Version):
        raise ValueError(f"version={version!r} is neither 'r1' nor 'v2'")
    if seed is not None and not _is_seed(seed):
        raise ValueError(f"seed={seed!r} is not an integer from 0 to 2**64 - 1")
    given = matrix_type is not None or seed is not None
    if given and options.get("region") is not None:
        raise ValueError(
            "matrix_type= and seed= are for new files, and region= writes into one that has both "
            "already; leave them out"
        )
    plan = partial(plan_pycauset, version=version, requested=matrix_type, seed=seed)
    return Job.of("to_pycauset", options).run(data, path, "PyCauset", plan)


def plan_pycauset(
    subject: Subject,
    version: Version = "r1",
    requested: MatrixType | None = None,
    seed: int | None = None,
) -> Blueprint:
    """Arrange a Dataset as a PyCauset file.

    Parameters
    ----------
    subject : Subject
        What is written.
    version : {"r1", "v2"}
        Of the format.
    requested : str, optional
        The type of matrix that the user wants.
    seed : int, optional
        The seed that the user gives.

    Returns
    -------
    Blueprint
    """
    _, variable = subject.only
    types, conversion = matrix_types(subject, version, requested)
    matrices = [_matrix(subject, version, each, data_type(conversion), seed) for each in types]
    matrix = next((each for each in matrices if _may_hold(subject, each)), matrices[-1])
    layout, payload = sized_layout(matrix, subject.path)
    if version == "v2":
        _check_forgotten(subject, matrix)
        size, pieces = version_2(matrix, payload)
    else:
        note = encoded(subject, one_tensor(subject, OpenOptions.name)).decode()
        metadata = metadata_of(matrix, uuid.uuid4().hex) | _causal_set(matrix, variable.attrs)
        size, pieces = container(metadata | {NOTE_KEY: note}, payload)
    return Blueprint(size, pieces, (Placed(variable, layout, conversion),))


def _may_hold(subject: Subject, matrix: Matrix) -> bool:
    """Whether values in memory are those of a matrix; others are looked at when written."""
    values = held(subject.only[1])
    in_memory = isinstance(values, np.ndarray)
    return not in_memory or holds(sized_layout(matrix, subject.path)[0], values)


def _matrix(
    subject: Subject, version: Version, matrix_type: str, data_type: str, seed: int | None
) -> Matrix:
    """The matrix that a reader will find."""
    _, variable = subject.only
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


def _check_forgotten(subject: Subject, matrix: Matrix) -> None:
    """Refuse to lose what version 2 has no place for."""
    subject = replace(subject, format=program("v2"))
    name, variable = subject.only
    known, dims = shown_attrs(matrix), default_dims(variable.ndim)
    if name != OpenOptions.name:
        subject.dropping("name", f"the name {name!r}", f"rename it to {OpenOptions.name!r}")
    if variable.dims != dims:
        subject.dropping("dims", f"the dims {variable.dims}", f"rename them to {dims}")
    for coordinate in subject.coordinates:
        subject.dropping("coords", f"the coordinate {coordinate!r}", _NEWER)
    for attribute, value in {**subject.attrs, **variable.attrs}.items():
        if attribute not in known or not np.array_equal(known[attribute], value):
            subject.dropping("attrs", f"the attribute {attribute!r}", _NEWER)


_NEWER = "leave out version="
