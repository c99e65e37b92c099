"""Where the blocks of a file are, and their cells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.cached_value import CachedValue
from xr_tensorfmt.core.chunk_grid import contiguous_chunk
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.extents import Bytes, Extents, Integers
from xr_tensorfmt.core.layout import BATCH, Encoded, Layout, raw_bytes
from xr_tensorfmt.core.selection import Entry, Selection, entry_indices, entry_length, entry_part
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.vespa.scan import LARGE_BLOCK, block_offsets, read_label_length
from xr_tensorfmt.formats.vespa.spec import BlockForm

SCANNED_AT_OPENING = 8 << 20
"""Bytes of blocks up to which all blocks of a local file are scanned when it is opened."""

# Blocks that are looked at before it is presumed that all have labels of the same lengths.
_SAMPLE = 16


@dataclass(frozen=True)
class Regular:
    """Blocks whose labels presumably have the same lengths in all of them; every read checks it.

    `length_bytes` are the positions in a block, and the values, of the bytes of these lengths;
    `label_bytes` is how many bytes come before the cells.
    """

    offset: int
    stride: int
    length_bytes: tuple[tuple[int, int], ...]
    label_bytes: int

    def starts(self, entry: Entry) -> Integers:
        """Where some blocks begin."""
        return self.offset + entry_indices(entry) * self.stride

    def stops(self, entry: Entry) -> Integers:
        """Where some blocks end."""
        return self.starts(entry) + self.stride

    def matches(self, rows: Bytes) -> bool:
        """Whether blocks, of which each row has the first bytes, have labels of these lengths."""
        return all(bool((rows[:, place] == byte).all()) for place, byte in self.length_bytes)

    def matches_file(self, source: Source, entry: Entry) -> bool:
        """Whether some blocks of the file have labels of these lengths."""
        labels = source.read(Extents.uniform(self.starts(entry), self.label_bytes))
        return self.matches(labels.reshape(-1, self.label_bytes))

    def matches_at(self, window: Bytes, starts: Integers) -> bool:
        """Whether the blocks at these positions of a window have labels of these lengths."""
        return all(bool((window[starts + at] == byte).all()) for at, byte in self.length_bytes)


@dataclass(frozen=True, eq=False)
class Listed:
    """Blocks whose labels differ in length: where each begins, and where the last one ends."""

    offsets: Integers

    def starts(self, entry: Entry) -> Integers:
        """Where some blocks begin."""
        return self.offsets[entry]

    def stops(self, entry: Entry) -> Integers:
        """Where some blocks end, which is where the next ones begin."""
        return self.offsets[1:][entry]


@dataclass(frozen=True, eq=False)
class BlockTable:
    """The places of all blocks of a file."""

    form: BlockForm
    offset: int
    count: int
    stop: int
    expected: Regular | Listed
    _scanned: CachedValue[Listed] = field(default_factory=CachedValue, repr=False)

    @property
    def places(self) -> Regular | Listed:
        """What was expected at opening, until a scan has found all blocks."""
        return self._scanned.known or self.expected

    @property
    def mean_bytes(self) -> int:
        """Bytes of a block on average."""
        return -(-(self.stop - self.offset) // self.count) if self.count else 1

    def start_of(self, block: int) -> int:
        """Where one block begins."""
        return int(self.places.starts(np.array([block]))[0])

    def scan(self, source: Source) -> Listed:
        """Find all blocks, as a read has found labels of other lengths than expected."""
        return self._scanned.get(lambda: self._scan(source))

    def _scan(self, source: Source) -> Listed:
        offsets = block_offsets(source, self.form, self.offset, self.count)
        if offsets[-1] != self.stop:
            raise TensorFormatError(
                source.name,
                "the end of the last block",
                f"byte {offsets[-1]}",
                f"byte {self.stop}",
                "the length of a label is damaged; fetch the file again",
                offset=int(offsets[-1]),
            )
        return Listed(offsets)


def find_blocks(source: Source, form: BlockForm, offset: int, count: int) -> BlockTable:
    """Find the blocks of a file."""
    if not count:
        return BlockTable(form, offset, 0, offset, Regular(offset, 1, (), 0))
    regular = _regular(source, form, offset)
    stop = offset + count * regular.stride
    is_large = source.distant or stop - offset > SCANNED_AT_OPENING
    if is_large and stop == source.size and regular.matches_file(source, _sample(count)):
        return BlockTable(form, offset, count, stop, regular)
    offsets = block_offsets(source, form, offset, count)
    is_regular = bool((np.diff(offsets) == regular.stride).all())
    places = regular if is_regular else Listed(offsets)
    return BlockTable(form, offset, count, int(offsets[-1]), places)


def _regular(source: Source, form: BlockForm, offset: int) -> Regular:
    """What the places are if all blocks are like the first one."""
    length_bytes: list[tuple[int, int]] = []
    position = offset
    for label in range(form.labels):
        packed, stop = read_label_length(source, position, 0, label)
        length_bytes += enumerate(packed, position - offset)
        position = stop
    label_bytes = position - offset
    return Regular(offset, label_bytes + form.cell_bytes, tuple(length_bytes), label_bytes)


def _sample(count: int) -> Integers:
    """Numbers of some blocks, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, _SAMPLE).astype(np.int64))


# Bytes of the file that are read together.
_WINDOW = 16 << 20
# Bytes that are gathered and then decoded, while they are in the cache.
_CACHED = 128 << 10
# Large blocks whose labels are read together.
_LARGE_BLOCKS = 1 << 10


class _UnexpectedLengthError(Exception):
    """A label is not as long as expected."""


