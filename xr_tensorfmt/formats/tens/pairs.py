"""Pairs of index and value: layouts and elements that read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.extents import Extents, Integers
from xr_tensorfmt.core.layout import SearchedLayout
from xr_tensorfmt.core.locks import CachedValue
from xr_tensorfmt.core.selection import Points, Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.tens.symmetries import Operation

COUNT_BYTES = 8
"""Size of the number of pairs, which precedes the first pair."""

INDEX_DTYPE = np.dtype("<u8")
"""dtype of the global index. It is little-endian even if the values are not."""

BLOCK = 1 << 16
"""Number of pairs per block."""

_BLOCKS_AT_ONCE = 16
# Two binary searches cost about as much as a scan of this many pairs.
_PAIRS_PER_SEARCH = 16


def build_pair_dtype(element: Element, components: int) -> np.dtype[Any]:
    """Return the dtype of a stored pair."""
    return np.dtype([("index", INDEX_DTYPE), ("value", element.stored, (components,))])


@dataclass(frozen=True, eq=False)
class BlockIndex:
    """Lowest and highest global index of each block of pairs, and whether all indices ascend."""

    lowest: NDArray[np.int64]
    highest: NDArray[np.int64]
    ascending: bool

    def find_ranges(self, runs: Extents) -> Iterator[tuple[int, int]]:
        """Find the ranges of pairs that may contain indices of some runs."""
        first_runs = np.searchsorted(runs.starts + (runs.lengths - 1), self.lowest, side="left")
        run_stops = np.searchsorted(runs.starts, self.highest, side="right")
        blocks = np.flatnonzero(run_stops > first_runs)
        breaks = np.flatnonzero(np.diff(blocks) > 1) + 1
        for group in np.split(blocks, breaks) if blocks.size else ():
            for first in range(0, group.size, _BLOCKS_AT_ONCE):
                part = group[first : first + _BLOCKS_AT_ONCE]
                yield int(part[0]) * BLOCK, (int(part[-1]) + 1) * BLOCK


def is_repeated(column: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the indices that equal an earlier one."""
    order = np.argsort(column, kind="stable")
    repeated = np.zeros(column.size, dtype=bool)
    repeated[order[1:]] = column[order[1:]] == column[order[:-1]]
    return repeated


def _find_positions(runs: Extents, indices: Integers) -> Integers:
    """Return the position of every flat index among the elements of some runs, or -1."""
    run = np.searchsorted(runs.starts, indices, side="right") - 1
    positions = indices - runs.starts[run]
    inside = (run >= 0) & (positions < runs.lengths[0])
    return np.where(inside, run * runs.lengths[0] + positions, -1)


def _search_runs(column: NDArray[np.uint64], runs: Extents) -> Integers:
    """Return the positions in an ascending column that may have indices of some runs."""
    stops = runs.starts + runs.lengths
    # numpy compares int64 with uint64 as float64, so all keys have the dtype of the array.
    lower = np.searchsorted(stops, column[:1].astype(np.int64), side="right")[0]
    upper = np.searchsorted(runs.starts, column[-1:].astype(np.int64), side="right")[0]
    starts, stops = runs.starts[lower:upper], stops[lower:upper]
    if starts.size * _PAIRS_PER_SEARCH > column.size:
        starts, stops = starts[:1], stops[-1:]
    lower = np.searchsorted(column, starts.astype(np.uint64))
    counts = np.searchsorted(column, stops.astype(np.uint64)) - lower
    offsets = np.cumsum(counts) - counts
    return np.repeat(lower - offsets, counts) + np.arange(counts.sum())


def _negate(values: Array) -> Array:
    """Negate values. Zero stays +0."""
    with np.errstate(invalid="ignore"):  # signalling NaNs warn
        return np.asarray(0 - values)


def _find_equal_rows(left: Array, right: Array) -> NDArray[np.bool_]:
    """Return a mask of equal rows. NaN equals NaN."""
    with np.errstate(invalid="ignore"):  # comparing signalling NaNs warns
        same = (left == right) | ((left != left) & (right != right))
    return np.asarray(same.all(axis=-1))


