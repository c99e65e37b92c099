"""Stepping over many blocks at once, although each block says where the next one begins.

A window of the file is cut into lanes. Where the first block of a lane begins is guessed, from what
lengths of labels look like; then numpy steps along all lanes at the same time. A lane that ends
where the next one began proves that guess, so that the result is exact: lanes whose guess was wrong
are walked one block at a time.

"""

from __future__ import annotations

from abc import ABC, abstractmethod
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
from xr_tensorfmt.formats.vespa.spec import LONG, BlockForm, label_at, walk

# Blocks looked at one by one, to learn how long labels are and how far blocks are apart.
_SAMPLE = 128
_MOST_SAMPLES = 8
# Steps of one lane; more lanes make steps cheaper, and guesses dearer.
_BLOCKS_A_LANE = 128
_MOST_LANES = 4096
# Below this many lanes, steps along all of them cost more than single ones.
_FEWEST_LANES = 16
# Blocks that must follow each other from a guess on.
_CHAIN = 12
# A lane that takes so many times more steps than expected was a wrong guess.
_PATIENCE = 4


@dataclass(frozen=True)
class _Expected:
    """What lengths of labels probably are, a lowest and a highest for each label of a block."""

    bounds: tuple[tuple[int, int], ...]
    stride: float

    @property
    def reach(self) -> int:
        """Most bytes of the labels of a block, their lengths included."""
        return sum(high + (4 if high >= LONG else 1) for _, high in self.bounds)


def block_starts(window: Bytes, form: BlockForm, most: int) -> tuple[Integers, int]:
    """Find where the blocks of a window begin, the first of which begins it."""
    parts: list[Integers] = []
    stop, wanted = 0, most
    # Where labels of another kind begin, another sample is needed.
    for _ in range(_MOST_SAMPLES):
        sample, stop = walk(window, stop, window.size, form, min(wanted, _SAMPLE))
        parts.append(np.array(sample, dtype=np.int64))
        wanted -= len(sample)
        if len(sample) < _SAMPLE or not wanted:
            break
        expected = _expected(window, parts[-1], stop, form)
        # With no more in the window than is wanted, no lane has anything else to step over.
        size = min(window.size, int(stop + 2 * expected.stride * wanted))
        lanes = _lanes(window[:size], stop, form, expected)
        if lanes.size < _FEWEST_LANES:
            break
        more, stop = _along_lanes(window[:size], lanes, form, expected)
        parts += more
        wanted -= sum(map(len, more))
        if wanted <= 0 or stop >= window.size:
            break
    if wanted > 0:
        rest, stop = walk(window, stop, window.size, form, wanted)
        parts.append(np.array(rest, dtype=np.int64))
    return np.concatenate(parts), stop


def _expected(window: Bytes, starts: Integers, stop: int, form: BlockForm) -> _Expected:
    stride = (stop - int(starts[0])) / starts.size
    bounds = []
    for _ in range(form.labels):
        texts, lengths = label_at(window, starts)
        # A little more on both sides: numbers get more digits as they grow.
        bounds.append((max(0, int(lengths.min()) - 2), int(lengths.max()) + 4))
        starts = texts + lengths
    return _Expected(tuple(bounds), stride)


