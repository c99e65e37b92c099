"""Checks of values, a chunk at a time: that they can be read, and what a file states of them."""

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
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import SourceChangedError, TensorFormatError, shorten

Booleans = NDArray[np.bool_]

CHUNK_BYTES = 16 << 20
"""Most bytes of values that are checked at a time."""

MOST_OF_ONE = 20
"""Limit on the findings of one kind where all are wanted; a damaged file has many alike."""


def check_values(source: Source, tensors: Iterable[Tensor], most: int) -> Iterator[Finding]:
    """Read every value, except where the check of the format does.

    Of each variable at most so many findings; what follows them is not read.
    """
    for tensor in tensors:
        layout = tensor.layout.unchecked
        if layout is None:
            continue
        if isinstance(layout, Dense) and isinstance(layout.element, Boolean):
            findings = _check_booleans(tensor.source or source, tensor.name, layout)
        else:
            findings = _check_readable(tensor.source or source, tensor.name, layout)
        yield from islice(findings, most)


def chunks(layout: Layout, target: int = CHUNK_BYTES) -> Iterator[Selection]:
    """All elements of a layout, a chunk at a time."""
    shape = layout.shape
    if 0 in shape:
        return
    steps = layout.chunk_shape(target)
    starts = [range(0, length, max(1, step)) for length, step in zip(shape, steps, strict=True)]
    for first in product(*starts):
        entries = zip(first, steps, shape, strict=True)
        yield Selection(
            shape, tuple(slice(start, min(start + step, n), 1) for start, step, n in entries)
        )


def attempt(check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """What a check finds; an error of the reader that ends the check is the last finding."""
    try:
        yield from check()
    except SourceChangedError:
        raise
    except TensorFormatError as error:
        yield finding_of(error)


def _check_readable(source: Source, name: str, layout: Layout) -> Iterator[Finding]:
    """Read every chunk; one that cannot be read is a finding."""
    for selection in chunks(layout):
        try:
            layout.read(source, selection)
        except SourceChangedError:
            raise
        except TensorFormatError as error:
            yield finding_of(error, shorten(repr(name)))


def _check_booleans(source: Source, name: str, layout: Dense) -> Iterator[Finding]:
    """Look for bytes of booleans other than 0 and 1."""
    stored = replace(layout, element=Plain(np.dtype(np.uint8)))
    for selection in chunks(stored):
        wrong = stored.read(source, selection) > 1
        if wrong.any():
            first = int(np.argmax(wrong))
            index = np.ravel_multi_index(selection.index_of(first), layout.shape)
            message = (
                f"{np.count_nonzero(wrong)} bytes that are neither 0 nor 1, which are read as "
                "True; write the file anew if that is what they mean"
            )
            offset, field = layout.offset + int(index), f"the values of {name!r}"
            yield Finding(source.name, offset, field, message, "warning")


@dataclass(frozen=True)
class Symmetry:
    """The claim that ``T[i] == change(T[j])`` with ``j[p] = i[axes[p]]``."""

    name: str
    axes: tuple[int, ...]
    change: Callable[[Array], Array]


def check_symmetry(source: Source, layout: Layout, claim: Symmetry) -> Iterator[Finding]:
    """Compare a tensor with its permutation; the first chunk that differs is a finding."""
    shape = layout.shape
    if any(shape[axis] != length for axis, length in zip(claim.axes, shape, strict=True)):
        found = f"its shape is {shape}, expected equal lengths"
        yield _false_claim(source, None, claim.name, found)
        return
    inverse = [claim.axes.index(axis) for axis in range(len(shape))]

    def wrong(selection: Selection) -> Booleans:
        values = layout.read(source, selection)
        permuted = layout.read(source, selection.permuted(claim.axes)).transpose(inverse)
        return ~nearly_equal(values, claim.change(permuted))

    yield from check_claim(source, layout, claim.name, wrong, CHUNK_BYTES // 2)


def check_claim(
    source: Source,
    layout: Layout,
    name: str,
    wrong_in: Callable[[Selection], Array],
    target: int = CHUNK_BYTES,
) -> Iterator[Finding]:
    """Look for elements for which a claim does not hold; the first wrong chunk is a finding."""
    for selection in chunks(layout, target):
        wrong = wrong_in(selection)
        if wrong.any():
            index = selection.index_of(int(np.argmax(wrong)))
            others = np.count_nonzero(wrong) - 1
            found = f"it does not hold for the element {index}, nor for {others} more of this chunk"
            yield _false_claim(source, _offset_of(layout, index), name, found)
            return


def nearly_equal(values: Array, others: Array) -> Booleans:
    """Where values are equal, or differ only by what rounding may have made of them."""
    with np.errstate(all="ignore"):  # of NaN and infinity
        same = (values == others) | ((values != values) & (others != others))
        if values.dtype.kind in "fc":
            # Programs compute both halves of a tensor, and round them differently.
            size = np.abs(values[np.isfinite(values)]).max(initial=0)
            same |= np.abs(values - others) <= size * np.finfo(values.dtype).eps ** 0.5
    return np.asarray(same)


def _false_claim(source: Source, offset: int | None, name: str, found: str) -> Finding:
    message = f"{found}; programs that rely on it compute wrong results: write the file without it"
    return Finding(source.name, offset, f"the claim {name}", message)


def _offset_of(layout: Layout, index: Sequence[int]) -> int | None:
    """Offset of an element in the file; None where it is not stored."""
    entries = tuple(slice(position, position + 1, 1) for position in index)
    extents = layout.extents(Selection(layout.shape, entries))
    return extents.bounds[0] if len(extents) else None
