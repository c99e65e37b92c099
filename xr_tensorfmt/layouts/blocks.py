"""Dense blocks that each begin with labels: the cells of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.chunks import contiguous_chunk
from xr_tensorfmt.elements import Array, Element
from xr_tensorfmt.extents import Bytes, Extents, Integers
from xr_tensorfmt.layouts.base import BATCH, Encoded, Layout, raw_bytes
from xr_tensorfmt.layouts.blockscan import LARGE_BLOCK
from xr_tensorfmt.layouts.blocktable import BlockTable, Listed, Regular
from xr_tensorfmt.layouts.dense import Dense
from xr_tensorfmt.selection import Entry, Selection, entry_length, entry_part
from xr_tensorfmt.sources.base import Source

# Bytes of the file that are looked at together.
_WINDOW = 16 << 20
# Bytes that are gathered and then decoded, while they are in the cache.
_CACHED = 128 << 10
# Labels of large blocks that are looked at together.
_MOST_HEADS = 1 << 10


class _RefutedError(Exception):
    """The labels of a block are not as long as expected."""


@dataclass(frozen=True)
class Blocks(Layout):
    """The cells of blocks: the first axis counts the blocks, the others are those of each.

    Parameters
    ----------
    table : BlockTable
        Where the blocks are.
    lengths : tuple of int
        Lengths of the axes of a block, slowest first.
    element : Element
        What a cell is.
    """

    table: BlockTable
    lengths: tuple[int, ...]
    element: Element

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of blocks, and the lengths."""
        return (self.table.count, *self.lengths)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.element.dtype

    @property
    def _cell_bytes(self) -> int:
        return self.table.form.cell_bytes

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Equal counts of blocks; parts of one where it is larger than a chunk may be."""
        block = max(self.table.mean_bytes, prod(self.lengths) * self.dtype.itemsize)
        if block <= target or not self.lengths:
            return (*contiguous_chunk((self.table.count,), block, target), *self.lengths)
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def extents(self, selection: Selection) -> Extents:
        """For each block the range of its cells that holds those which are wanted."""
        first, last = self._span(self.inner(selection))
        return Extents.uniform(self.cells_at(selection.entries[0]) + first, last - first)

    def cells_at(self, entry: Entry) -> Integers:
        """Where the cells of each of some blocks begin."""
        return self.table.places.stops(entry) - self._cell_bytes

    def inner(self, selection: Selection) -> Selection:
        """What a selection picks of each block."""
        return Selection(self.lengths, selection.entries[1:])

    def _span(self, inner: Selection) -> tuple[int, int]:
        """Bytes of a block's cells from the first that is wanted to the last."""
        item, runs = self.element.stored.itemsize, inner.runs()
        return int(runs.starts[0]) * item, (int(runs.starts[-1]) + runs.length) * item

    def read(self, source: Source, selection: Selection) -> Array:
        """Gather and decode, a piece at a time that stays in the cache."""
        values = np.empty(selection.shape, dtype=self.dtype)
        if not selection.size:
            return values
        read = self._read_large if self._cell_bytes > LARGE_BLOCK else self._read_small
        try:
            read(values, source, selection)
        except _RefutedError:
            self.table.refute(source)
            read(values, source, selection)
        return values

    def _read_large(self, values: Array, source: Source, selection: Selection) -> None:
        """Each block is a dense tensor of its own."""
        inner, position = self.inner(selection), 0
        for part in _batches(selection.entries[0], _MOST_HEADS):
            places = self.table.places
            if isinstance(places, Regular):
                heads = source.read(Extents.uniform(places.starts(part), places.lead))
                _check(places, heads.reshape(-1, places.lead))
            offsets = self.cells_at(part).tolist()
            target = values[position : position + len(offsets)]

            def read(number: int, offsets: list[int] = offsets, target: Array = target) -> None:
                block = Dense(self.lengths, self.element, offsets[number])
                target[number] = block.read(source, inner)

            source.run(read, range(len(offsets)))
            position += len(offsets)

    def _read_small(self, values: Array, source: Source, selection: Selection) -> None:
        pick, position = _Pick.of(self, self.inner(selection)), 0
        flat = values.reshape(len(values), -1)
        entry = selection.entries[0]
        for part in _batches(entry, max(1, _WINDOW // self.table.mean_bytes)):
            target = flat[position : position + entry_length(part)]
            if isinstance(part, slice) and part.step == 1:
                pick.from_window(target, source, part)
            else:
                raw = source.read(pick.pieces(part))
                pick.decode(target, raw.reshape(-1, pick.length))
            position += len(target)

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Fetch the cells of the points, in the order of the file."""
        item = self.element.stored.itemsize
        cell = np.ravel_multi_index(points[1:], self.lengths) if self.lengths else 0 * points[0]
        unique, inverse = np.unique(points[0] * prod(self.lengths) + cell, return_inverse=True)
        number, within = np.divmod(unique, prod(self.lengths))
        if isinstance(places := self.table.places, Regular):
            numbers = np.unique(number)
            heads = source.read(Extents.uniform(places.starts(numbers), places.lead))
            if not places.hold(heads.reshape(numbers.size, -1)):
                self.table.refute(source)
        raw = source.read(Extents.uniform(self.cells_at(number) + within * item, item))
        picked: Array = self.element.decode(raw.view(self.element.stored))[inverse]
        return picked

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """The cells alone, as labels are not changed."""
        if not selection.size:
            return
        inner, item = self.inner(selection), self.element.stored.itemsize
        offsets = self.cells_at(selection.entries[0])
        if inner.size * item > BATCH:
            for offset, block in zip(offsets.tolist(), values, strict=True):
                yield from Dense(self.lengths, self.element, offset).encode(inner, block)
            return
        runs, count = inner.runs(), BATCH // (inner.size * item)
        for first in range(0, offsets.size, count):
            starts = offsets[first : first + count, np.newaxis] + runs.starts * item
            cells = raw_bytes(self.element.encode(values[first : first + count]))
            yield Extents.uniform(starts.ravel(), runs.length * item), cells

    def stored_element(self) -> Element:
        """The cell."""
        return self.element

    def checked_places(self, source: Source) -> Layout:
        """Places that were assumed to be regular are looked at one by one."""
        if self.table.count and isinstance(self.table.places, Regular):
            self.table.refute(source)
        return self


@dataclass(frozen=True, eq=False)
class _Pick:
    """What is taken of each block: a piece of bytes, and of that some elements.

    Parameters
    ----------
    element : Element
        What a cell is.
    places : Regular or Listed
        Pieces of regular blocks begin with the labels, whose lengths are checked.
    shift : int
        Where the piece begins, from the end of the block on.
    length : int
        Bytes of the piece.
    skipped : int
        Bytes of the piece before the first element.
    elements : ndarray or None
        Which elements of the piece are wanted; None for all.
    """

    element: Element
    places: Regular | Listed
    shift: int
    length: int
    skipped: int
    elements: Integers | None

    @classmethod
    def of(cls, blocks: Blocks, inner: Selection) -> _Pick:
        runs = inner.runs()
        first, last = blocks._span(inner)  # noqa: SLF001  # the other half of one class
        elements = None
        if runs.starts.size > 1:
            elements = (runs.starts[:, np.newaxis] + np.arange(runs.length)).ravel()
            elements -= runs.starts[0]
        places = blocks.table.places
        # Pieces of regular blocks begin with the labels.
        before = -places.lead if isinstance(places, Regular) else first
        shift = before - blocks.table.form.cell_bytes
        return cls(blocks.element, places, shift, last - before, first - before, elements)

    def pieces(self, entry: Entry, origin: int = 0) -> Extents:
        """Where the pieces of blocks are, counted from `origin` on."""
        return Extents.uniform(self.places.stops(entry) + (self.shift - origin), self.length)

    def from_window(self, values: Array, source: Source, entry: slice) -> None:
        """Gather the pieces of consecutive blocks, a few at a time, and decode them."""
        ends = self.pieces(np.array([entry.start, entry.stop - 1])).bounds
        window = source.read(Extents.single(*ends))
        step = max(1, _CACHED // self.length)
        for first in range(0, len(values), step):
            pieces = self.pieces(entry_part(entry, first, step), ends[0])
            raw = pieces.gather(window, 0).reshape(-1, self.length)
            self.decode(values[first : first + step], raw)

    def decode(self, values: Array, pieces: Bytes) -> None:
        """Turn pieces into values, a row each."""
        if isinstance(self.places, Regular):
            _check(self.places, pieces)
        stored = self.element.stored
        count = (self.length - self.skipped) // stored.itemsize
        raw: Array = np.ndarray(
            (len(pieces), count),
            stored,
            pieces.data,
            self.skipped,
            (self.length, stored.itemsize),
        )
        self.element.decode_into(values, raw if self.elements is None else raw[:, self.elements])


def _check(places: Regular, heads: Bytes) -> None:
    if not places.hold(heads):
        raise _RefutedError


def _batches(entry: Entry, count: int) -> Iterator[Entry]:
    for first in range(0, entry_length(entry), count):
        yield entry_part(entry, first, count)