def _lanes(window: Bytes, start: int, form: BlockForm, expected: _Expected) -> Integers:
    """Where each lane begins: `start`, then guesses."""
    reach = expected.reach + form.cell_bytes
    room = window.size - start - (_CHAIN + 2) * reach
    # The stretches looked at are a small part of the window, whatever the labels of the sample.
    most = min(_MOST_LANES, room // (8 * reach))
    count = min(most, int(room / (expected.stride * _BLOCKS_A_LANE)))
    if count < _FEWEST_LANES:
        return np.array([start])
    spacing = room // count
    # At least one block begins in each of these stretches.
    stretches: Bytes = np.ndarray(
        (count - 1, reach), np.uint8, window.data, start + spacing, (spacing, 1)
    )
    low, high = expected.bounds[0]
    if high >= LONG:
        plausible = (stretches >= low) | (stretches >= LONG)
    else:
        plausible = stretches - np.uint8(low) <= np.uint8(high - low)
    lane, offset = np.nonzero(plausible)
    position = start + (lane + 1) * spacing + offset
    for _ in range(_CHAIN):
        position, plausible = _plausible_step(window, position, form, expected)
        lane, position = lane[plausible], position[plausible]
    # All chains that met the right one are at the same place by now.
    is_first = np.diff(lane, prepend=-1) > 0
    starts = np.concatenate(([start], position[is_first]))
    rising = np.diff(np.maximum.accumulate(starts), prepend=-1) > 0
    return starts[rising & (starts < window.size)]


def _plausible_step(
    window: Bytes, position: Integers, form: BlockForm, expected: _Expected
) -> tuple[Integers, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    plausible = position < window.size
    for low, high in expected.bounds:
        texts, lengths = label_at(window, position)
        plausible &= (lengths >= low) & (lengths <= high)
        position = texts + lengths
    return position + form.cell_bytes, plausible & (position < window.size)


def _along_lanes(
    window: Bytes, lanes: Integers, form: BlockForm, expected: _Expected
) -> tuple[list[Integers], int]:
    """Blocks lane by lane, and the byte after the last; single steps where guesses were wrong."""
    table, counts, stops = _step_together(window, lanes, form, expected)
    parts: list[Integers] = []
    wrong = np.flatnonzero(stops[:-1] != lanes[1:])
    first = 0
    for lane in [*wrong.tolist(), lanes.size - 1]:
        if lane < first:
            continue
        parts.append(_columns(table, counts, first, lane + 1))
        stop, first = int(stops[lane]), lane + 1
        # The next lane began at a wrong place: go on until some lane began at a right one.
        while first < lanes.size and stop != lanes[first]:
            first += 1
            end = int(lanes[first]) if first < lanes.size else window.size
            singly, stop = walk(window, stop, end, form, window.size)
            parts.append(np.array(singly, dtype=np.int64))
    return parts, stop


def _columns(table: Integers, counts: Integers, first: int, last: int) -> Integers:
    part, steps = table[:, first:last].T, np.arange(len(table))
    return part[steps < counts[first:last, np.newaxis]]


def _step_together(
    window: Bytes, lanes: Integers, form: BlockForm, expected: _Expected
) -> tuple[Integers, Integers, Integers]:
    """Blocks by step and lane, how many of each lane count, and where each lane stops."""
    ends = np.append(lanes[1:], window.size)
    position, counts = lanes, np.zeros(lanes.shape, dtype=np.int64)
    rows: list[Integers] = []
    # By the mean, so that all rows together have a few numbers for each block of the window.
    patience = _PATIENCE * int((window.size - lanes[0]) / lanes.size / expected.stride + 1)
    active = position < ends
    while active.any() and len(rows) < patience:
        following, within = form.after(window, position)
        active &= within
        rows.append(position)
        counts += active
        position = np.where(active, following, position)
        active &= position < ends
    return np.array(rows), counts, position


WINDOW = 32 << 20
"""Bytes of the file that a pass over its blocks looks at together."""

LARGE_BLOCK = 64 << 10
"""Cells of so many bytes are worth a read of their own, and a window over several is not."""

_LABELS_AT_ONCE = 4 << 10


def block_edges(source: Source, form: BlockForm, offset: int, count: int) -> Integers:
    """Find where all blocks begin."""
    edges = np.empty(count + 1, dtype=np.int64)
    edges[0], known = offset, 0
    # One request after the other costs more than the cells between, unless those are very large.
    large = WINDOW // 4 if source.distant else LARGE_BLOCK
    ahead = _LABELS_AT_ONCE if form.cell_bytes > large else WINDOW
    while known < count:
        start, wanted = int(edges[known]), count - known
        if start >= source.size:
            raise _cut_off(source, start, known, "its labels")
        window = source.read(Extents.single(start, min(start + ahead, source.size)))
        found, stop = block_starts(window, form, wanted)
        if not found.size:
            # The labels are longer than the window, or the file is shorter.
            found, stop = np.zeros(1, np.int64), _stepped(source, form, start, known) - start
        stops = np.append(found[1:], stop)[:wanted] + start
        edges[known + 1 : known + 1 + stops.size] = stops
        known += stops.size
        if stops[-1] > source.size:
            raise _cut_off(source, int(edges[known - 1]), known - 1, "its cells")
    return edges


def _stepped(source: Source, form: BlockForm, start: int, number: int) -> int:
    for label in range(form.labels):
        _, start = length_at(source, start, number, label)
    return start + form.cell_bytes


def length_at(source: Source, start: int, block: int, label: int) -> tuple[bytes, int]:
    """Read the length of one label."""
    stop = min(start + 4, source.size)
    stored = source.read(Extents.single(start, stop)).tobytes() if start < stop else b""
    size = 4 if stored and stored[0] >= LONG else 1
    length = int.from_bytes(stored[:size], "big") & (0x7FFFFFFF if size == 4 else 0x7F)
    text = start + size + length
    if len(stored) < size or text > source.size:
        raise _cut_off(source, start, block, f"its label {label}")
    return stored[:size], text


def _cut_off(source: Source, start: int, block: int, part: str) -> TensorFormatError:
    return TensorFormatError(
        source.name,
        f"block {block}",
        f"cut off by the end of the file at byte {source.size}",
        f"{part} within the file",
        "the file is incomplete, or the length of a label damaged; fetch it again",
        offset=start,
    )


PASSED_OVER = 8 << 20
"""Bytes of blocks that are always passed over when a file is opened."""

# Blocks that are looked at before it is presumed that all labels have one length.
_PROBES = 16


class Places(ABC):
    """Where each block begins and ends."""

    @abstractmethod
    def starts(self, entry: Entry) -> Integers:
        """The first byte of each of some blocks."""

    @abstractmethod
    def stops(self, entry: Entry) -> Integers:
        """The byte after each of some blocks."""


@dataclass(frozen=True)
class Regular(Places):
    """Blocks whose labels have the same lengths in all of them, which every read checks."""

    offset: int
    stride: int
    marks: tuple[tuple[int, int], ...]
    lead: int

    def starts(self, entry: Entry) -> Integers:
        """Multiples of the stride."""
        return self.offset + entry_indices(entry) * self.stride

    def stops(self, entry: Entry) -> Integers:
        """A stride further on."""
        return self.starts(entry) + self.stride

    def hold(self, heads: Bytes) -> bool:
        """Whether the labels of blocks, one a row, have the lengths that they should have."""
        return all(bool((heads[:, place] == byte).all()) for place, byte in self.marks)


@dataclass(frozen=True, eq=False)
class Listed(Places):
    """Blocks whose labels differ in length."""

    edges: Integers

    def starts(self, entry: Entry) -> Integers:
        """Look them up."""
        return self.edges[entry]

    def stops(self, entry: Entry) -> Integers:
        """Each block ends where the next one begins."""
        return self.edges[1:][entry]


@dataclass(frozen=True, eq=False)
class BlockTable:
    """The places of all blocks of a file."""

    form: BlockForm
    offset: int
    count: int
    stop: int
    expected: Regular | Listed
    _listed: CachedValue[Listed] = field(default_factory=CachedValue, repr=False)

    @property
    def places(self) -> Regular | Listed:
        """What is known: the expectation, until a read refutes it."""
        return self._listed.known or self.expected

    @property
    def mean_bytes(self) -> int:
        """Bytes of a block on average."""
        return -(-(self.stop - self.offset) // self.count) if self.count else 1

    def refute(self, source: Source) -> Listed:
        """Pass over all blocks, as a read has found labels of other lengths than expected."""
        return self._listed.get(lambda: self._pass_over(source))

    def _pass_over(self, source: Source) -> Listed:
        edges = block_edges(source, self.form, self.offset, self.count)
        if edges[-1] != self.stop:
            raise TensorFormatError(
                source.name,
                "the end of the last block",
                f"byte {edges[-1]}",
                f"byte {self.stop}",
                "the length of a label is damaged; fetch the file again",
                offset=int(edges[-1]),
            )
        return Listed(edges)


def find_blocks(source: Source, form: BlockForm, offset: int, count: int) -> BlockTable:
    """Find the blocks of a file."""
    if not count:
        return BlockTable(form, offset, 0, offset, Regular(offset, 1, (), 0))
    first = _first_block(source, form, offset)
    stop = offset + count * first.stride
    short = 0 if source.distant else PASSED_OVER
    if stop == source.size and stop - offset > short and _probed(source, first, count):
        return BlockTable(form, offset, count, stop, first)
    edges = block_edges(source, form, offset, count)
    places = first if (np.diff(edges) == first.stride).all() else Listed(edges)
    return BlockTable(form, offset, count, int(edges[-1]), places)


def _first_block(source: Source, form: BlockForm, offset: int) -> Regular:
    marks: list[tuple[int, int]] = []
    position = offset
    for number in range(form.labels):
        length, text = length_at(source, position, 0, number)
        marks += enumerate(length, position - offset)
        position = text
    lead = position - offset
    return Regular(offset, lead + form.cell_bytes, tuple(marks), lead)


def _probed(source: Source, places: Regular, count: int) -> bool:
    numbers = np.unique(np.linspace(0, count - 1, _PROBES).astype(np.int64))
    heads = source.read(Extents.uniform(places.starts(numbers), places.lead))
    return places.hold(heads.reshape(numbers.size, -1))


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
    """The cells of blocks: the first axis counts the blocks, the others are those of each."""

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
    """What is taken of each block: a piece of bytes, and of that some elements."""

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
