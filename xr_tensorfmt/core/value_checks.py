"""A pass over all values, in chunks: whatever no reader can read is a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.container import Tensor
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Array, Boolean, Plain
from xr_tensorfmt.core.findings import Finding, finding_of
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.selection import Selection, entry_indices
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import SourceChangedError, TensorFormatError, shortened

CHUNK_BYTES = 16 << 20
"""Most bytes of values that are looked at together."""

MOST_OF_ONE = 20
"""Limit on the findings about one variable; a damaged one has many alike."""


def check_values(source: Source, tensors: Iterable[Tensor]) -> Iterator[Finding]:
    """Read every value, but for pairs and labels, which have checks of their own."""
    for tensor in tensors:
        layout = tensor.layout.stored
        if layout is None or layout.is_checked_by_format:
            continue
        if isinstance(layout, Dense) and isinstance(layout.element, Boolean):
            found = _check_truth(source, tensor.name, layout)
        else:
            found = _check_readable(source, tensor.name, layout)
        yield from islice(found, MOST_OF_ONE)


def chunks(layout: Layout, target: int = CHUNK_BYTES) -> Iterator[Selection]:
    """All elements of a layout, a chunk at a time."""
    shape = layout.shape
    if 0 in shape:
        return
    steps = layout.chunk_shape(target)
    starts = [range(0, length, max(1, step)) for length, step in zip(shape, steps, strict=True)]
    for begins in product(*starts):
        entries = zip(begins, steps, shape, strict=True)
        yield Selection(shape, tuple(slice(b, min(b + s, n), 1) for b, s, n in entries))


def attempt(read: Callable[[], Iterable[Finding]], within: str) -> Iterator[Finding]:
    """What reading something finds, and the error that ends it, if any does."""
    try:
        yield from read()
    except SourceChangedError:
        raise
    except TensorFormatError as error:
        yield finding_of(error, within)


def _check_readable(source: Source, name: str, layout: Layout) -> Iterator[Finding]:
    for selection in chunks(layout):

        def read(selection: Selection = selection) -> Iterable[Finding]:
            layout.read(source, selection)
            return ()

        yield from attempt(read, shortened(repr(name)))


def _check_truth(source: Source, name: str, layout: Dense) -> Iterator[Finding]:
    """Bytes of truth values, which are 0 and 1."""
    stored = replace(layout, element=Plain(np.dtype(np.uint8)))
    for selection in chunks(stored):
        wrong = stored.read(source, selection) > 1
        if wrong.any():
            first = int(np.argmax(wrong))
            index = np.ravel_multi_index(selection.index_of(first), layout.shape)
            yield Finding(
                source.name,
                layout.offset + int(index),
                f"the values of {name!r}",
                f"{np.count_nonzero(wrong)} bytes that are neither 0 nor 1, which are read as "
                "True; write the file anew if that is what they mean",
                "warning",
            )


Truth = NDArray[np.bool_]


@dataclass(frozen=True)
class Symmetry:
    """``T[i] = change(T[j])`` with ``j[p] = i[axes[p]]``."""

    name: str
    axes: tuple[int, ...]
    change: Callable[[Array], Array]


@dataclass(frozen=True)
class Zeros:
    """A part of a matrix where all values are the same, mostly zero."""

    name: str
    where: Callable[[Array, Array], Array]
    value: int = 0


def check_symmetry(source: Source, layout: Layout, claim: Symmetry) -> Iterator[Finding]:
    """Compare a tensor with what the claim makes of it, a chunk at a time."""
    shape = layout.shape
    if any(shape[axis] != length for axis, length in zip(claim.axes, shape, strict=True)):
        yield _false(source, None, claim.name, f"its shape is {shape}, expected equal lengths")
        return
    inverse = [claim.axes.index(axis) for axis in range(len(shape))]
    for selection in chunks(layout, CHUNK_BYTES // 2):
        values = layout.read(source, selection)
        related = layout.read(source, selection.permuted(claim.axes)).transpose(inverse)
        wrong = ~_alike(values, claim.change(related))
        if wrong.any():
            yield _at(source, layout, selection, wrong, claim.name)
            return


def check_zeros(source: Source, layout: Layout, claim: Zeros) -> Iterator[Finding]:
    """Look at the part of a matrix that a claim is about."""
    for selection in chunks(layout):
        rows, columns = map(entry_indices, selection.entries)
        wrong = claim.where(rows[:, np.newaxis], columns) & (
            layout.read(source, selection) != claim.value
        )
        if wrong.any():
            yield _at(source, layout, selection, wrong, claim.name)
            return


def _alike(values: Array, others: Array) -> Truth:
    with np.errstate(all="ignore"):  # NaN and infinities are compared as well
        same = (values == others) | ((values != values) & (others != others))
        if values.dtype.kind in "fc":
            # Programs compute both halves, and round them differently.
            size = np.abs(values[np.isfinite(values)]).max(initial=0)
            same |= np.abs(values - others) <= size * np.finfo(values.dtype).eps ** 0.5
    return np.asarray(same)


def _at(source: Source, layout: Layout, selection: Selection, wrong: Truth, name: str) -> Finding:
    index = selection.index_of(int(np.argmax(wrong)))
    place = offset_of(layout, index)
    found = f"it does not hold for the element {index}, nor for {np.count_nonzero(wrong) - 1} more"
    return _false(source, place, name, f"{found} of this chunk")


def _false(source: Source, place: int | None, name: str, found: str) -> Finding:
    message = f"{found}; programs that rely on it compute wrong results: write the file without it"
    return Finding(source.name, place, f"the claim {name}", message)


def offset_of(layout: Layout, index: Sequence[int]) -> int | None:
    """Byte of the file at which an element is; None where it is not stored."""
    entries = tuple(slice(each, each + 1, 1) for each in index)
    extents = layout.extents(Selection(layout.shape, entries))
    return extents.bounds[0] if len(extents) else None