@dataclass(frozen=True)
class Blocks(Layout):
    """The cells of all blocks: the first axis counts blocks, the others are those of a block."""

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
        """One range for each block, from the first selected cell to the last."""
        first, last = self.span(self.inner(selection))
        return Extents.uniform(self.cells_at(selection.entries[0]) + first, last - first)

    def cells_at(self, entry: Entry) -> Integers:
        """Where the cells of some blocks begin."""
        return self.table.places.stops(entry) - self._cell_bytes

    def inner(self, selection: Selection) -> Selection:
        """What is selected of each block."""
        return Selection(self.lengths, selection.entries[1:])

    def span(self, inner: Selection) -> tuple[int, int]:
        """Bytes of a block's cells from the first selected one to the last."""
        item, runs = self.element.stored.itemsize, inner.runs()
        return int(runs.starts[0]) * item, (int(runs.starts[-1]) + runs.length) * item

    def read(self, source: Source, selection: Selection) -> Array:
        """Read and decode; labels of unexpected lengths cause a scan, and another read."""
        values = np.empty(selection.shape, dtype=self.dtype)
        if not selection.size:
            return values
        read = self._read_large if self._cell_bytes > LARGE_BLOCK else self._read_small
        try:
            read(values, source, selection)
        except _UnexpectedLengthError:
            self.table.scan(source)
            read(values, source, selection)
        return values

    def _read_large(self, values: Array, source: Source, selection: Selection) -> None:
        """Read each block as a dense tensor of its own."""
        inner, position = self.inner(selection), 0
        for part in _batches(selection.entries[0], _LARGE_BLOCKS):
            places = self.table.places
            if isinstance(places, Regular) and not places.matches_file(source, part):
                raise _UnexpectedLengthError
            offsets = self.cells_at(part).tolist()
            target = values[position : position + len(offsets)]

            def read(number: int, offsets: list[int] = offsets, target: Array = target) -> None:
                block = Dense(self.lengths, self.element, offsets[number])
                target[number] = block.read(source, inner)

            source.run(read, range(len(offsets)))
            position += len(offsets)

    def _read_small(self, values: Array, source: Source, selection: Selection) -> None:
        """Read many blocks together."""
        block_part, position = _BlockPart.of(self, self.inner(selection)), 0
        flat = values.reshape(len(values), -1)
        entry = selection.entries[0]
        for part in _batches(entry, max(1, _WINDOW // self.table.mean_bytes)):
            target = flat[position : position + entry_length(part)]
            if isinstance(part, slice) and part.step == 1:
                block_part.read_consecutive(target, source, part)
            else:
                raw = source.read(block_part.pieces(part))
                block_part.decode(target, raw.reshape(-1, block_part.length))
            position += len(target)

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Fetch the cells of the points, in the order of the file."""
        item = self.element.stored.itemsize
        cell = np.ravel_multi_index(points[1:], self.lengths) if self.lengths else 0 * points[0]
        unique, inverse = np.unique(points[0] * prod(self.lengths) + cell, return_inverse=True)
        number, within = np.divmod(unique, prod(self.lengths))
        places = self.table.places
        if isinstance(places, Regular) and not places.matches_file(source, np.unique(number)):
            self.table.scan(source)
        raw = source.read(Extents.uniform(self.cells_at(number) + within * item, item))
        picked: Array = self.element.decode(raw.view(self.element.stored))[inverse]
        return picked

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """The cells alone, as the labels stay as they are."""
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
        """Find all blocks one by one where they were presumed to be regular."""
        if self.table.count and isinstance(self.table.places, Regular):
            self.table.scan(source)
        return self


@dataclass(frozen=True, eq=False)
class _BlockPart:
    """What is read of each block: a piece of `length` bytes, and elements in it.

    A piece begins `shift` bytes after the end of the block (`shift` is negative). Of these bytes
    the first `skipped` are labels; `elements` are the selected ones, None where all are.
    """

    element: Element
    places: Regular | Listed
    shift: int
    length: int
    skipped: int
    elements: Integers | None

    @classmethod
    def of(cls, blocks: Blocks, inner: Selection) -> _BlockPart:
        runs = inner.runs()
        first, last = blocks.span(inner)
        elements = None
        if runs.starts.size > 1:
            elements = (runs.starts[:, np.newaxis] + np.arange(runs.length)).ravel()
            elements -= runs.starts[0]
        places = blocks.table.places
        # Pieces of regular blocks begin with the labels.
        before = -places.label_bytes if isinstance(places, Regular) else first
        shift = before - blocks.table.form.cell_bytes
        return cls(blocks.element, places, shift, last - before, first - before, elements)

    def pieces(self, entry: Entry, origin: int = 0) -> Extents:
        """Where the pieces of blocks are, counted from `origin` on."""
        return Extents.uniform(self.places.stops(entry) + (self.shift - origin), self.length)

    def read_consecutive(self, values: Array, source: Source, entry: slice) -> None:
        """Gather the pieces of consecutive blocks, a few at a time, and decode them."""
        ends = self.pieces(np.array([entry.start, entry.stop - 1])).bounds
        window = source.read(Extents.single(*ends))
        step = max(1, _CACHED // self.length)
        for first in range(0, len(values), step):
            pieces = self.pieces(entry_part(entry, first, step), ends[0])
            raw = pieces.gather(window, 0).reshape(-1, self.length)
            self.decode(values[first : first + step], raw)

    def decode(self, values: Array, pieces: Bytes) -> None:
        """Turn pieces, one a row, into rows of values."""
        if isinstance(self.places, Regular) and not self.places.matches(pieces):
            raise _UnexpectedLengthError
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


def _batches(entry: Entry, count: int) -> Iterator[Entry]:
    for first in range(0, entry_length(entry), count):
        yield entry_part(entry, first, count)
