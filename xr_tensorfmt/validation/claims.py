"""What a file says of its own values: whether its symmetries, triangles and zeros hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.elements import Array
from xr_tensorfmt.layouts import Layout
from xr_tensorfmt.selection import Selection, entry_indices
from xr_tensorfmt.sources import Source
from xr_tensorfmt.validation.finding import Finding
from xr_tensorfmt.validation.values import CHUNK_BYTES, chunks

Truth = NDArray[np.bool_]


@dataclass(frozen=True)
class Symmetry:
    """``T[i] = change(T[j])`` with ``j[p] = i[axes[p]]``.

    Parameters
    ----------
    name : str
        The file's own words for it.
    axes : tuple of int
        A permutation of the axes.
    change : callable
        What is done to the values of the other elements.
    """

    name: str
    axes: tuple[int, ...]
    change: Callable[[Array], Array]


@dataclass(frozen=True)
class Zeros:
    """A part of a matrix where all values are the same, mostly zero.

    Parameters
    ----------
    name : str
        The file's own words for it.
    where : callable
        Which elements, by their rows and columns.
    value : int
        What they are.
    """

    name: str
    where: Callable[[Array, Array], Array]
    value: int = 0


def check_symmetry(source: Source, layout: Layout, claim: Symmetry) -> Iterator[Finding]:
    """Compare a tensor with what the claim makes of it, a chunk at a time.

    Parameters
    ----------
    source : Source
        The file.
    layout : Layout
        The values.
    claim : Symmetry
        The claim.

    Yields
    ------
    Finding
        At the first element that contradicts it, beyond what rounding could have done.
    """
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
    """Look at the part of a matrix that a claim is about.

    Parameters
    ----------
    source : Source
        The file.
    layout : Layout
        The values, of two axes.
    claim : Zeros
        The claim.

    Yields
    ------
    Finding
        At the first element that contradicts it.
    """
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
