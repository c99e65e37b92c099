"""Pairs that were opened as they lie in a TENS file, written as such again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import dask.array as da
import numpy as np
from xarray import Variable

from xr_tensorfmt.chunks import TARGET
from xr_tensorfmt.elements import Array, Plain
from xr_tensorfmt.formats.annotation import VERSION
from xr_tensorfmt.formats.tens import COMPONENT, ENTRY
from xr_tensorfmt.formats.tens.header import INDEX_VALUE_FLAG, VERSION_1_0, Dimension, Header
from xr_tensorfmt.formats.tens.notechunk import TENSOR
from xr_tensorfmt.formats.tens.numbers import number_fields
from xr_tensorfmt.formats.tens.storage import COUNT_BYTES
from xr_tensorfmt.layouts import Dense
from xr_tensorfmt.write.blueprint import Blueprint, Placed
from xr_tensorfmt.write.conversion import Conversion
from xr_tensorfmt.write.draft import Piece
from xr_tensorfmt.write.notes import attributes, encoded, labels
from xr_tensorfmt.write.subject import Subject
from xr_tensorfmt.write.tens.header import before_pair_count
from xr_tensorfmt.write.tens.pairing import pair_dtype
from xr_tensorfmt.write.tens.symmetries import inherited
from xr_tensorfmt.write.tens.tensor import component_counts, elements, facts_of, index_names


@dataclass(frozen=True, eq=False)
class PairMaker:
    """Makes pairs of values and of the indices along each dimension.

    Parameters
    ----------
    conversion : Conversion
        What becomes of the values.
    dims : sequence of str
        Names of the dimensions.
    lengths : sequence of int
        Their lengths.
    dtype : dtype
        A pair.
    """

    conversion: Conversion
    dims: Sequence[str]
    lengths: Sequence[int]
    dtype: np.dtype[Any]

    def __call__(self, values: Array, *indices: Array) -> Array:
        """The pairs of a chunk.

        Parameters
        ----------
        values : ndarray
            The values, perhaps with an axis of components.
        *indices : ndarray
            For each dimension the index along it.

        Returns
        -------
        ndarray of `dtype`

        Raises
        ------
        ValueError
            An index is outside of the tensor.
        """
        stored = self.conversion.element.encode(self.conversion.apply(np.asarray(values)))
        pairs = np.empty(len(stored), dtype=self.dtype)
        pairs["value"] = stored.reshape(pairs["value"].shape)
        flat = np.zeros(len(stored), dtype=np.int64)
        inner = 1
        for dim, length, along in zip(self.dims, self.lengths, indices, strict=True):
            outside = (along < 0) | (along >= length)
            if outside.any():
                raise ValueError(
                    f"{self.conversion.name!r} has a pair whose index {dim!r} is "
                    f"{along[np.argmax(outside)]}; it must be from 0 to {length - 1}"
                )
            flat += along.astype(np.int64) * inner
            inner *= length
        pairs["index"] = flat
        return pairs


def are_stored_pairs(variable: Variable) -> bool:
    """Whether values are pairs that were opened as they lie in a file."""
    facts = facts_of(variable)
    return (
        facts.get("storage") == "pairs"
        and variable.dims in ((ENTRY,), (ENTRY, COMPONENT))
        and ENTRY not in facts["dims"]
    )


def plan_stored(subject: Subject) -> Blueprint:
    """Arrange pairs as a file of pairs, in the order in which they are.

    Parameters
    ----------
    subject : Subject
        What is written; `are_stored_pairs` is true of its variable.

    Returns
    -------
    Blueprint

    Raises
    ------
    ValueError
        Something about the pairs does not fit the tensor that they belong to.
    """
    name, variable = subject.only
    facts = facts_of(variable)
    lengths: Sequence[int] = facts["shape"]
    indices = _indices(subject, len(lengths))
    conversion = subject.conversion(name, variable, elements("1.0"))
    header = _header(subject.path, name, variable, conversion, lengths, list(indices))
    dims = tuple(indices)
    symmetries = inherited(facts, header, dims, dims, pack=True)
    note = encoded(subject, _note(subject, name, variable, indices))
    head = before_pair_count(header, symmetries, note)
    count = len(variable)
    if count > prod(lengths):
        raise ValueError(
            f"{subject.path}: {name!r} has {count} pairs, and the tensor that they belong to has "
            f"{prod(lengths)} elements; drop those that are there twice"
        )
    dtype = pair_dtype(conversion.element.stored, prod(variable.shape[1:]))
    pairs = Variable(
        (ENTRY,), _pairs(variable, indices, PairMaker(conversion, dims, lengths, dtype))
    )
    begin = len(head) + COUNT_BYTES
    layout = Dense((count,), Plain(dtype), begin)
    placed = Placed(pairs, layout, Conversion(name, layout.element, exact=True))
    number = Piece(len(head), count.to_bytes(COUNT_BYTES, "little"))
    return Blueprint(begin + count * dtype.itemsize, (Piece(0, head), number), (placed,))


def _indices(subject: Subject, rank: int) -> dict[str, Variable]:
    """The coordinates that say where each value belongs, in the order of the dimensions."""
    found = {
        facts_of(each).get("axis"): name
        for name, each in subject.coordinates.items()
        if each.dims == (ENTRY,)
    }
    missing = [axis for axis in range(rank) if axis not in found]
    if missing:
        raise ValueError(
            f"{subject.path}: the pairs have lost the coordinates that were opened with them (for "
            f"dimension {', '.join(map(str, missing))} of {rank}); keep them, or open the file "
            "without sparse='stored'"
        )
    return {found[axis]: subject.coordinates[found[axis]] for axis in range(rank)}


def _header(
    path: str,
    name: str,
    variable: Variable,
    conversion: Conversion,
    lengths: Sequence[int],
    dims: Sequence[str],
) -> Header:
    dtype = conversion.element.dtype
    components = prod(variable.shape[1:])
    if variable.ndim > 1 and components not in component_counts(dtype):
        raise ValueError(
            f"{path}: {name!r} has pairs of {components} {dtype} each, and TENS has only "
            f"{', '.join(map(str, component_counts(dtype))) or 1}; select one with isel"
        )
    dimensions = zip(lengths, index_names(dims), strict=True)
    return Header(
        VERSION_1_0,
        *number_fields(dtype, components),
        INDEX_VALUE_FLAG,
        tuple(Dimension(length, index, 0) for length, index in dimensions),
    )


def _note(
    subject: Subject, name: str, variable: Variable, indices: Mapping[str, Variable]
) -> dict[str, Any]:
    """The note of the tensor that the pairs belong to."""
    others = {}
    for other, each in subject.coordinates.items():
        if other in indices:
            if each.attrs:
                what = f"the attributes {', '.join(map(repr, each.attrs))} of the index {other!r}"
                subject.dropping("attrs", what, "move them to the variable")
        elif {ENTRY, *indices} & set(each.dims):
            what = f"the coordinate {other!r} of pairs"
            subject.dropping("coords", what, f"call drop_vars({other!r})")
        else:
            others[other] = each
    dims = [*indices, *variable.dims[1:]]
    attrs = attributes(subject, variable.attrs, repr(name))
    return {
        "version": VERSION,
        "tensors": {TENSOR: {"name": name, "dims": dims, "attrs": attrs}},
        "coordinates": labels(subject, others),
        "attrs": attributes(subject, subject.attrs, "the Dataset"),
    }


def _pairs(variable: Variable, indices: Mapping[str, Variable], maker: PairMaker) -> da.Array:
    whole: dict[Any, int] = dict.fromkeys(variable.dims[1:], -1)
    if variable.chunks is None:
        step = max(1, TARGET // maker.dtype.itemsize)
        values = variable.chunk({ENTRY: step} | whole).data
    else:
        values = variable.chunk(whole).data
    along = [each.chunk({ENTRY: values.chunks[0]}).data for each in indices.values()]
    operands = [each for array in along for each in (array, "i")]
    pairs: da.Array = da.blockwise(  # type: ignore[no-untyped-call]
        maker,
        "i",
        values,
        "ij"[: values.ndim],
        *operands,
        dtype=maker.dtype,
        concatenate=True,
        align_arrays=False,
        meta=np.empty(0, dtype=maker.dtype),
    )
    return pairs
