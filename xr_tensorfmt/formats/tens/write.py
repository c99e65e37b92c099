"""Writing a TENS file: all values, in both versions, or pairs of index and value."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from string import ascii_letters
from typing import Any, Literal

import numpy as np
from dask.delayed import Delayed
from xarray import DataArray, Dataset, Variable

from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Element, Plain
from xr_tensorfmt.core.embedded_metadata import EmbeddedMetadata
from xr_tensorfmt.core.header import MOST_DIMENSIONS
from xr_tensorfmt.core.views import column_major
from xr_tensorfmt.datasets.lazy_array import unchunked
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
from xr_tensorfmt.formats.tens.read import COMPONENT, ENTRY
from xr_tensorfmt.formats.tens.spec import (
    DTYPES,
    INDEX_VALUE_FLAG,
    MOST_LENGTH,
    NUMBERS_PER_ELEMENT,
    VERSION_0_9,
    VERSION_1_0,
    Dimension,
    Header,
    is_index_name,
    number_fields,
)
from xr_tensorfmt.formats.tens.symmetries import Symmetry
from xr_tensorfmt.formats.tens.write_pairs import (
    Pairing,
    pairs_of_entries,
    pairs_of_tensor,
    plan_pairs,
)
from xr_tensorfmt.formats.tens.write_symmetries import (
    Symmetries,
    check_symmetries,
    given,
    inherited,
)
from xr_tensorfmt.writing.atomic_file import Piece
from xr_tensorfmt.writing.checked_input import CheckedInput, Encoding, Part
from xr_tensorfmt.writing.conversion import Conversion
from xr_tensorfmt.writing.embedded_metadata import encoded, one_tensor
from xr_tensorfmt.writing.file_plan import FilePlan, FirstPass, Placed
from xr_tensorfmt.writing.to_file import Mode, write

Version = Literal["1.0", "0.9"]

_VERSIONS: dict[Version, int] = {"1.0": VERSION_1_0, "0.9": VERSION_0_9}
_DTYPES: dict[Version, Sequence[str]] = {"1.0": DTYPES, "0.9": ("float64", "complex128")}


def to_tens(
    data: Dataset | DataArray,
    path: Any,
    *,
    version: Version | None = None,
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
    version : {"1.0", "0.9"}
        What the specification describes, or what cc4s until 2020 and sisi4s read: float64 or
        complex128, without names, coordinates and attributes.
    sparse : bool
        Whether to store only what is not zero, as pairs of index and value. For this the values
        are computed twice: to count them, and to write them. What was opened with
        ``sparse="stored"`` is written as pairs in any case.
    symmetries : str or collection of str, optional
        What leaves the tensor as it is, and is to be stated in a file of version 1.0: ``"-x ba"``
        says T[a, b] = -T[b, a]. Dimensions of longer names are called a, b, ... in their order.
        All values are stored nonetheless, and each is compared with its image first, which
        computes them once more. By default those of the opened file, if they still fit the
        dims; an empty list for none.
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

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> tensor = xr.DataArray(np.eye(3), dims=("a", "b"))
    >>> to_tens(tensor, "identity.tens", sparse=True)
    >>> to_tens(tensor, "identity.bin", version="0.9")
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
    version: Version = "1.0",
    sparse: bool = False,
    symmetries: Symmetries | None = None,
) -> FilePlan | FirstPass:
    """Plan a TENS file."""
    stored = _are_stored_pairs(checked.only[1])
    if version == "0.9":
        _check_dense_only(checked.path, sparse or stored, symmetries)
        return _plan_0_9(checked)
    if stored:
        return _plan_stored(checked, symmetries)
    tensor = _tensor_of(checked, version, INDEX_VALUE_FLAG if sparse else 0)
    if symmetries is None:
        stated = tuple(inherited(_facts_of(tensor.variable), tensor.header, tensor.dims))
    else:
        stated = given(checked.path, symmetries, tensor.header)
    embedded = encoded(checked, one_tensor(checked, TENSOR))
    if sparse:
        head = _head(tensor.header, stated, embedded, COUNT_BYTES)
        return FirstPass(partial(_plan_sparse, tensor, stated, head))
    data = packed_header(DENSE_DATA, tensor.nbytes)
    head = _head(tensor.header, stated, embedded, len(data)) + data
    file_plan = _plan_dense(tensor, head, UNIT)
    return FirstPass(partial(_plan_checked, tensor, stated, file_plan)) if stated else file_plan


def _check_dense_only(path: str, pairs: bool, symmetries: Symmetries | None) -> None:
    """Refuse what version 0.9 does not have."""
    if pairs:
        raise ValueError(
            f"{path}: version 0.9 has no pairs of index and value; write version 1.0, or all "
            "values: without sparse=True, and of a file opened without sparse='stored'"
        )
    if symmetries:
        raise ValueError(
            f"{path}: version 0.9 cannot state symmetries={symmetries!r}; write version 1.0, or "
            "leave them out"
        )


def _head(header: Header, symmetries: Sequence[Symmetry], embedded: bytes, following: int) -> bytes:
    """Header and chunks; after so many more bytes a page of the file begins."""
    stated = b"".join(packed_chunk(SYMMETRY, each.pack()) for each in symmetries)
    start = header.pack() + stated
    known = len(start) + HEADER_BYTES + len(embedded) + following
    return start + packed_chunk(EMBEDDED, embedded + bytes(-known % PAGE))


@dataclass(frozen=True, eq=False)
class TensTensor:
    """The variable that is written, and the header that describes it."""

    name: str
    variable: Variable
    conversion: Conversion
    header: Header

    @property
    def components(self) -> int:
        """Length of the axis of components; 1 where there is none."""
        return self.header.numbers if self.component_dims else 1

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions of the tensor, without that of its components."""
        return tuple(map(str, self.variable.dims[: len(self.header.dimensions)]))

    @property
    def component_dims(self) -> tuple[str, ...]:
        """Name of the dimension of components, if there is one."""
        return tuple(map(str, self.variable.dims[len(self.header.dimensions) :]))

    @property
    def in_file_order(self) -> Variable:
        """The variable with the last index first, as that is the slowest in the file."""
        return self.variable.transpose(*self.dims[::-1], *self.component_dims)

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return prod(self.variable.shape) * self.conversion.element.stored.itemsize


