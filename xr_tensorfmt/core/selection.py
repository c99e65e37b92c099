"""Selections: the elements to read, in the order of the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Integers

Indices = range | Integers
"""The selected indices of an axis in ascending order: a range or an integer array."""

PostIndexer = int | slice | Integers
"""The key to apply to an axis of the selected values."""

KEEP = slice(None)
"""The `PostIndexer` that keeps an axis unchanged."""

# Limits the memory of extents, which have an integer per run.
MAX_RUNS = 1 << 20

# Elements to reorder at a time, to stay within a cache.
_MAX_REORDERED = 1 << 20


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
    >>> selection.runs()
    Runs(starts=array([ 2, 32]), length=6)
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
    def is_strided(self) -> bool:
        """Whether the indices of every axis are a range."""
        return all(isinstance(indices, range) for indices in self.indices)

    def transpose(self, axes: Sequence[int]) -> Selection:
        """Return the selection of the same elements after ``transpose(axes)``."""
        return Selection(
            tuple(self.tensor_shape[axis] for axis in axes),
            tuple(self.indices[axis] for axis in axes),
        )

    def full_index(self, position: int) -> tuple[int, ...]:
        """Return the index in the whole tensor of the element at a flat position in the values."""
        index = np.unravel_index(position, self.shape)
        return tuple(int(indices[i]) for indices, i in zip(self.indices, index, strict=True))

    def runs(self) -> Runs:
        """Return the runs of a non-empty selection, as ranges of flat indices in C order."""
        strides = compute_row_major_strides(self.tensor_shape)
        inner = self._slowest_run_axis
        starts = np.zeros(1, dtype=np.int64)
        for indices, stride in zip(self.indices[inner:], strides[inner:], strict=True):
            starts += indices[0] * stride
        for indices, stride in zip(self.indices[:inner][::-1], strides[:inner][::-1], strict=True):
            starts = (indices_to_array(indices)[:, np.newaxis] * stride + starts).ravel()
        return Runs(starts, prod(self.shape[inner:]))

    @property
    def run_count(self) -> int:
        """Number of runs."""
        return prod(self.shape[: self._slowest_run_axis])

    @property
    def span(self) -> int:
        """Number of elements from the first to the last selected one, which must exist."""
        strides = compute_row_major_strides(self.tensor_shape)
        lengths = (int(indices[-1] - indices[0]) for indices in self.indices)
        return 1 + sum(length * stride for length, stride in zip(lengths, strides, strict=True))

    def divide(
        self, max_size: int, *, max_runs: int | None = None, max_span: int | None = None
    ) -> Iterator[Selection]:
        """Divide along the slowest axes into parts of few elements, few runs and a short span."""
        axis = next((axis for axis, length in enumerate(self.shape) if length > 1), None)
        excess = self.size / max_size
        if max_runs is not None:
            excess = max(excess, self.run_count / max_runs)
        if max_span is not None:
            excess = max(excess, self.span / max_span)
        if excess <= 1 or axis is None:
            yield self
            return
        step = max(1, int(self.shape[axis] / excess))
        for first in range(0, self.shape[axis], step):
            part = self.indices[axis][first : first + step]
            indices = (*self.indices[:axis], part, *self.indices[axis + 1 :])
            batch = Selection(self.tensor_shape, indices)
            yield from batch.divide(max_size, max_runs=max_runs, max_span=max_span)

    def prepend(self, index: int, length: int) -> Selection:
        """Return the selection of one index along a new first axis, and of the other axes."""
        return Selection((length, *self.tensor_shape), (range(index, index + 1), *self.indices))

    def to_points(self) -> Points:
        """Return all elements as points."""
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
    """Single elements. A layout locates and decodes different points, sorted in C order.

    Parameters
    ----------
    tensor_shape : tuple of int
        Lengths of the axes of the tensor.
    indices : tuple of ndarray
        An array per axis, all of one length.
    """

    indices: tuple[Integers, ...]

    is_strided = False

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of points."""
        return (self.indices[0].size,)

    @cached_property
    def flat(self) -> Integers:
        """Indices of the points in C order."""
        return np.asarray(np.ravel_multi_index(self.indices, self.tensor_shape))

    def runs(self) -> Runs:
        """Return a run per point."""
        return Runs(self.flat, 1)

    @property
    def run_count(self) -> int:
        """Number of points."""
        return self.size

    @property
    def span(self) -> int:
        """Number of elements from the first to the last point."""
        return int(self.flat[-1] - self.flat[0]) + 1

    def transpose(self, axes: Sequence[int]) -> Points:
        """Return the same points after ``transpose(axes)``."""
        lengths = tuple(self.tensor_shape[axis] for axis in axes)
        return Points(lengths, tuple(self.indices[axis] for axis in axes))

    def full_index(self, position: int) -> tuple[int, ...]:
        """Return the index of a point."""
        return tuple(int(indices[position]) for indices in self.indices)

    def divide(
        self, max_size: int, *, max_runs: int | None = None, max_span: int | None = None
    ) -> Iterator[Points]:
        """Divide into parts of few points."""
        step = max(1, min(max_size, max_runs or max_size))
        for first in range(0, self.size, step):
            part = tuple(indices[first : first + step] for indices in self.indices)
            yield Points(self.tensor_shape, part)

    def prepend(self, index: int, length: int) -> Points:
        """Return the points at one index of a new first axis."""
        first = np.full(self.shape, index, dtype=np.int64)
        return Points((length, *self.tensor_shape), (first, *self.indices))

    def to_points(self) -> Points:
        """Return the points."""
        return self

    def sort(self) -> tuple[Selection, Integers]:
        """Return what to read in the order of the file, and the position of every point in it."""
        if len(self.tensor_shape) == 1:
            first, stop = int(self.flat.min()), int(self.flat.max()) + 1
            if stop - first <= 2 * self.size:  # a range with few other elements
                return Selection(self.tensor_shape, (range(first, stop),)), self.flat - first
        unique, inverse = np.unique(self.flat, return_inverse=True)
        indices = np.unravel_index(unique, self.tensor_shape)
        return Points(self.tensor_shape, tuple(indices)), inverse


