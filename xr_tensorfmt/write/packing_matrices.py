"""Packing of matrices of bits, of triangles, and of those of which still less is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

import numpy as np

from xr_tensorfmt.elements import Array, Element
from xr_tensorfmt.extents import Bytes, Extents
from xr_tensorfmt.layouts import (
    Bits,
    Diagonal,
    Layout,
    Mirrored,
    Ones,
    OnlyRow,
    Triangle,
    UnitVector,
)
from xr_tensorfmt.layouts.rows import Pieces, Rows
from xr_tensorfmt.narrow import Boolean
from xr_tensorfmt.selection import Selection, entry_indices
from xr_tensorfmt.write.packing import (
    BATCH,
    WHOLE,
    Packed,
    bytes_each,
    element_of,
    pack,
    raw_bytes,
    units,
)
from xr_tensorfmt.write.unstored import check_unstored, on_diagonal

_BITS_BATCH = 32 << 20
"""Bits that are packed at a time: each value is read once, so that no cache would help."""


def _row_batches(
    layout: Layout, rows: Rows, selection: Selection, values: Array
) -> Iterator[tuple[Array, Pieces]]:
    """Some rows at a time, which stay in the cache, and the places of those that store any.

    What is not stored of them is looked at first.
    """
    indices, columns = map(entry_indices, selection.entries)
    most = _BITS_BATCH if isinstance(layout, Bits) else BATCH // values.itemsize
    step = max(1, most // max(1, columns.size))
    for begin in range(0, indices.size if columns.size else 0, step):
        part, some = values[begin : begin + step], indices[begin : begin + step]
        entries = (slice(int(some[0]), int(some[-1]) + 1, 1), selection.entries[1])
        check_unstored(layout, Selection(selection.extent, entries), part)
        pieces = rows.pieces(some, int(columns[0]), int(columns[-1]) + 1)
        if len(pieces):
            yield part[: len(pieces)], pieces


@pack.register
def _(layout: Bits, selection: Selection, values: Array) -> Iterator[Packed]:
    rows, whole = layout.rows, entry_indices(selection.entries[1])[-1:] + 1 == layout.shape[1]
    for part, pieces in _row_batches(layout, rows, selection, values):
        if not rows.stride:
            yield pieces.extents, _assembled(part, pieces, _bits_of)
            continue
        packed = np.packbits(part, axis=1, bitorder="little")
        # Pieces are made for reading: they reach to the end of a row, or a byte too far.
        if whole:
            packed = _widened(packed, int(pieces.stops[0] - pieces.starts[0]))
        yield Extents.joined(pieces.starts, pieces.starts + packed.shape[1]), packed.reshape(-1)


@pack.register
def _(layout: Triangle, selection: Selection, values: Array) -> Iterator[Packed]:
    for part, pieces in _row_batches(layout, layout.rows, selection, values):
        yield pieces.extents, _assembled(part, pieces, layout.element.encode)


@pack.register
def _(layout: Mirrored, selection: Selection, values: Array) -> Iterator[Packed]:
    for part, pieces in _row_batches(layout, layout.upper.rows, selection, values):
        yield pieces.extents, _assembled(part, pieces, layout.upper.element.encode)


def _widened(packed: Bytes, length: int) -> Bytes:
    """Rows with zeros at their ends."""
    if packed.shape[1] == length:
        return packed
    rows = np.zeros((len(packed), length), dtype=np.uint8)
    rows[:, : packed.shape[1]] = packed
    return rows


def _bits_of(values: Array) -> Array:
    return np.packbits(values, bitorder="little")


def _assembled(values: Array, pieces: Pieces, encode: Callable[[Array], Array]) -> Bytes:
    """What is stored of some rows of a triangle, one after the other, each padded with zeros."""
    lengths = pieces.stops - pieces.starts
    places = (np.cumsum(lengths) - lengths).tolist()
    filled = np.zeros(int(lengths.sum()), dtype=np.uint8)
    for row, place, lead in zip(values, places, pieces.lead.tolist(), strict=True):
        stored = raw_bytes(encode(row[lead:]))
        filled[place : place + stored.size] = stored
    return filled


@pack.register
def _(layout: Diagonal, selection: Selection, values: Array) -> Iterator[Packed]:
    check_unstored(layout, selection, values)
    part, places = on_diagonal(selection)
    if places[0].size:
        yield from pack(layout.values, Selection(layout.values.shape, (part,)), values[places])


@pack.register(Ones)
@pack.register(UnitVector)
def _(layout: Layout, selection: Selection, values: Array) -> Iterator[Packed]:
    check_unstored(layout, selection, values)
    return iter(())


@bytes_each.register(Bits)
@bytes_each.register(Triangle)
def _(layout: Bits | Triangle) -> float:
    begin, stop = layout.rows.starts(np.array([0, layout.shape[0]])).tolist()
    return float((stop - begin) / prod(layout.shape))


@units.register
def _(layout: Bits) -> tuple[int, ...]:
    return (1, 8) if layout.rows.stride else (1, WHOLE)


@element_of.register
def _(layout: Bits) -> Element:
    del layout
    return Boolean()


@pack.register
def _(layout: OnlyRow, selection: Selection, values: Array) -> Iterator[Packed]:
    entries = (slice(0, 1, 1), *selection.entries)
    return pack(layout.inner, Selection(layout.inner.shape, entries), values[np.newaxis])


@units.register
def _(layout: OnlyRow) -> tuple[int, ...]:
    return units(layout.inner)[1:]


@element_of.register
def _(layout: OnlyRow) -> Element:
    return element_of(layout.inner)


@element_of.register
def _(layout: Triangle) -> Element:
    return layout.element
