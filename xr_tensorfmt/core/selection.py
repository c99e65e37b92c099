"""Selections: normalized keys, the argument of `Layout.read`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Integers

Entry = slice | Integers
"""A slice with positive step and exact bounds, or a strictly ascending integer array."""

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
    """The outer product of one entry per axis.

    Parameters
    ----------
    tensor_shape : tuple of int
        Lengths of the axes of the whole tensor.
    entries : tuple of slice or ndarray
        A slice or a strictly ascending integer array per axis. Slices have a positive step, and
        ``stop`` is the last index plus 1. Empty slices are ``slice(0, 0, 1)``.

    Examples
    --------
    ``tensor[[0, 3], 2:8]`` has 2 runs of 6 elements, which begin at the flat indices 2 and 32:

    >>> selection = Selection((4, 10), (np.array([0, 3]), slice(2, 8, 1)))
    >>> selection.shape, selection.run_count
    ((2, 6), 2)
    >>> selection.runs()
    Runs(starts=array([ 2, 32]), length=6)
    """

    tensor_shape: tuple[int, ...]
    entries: tuple[Entry, ...]

    @classmethod
    def everything(cls, tensor_shape: Sequence[int]) -> Selection:
        """Select all elements of a tensor."""
        return cls(tuple(tensor_shape), tuple(slice(0, length, 1) for length in tensor_shape))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the selected values."""
        return tuple(entry_length(entry) for entry in self.entries)

    @property
    def size(self) -> int:
        """Number of selected elements."""
        return prod(self.shape)

    @property
    def sliced(self) -> bool:
        """Whether every entry is a slice."""
        return all(isinstance(entry, slice) for entry in self.entries)

    def permuted(self, axes: Sequence[int]) -> Selection:
        """Return the selection of the same elements after ``transpose(axes)``."""
        return Selection(
            tuple(self.tensor_shape[axis] for axis in axes),
            tuple(self.entries[axis] for axis in axes),
        )

    def full_index(self, position: int) -> tuple[int, ...]:
        """Return the index in the whole tensor of the selected element number `position`."""
        indices = np.unravel_index(position, self.shape)
        return tuple(
            int(index) * entry.step + entry.start if isinstance(entry, slice) else int(entry[index])
            for index, entry in zip(indices, self.entries, strict=True)
        )

    def runs(self) -> Runs:
        """Return runs of consecutive elements, as ranges of the flat index in C order."""
        strides = row_major_strides(self.tensor_shape)
        inner = self._first_whole_axis
        starts = np.zeros(1, dtype=np.int64)
        for entry, stride in zip(self.entries[inner:], strides[inner:], strict=True):
            starts += _get_bounds(entry)[0] * stride
        for entry, stride in zip(self.entries[:inner][::-1], strides[:inner][::-1], strict=True):
            starts = (entry_indices(entry)[:, np.newaxis] * stride + starts).ravel()
        return Runs(starts, prod(self.shape[inner:]))

    @property
    def run_count(self) -> int:
        """Number of runs."""
        return prod(self.shape[: self._first_whole_axis])

    @property
    def span(self) -> int:
        """Number of elements of the whole tensor from the first to the last selected one."""
        strides = row_major_strides(self.tensor_shape)
        bounds = map(_get_bounds, self.entries)
        return 1 + sum((last - first) * s for (first, last), s in zip(bounds, strides, strict=True))

    def batches(self, *, runs: int, span: int) -> Iterator[Selection]:
        """Split along the slowest axes into parts with few runs and a short span."""
        axis = next((axis for axis, length in enumerate(self.shape) if length > 1), None)
        excess = max(self.run_count / runs, self.span / span)
        if excess <= 1 or axis is None:
            yield self
            return
        step = max(1, int(self.shape[axis] / excess))
        for first in range(0, self.shape[axis], step):
            part = entry_part(self.entries[axis], first, step)
            entries = (*self.entries[:axis], part, *self.entries[axis + 1 :])
            yield from Selection(self.tensor_shape, entries).batches(runs=runs, span=span)

    @property
    def _first_whole_axis(self) -> int:
        """The first axis along which runs extend. They contain all faster axes."""
        axis = len(self.tensor_shape)
        while axis and self.shape[axis - 1] == self.tensor_shape[axis - 1]:
            axis -= 1
        entry = self.entries[axis - 1] if axis else None
        return axis - 1 if isinstance(entry, slice) and _is_consecutive(entry) else axis


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
        """First element, and the element after the last one."""
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


def row_major_strides(shape: Sequence[int]) -> list[int]:
    """Return the strides of a C-order array, in elements."""
    return [prod(shape[axis + 1 :]) for axis in range(len(shape))]


def entry_length(entry: Entry) -> int:
    """Return the number of indices of an entry."""
    if isinstance(entry, slice):
        return len(range(entry.start, entry.stop, entry.step))
    return entry.size


def _get_bounds(entry: Entry) -> tuple[int, int]:
    """Return the first and the last index."""
    if isinstance(entry, slice):
        return entry.start, entry.stop - 1
    return int(entry[0]), int(entry[-1])


def entry_part(entry: Entry, first: int, count: int) -> Entry:
    """Return up to `count` indices of an entry, from number `first` on."""
    if not isinstance(entry, slice):
        return entry[first : first + count]
    part = range(entry.start, entry.stop, entry.step)[first : first + count]
    return slice(part[0], part[-1] + 1, entry.step)


def entry_from_indices(indices: Integers) -> Entry:
    """Convert strictly ascending indices to an entry: a slice if they are consecutive."""
    if not indices.size:
        return slice(0, 0, 1)
    first, last = int(indices[0]), int(indices[-1])
    return slice(first, last + 1, 1) if last - first + 1 == indices.size else indices


def _is_consecutive(entry: slice) -> bool:
    return entry.step == 1 or entry_length(entry) == 1


def entry_indices(entry: Entry) -> Integers:
    """Return the indices of an entry as an array."""
    if isinstance(entry, slice):
        return np.arange(entry.start, entry.stop, entry.step, dtype=np.int64)
    return entry


def apply_indexers(values: Array, keys: Sequence[PostIndexer]) -> Array:
    """Apply a key to every axis, by batches of rows if several keys are arrays."""
    first = keys[0] if keys else KEEP
    more = any(isinstance(key, np.ndarray) for key in keys[1:])
    if isinstance(first, np.ndarray) and more and values.size > _MAX_REORDERED:
        shape = _apply_keys(values[:0], [KEEP, *keys[1:]]).shape[1:]
        ordered = np.empty((first.size, *shape), dtype=values.dtype)
        step = max(1, _MAX_REORDERED * len(values) // values.size)
        for begin in range(0, first.size, step):
            rows = values[first[begin : begin + step]]
            ordered[begin : begin + step] = _apply_keys(rows, [KEEP, *keys[1:]])
        return ordered
    return _apply_keys(values, keys)


def _apply_keys(values: Array, keys: Sequence[PostIndexer]) -> Array:
    # Start with the last axis, because dropping an axis renumbers the axes behind it.
    for axis in reversed(range(len(keys))):
        key = keys[axis]
        if isinstance(key, np.ndarray):
            values = np.take(values, key, axis=axis)
        elif key != KEEP:
            values = values[(slice(None),) * axis + (key, ...)]
    return values
