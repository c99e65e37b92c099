"""Pairs of index and value: the record of a pair, and the layouts that read pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.cached_value import CachedValue
from xr_tensorfmt.core.chunk_grid import contiguous_chunk
from xr_tensorfmt.core.elements import Array, Element, ElementError
from xr_tensorfmt.core.extents import Extents, Integers
from xr_tensorfmt.core.layout import Layout, values_of
from xr_tensorfmt.core.selection import MOST_RUNS, Runs, Selection, entry_indices, entry_part
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.tens.symmetries import Operation

COUNT_BYTES = 8
"""Bytes of the number of pairs, which stands before the first."""

INDEX_DTYPE = np.dtype("<u8")
"""The global index; little-endian whatever the byte order of the values."""

INDEX_BYTES = INDEX_DTYPE.itemsize


def pair_dtype(element: Element, components: int) -> np.dtype[Any]:
    """A pair as it is in a file."""
    return np.dtype([("index", INDEX_DTYPE), ("value", element.stored, (components,))])


BLOCK = 1 << 16
"""Pairs a block."""

_BLOCKS_AT_ONCE = 16
# Two binary searches cost about as much as looking at this many pairs.
_SEARCHES_A_SCAN = 16


@dataclass(frozen=True)
class PairTable:
    """Where the pairs are."""

    offset: int
    count: int
    record: np.dtype[Any]
    total: int

    @property
    def stride(self) -> int:
        """Bytes from one pair to the next."""
        return self.record.itemsize

    @property
    def extents(self) -> Extents:
        """Bytes of all pairs."""
        return Extents.single(self.offset, self.offset + self.count * self.stride)

    def read(self, source: Source, first: int, stop: int) -> Array:
        """Pairs ``[first, stop)`` as an array with fields ``index`` and ``value``."""
        offset = self.offset + first * self.stride
        raw = source.read(Extents.single(offset, self.offset + stop * self.stride))
        # Values are looked at as opaque bytes: numpy copies those four times faster.
        opaque = np.dtype((np.void, self.stride - INDEX_BYTES))
        return raw.view(np.dtype([("index", INDEX_DTYPE), ("value", opaque)]))

    def scan(self, source: Source) -> BlockIndex:
        """Find the smallest and the largest index of each block, in one pass over the file."""
        lowest, highest = [], []
        ascending, last = True, -1
        size = BLOCK * _BLOCKS_AT_ONCE
        for first in range(0, self.count, size):
            index = self.read(source, first, min(first + size, self.count))["index"]
            edges = np.arange(0, index.size, BLOCK)
            lowest.append(np.minimum.reduceat(index, edges))
            highest.append(np.maximum.reduceat(index, edges))
            if highest[-1].max() >= self.total:
                self._refuse_range(source, first, index)
            rising = bool((index[1:] > index[:-1]).all())
            if not rising:
                self._refuse_equal_neighbours(source, first, index)
            ascending &= rising and int(index[0]) > last
            if int(index[0]) == last:
                raise self.duplicate(source, first, last)
            last = int(index[-1])
        if not lowest:
            return BlockIndex(np.empty(0, np.int64), np.empty(0, np.int64), ascending=True)
        return BlockIndex(
            np.concatenate(lowest).astype(np.int64),
            np.concatenate(highest).astype(np.int64),
            ascending=ascending,
        )

    def _refuse_range(self, source: Source, first: int, index: NDArray[np.uint64]) -> None:
        within = int(np.argmax(index >= np.uint64(self.total)))
        raise TensorFormatError(
            source.name,
            f"the index of pair {first + within}",
            int(index[within]),
            f"a global index below {self.total}",
            "the file is damaged, or its dimension headers are wrong",
            offset=self.offset + (first + within) * self.stride,
        )

    def _refuse_equal_neighbours(
        self, source: Source, first: int, index: NDArray[np.uint64]
    ) -> None:
        equal = index[1:] == index[:-1]
        if equal.any():
            within = int(np.argmax(equal)) + 1
            raise self.duplicate(source, first + within, int(index[within]))

    def duplicate(self, source: Source, number: int, index: int) -> TensorFormatError:
        """The error for a pair whose index another pair has too."""
        return TensorFormatError(
            source.name,
            f"the index of pair {number}",
            f"{index}, as in another pair",
            "an index that occurs once",
            "the value there is undefined; open with sparse='stored' to see all pairs",
            offset=self.offset + number * self.stride,
        )


@dataclass(frozen=True, eq=False)
class BlockIndex:
    """What a pass over the pairs finds out."""

    lowest: NDArray[np.int64]
    highest: NDArray[np.int64]
    ascending: bool

    def candidates(self, runs: Runs) -> Iterator[tuple[int, int]]:
        """Ranges of pairs that can lie in some ranges of indices."""
        before = np.searchsorted(runs.starts + (runs.length - 1), self.lowest, side="left")
        upto = np.searchsorted(runs.starts, self.highest, side="right")
        blocks = np.flatnonzero(upto > before)
        breaks = np.flatnonzero(np.diff(blocks) > 1) + 1
        for group in np.split(blocks, breaks) if blocks.size else ():
            for first in range(0, group.size, _BLOCKS_AT_ONCE):
                part = group[first : first + _BLOCKS_AT_ONCE]
                yield int(part[0]) * BLOCK, (int(part[-1]) + 1) * BLOCK


def within(index: NDArray[np.uint64], runs: Runs) -> Integers:
    """Positions of an ascending column whose indices lie in some ranges."""
    ends = runs.starts + runs.length
    first = np.searchsorted(ends, index[0], side="right")
    last = np.searchsorted(runs.starts, index[-1], side="right")
    starts, ends = runs.starts[first:last], ends[first:last]
    if starts.size * _SEARCHES_A_SCAN > index.size:
        starts, ends = starts[:1], ends[-1:]
    # The keys must be uint64: any other type makes numpy convert the whole column.
    lower = np.searchsorted(index, starts.astype(np.uint64))
    counts = np.searchsorted(index, ends.astype(np.uint64)) - lower
    before = np.cumsum(counts) - counts
    return np.repeat(lower - before, counts) + np.arange(counts.sum())


class Filling:
    """Zeros, some of which become values."""

    def __init__(self, size: int, components: int, dtype: np.dtype[Any]) -> None:
        self.values: Array = np.zeros((size, components), dtype=dtype)
        self._known = np.zeros(size, dtype=bool)

    def repeated(self, positions: Integers) -> int | None:
        """Find an element that would be filled for the second time."""
        again = self._known[positions]
        order = np.argsort(positions, kind="stable")
        again[order[1:]] |= positions[order[1:]] == positions[order[:-1]]
        return int(np.argmax(again)) if again.any() else None

    def put(self, positions: Integers, values: Array) -> int | None:
        """Fill elements."""
        unequal = self._known[positions] & ~equal_rows(self.values[positions], values)
        self.values[positions] = values
        self._known[positions] = True
        unequal |= ~equal_rows(self.values[positions], values)
        return int(np.argmax(unequal)) if unequal.any() else None


def equal_rows(left: Array, right: Array) -> NDArray[np.bool_]:
    """Rows all of whose numbers are the same; NaN is the same as NaN."""
    with np.errstate(invalid="ignore"):  # comparing signalling NaNs warns
        same = (left == right) | ((left != left) & (right != right))
    return np.asarray(same.all(axis=-1))


RunsOf = Callable[[Operation], Runs]
"""The stored indices that an operation maps onto the elements which are wanted."""


@dataclass(frozen=True)
class Pairs(Layout):
    """Pairs of global index and value, in any order; an element has one pair at most."""

    lengths: tuple[int, ...]
    element: Element
    components: int
    offset: int
    count: int
    group: tuple[Operation, ...]
    _index: CachedValue[BlockIndex] = field(default_factory=CachedValue, compare=False, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths, and the components where there are several."""
        return self.lengths if self.components == 1 else (*self.lengths, self.components)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.element.dtype

    @property
    def table(self) -> PairTable:
        """Where the pairs are."""
        record = pair_dtype(self.element, self.components)
        return PairTable(self.offset, self.count, record, prod(self.lengths))

    def extents(self, selection: Selection) -> Extents:
        """All pairs: which of them matter is only known once they have been passed over."""
        return self.table.extents

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Chunks that are one range of global indices each."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def read(self, source: Source, selection: Selection) -> Array:
        """Fill a selection, from those blocks of pairs alone that can fall in it."""
        if not selection.size:
            return np.empty(selection.shape, dtype=self.dtype)
        rank = len(self.lengths)
        outer = Selection(self.lengths, selection.entries[:rank])

        def runs_of(operation: Operation) -> Runs:
            stored = outer.permuted(operation.axes)
            return stored.runs() if stored.run_count <= self.count else self._all

        filled = self._filled(source, outer.runs(), runs_of)
        if self.components == 1:
            return filled.reshape(outer.shape)
        values = filled.reshape(*outer.shape, self.components)
        components = selection.entries[rank]
        return values if components == slice(0, self.components, 1) else values[..., components]

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Look points up, as ranges of one element each."""
        rank = len(self.lengths)
        flat = np.ravel_multi_index(points[:rank], self.lengths) if rank else 0 * points[0]
        unique, inverse = np.unique(flat, return_inverse=True)

        def runs_of(operation: Operation) -> Runs:
            if not rank or unique.size > self.count:
                return self._all
            wanted = np.unravel_index(unique, self.lengths)
            stored = tuple(wanted[axis] for axis in operation.axes)
            return Runs(np.sort(np.ravel_multi_index(stored, self.lengths)), 1)

        values = self._filled(source, Runs(unique, 1), runs_of)
        component = points[rank] if self.components > 1 else 0
        picked: Array = values[inverse, component]
        return picked

    @property
    def is_checked_by_format(self) -> bool:
        """The check of TENS looks at every pair."""
        return True

    @property
    def prefers_points(self) -> bool:
        """Whether many points at once are better: each read may pass over many pairs."""
        return True

    @property
    def _all(self) -> Runs:
        return Runs(np.zeros(1, dtype=np.int64), prod(self.lengths))

    def _filled(self, source: Source, wanted: Runs, runs_of: RunsOf) -> Array:
        """The wanted elements, flat, each with its components."""
        index = self._index.get(lambda: self.table.scan(source))
        filling = Filling(wanted.size, self.components, self.dtype)
        unambiguous = index.ascending and len(self.group) == 1
        for operation in self.group:
            is_identity = operation == self.group[0]
            for numbers, stored, raw in self._found(source, index, runs_of(operation)):
                positions = wanted.locate(operation.images(stored, self.lengths))
                inside = np.flatnonzero(positions >= 0)
                positions, pairs = positions[inside], numbers[inside]
                if is_identity and not index.ascending:
                    again = filling.repeated(positions)
                    if again is not None:
                        raise self.table.duplicate(
                            source, int(pairs[again]), int(stored[inside][again])
                        )
                values = self._decoded(source, raw[inside], pairs)
                if operation.sign < 0:
                    values = self._negated(source, values, pairs)
                if unambiguous:
                    filling.values[positions] = values
                    continue
                conflict = filling.put(positions, values)
                if conflict is not None:
                    self._refuse_conflict(source, int(pairs[conflict]))
        return filling.values

    def _negated(self, source: Source, values: Array, pairs: Integers) -> Array:
        if self.dtype.kind == "i":
            lowest = (values == np.iinfo(self.dtype).min).any(axis=-1)
            if lowest.any():
                pair = int(pairs[np.argmax(lowest)])
                raise TensorFormatError(
                    source.name,
                    f"the value of pair {pair}",
                    np.iinfo(self.dtype).min,
                    f"a number whose negative fits {self.dtype}",
                    "the antisymmetry cannot be filled in; open with sparse='stored'",
                    offset=self.offset + pair * self.table.stride + INDEX_BYTES,
                )
        with np.errstate(invalid="ignore"):  # signalling NaNs warn
            negated: Array = 0 - values  # a stored zero stays the positive zero
        return negated

    def _refuse_conflict(self, source: Source, pair: int) -> None:
        raise TensorFormatError(
            source.name,
            f"pair {pair}",
            "another value for an element than a related pair gives",
            "one value for each element under the packed symmetries",
            "the pairs contradict the symmetries; open with sparse='stored' to see them",
            offset=self.offset + pair * self.table.stride,
        )

    def _found(
        self, source: Source, index: BlockIndex, runs: Runs
    ) -> Iterator[tuple[Integers, Integers, Array]]:
        """Numbers, indices and raw values of the pairs that can fall in the runs."""
        for first, stop in index.candidates(runs):
            pairs = self.table.read(source, first, min(stop, self.count))
            chosen = within(pairs["index"], runs) if index.ascending else np.arange(pairs.size)
            index_column, value_column = pairs["index"], pairs["value"]
            yield first + chosen, index_column[chosen].astype(np.int64), value_column[chosen]

    def _decoded(self, source: Source, raw: Array, numbers: Integers) -> Array:
        def offset_of(position: int) -> int:
            pair, component = divmod(position, self.components)
            value = self.offset + int(numbers[pair]) * self.table.stride + INDEX_BYTES
            return value + component * self.element.stored.itemsize

        stored = raw.view(self.element.stored).reshape(-1, self.components)
        return values_of(self.element.adopt, stored, source.name, offset_of)


@dataclass(frozen=True)
class Records(Layout):
    """A field of a table of records: one element, or a few side by side."""

    count: int
    components: int
    element: Element
    offset: int
    stride: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of records, and the components where there are several."""
        return (self.count,) if self.components == 1 else (self.count, self.components)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.element.dtype

    @property
    def _field(self) -> int:
        return self.element.stored.itemsize * self.components

    def extents(self, selection: Selection) -> Extents:
        """The field of each record, or one range of whole records where none is left out."""
        entry = selection.entries[0]
        if isinstance(entry, slice) and entry.step == 1:
            last = self.offset + (entry.stop - 1) * self.stride + self._field
            return Extents.single(self.offset + entry.start * self.stride, last)
        return self._fields(entry_indices(entry))

    def _fields(self, numbers: Integers) -> Extents:
        return Extents.uniform(self.offset + numbers * self.stride, self._field)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Equal counts of records; the bytes that count are those of whole records."""
        return (*contiguous_chunk((self.count,), self.stride, target), *self.shape[1:])

    def read(self, source: Source, selection: Selection) -> Array:
        """Read the records in batches and pick their field."""
        if not selection.size:
            return np.empty(selection.shape, dtype=self.dtype)
        values = np.empty((selection.shape[0], self.components), dtype=self.dtype)
        for first in range(0, len(values), MOST_RUNS):
            part = entry_part(selection.entries[0], first, MOST_RUNS)
            batch = Selection(selection.extent, (part, *selection.entries[1:]))
            values[first : first + MOST_RUNS] = self._read_batch(source, batch)
        return values[:, 0] if self.components == 1 else values[:, selection.entries[1]]

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Fetch each record once."""
        unique, inverse = np.unique(points[0], return_inverse=True)
        raw = source.read(self._fields(unique)).view(self.element.stored)
        values = self._values(source, raw.reshape(-1, self.components), unique)
        picked: Array = values[inverse, points[1] if self.components > 1 else 0]
        return picked

    def _read_batch(self, source: Source, batch: Selection) -> Array:
        extents = self.extents(batch)
        numbers = entry_indices(batch.entries[0])
        stride = self.stride if len(extents) == 1 else self._field
        raw: Array = np.ndarray(
            (numbers.size, self.components),
            self.element.stored,
            source.read(extents),
            strides=(stride, self.element.stored.itemsize),
        )
        return self._values(source, raw, numbers)

    def _values(self, source: Source, raw: Array, numbers: Integers) -> Array:
        def offset_of(position: int) -> int:
            record, component = divmod(position, self.components)
            start = self.offset + int(numbers[record]) * self.stride
            return start + component * self.element.stored.itemsize

        return values_of(self.element.decode, raw, source.name, offset_of)


@dataclass(frozen=True)
class IndexAlong(Element):
    """The index along one dimension, of an element given by its global index."""

    inner: int
    length: int
    total: int

    @property
    def name(self) -> str:
        """What the file holds."""
        return "uint64"

    @property
    def stored(self) -> np.dtype[Any]:
        """The global index; little-endian whatever the byte order of the values."""
        return INDEX_DTYPE

    @property
    def dtype(self) -> np.dtype[Any]:
        """As numpy's own indices."""
        return np.dtype(np.int64)

    def decode_into(self, values: Array, raw: Array) -> None:
        """Divide, after checking that the index is one of the tensor's."""
        index = raw.astype(np.uint64)
        outside = index >= np.uint64(self.total)
        if outside.any():
            position = int(np.argmax(outside))
            raise ElementError(
                position,
                f"the global index {int(index.flat[position])}",
                f"one below {self.total}",
                "the file is damaged, or its dimension headers are wrong",
            )
        along = index // np.uint64(self.inner) % np.uint64(self.length)
        np.copyto(values, along, casting="unsafe")
