"""Selections: the elements to read, in the order of the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.extents import Extents, Integers, contiguous_chunk, iterate_chunks

Indices = range | Integers
"""The selected indices of an axis in ascending order: a range or an integer array."""

# Limits the memory of extents, which have an integer per run.
MAX_RUNS = 1 << 20


@dataclass(frozen=True, eq=False)
class Selection:
    """The selected indices of every axis: their outer product, or single elements.

    Parameters
    ----------
    tensor_shape : tuple of int
        Lengths of the axes of the whole tensor.
    indices : tuple of range or ndarray
        The selected indices of every axis: a range with positive step, or a strictly ascending
        integer array. If `is_pointwise`, arrays with an index per element, in any order.
    is_pointwise : bool
        Whether the selection consists of single elements, one per position of the arrays.

    Examples
    --------
    ``tensor[[0, 3], 2:8]`` has 2 runs of 6 elements, which begin at the flat indices 2 and 32:

    >>> selection = Selection((4, 10), (np.array([0, 3]), range(2, 8)))
    >>> selection.shape, selection.run_count
    ((2, 6), 2)
    >>> selection.runs().starts.tolist(), selection.runs().lengths.tolist()
    ([2, 32], [6, 6])
    """

    tensor_shape: tuple[int, ...]
    indices: tuple[Indices, ...]
    is_pointwise: bool = False

    @classmethod
    def everything(cls, tensor_shape: Sequence[int]) -> Selection:
        """Select all elements of a tensor."""
        return cls(tuple(tensor_shape), tuple(map(range, tensor_shape)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the selected values."""
        lengths = tuple(map(len, self.indices))
        return lengths[:1] if self.is_pointwise else lengths

    @property
    def size(self) -> int:
        """Number of selected elements."""
        return prod(self.shape)

    @property
    def index_arrays(self) -> tuple[Integers, ...]:
        """The selected indices of every axis as an array."""
        return tuple(map(indices_to_array, self.indices))

    @property
    def mesh(self) -> tuple[Integers, ...]:
        """The indices of every axis, in shapes that numpy broadcasts to `shape`."""
        return self.index_arrays if self.is_pointwise else np.ix_(*self.index_arrays)

    @property
    def is_strided(self) -> bool:
        """Whether the indices of every axis are a range."""
        return all(isinstance(indices, range) for indices in self.indices)

    def transpose(self, axes: Sequence[int]) -> Selection:
        """Return the selection of the same elements after ``transpose(axes)``."""
        lengths = tuple(self.tensor_shape[axis] for axis in axes)
        return Selection(lengths, tuple(self.indices[axis] for axis in axes), self.is_pointwise)

    def runs(self, item: int = 1, offset: int = 0) -> Extents:
        """Return the runs of consecutive elements, in elements or in bytes of a file."""
        if self.is_pointwise:
            return Extents.uniform(offset + item * self.flat, item)
        strides = compute_row_major_strides(self.tensor_shape)
        inner = self._slowest_run_axis
        starts = np.zeros(1, dtype=np.int64)
        for indices, stride in zip(self.indices[inner:], strides[inner:], strict=True):
            starts += indices[0] * stride
        for indices, stride in zip(self.indices[:inner][::-1], strides[:inner][::-1], strict=True):
            starts = (indices_to_array(indices)[:, np.newaxis] * stride + starts).ravel()
        return Extents.uniform(offset + item * starts, item * prod(self.shape[inner:]))

    @property
    def flat(self) -> Integers:
        """Indices of the elements in C order of the tensor."""
        if self.is_pointwise:
            return np.asarray(np.ravel_multi_index(self.index_arrays, self.tensor_shape))
        runs = self.runs()
        return np.add.outer(runs.starts, np.arange(runs.lengths[0])).ravel()

    @property
    def run_count(self) -> int:
        """Number of runs."""
        return self.size if self.is_pointwise else prod(self.shape[: self._slowest_run_axis])

    @property
    def span(self) -> int:
        """Number of elements from the first to the last one of an outer product, not empty."""
        strides = compute_row_major_strides(self.tensor_shape)
        axes = zip(self.indices, strides, strict=True)
        return 1 + sum([int(indices[-1] - indices[0]) * stride for indices, stride in axes])

    def divide(self, max_size: int) -> Iterator[Selection]:
        """Divide along the slowest axes into parts of up to `max_size` elements."""
        return (part for part, _ in self.iterate_parts(max_size))

    def iterate_parts(self, max_size: int) -> Iterator[tuple[Selection, tuple[Any, ...]]]:
        """Yield the parts as in `divide`, and the index of each part in the values."""
        chunk = contiguous_chunk(self.shape, 1, max(1, max_size))
        for ranges in iterate_chunks(self.shape, chunk):
            axes = zip(self.indices, cycle(ranges), strict=False)
            indices = tuple(axis[positions.start : positions.stop] for axis, positions in axes)
            index = (*(slice(positions.start, positions.stop) for positions in ranges), ...)
            yield Selection(self.tensor_shape, indices, self.is_pointwise), index

    def crop(self, corner: Sequence[int], shape: tuple[int, ...]) -> tuple[Selection, Any]:
        """Return the part inside a box, relative to its corner, and the index in the values."""
        moved = [indices - low for indices, low in zip(self.index_arrays, corner, strict=True)]
        axes = list(zip(moved, shape, strict=True))
        if self.is_pointwise:
            inside = [(indices >= 0) & (indices < length) for indices, length in axes]
            target = np.flatnonzero(np.logical_and.reduce(inside))
            return Selection(shape, tuple(indices[target] for indices in moved), True), target
        parts = tuple(slice(*np.searchsorted(indices, (0, length))) for indices, length in axes)
        inner = (indices[part] for indices, part in zip(moved, parts, strict=True))
        return Selection(shape, tuple(map(array_to_indices, inner))), parts

    def find_rows(
        self, count: int, stored: Integers, numbers: Integers | None = None
    ) -> tuple[Selection, Any]:
        """Find the selected rows that are stored. An axis of rows replaces the first `count` axes.

        `stored` are the flat indices along these axes that have a row, ascending, and `numbers` are
        the indices of these rows, by default in their order. Return the selection of rows, and the
        index of its elements in the values of this one.
        """
        first = Selection(self.tensor_shape[:count], self.indices[:count], self.is_pointwise)
        requested = first.flat
        places = np.searchsorted(stored, requested)
        positions = np.flatnonzero(np.append(stored, -1)[places] == requested)
        rows = places[positions] if numbers is None else numbers[places[positions]]
        others, shape = self.indices[count:], (stored.size, *self.tensor_shape[count:])
        if self.is_pointwise:
            kept = (indices_to_array(indices)[positions] for indices in others)
            return Selection(shape, (rows, *kept), True), positions
        order = np.argsort(rows)
        target = np.unravel_index(positions[order], first.shape)
        return Selection(shape, (rows[order], *others)), target

    def sort(self) -> tuple[Selection, Integers | None]:
        """Return single elements without repetitions in the order of the file, or a range of them.

        Also return the position of every element in the selection, or None if the order is equal.
        """
        flat = self.flat
        if len(self.tensor_shape) == 1:
            first, stop = int(flat.min()), int(flat.max()) + 1
            if stop - first <= 2 * flat.size:  # a range with few other elements
                return Selection(self.tensor_shape, (range(first, stop),)), flat - first
        if (flat[1:] > flat[:-1]).all():
            return self, None
        unique, inverse = np.unique(flat, return_inverse=True)
        indices = tuple(np.unravel_index(unique, self.tensor_shape))
        return Selection(self.tensor_shape, indices, True), inverse

    @property
    def _slowest_run_axis(self) -> int:
        """The slowest axis along which a run extends. A run contains all faster axes."""
        axis = len(self.tensor_shape)
        while axis and len(self.indices[axis - 1]) == self.tensor_shape[axis - 1]:
            axis -= 1
        indices = self.indices[axis - 1] if axis else None
        is_consecutive = isinstance(indices, range) and (indices.step == 1 or len(indices) == 1)
        return axis - 1 if is_consecutive else axis


def compute_row_major_strides(shape: Sequence[int]) -> list[int]:
    """Return the strides of a C-order array, in elements."""
    return [prod(shape[axis + 1 :]) for axis in range(len(shape))]


def indices_to_array(indices: Indices) -> Integers:
    """Convert the indices of an axis to an array."""
    if isinstance(indices, range):
        return np.arange(indices.start, indices.stop, indices.step, dtype=np.int64)
    return indices


def array_to_indices(array: Integers) -> Indices:
    """Convert a strictly ascending array to a range if its indices are consecutive."""
    if not array.size:
        return range(0)
    first, last = int(array[0]), int(array[-1])
    return range(first, last + 1) if last - first + 1 == array.size else array