def _facts_of(variable: Variable) -> Mapping[str, Any]:
    """What is known of the TENS file that a variable was opened from; nothing if there is none."""
    facts = variable.encoding.get("tensorfmt")
    return facts if isinstance(facts, Mapping) and facts.get("format") == "tens" else {}


def _elements(version: Version) -> dict[str, Element]:
    """What a version can hold, by the names of dtypes."""
    return {name: Plain(np.dtype(name).newbyteorder("<")) for name in _DTYPES[version]}


def _tensor_of(checked: CheckedInput, version: Version, flags: int = 0) -> TensTensor:
    """The one variable of what is written, as a TENS file can hold it."""
    name, variable = checked.only
    conversion = checked.conversion(name, variable, _elements(version))
    has_components = version == "1.0" and _has_components(variable, conversion.element)
    rank = variable.ndim - has_components
    _check_shape(checked.path, name, variable, rank)
    components = variable.shape[-1] if has_components else 1
    dims = tuple(map(str, variable.dims[:rank]))
    header = _header(version, conversion, components, flags, variable.shape[:rank], dims)
    return TensTensor(name, variable, conversion, header)


def _header(
    version: Version,
    conversion: Conversion,
    components: int,
    flags: int,
    lengths: Sequence[int],
    dims: Sequence[str],
) -> Header:
    """The header of a tensor with these dimensions; version 0.9 calls them a, b, c, ..."""
    names = _index_names(dims) if version == "1.0" else range(ord("a"), ord("a") + len(dims))
    fields = number_fields(conversion.element.dtype, components)
    return Header(_VERSIONS[version], *fields, flags, tuple(map(Dimension, lengths, names)))


def _index_names(dims: Sequence[str]) -> list[int]:
    """A character for each dimension: its own name where that is one, else a letter."""
    own = set(filter(is_index_name, dims))
    letters = (letter for letter in ascii_letters if letter not in own)
    return [ord(dim if dim in own else next(letters)) for dim in dims]


