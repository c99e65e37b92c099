"""Checks of symmetries and other claims of a file about its values, a chunk at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from xr_tensorfmt.contract import (
    CHUNK_BYTES,
    Array,
    Booleans,
    Finding,
    Layout,
    Selection,
    Source,
    iterate_chunks,
)


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
    for selection in iterate_chunks(layout, target):
        wrong = wrong_in(selection)
        if wrong.any():
            index = selection.full_index(int(np.argmax(wrong)))
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