@dataclass(frozen=True, eq=False)
class Runs:
    """Ranges ``[start, start + length)`` of flat indices, sorted and disjoint."""

    starts: Integers
    length: int

    @property
    def size(self) -> int:
        """Number of elements in all ranges."""
        return self.starts.size * self.length

    @property
    def bounds(self) -> tuple[int, int]:
        """First index, and the index after the last one."""
        return int(self.starts[0]), int(self.starts[-1]) + self.length

    def locate(self, indices: Integers) -> Integers:
        """Return the position of every flat index among the elements, or -1."""
        if self.starts.size == 1:
            positions = indices - self.starts[0]
            return np.where((positions >= 0) & (positions < self.length), positions, -1)
        run = np.searchsorted(self.starts, indices, side="right") - 1
        positions = indices - self.starts[run]
        inside = (run >= 0) & (positions < self.length)
        return np.where(inside, run * self.length + positions, -1)


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


def apply_post_indexers(values: Array, post_indexers: Sequence[PostIndexer]) -> Array:
    """Apply a key to every axis, by batches of rows if several keys are arrays."""
    first, *others = post_indexers or (KEEP,)
    has_arrays = any(isinstance(post_indexer, np.ndarray) for post_indexer in others)
    if isinstance(first, np.ndarray) and has_arrays and values.size > _MAX_REORDERED:
        row_shape = _apply_at_once(values[:0], [KEEP, *others]).shape[1:]  # of no row
        ordered = np.empty((first.size, *row_shape), dtype=values.dtype)
        step = max(1, _MAX_REORDERED * len(values) // values.size)
        for start in range(0, first.size, step):
            rows = values[first[start : start + step]]
            ordered[start : start + step] = _apply_at_once(rows, [KEEP, *others])
        return ordered
    return _apply_at_once(values, post_indexers)


def _apply_at_once(values: Array, post_indexers: Sequence[PostIndexer]) -> Array:
    # Start with the last axis, because dropping an axis renumbers the axes behind it.
    for axis in reversed(range(len(post_indexers))):
        post_indexer = post_indexers[axis]
        if isinstance(post_indexer, np.ndarray):
            values = np.take(values, post_indexer, axis=axis)
        elif post_indexer != KEEP:
            values = values[(slice(None),) * axis + (post_indexer, ...)]
    return values