def _component_counts(dtype: np.dtype[Any]) -> tuple[int, ...]:
    """How many numbers of a dtype an element can have, but for one; two floats are complex."""
    return {"c": (), "f": NUMBERS_PER_ELEMENT[2:]}.get(dtype.kind, NUMBERS_PER_ELEMENT[1:])


def _has_components(variable: Variable, element: Element) -> bool:
    """Whether the last axis is what the file, that it was opened from, had for components."""
    return (
        variable.dims[-1:] == (COMPONENT,)
        and len(_facts_of(variable).get("shape", ())) == variable.ndim - 1
        and variable.shape[-1] in _component_counts(element.dtype)
    )


def _check_shape(path: str, name: str, variable: Variable, rank: int) -> None:
    if rank > MOST_DIMENSIONS:
        raise ValueError(
            f"{path}: {name!r} has {rank} dimensions, and a TENS file is read with at most "
            f"{MOST_DIMENSIONS}; stack some of them"
        )
    for dim, length in zip(variable.dims, variable.shape, strict=True):
        if length > MOST_LENGTH:
            raise ValueError(
                f"{path}: {name!r} has {length} elements along {dim!r}, and TENS counts to "
                f"{MOST_LENGTH}; split that dimension in two"
            )


def _plan_dense(tensor: TensTensor, head: bytes, unit: int) -> FilePlan:
    """A file of all values after the head, filled up to a multiple of a unit."""
    components = (tensor.components,) if tensor.components > 1 else ()
    shape = (*tensor.header.lengths[::-1], *components)
    dense = Dense(shape, tensor.conversion.element, len(head))
    layout = column_major(dense, trailing=len(components))
    placed = Placed(tensor.variable, layout, tensor.conversion)
    size = len(head) + tensor.nbytes + -tensor.nbytes % unit
    return FilePlan(size, (Piece(0, head),), (placed,))


def _plan_checked(
    tensor: TensTensor, symmetries: Sequence[Symmetry], file_plan: FilePlan
) -> FilePlan:
    """A plan that is made already, once the values are known to have the symmetries."""
    _check(tensor, symmetries)
    return file_plan


def _check(tensor: TensTensor, symmetries: Sequence[Symmetry]) -> None:
    """Refuse values that do not have the symmetries which the file states."""
    variable = replace(tensor, variable=unchunked(tensor.variable)).in_file_order
    check_symmetries(variable, tensor.header, tensor.conversion, symmetries)


def _plan_0_9(checked: CheckedInput) -> FilePlan:
    """A file of version 0.9, as cc4s wrote it."""
    tensor = _tensor_of(checked, "0.9")
    _check_bare(checked, tensor)
    return _plan_dense(tensor, tensor.header.pack(), 1)


def _check_bare(checked: CheckedInput, tensor: TensTensor) -> None:
    """Refuse all that version 0.9 has no place for, unless it may be dropped."""
    if tensor.name != TENSOR:
        way_out = f"rename it to {TENSOR!r}"
        checked.dropping("name", f"the name {tensor.name!r} in version 0.9", way_out)
    if tensor.dims != tensor.header.names:
        way_out = f"rename them to {tensor.header.names}"
        checked.dropping("dims", f"the dims {tensor.dims} in version 0.9", way_out)
    owners = {repr(tensor.name): tensor.variable.attrs, "the Dataset": checked.attrs}
    for owner, attrs in owners.items():
        if attrs:
            what = f"the attributes {', '.join(map(repr, attrs))} of {owner} in version 0.9"
            checked.dropping("attrs", what, "write version 1.0")
    for name in checked.coordinates:
        checked.dropping("coords", f"the coordinate {name!r} in version 0.9", "write version 1.0")


def _plan_sparse(tensor: TensTensor, symmetries: Sequence[Symmetry], head: bytes) -> FilePlan:
    """A file of pairs, once all values have been checked and the pairs counted."""
    if not tensor.variable.size:
        return plan_pairs(tensor.name, None, head)
    _check(tensor, symmetries)
    pairing = Pairing(tensor.conversion, tensor.header.lengths, tensor.components)
    return plan_pairs(tensor.name, pairs_of_tensor(tensor.in_file_order, pairing), head)


