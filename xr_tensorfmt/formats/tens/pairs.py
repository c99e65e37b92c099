"""Pairs of index and value: the record of a pair, and the layouts that read pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.contract import (
    Array,
    CachedValue,
    Element,
    ElementError,
    Extents,
    Integers,
    Layout,
    Runs,
    Selection,
    Source,
    TensorFormatError,
    contiguous_chunk,
)
from xr_tensorfmt.formats.tens.symmetries import Operation

COUNT_BYTES = 8
"""Bytes of the number of pairs, which stands before the first."""

INDEX_DTYPE = np.dtype("<u8")
"""The global index; little-endian whatever the byte order of the values."""

INDEX_BYTES = INDEX_DTYPE.itemsize


def pair_dtype(element: Element, components: int) -> np.dtype[Any]:
    """A pair as it is in a file."""
    return np.dtype([("index", INDEX_DTYPE), ("value", element.stored, (components,))])


def made_pairs(index: Integers, stored: Array, element: Element) -> Array:
    """Pairs as they are in a file, of elements of one number."""
    pairs = np.empty(index.size, pair_dtype(element, 1))
    pairs["index"], pairs["value"] = index, stored[:, np.newaxis]
    return pairs


def sorted_pairs(
    name: str,
    indices: Mapping[str, Array],
    sizes: Mapping[str, int],
    stored: Array,
    element: Element,
) -> Array:
    """Pairs by ascending index; ValueError where one has no place, or two have the same."""
    flat, inner = np.zeros(stored.size, dtype=np.int64), 1
    for dim, along in indices.items():
        outside = ~((along >= 0) & (along < sizes[dim]))  # NaN is outside too
        if outside.any():
            raise ValueError(
                f"{name!r} has a pair whose index {dim!r} is {along[outside][0]}; it must be from "
                f"0 to {sizes[dim] - 1}"
            )
        flat += along.astype(np.int64) * inner
        inner *= sizes[dim]
    order = np.argsort(flat, kind="stable")
    twice = order[1:][flat[order[1:]] == flat[order[:-1]]]
    if twice.size:
        element_of_both = {dim: int(along[twice[0]]) for dim, along in indices.items()}
        raise ValueError(
            f"{name!r} has two pairs for the element {element_of_both}; drop one of them"
        )
    return made_pairs(flat[order], stored[order], element)


def bits_of(stored: Array) -> Array:
    """An integer for each stored element that is zero where no bit is set."""
    words = stored.view(f"u{min(8, stored.itemsize)}")
    bits: Array = words if words.size == stored.size else words[::2] | words[1::2]
    return bits


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


def _within(index: NDArray[np.uint64], runs: Runs) -> Integers:
    """Positions of an ascending column whose indices can lie in some ranges."""
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

    def repeated(self, positions: Integers) -> NDArray[np.bool_]:
        """Which elements would be filled for the second time."""
        return self._known[positions] | repeats(positions)

    def put(self, positions: Integers, values: Array) -> NDArray[np.bool_]:
        """Fill elements; which of them were or now are others."""
        unequal = self._known[positions] & ~_equal_rows(self.values[positions], values)
        self.values[positions] = values
        self._known[positions] = True
        return unequal | ~_equal_rows(self.values[positions], values)


def _equal_rows(left: Array, right: Array) -> NDArray[np.bool_]:
    """Rows all of whose numbers are the same; NaN is the same as NaN."""
    with np.errstate(invalid="ignore"):  # comparing signalling NaNs warns
        same = (left == right) | ((left != left) & (right != right))
    return np.asarray(same.all(axis=-1))


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
        if not self.count:
            return Extents.none()
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

    unchecked = None  # the check of TENS looks at every pair

    @property
    def prefers_points(self) -> bool:
        """Whether many points at once are better: each read may pass over many pairs."""
        return True

    def index(self, source: Source) -> BlockIndex:
        """What a pass over all pairs finds out, which is made once."""
        return self._index.get(lambda: self._scan(source))

    def _scan(self, source: Source) -> BlockIndex:
        lowest, highest = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        ascending, last = True, -1
        for first, index in self.batches(source, BLOCK * _BLOCKS_AT_ONCE):
            edges = np.arange(0, index.size, BLOCK)
            least, most = np.minimum.reduceat(index, edges), np.maximum.reduceat(index, edges)
            if most.max() >= self.total:
                number = int(np.argmax(index >= np.uint64(self.total)))
                raise self.wrong_index(source, first + number)
            if most.max() - least.min() < index.size - 1:  # more pairs than indices
                raise self.wrong_index(source, first + int(np.argmax(repeats(index))))
            lowest.append(least.astype(np.int64))
            highest.append(most.astype(np.int64))
            rising = int(index[0]) > last and bool((index[1:] > index[:-1]).all())
            ascending, last = ascending and rising, int(index[-1])
        return BlockIndex(np.concatenate(lowest), np.concatenate(highest), ascending=ascending)

    def batches(self, source: Source, size: int) -> Iterator[tuple[int, NDArray[np.uint64]]]:
        """Numbers of first pairs, and the indices of as many from there on in the file."""
        for first in range(0, self.count, size):
            yield first, self.records(source, first, min(first + size, self.count))["index"]

    def _filled(self, source: Source, wanted: Runs) -> Array:
        """The wanted elements, flat, each with its components."""
        index = self.index(source)
        filling = Filling(wanted.size, self.components, self.dtype)
        for operation in self.group:
            for numbers, positions, values in self._images(source, index, operation, wanted):
                if index.ascending and len(self.group) == 1:
                    filling.values[positions] = values
                    continue
                again = filling.repeated(positions)
                if operation == self.group[0] and again.any():
                    raise self.wrong_index(source, int(numbers[np.argmax(again)]))
                images = values
                if operation.sign < 0:
                    with np.errstate(invalid="ignore"):  # signalling NaNs warn
                        images = 0 - values  # a stored zero stays the positive zero
                unequal = filling.put(positions, images)
                if operation.sign < 0:  # the smallest integer is its own negative
                    unequal |= ((images == values) & (values != 0)).any(axis=-1)
                if unequal.any():
                    raise self._conflict(source, int(numbers[np.argmax(unequal)]))
        return filling.values

    def _images(
        self, source: Source, index: BlockIndex, operation: Operation, wanted: Runs
    ) -> Iterator[tuple[Integers, Integers, Array]]:
        """Numbers of pairs whose images are wanted, where these are among them, and the values."""
        # What is stored is a part of what it stands for, which may be anywhere.
        everything = Runs(np.zeros(1, dtype=np.int64), self.total)
        runs = wanted if operation == self.group[0] else everything
        for first, stop in index.candidates(runs):
            pairs = self.records(source, first, min(stop, self.count))
            chosen = _within(pairs["index"], runs) if index.ascending else np.arange(pairs.size)
            stored = pairs["index"][chosen].astype(np.int64)
            positions = wanted.locate(operation.images(stored, self.lengths[::-1]))
            inside = np.flatnonzero(positions >= 0)
            chosen, positions = chosen[inside], positions[inside]
            values = self.element.adopt(pairs["value"][chosen].view(self.element.stored))
            yield first + chosen, positions, values.reshape(-1, self.components)

    def wrong_index(self, source: Source, number: int) -> TensorFormatError:
        """The error about a pair whose index is out of range, or that of another pair."""
        index = int(self.records(source, number, number + 1)["index"][0])
        found, expected = str(index), f"a global index below {self.total}"
        hint = "the file is damaged, or its dimension headers are wrong"
        if index < self.total:
            found, expected = f"{index}, as in another pair", "an index that occurs once"
            hint = "the value there is undefined; open with sparse='stored' to see all pairs"
        return self._error(source, f"the index of pair {number}", number, found, expected, hint)

    def _conflict(self, source: Source, number: int) -> TensorFormatError:
        return self._error(
            source,
            f"pair {number}",
            number,
            "another value for an element than a related pair gives, or one without a negative",
            "one value for each element under the packed symmetries",
            "the pairs contradict the symmetries; open with sparse='stored' to see them",
        )

    def _error(
        self, source: Source, field: str, number: int, found: object, expected: str, hint: str
    ) -> TensorFormatError:
        """An error about a pair."""
        offset = self.offset + number * self.stride
        return TensorFormatError(source.name, field, found, expected, hint, offset=offset)


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