@dataclass(frozen=True)
class Pairs(SearchedLayout):
    """Pairs of global index and value, in any order, at most one per element."""

    lengths: tuple[int, ...]
    element: Element
    components: int
    offset: int
    count: int
    # Operations of the packed symmetries, the identity first.
    group: tuple[Operation, ...]
    _cached: CachedValue[BlockIndex] = field(default_factory=CachedValue, compare=False, repr=False)

    layout_to_validate = None  # the check of TENS reads all pairs
    prefers_points = True  # a read may scan many pairs

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the dimensions, and the number of components if there are several."""
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
        return build_pair_dtype(self.element, self.components).itemsize

    def read_pairs(self, source: Source, first: int, stop: int) -> Array:
        """Read pairs ``[first, stop)`` as an array with fields ``index`` and ``value``."""
        offset = self.offset + first * self.stride
        raw = source.read(Extents.single(offset, self.offset + stop * self.stride))
        # numpy copies opaque values four times faster than subarrays.
        opaque = np.dtype((np.void, self.stride - INDEX_DTYPE.itemsize))
        return raw.view(np.dtype([("index", INDEX_DTYPE), ("value", opaque)]))

    def locate(self, selection: Selection) -> Extents:
        """Return the bytes of all pairs. Any of them may belong to the selection."""
        if not self.count:
            return Extents.empty()
        return Extents.single(self.offset, self.offset + self.count * self.stride)

    def search(self, source: Source, selection: Selection) -> Array:
        """Read the blocks of pairs that may contain the selected indices."""
        rank = len(self.lengths)
        if isinstance(selection, Points):
            flat, component = np.divmod(selection.flat, self.components)
            is_new = np.diff(flat, prepend=-1) > 0  # components of an element have one index
            filled = self._read_runs(source, Extents.uniform(flat[is_new], 1))
            return np.asarray(filled[np.cumsum(is_new) - 1, component])
        outer = Selection(self.lengths, selection.indices[:rank])
        filled = self._read_runs(source, outer.runs()).reshape(*outer.shape, self.components)
        part = 0 if self.components == 1 else selection.index_arrays[rank]
        return np.asarray(filled[..., part])

    def get_block_index(self, source: Source) -> BlockIndex:
        """Return the index of the blocks. The first call reads all pairs."""
        return self._cached.get(lambda: self._build_block_index(source))

    def _build_block_index(self, source: Source) -> BlockIndex:
        lowest, highest = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        ascending, last = True, -1
        for first, column in self.iterate_columns(source, BLOCK * _BLOCKS_AT_ONCE):
            edges = np.arange(0, column.size, BLOCK)
            low, high = np.minimum.reduceat(column, edges), np.maximum.reduceat(column, edges)
            if high.max() >= self.total:
                position = int(np.argmax(column >= np.uint64(self.total)))
                raise self.build_index_error(source, first + position)
            if high.max() - low.min() < column.size - 1:  # more pairs than different indices
                raise self.build_index_error(source, first + int(np.argmax(is_repeated(column))))
            lowest.append(low.astype(np.int64))
            highest.append(high.astype(np.int64))
            ascending &= int(column[0]) > last and bool((column[1:] > column[:-1]).all())
            last = int(column[-1])
        return BlockIndex(np.concatenate(lowest), np.concatenate(highest), ascending=ascending)

    def iterate_columns(
        self, source: Source, size: int
    ) -> Iterator[tuple[int, NDArray[np.uint64]]]:
        """Read the indices of `size` pairs at a time, with the position of the first pair."""
        for first in range(0, self.count, size):
            yield first, self.read_pairs(source, first, min(first + size, self.count))["index"]

    def _read_runs(self, source: Source, runs: Extents) -> Array:
        """Read the elements of some runs as an array of rows of components."""
        _, *operations = self.group
        filled = np.zeros((runs.nbytes, self.components), dtype=self.dtype)
        may_repeat = bool(operations) or not self.get_block_index(source).ascending
        is_set = np.zeros(runs.nbytes if may_repeat else 0, dtype=bool)
        self._fill_stored(source, runs, filled, is_set)
        for operation in operations:
            self._fill_images(source, runs, operation, filled, is_set)
        return filled

    def _fill_stored(self, source: Source, runs: Extents, filled: Array, is_set: Array) -> None:
        """Set the stored elements. Check for repeated indices unless `is_set` is empty."""
        for pair_numbers, run_positions, values in self._read_images(source, runs, self.group[0]):
            if is_set.size:
                repeated = is_set[run_positions] | is_repeated(run_positions)
                if repeated.any():
                    raise self.build_index_error(source, int(pair_numbers[np.argmax(repeated)]))
                is_set[run_positions] = True
            filled[run_positions] = values

    def _fill_images(
        self, source: Source, runs: Extents, operation: Operation, filled: Array, is_set: Array
    ) -> None:
        """Set the images of stored elements. Raise an error if they contradict other elements."""
        for pair_numbers, run_positions, values in self._read_images(source, runs, operation):
            images = values if operation.sign > 0 else _negate(values)
            conflicts = is_set[run_positions] & ~_find_equal_rows(filled[run_positions], images)
            filled[run_positions], is_set[run_positions] = images, True
            # If several images are one element, the array now holds the last image.
            conflicts |= ~_find_equal_rows(filled[run_positions], images)
            if operation.sign < 0:  # the smallest integer is its own negative
                conflicts |= ((images == values) & (values != 0)).any(axis=-1)
            if conflicts.any():
                raise self._build_conflict_error(source, int(pair_numbers[np.argmax(conflicts)]))

    def _read_images(
        self, source: Source, runs: Extents, operation: Operation
    ) -> Iterator[tuple[Integers, Integers, Array]]:
        """Yield pair numbers, positions in the runs, and values before the sign is applied.

        An image is the element that a symmetry operation derives from a stored element.
        """
        block_index = self.get_block_index(source)
        # An operation can map any stored element into the runs.
        everything = Extents.single(0, self.total)
        candidates = runs if operation == self.group[0] else everything
        for start, stop in block_index.find_ranges(candidates):
            pairs = self.read_pairs(source, start, min(stop, self.count))
            selected = np.arange(pairs.size)
            if block_index.ascending:
                selected = _search_runs(pairs["index"], candidates)
            indices = pairs["index"][selected].astype(np.int64)
            images = operation.map_indices(indices, self.lengths[::-1])
            run_positions = _find_positions(runs, images)
            inside = np.flatnonzero(run_positions >= 0)
            selected, run_positions = selected[inside], run_positions[inside]
            values = self.element.adopt(pairs["value"][selected].view(self.element.stored))
            yield start + selected, run_positions, values.reshape(-1, self.components)

    def build_index_error(self, source: Source, pair: int) -> TensorFormatError:
        """Build the error about a pair whose index is out of bounds or repeated."""
        index = int(self.read_pairs(source, pair, pair + 1)["index"][0])
        actual, expected = str(index), f"a global index below {self.total}"
        hint = "the file is corrupt, or its dimension headers are wrong"
        if index < self.total:
            actual, expected = f"{index}, as in another pair", "an index that occurs once"
            hint = "the value there is undefined; write the file again"
        field, offset = f"the index of pair {pair}", self.offset + pair * self.stride
        return TensorFormatError(source.name, field, actual, expected, hint, offset=offset)

    def _build_conflict_error(self, source: Source, pair: int) -> TensorFormatError:
        return TensorFormatError(
            source.name,
            field=f"pair {pair}",
            actual="another value for an element than a related pair gives, or one without a "
            "negative",
            expected="one value for each element under the packed symmetries",
            hint="the pairs contradict the symmetries; write the file again",
            offset=self.offset + pair * self.stride,
        )
