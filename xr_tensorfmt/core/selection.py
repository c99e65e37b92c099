"""Selections: the elements to read, in the order of the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Self

import numpy as np

from xr_tensorfmt.core.chunk_grid import contiguous_chunk, iterate_chunks
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Extents, Integers
from xr_tensorfmt.core.locks import cached_property

Indices = range | Integers
"""The selected indices of an axis in ascending order: a range or an integer array."""

# Limits the memory of extents, which have an integer per run.
MAX_RUNS = 1 << 20


@dataclass(frozen=True, eq=False)
class Selection:
    """The outer product of the selected indices of all axes.

    Parameters
    ----------
    tensor_shape : tuple of int
        Lengths of the axes of the whole tensor.
    indices : tuple of range or ndarray
        The selected indices of every axis: a range with positive step, or a strictly ascending
        integer array.

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

    @classmethod
    def everything(cls, tensor_shape: Sequence[int]) -> Selection:
        """Select all elements of a tensor."""
        return cls(tuple(tensor_shape), tuple(map(range, tensor_shape)))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the selected values."""
        return tuple(map(len, self.indices))

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
        return np.ix_(*self.index_arrays)

    @cached_property
    def is_strided(self) -> bool:
        """Whether the indices of every axis are a range."""
        return all(isinstance(indices, range) for indices in self.indices)

    def transpose(self, axes: Sequence[int]) -> Self:
        """Return the selection of the same elements after ``transpose(axes)``."""
        indices = tuple(self.indices[axis] for axis in axes)
        return type(self)(tuple(self.tensor_shape[axis] for axis in axes), indices)

    def full_index(self, position: int) -> tuple[int, ...]:
        """Return the index in the whole tensor of the element at a flat position in the values."""
        index = np.unravel_index(position, self.shape)
        return tuple(int(indices[i]) for indices, i in zip(self.indices, index, strict=True))

    def runs(self, item: int = 1, offset: int = 0) -> Extents:
        """Return the runs of consecutive elements, in elements or in bytes of a file."""
        strides = compute_row_major_strides(self.tensor_shape)
        inner = self._slowest_run_axis
        starts = np.zeros(1, dtype=np.int64)
        for indices, stride in zip(self.indices[inner:], strides[inner:], strict=True):
            starts += indices[0] * stride
        for indices, stride in zip(self.indices[:inner][::-1], strides[:inner][::-1], strict=True):
            starts = (indices_to_array(indices)[:, np.newaxis] * stride + starts).ravel()
        return Extents.uniform(offset + item * starts, item * prod(self.shape[inner:]))

    @cached_property
    def flat(self) -> Integers:
        """Indices of the elements in C order."""
        runs = self.runs()
        return np.add.outer(runs.starts, np.arange(runs.lengths[0])).ravel()

    @property
    def run_count(self) -> int:
        """Number of runs."""
        return prod(self.shape[: self._slowest_run_axis])

    @cached_property
    def span(self) -> int:
        """Number of elements from the first to the last selected one, which must exist."""
        strides = compute_row_major_strides(self.tensor_shape)
        axes = zip(self.indices, strides, strict=True)
        return 1 + sum([int(indices[-1] - indices[0]) * stride for indices, stride in axes])

    @property
    def mean_gap(self) -> float:
        """Mean number of elements between two runs of a strided selection."""
        return (self.span - self.size) / max(1, self.run_count - 1)

    @property
    def is_compact(self) -> bool:
        """Whether a view of the span as values holds at most twice the memory of the values."""
        return self.is_strided and self.span <= 2 * self.size

    def divide(self, max_size: int) -> Iterator[Selection]:
        """Divide along the slowest axes into parts of up to `max_size` elements."""
        if self.size <= max_size:
            yield self
            return
        chunk = contiguous_chunk(self.shape, 1, max(1, max_size))
        for ranges in iterate_chunks(self.shape, chunk):
            axes = zip(self.indices, ranges, strict=True)
            yield Selection(self.tensor_shape, tuple(axis[r.start : r.stop] for axis, r in axes))

    def prepend(self, index: int, length: int) -> Selection:
        """Return the selection of one index along a new first axis, and of the other axes."""
        return Selection((length, *self.tensor_shape), (range(index, index + 1), *self.indices))

    def to_points(self) -> Points:
        """Return all elements as points."""
        if isinstance(self, Points):
            return self
        mesh = np.meshgrid(*self.index_arrays, indexing="ij")
        return Points(self.tensor_shape, tuple(axis.ravel() for axis in mesh))

    @property
    def _slowest_run_axis(self) -> int:
        """The slowest axis along which a run extends. A run contains all faster axes."""
        axis = len(self.tensor_shape)
        while axis and self.shape[axis - 1] == self.tensor_shape[axis - 1]:
            axis -= 1
        indices = self.indices[axis - 1] if axis else None
        is_consecutive = isinstance(indices, range) and (indices.step == 1 or len(indices) == 1)
        return axis - 1 if is_consecutive else axis


@dataclass(frozen=True, eq=False)
class Points(Selection):
    """Single elements, by an index array per axis. A layout gets different ones, in C order."""

    indices: tuple[Integers, ...]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of points."""
        return (self.indices[0].size,)

    @property
    def mesh(self) -> tuple[Integers, ...]:
        """The indices of the points."""
        return self.indices

    @cached_property
    def flat(self) -> Integers:
        """Indices of the points in C order."""
        return np.asarray(np.ravel_multi_index(self.indices, self.tensor_shape))

    def runs(self, item: int = 1, offset: int = 0) -> Extents:
        """Return a range per point."""
        return Extents.uniform(offset + item * self.flat, item)

    @property
    def run_count(self) -> int:
        """Number of points."""
        return self.size

    def full_index(self, position: int) -> tuple[int, ...]:
        """Return the index of a point."""
        return tuple(int(indices[position]) for indices in self.indices)

    def divide(self, max_size: int) -> Iterator[Points]:
        """Divide into parts of up to `max_size` points."""
        step = max(1, max_size)
        for first in range(0, self.size, step):
            part = tuple(indices[first : first + step] for indices in self.indices)
            yield Points(self.tensor_shape, part)

    def prepend(self, index: int, length: int) -> Points:
        """Return the points at one index of a new first axis."""
        first = np.full(self.shape, index, dtype=np.int64)
        return Points((length, *self.tensor_shape), (first, *self.indices))

    def sort(self) -> tuple[Selection, Integers]:
        """Return what to read in the order of the file, and the position of every point in it."""
        if len(self.tensor_shape) == 1:
            first, stop = int(self.flat.min()), int(self.flat.max()) + 1
            if stop - first <= 2 * self.size:  # a range with few other elements
                return Selection(self.tensor_shape, (range(first, stop),)), self.flat - first
        unique, inverse = np.unique(self.flat, return_inverse=True)
        indices = np.unravel_index(unique, self.tensor_shape)
        return Points(self.tensor_shape, tuple(indices)), inverse


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


def take_rows(values: Array, indices: Indices) -> Array:
    """Return the rows of an array at some indices. A range returns a view."""
    if isinstance(indices, range):
        return values[indices.start : indices.stop : indices.step]
    return values[indices]
