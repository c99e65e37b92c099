"""Pairs of index and value: the record of a pair, and the layouts that read pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.cached_value import CachedValue
from xr_tensorfmt.core.chunk_grid import contiguous_chunk
from xr_tensorfmt.core.elements import Array, Element, ElementError
from xr_tensorfmt.core.extents import Extents, Integers
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.selection import Runs, Selection
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


def repeats(index: NDArray[Any]) -> NDArray[np.bool_]:
    """Which indices are the same as one before them."""
    order = np.argsort(index, kind="stable")
    again = np.zeros(index.size, dtype=bool)
    again[order[1:]] = index[order[1:]] == index[order[:-1]]
    return again


class Filling:
    """Zeros, some of which become values."""

    def __init__(self, size: int, components: int, dtype: np.dtype[Any]) -> None:
        self.values: Array = np.zeros((size, components), dtype=dtype)
        self._known = np.zeros(size, dtype=bool)

    def repeated(self, positions: Integers) -> int | None:
        """Find an element that would be filled for the second time."""
        again = self._known[positions] | repeats(positions)
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


@dataclass(frozen=True)
class Pairs(Layout):
    """Pairs of global index and value, in any order; an element has one pair at most."""

    stored_as = "as pairs of index and value"

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
    def total(self) -> int:
        """Number of elements of the tensor."""
        return prod(self.lengths)

    @property
    def stride(self) -> int:
        """Bytes from one pair to the next."""
        return pair_dtype(self.element, self.components).itemsize

    def records(self, source: Source, first: int, stop: int) -> Array:
        """Pairs ``[first, stop)`` as an array with fields ``index`` and ``value``."""
        offset = self.offset + first * self.stride
        raw = source.read(Extents.single(offset, self.offset + stop * self.stride))
        # Values are looked at as opaque bytes: numpy copies those four times faster.
        opaque = np.dtype((np.void, self.stride - INDEX_BYTES))
        return raw.view(np.dtype([("index", INDEX_DTYPE), ("value", opaque)]))

    def extents(self, selection: Selection) -> Extents:
        """All pairs: which of them matter is only known once they have been passed over."""
        return Extents.single(self.offset, self.offset + self.count * self.stride)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Chunks that are one range of global indices each."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def read(self, source: Source, selection: Selection) -> Array:
        """Fill a selection, from those blocks of pairs alone that can fall in it."""
        if not selection.size:
            return np.empty(selection.shape, dtype=self.dtype)
        rank = len(self.lengths)
        outer = Selection(self.lengths, selection.entries[:rank])
        filled = self._filled(source, outer.runs()).reshape(*outer.shape, self.components)
        values: Array = filled[..., 0 if self.components == 1 else selection.entries[rank]]
        return values

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Look points up, as ranges of one element each."""
        rank = len(self.lengths)
        flat = np.ravel_multi_index(points[:rank], self.lengths) if rank else 0 * points[0]
        unique, inverse = np.unique(flat, return_inverse=True)
        values = self._filled(source, Runs(unique, 1))
        picked: Array = values[inverse, points[rank] if self.components > 1 else 0]
        return picked

    @property
    def is_checked_by_format(self) -> bool:
        """The check of TENS looks at every pair."""
        return True

    @property
    def prefers_points(self) -> bool:
        """Whether many points at once are better: each read may pass over many pairs."""
        return True

    def _scan(self, source: Source) -> BlockIndex:
        """Find the smallest and the largest index of each block, in one pass over the file."""
        lowest, highest = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        ascending, last = True, -1
        size = BLOCK * _BLOCKS_AT_ONCE
        for first in range(0, self.count, size):
            index = self.records(source, first, min(first + size, self.count))["index"]
            edges = np.arange(0, index.size, BLOCK)
            least, most = np.minimum.reduceat(index, edges), np.maximum.reduceat(index, edges)
            if most.max() >= self.total:
                number = int(np.argmax(index >= np.uint64(self.total)))
                raise self._error(
                    source,
                    first + number,
                    "the index of pair",
                    int(index[number]),
                    f"a global index below {self.total}",
                    "the file is damaged, or its dimension headers are wrong",
                )
            if most.max() - least.min() < index.size - 1:  # more pairs than indices
                number = int(np.argmax(repeats(index)))
                self._refuse_duplicate(source, first + number, int(index[number]))
            lowest.append(least.astype(np.int64))
            highest.append(most.astype(np.int64))
            rising = int(index[0]) > last and bool((index[1:] > index[:-1]).all())
            ascending, last = ascending and rising, int(index[-1])
        return BlockIndex(np.concatenate(lowest), np.concatenate(highest), ascending=ascending)

    def _filled(self, source: Source, wanted: Runs) -> Array:
        """The wanted elements, flat, each with its components."""
        index = self._index.get(lambda: self._scan(source))
        filling = Filling(wanted.size, self.components, self.dtype)
        everything = Runs(np.zeros(1, dtype=np.int64), self.total)
        for number, operation in enumerate(self.group):
            # What is stored is a part of what it stands for, which may be anywhere.
            for numbers, stored, raw in self._found(
                source, index, everything if number else wanted
            ):
                positions = wanted.locate(operation.images(stored, self.lengths))
                inside = np.flatnonzero(positions >= 0)
                positions, pairs = positions[inside], numbers[inside]
                decoded = self.element.adopt(raw[inside].view(self.element.stored))
                values = decoded.reshape(-1, self.components)
                if index.ascending and len(self.group) == 1:
                    filling.values[positions] = values
                    continue
                again = None if number else filling.repeated(positions)
                if again is not None:
                    self._refuse_duplicate(source, int(pairs[again]), int(stored[inside][again]))
                if operation.sign < 0:
                    values = self._negated(source, values, pairs)
                conflict = filling.put(positions, values)
                if conflict is not None:
                    self._refuse_conflict(source, int(pairs[conflict]))
        return filling.values

    def _found(
        self, source: Source, index: BlockIndex, runs: Runs
    ) -> Iterator[tuple[Integers, Integers, Array]]:
        """Numbers, indices and raw values of the pairs that can fall in the runs."""
        for first, stop in index.candidates(runs):
            pairs = self.records(source, first, min(stop, self.count))
            chosen = within(pairs["index"], runs) if index.ascending else np.arange(pairs.size)
            index_column, value_column = pairs["index"], pairs["value"]
            yield first + chosen, index_column[chosen].astype(np.int64), value_column[chosen]

    def _negated(self, source: Source, values: Array, pairs: Integers) -> Array:
        if self.dtype.kind == "i":
            lowest = (values == np.iinfo(self.dtype).min).any(axis=-1)
            if lowest.any():
                raise self._error(
                    source,
                    int(pairs[np.argmax(lowest)]),
                    "the value of pair",
                    np.iinfo(self.dtype).min,
                    f"a number whose negative fits {self.dtype}",
                    "the antisymmetry cannot be filled in; open with sparse='stored'",
                    INDEX_BYTES,
                )
        with np.errstate(invalid="ignore"):  # signalling NaNs warn
            negated: Array = 0 - values  # a stored zero stays the positive zero
        return negated

    def _refuse_duplicate(self, source: Source, number: int, index: int) -> None:
        raise self._error(
            source,
            number,
            "the index of pair",
            f"{index}, as in another pair",
            "an index that occurs once",
            "the value there is undefined; open with sparse='stored' to see all pairs",
        )

    def _refuse_conflict(self, source: Source, number: int) -> None:
        raise self._error(
            source,
            number,
            "pair",
            "another value for an element than a related pair gives",
            "one value for each element under the packed symmetries",
            "the pairs contradict the symmetries; open with sparse='stored' to see them",
        )

    def _error(
        self,
        source: Source,
        number: int,
        field: str,
        found: Any,
        expected: str,
        hint: str,
        within: int = 0,
    ) -> TensorFormatError:
        """An error about a pair, at a byte of it."""
        offset = self.offset + number * self.stride + within
        return TensorFormatError(
            source.name, f"{field} {number}", found, expected, hint, offset=offset
        )


@dataclass(frozen=True)
class ValueOfPair(Element):
    """The value of a pair; the pairs lie one after the other."""

    value: Element

    @property
    def stored(self) -> np.dtype[Any]:
        """The whole pair."""
        return pair_dtype(self.value, 1)

    @property
    def name(self) -> str:
        """As of the value."""
        return self.value.name

    @property
    def dtype(self) -> np.dtype[Any]:
        """As of the value."""
        return self.value.dtype

    def decode_into(self, values: Array, raw: Array) -> None:
        """Convert the value."""
        self.value.decode_into(values, raw["value"][..., 0])


@dataclass(frozen=True)
class IndexAlong(ValueOfPair):
    """The index along one dimension, from the global index of a pair."""

    inner: int
    length: int
    total: int

    @property
    def name(self) -> str:
        """What it is, and of which dimension."""
        return f"index // {self.inner} % {self.length}"

    @property
    def dtype(self) -> np.dtype[Any]:
        """As numpy's own indices."""
        return np.dtype(np.int64)

    def decode_into(self, values: Array, raw: Array) -> None:
        """Divide, after checking that the index is one of the tensor's."""
        index = raw["index"].astype(np.uint64)
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