def _are_stored_pairs(variable: Variable) -> bool:
    """Whether values are pairs that were opened as they are in a file."""
    facts = _facts_of(variable)
    return (
        facts.get("storage") == "pairs"
        and variable.dims in ((ENTRY,), (ENTRY, COMPONENT))
        and ENTRY not in facts["dims"]
    )


def _plan_stored(checked: CheckedInput, symmetries: Symmetries | None) -> FilePlan:
    """A file of the pairs that were opened with sparse='stored', in the order that they have."""
    name, variable = checked.only
    facts = _facts_of(variable)
    _check_unrelated(checked.path, symmetries, facts)
    lengths = tuple(facts["shape"])
    indices = _indices(checked, len(lengths))
    conversion = checked.conversion(name, variable, _elements("1.0"))
    components = prod(variable.shape[1:])
    _check_stored(checked.path, variable, conversion, lengths)
    header = _header("1.0", conversion, components, INDEX_VALUE_FLAG, lengths, list(indices))
    embedded = encoded(checked, _embedded(checked, variable, indices))
    pairs = pairs_of_entries(variable, indices, Pairing(conversion, lengths, components))
    return plan_pairs(name, pairs, _head(header, (), embedded, COUNT_BYTES))


def _check_unrelated(path: str, symmetries: Symmetries | None, facts: Mapping[str, Any]) -> None:
    """Refuse symmetries, by which pairs are related that may not be in the same chunk."""
    if symmetries:
        raise ValueError(
            f"{path}: pairs opened with sparse='stored' are written without a look at their "
            f"symmetries; to state symmetries={symmetries!r}, open the file without"
        )
    packed = facts.get("packed_symmetries")
    if packed:
        raise ValueError(
            f"{path}: each of the pairs stands for others by the packed symmetries {packed!r}, "
            "which are not written; open the file without sparse='stored', and write it with "
            "sparse=True"
        )


def _check_stored(
    path: str, variable: Variable, conversion: Conversion, lengths: Sequence[int]
) -> None:
    """Refuse pairs that the file of a tensor with these lengths cannot hold."""
    name, dtype, components = conversion.name, conversion.element.dtype, prod(variable.shape[1:])
    if variable.ndim > 1 and components not in _component_counts(dtype):
        raise ValueError(
            f"{path}: {name!r} has pairs of {components} {dtype} each, and TENS has only "
            f"{', '.join(map(str, _component_counts(dtype))) or 1}; select one with isel"
        )
    if len(variable) > prod(lengths):
        raise ValueError(
            f"{path}: {name!r} has {len(variable)} pairs, and the tensor that they belong to has "
            f"{prod(lengths)} elements; drop those that are there twice"
        )


def _indices(checked: CheckedInput, rank: int) -> dict[str, Variable]:
    """The coordinates that say where each value belongs, in the order of the dimensions."""
    found = {
        _facts_of(each).get("axis"): name
        for name, each in checked.coordinates.items()
        if each.dims == (ENTRY,)
    }
    missing = [axis for axis in range(rank) if axis not in found]
    if missing:
        raise ValueError(
            f"{checked.path}: the pairs have lost the coordinates that were opened with them (for "
            f"dimension {', '.join(map(str, missing))} of {rank}); keep them, or open the file "
            "without sparse='stored'"
        )
    return {found[axis]: checked.coordinates[found[axis]] for axis in range(rank)}


def _embedded(
    checked: CheckedInput, variable: Variable, indices: Mapping[str, Variable]
) -> EmbeddedMetadata:
    """The embedded metadata of the tensor that the pairs belong to."""
    others = {}
    for other, each in checked.coordinates.items():
        if other in indices:
            if each.attrs:
                what = f"the attributes {', '.join(map(repr, each.attrs))} of the index {other!r}"
                checked.dropping("attrs", what, "move them to the variable")
        elif {ENTRY, *indices} & set(each.dims):
            what = f"the coordinate {other!r} of pairs"
            checked.dropping("coords", what, f"call drop_vars({other!r})")
        else:
            others[other] = each
    dims = [*indices, *variable.dims[1:]]
    return one_tensor(checked, TENSOR, dims=dims, coordinates=others)
