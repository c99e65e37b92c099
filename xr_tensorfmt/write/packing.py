"""From values to the bytes in which a layout keeps them: the way back of `Layout.read`.

A layout that can be written to has one function here, found by its class.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch
from math import prod

import numpy as np

from xr_tensorfmt.elements import Array, Element
from xr_tensorfmt.extents import Bytes, Extents
from xr_tensorfmt.layouts import Dense, Layout
from xr_tensorfmt.layouts.view import Transposed
from xr_tensorfmt.selection import MOST_RUNS, Selection
from xr_tensorfmt.sources import Source

BATCH = 1 << 20
"""Bytes that are turned into another form at a time, so that they stay in the cache."""

WHOLE = 0
"""A unit of an axis that cannot be cut."""

Packed = tuple[Extents, Bytes]
"""Byte ranges of the file, and what belongs there: the ranges one after the other."""


@singledispatch
def pack(layout: Layout, selection: Selection, values: Array) -> Iterator[Packed]:
    """Turn values into bytes, a batch at a time.

    Parameters
    ----------
    layout : Layout
        How the values lie in the file.
    selection : Selection
        Which of its elements these are: slices of step 1, whose ends are multiples of `units`.
    values : ndarray
        The values, of the layout's dtype and the selection's shape.

    Yields
    ------
    tuple of (Extents, ndarray of uint8)
        Some ranges, and their bytes; together those of the whole selection.

    Raises
    ------
    TypeError
        The layout cannot be written to.
    """
    del selection, values
    raise TypeError(f"values that lie as {type(layout).__name__} does are only read")


@singledispatch
def units(layout: Layout) -> tuple[int, ...]:
    """For each axis how many elements take whole bytes of their own.

    Parameters
    ----------
    layout : Layout
        How the values lie in the file.

    Returns
    -------
    tuple of int
        What is written at once begins and ends at multiples of these, or with the axis; `WHOLE`
        where an axis cannot be cut.
    """
    return (1,) * len(layout.shape)


@singledispatch
def bytes_each(layout: Layout) -> float:
    """Bytes of the file for each element; less than one for bits.

    Parameters
    ----------
    layout : Layout
        How the values lie in the file; it has elements.

    Returns
    -------
    float
    """
    stored = layout.extents(Selection.everything(layout.shape)).nbytes
    return stored / prod(layout.shape)


@singledispatch
def element_of(layout: Layout) -> Element:
    """What an element of a layout is, in the file.

    Parameters
    ----------
    layout : Layout
        How the values lie in the file.

    Returns
    -------
    Element

    Raises
    ------
    TypeError
        The layout cannot be written to.
    """
    raise TypeError(f"values that lie as {type(layout).__name__} does are only read")


@singledispatch
def settled(layout: Layout, source: Source) -> Layout:
    """Make sure of the places of values before bytes of a file are overwritten.

    Parameters
    ----------
    layout : Layout
        How the values lie in the file.
    source : Source
        The file.

    Returns
    -------
    Layout
        The same, with nothing presumed that only reads would find out to be wrong.

    Raises
    ------
    TensorFormatError
        The file is not what the format demands.
    """
    del source
    return layout


def within(part: Selection, whole: Selection) -> tuple[slice, ...]:
    """Where a part of a selection is in the values of the whole; both are slices of step 1."""
    return tuple(
        slice(inner.start - outer.start, inner.stop - outer.start)
        for inner, outer in zip(part.entries, whole.entries, strict=True)
        if isinstance(inner, slice) and isinstance(outer, slice)
    )


def raw_bytes(stored: Array) -> Bytes:
    """Look at contiguous elements as bytes."""
    return stored.reshape(-1).view(np.uint8)


@pack.register
def _(layout: Dense, selection: Selection, values: Array) -> Iterator[Packed]:
    if not selection.size:
        return
    if layout.element.is_native and values.flags.c_contiguous:
        yield layout.extents(selection), raw_bytes(values)
        return
    elements = max(1, BATCH // layout.element.stored.itemsize)
    runs = selection.run_count
    per_batch = max(1, elements * runs // selection.size) if runs > 1 else MOST_RUNS
    span = elements if runs == 1 else selection.span
    for batch in selection.batches(runs=per_batch, span=span):
        part = values[within(batch, selection)]
        yield layout.extents(batch), raw_bytes(layout.element.encode(part))


@element_of.register
def _(layout: Dense) -> Element:
    return layout.element


@element_of.register
def _(layout: Transposed) -> Element:
    return element_of(layout.inner)


@units.register
def _(layout: Transposed) -> tuple[int, ...]:
    inner = units(layout.inner)
    return tuple(inner[axis] for axis in layout.axes)
