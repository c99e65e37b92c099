"""Writing a TENS file: all values, in both versions, or pairs of index and value."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from string import ascii_letters
from typing import Any, Literal

import numpy as np
from dask.delayed import Delayed
from xarray import DataArray, Dataset, Variable

from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Plain
from xr_tensorfmt.core.views import column_major
from xr_tensorfmt.errors import TensorFormatWarning, stacklevel_of_caller
from xr_tensorfmt.formats.tens import TensFormat
from xr_tensorfmt.formats.tens.chunks import (
    DENSE_DATA,
    EMBEDDED,
    HEADER_BYTES,
    PAGE,
    SYMMETRY,
    TENSOR,
    UNIT,
    packed_chunk,
    packed_header,
)
from xr_tensorfmt.formats.tens.pairs import COUNT_BYTES
from xr_tensorfmt.formats.tens.spec import (
    DTYPES,
    INDEX_VALUE_FLAG,
    MOST_LENGTH,
    VERSION_0_9,
    VERSION_1_0,
    Dimension,
    Header,
    is_index_name,
    number_fields,
)
from xr_tensorfmt.formats.tens.symmetries import Symmetry
from xr_tensorfmt.formats.tens.write_pairs import (
    are_stored_pairs,
    embedded_with_pairs,
    facts_of,
    index_coordinates,
    pairs_of_tensor,
    plan_pairs,
    sorted_pairs,
)
from xr_tensorfmt.formats.tens.write_symmetries import (
    Symmetries,
    check_symmetries,
    given,
    inherited,
)
from xr_tensorfmt.writing.atomic_file import Piece
from xr_tensorfmt.writing.checked_input import (
    CheckedInput,
    Encoding,
    Part,
    without_attrs_of_file,
)
from xr_tensorfmt.writing.conversion import Conversion
from xr_tensorfmt.writing.embedded_metadata import encoded, one_tensor
from xr_tensorfmt.writing.file_plan import FilePlan, FirstPass, Placed
from xr_tensorfmt.writing.to_file import Mode, write

Version = Literal["1.0", "0.9"]

_DTYPES_0_9 = ("float64", "complex128")
_NEWER = "write version='1.0'"


def to_tens(
    data: Dataset | DataArray,
    path: Any,
    *,
    version: Version | float | None = None,
    sparse: bool = False,
    symmetries: Symmetries | None = None,
    mode: Mode = "w",
    compute: bool = True,
    region: Mapping[Any, slice] | None = None,
    encoding: Encoding | None = None,
    drop: Collection[Part] = (),
    storage_options: Mapping[str, Any] | None = None,
    fs: Any = None,
) -> Delayed | None:
    """Write a TENS file: one tensor.

    Parameters
    ----------
    data : Dataset or DataArray
        What to write; one variable, with its coordinates.
    path : str or PathLike
        The file, or its URL.
    version : {"1.0", "0.9"}, optional
        What the specification describes, or what cc4s until 2020 and sisi4s read: float64 or
        complex128, without names, coordinates and attributes. By default 0.9 for a suffix
        ``.bin``; for a variable that was opened from a file of version 0.9 that version as well,
        with a warning and version 1.0 where it cannot hold something; else 1.0.
    sparse : bool
        Whether to store only what is not zero, as pairs of index and value. For this the values
        are computed twice: to count them, and to write them. What was opened with
        ``sparse="stored"`` is written as pairs in any case, after it is loaded and sorted.
    symmetries : str or collection of str, optional
        What leaves the tensor as it is, and is to be stated in a file of version 1.0: ``"-x ba"``
        says T[a, b] = -T[b, a]. Dimensions of longer names are called a, b, ... in their order.
        All values are stored nonetheless, and each is compared with its image first, which
        computes them once more. By default those of the opened file, if its dims are still the
        same; an empty list for none.
    mode, compute, region, encoding, drop, storage_options, fs
        As for `to_file`.

    Returns
    -------
    Delayed or None
        What writes the file when it is computed, where ``compute=False``.

    Raises
    ------
    ValueError
        The format cannot hold something, or the values do not have the symmetries; the message
        says what, and what would work.
    OSError
        The system refuses; what was there before is unchanged.

    Warns
    -----
    TensorFormatWarning
        What was opened as version 0.9 is written as 1.0, which cc4s and sisi4s cannot load.

    See Also
    --------
    xr_tensorfmt.to_file : All keywords that formats share.
    xr_tensorfmt.to_cc4s : What cc4s reads today.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> tensor = xr.DataArray(np.eye(3), dims=("a", "b"))
    >>> to_tens(tensor, "identity.tens", sparse=True)
    >>> to_tens(tensor, "identity.bin")
    """
    return write(
        data,
        path,
        TensFormat(),
        {"version": version, "sparse": sparse or None, "symmetries": symmetries},
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
    version: Version | None = None,
    sparse: bool = False,
    symmetries: Symmetries | None = None,
) -> FilePlan | FirstPass:
    """Plan a TENS file."""
    older = replace(checked, format="TENS 0.9")
    if version is None and os.path.splitext(checked.path.casefold())[1] == ".bin":
        older, version = replace(checked, format="TENS 0.9, the version of .bin files,"), "0.9"
    if version == "0.9":
        return _plan_0_9(older, sparse, symmetries)
    if version is None and facts_of(checked.only[1]).get("version") == "0.9":
        try:
            return _plan_0_9(older, sparse, symmetries)
        except ValueError as error:
            reason = str(error).removeprefix(f"{checked.path}: ")
        message = (
            f"{checked.path}: the file is of version 1.0, which cc4s and sisi4s cannot load, as "
            f"{reason}"
        )
        warnings.warn(message, TensorFormatWarning, stacklevel=stacklevel_of_caller())
    return _plan_1_0(checked, sparse, symmetries)


def _conversion(checked: CheckedInput, dtypes: Sequence[str] = DTYPES) -> Conversion:
    """The dtype of the one variable in the file, after a look at its shape."""
    name, variable = checked.only
    checked.check_rank(name, variable)
    for dim, length in zip(variable.dims, variable.shape, strict=True):
        if length > MOST_LENGTH:
            raise ValueError(
                f"{checked.path}: {name!r} has {length} elements along {dim!r}, and TENS counts to "
                f"{MOST_LENGTH}; split that dimension in two"
            )
    elements = {each: Plain(np.dtype(each).newbyteorder("<")) for each in dtypes}
    return checked.conversion(name, variable, elements)


def _header(
    version: int, conversion: Conversion, lengths: Sequence[int], dims: Sequence[Any], flags: int
) -> Header:
    """The header of a tensor with these dimensions."""
    dimensions = tuple(map(Dimension, lengths, _index_names(dims)))
    return Header(version, *number_fields(conversion.element.dtype), flags, dimensions)


def _index_names(dims: Sequence[str]) -> list[int]:
    """A character for each dimension: its own name where that is one, else a letter."""
    own = set(filter(is_index_name, dims))
    letters = (letter for letter in ascii_letters if letter not in own)
    return [ord(dim if dim in own else next(letters)) for dim in dims]


def _plan_dense(variable: Variable, conversion: Conversion, head: bytes, unit: int) -> FilePlan:
    """A file of all values after the head, filled up to a multiple of a unit."""
    layout = column_major(Dense(variable.shape[::-1], conversion.element, len(head)))
    nbytes = prod(variable.shape) * conversion.element.stored.itemsize
    placed = Placed(variable, layout, conversion)
    return FilePlan(len(head) + nbytes + -nbytes % unit, (Piece(0, head),), (placed,))


def _plan_0_9(checked: CheckedInput, sparse: bool, symmetries: Symmetries | None) -> FilePlan:
    """A file of version 0.9, as cc4s wrote it; ValueError for what that has no place for."""
    name, variable = checked.only
    older = f"{checked.path}: {checked.format}"
    if sparse or are_stored_pairs(variable):
        raise ValueError(
            f"{older} has no pairs of index and value; write all values (without sparse=True, and "
            f"of a file opened without sparse='stored'), or {_NEWER}"
        )
    if symmetries:
        raise ValueError(
            f"{older} cannot state symmetries={symmetries!r}; leave them out, or {_NEWER}"
        )
    conversion = _conversion(checked, _DTYPES_0_9)
    header = _header(VERSION_0_9, conversion, variable.shape, variable.dims, 0)
    if name != TENSOR:
        checked.dropping("name", f"the name {name!r}", f"rename it to {TENSOR!r}, {_NEWER}")
    if variable.dims != header.names:
        way_out = f"rename them to {header.names}, {_NEWER}"
        checked.dropping("dims", f"the dims {variable.dims}", way_out)
    own = without_attrs_of_file(variable.attrs)
    for owner, attrs in ((repr(name), own), ("the Dataset", checked.attrs)):
        if attrs:
            what = f"the attributes {', '.join(map(repr, attrs))} of {owner}"
            checked.dropping("attrs", what, _NEWER)
    for coordinate in checked.coordinates:
        checked.dropping("coords", f"the coordinate {coordinate!r}", _NEWER)
    return _plan_dense(variable, conversion, header.pack(), 1)


def _plan_1_0(
    checked: CheckedInput, sparse: bool, symmetries: Symmetries | None
) -> FilePlan | FirstPass:
    """A file of version 1.0."""
    _, variable = checked.only
    if are_stored_pairs(variable):
        return _plan_stored(checked, symmetries)
    conversion, flags = _conversion(checked), INDEX_VALUE_FLAG if sparse else 0
    header = _header(VERSION_1_0, conversion, variable.shape, variable.dims, flags)
    if symmetries is None:
        stated = inherited(facts_of(variable), header, variable.dims)
    else:
        stated = given(checked.path, symmetries, header)
    embedded = encoded(checked, one_tensor(checked, TENSOR))
    check = partial(check_symmetries, variable, header, conversion, stated)
    if sparse:
        head = _head(header, stated, embedded, COUNT_BYTES)

        def counted() -> FilePlan:
            check()
            return plan_pairs(conversion.name, pairs_of_tensor(variable, conversion), head)

        return FirstPass(counted)
    nbytes = prod(variable.shape) * conversion.element.stored.itemsize
    data = packed_header(DENSE_DATA, nbytes)
    head = _head(header, stated, embedded, len(data)) + data
    file_plan = _plan_dense(variable, conversion, head, UNIT)

    def compared() -> FilePlan:
        check()
        return file_plan

    return FirstPass(compared) if stated else file_plan


def _head(header: Header, symmetries: Sequence[Symmetry], embedded: bytes, following: int) -> bytes:
    """Header and chunks; after so many more bytes a page of the file begins."""
    stated = b"".join(packed_chunk(SYMMETRY, each.pack()) for each in symmetries)
    start = header.pack() + stated
    known = len(start) + HEADER_BYTES + len(embedded) + following
    return start + packed_chunk(EMBEDDED, embedded + bytes(-known % PAGE))


def _plan_stored(checked: CheckedInput, symmetries: Symmetries | None) -> FirstPass:
    """A file of the pairs that were opened with sparse='stored'."""
    if symmetries:
        raise ValueError(
            f"{checked.path}: pairs opened with sparse='stored' are written without a look at "
            f"their symmetries; to state symmetries={symmetries!r}, open the file without"
        )
    _, variable = checked.only
    indices = index_coordinates(checked)
    conversion, lengths = _conversion(checked), facts_of(variable)["shape"]
    header = _header(VERSION_1_0, conversion, lengths, list(indices), INDEX_VALUE_FLAG)
    embedded = encoded(checked, embedded_with_pairs(checked, indices))
    head = _head(header, (), embedded, COUNT_BYTES)

    def loaded() -> FilePlan:
        return plan_pairs(conversion.name, sorted_pairs(variable, indices, conversion), head)

    return FirstPass(loaded)
