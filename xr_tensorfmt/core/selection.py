"""Selections: the form in which a Layout receives a key."""

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
"""What is applied to an axis of the values of a Selection, in the order of the key."""

KEEP = slice(None)
"""The one that changes nothing."""

# A plan has an integer for each run of a Selection; this limits its memory.
MAX_RUNS = 1 << 20

# Elements that are brought into another order along several axes at a time, within a cache.
_MAX_REORDERED = 1 << 20


@dataclass(frozen=True, eq=False)
class Selection:
    """The outer product of one entry for each axis.

    Parameters
    ----------
    extent : tuple of int
        Lengths of the axes of the whole tensor.
    entries : tuple of slice or ndarray
        For each axis a slice with positive step whose ``stop`` is one more than its last element
        (``slice(0, 0, 1)`` where it is empty), or a strictly ascending integer array.
    """

    extent: tuple[int, ...]
    entries: tuple[Entry, ...]

    @classmethod
    def everything(cls, extent: Sequence[int]) -> Selection:
        """All elements of a tensor with these lengths."""
        return cls(tuple(extent), tuple(slice(0, length, 1) for length in extent))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes of what is selected."""
        return tuple(entry_length(entry) for entry in self.entries)

    @property
    def size(self) -> int:
        """Number of elements selected."""
        return prod(self.shape)

    @property
    def sliced(self) -> bool:
        """Whether every entry is a slice."""
        return all(isinstance(entry, slice) for entry in self.entries)

    def permuted(self, axes: Sequence[int]) -> Selection:
        """The same elements of the tensor whose axis ``i`` is axis ``axes[i]`` of this one."""
        return Selection(
            tuple(self.extent[axis] for axis in axes), tuple(self.entries[axis] for axis in axes)
        )

    def full_index(self, position: int) -> tuple[int, ...]:
        """Index in the whole tensor of the element at a flat C-order position of the selection."""
        indices = np.unravel_index(position, self.shape)
        return tuple(
            int(index) * entry.step + entry.start if isinstance(entry, slice) else int(entry[index])
            for index, entry in zip(indices, self.entries, strict=True)
        )

    def runs(self) -> Runs:
        """Consecutive elements in C order, as ranges of the flat index of the whole tensor."""
        strides = row_major_strides(self.extent)
        cut = self._first_whole_axis
        starts = np.zeros(1, dtype=np.int64)
        for entry, stride in zip(self.entries[cut:], strides[cut:], strict=True):
            starts += _ends(entry)[0] * stride
        for entry, stride in zip(self.entries[:cut][::-1], strides[:cut][::-1], strict=True):
            starts = (entry_indices(entry)[:, np.newaxis] * stride + starts).ravel()
        return Runs(starts, prod(self.shape[cut:]))

    @property
    def run_count(self) -> int:
        """Number of ranges that `runs` returns."""
        return prod(self.shape[: self._first_whole_axis])

    @property
    def span(self) -> int:
        """Elements of the whole tensor from the first selected one to the last, both included."""
        strides = row_major_strides(self.extent)
        ends = map(_ends, self.entries)
        return 1 + sum((last - first) * s for (first, last), s in zip(ends, strides, strict=True))

    def batches(self, *, runs: int, span: int) -> Iterator[Selection]:
        """Split along the slowest axes, so that each part has few runs and a short span."""
        axis = next((axis for axis, length in enumerate(self.shape) if length > 1), None)
        excess = max(self.run_count / runs, self.span / span)
        if excess <= 1 or axis is None:
            yield self
            return
        step = max(1, int(self.shape[axis] / excess))
        for first in range(0, self.shape[axis], step):
            part = entry_part(self.entries[axis], first, step)
            entries = (*self.entries[:axis], part, *self.entries[axis + 1 :])
            yield from Selection(self.extent, entries).batches(runs=runs, span=span)

    @property
    def _first_whole_axis(self) -> int:
        """The first axis along which runs extend; they contain all faster axes."""
        axis = len(self.extent)
        while axis and self.shape[axis - 1] == self.extent[axis - 1]:
            axis -= 1
        entry = self.entries[axis - 1] if axis else None
        return axis - 1 if isinstance(entry, slice) and _is_consecutive(entry) else axis


@dataclass(frozen=True, eq=False)
class Runs:
    """Ranges ``[start, start + length)`` of flat indices, ascending and without overlap."""

    starts: Integers
    length: int

    @property
    def size(self) -> int:
        """Number of elements in all ranges together."""
        return self.starts.size * self.length

    @property
    def bounds(self) -> tuple[int, int]:
        """First element of the first range and the one after the last."""
        return int(self.starts[0]), int(self.starts[-1]) + self.length

    def locate(self, indices: Integers) -> Integers:
        """Position of each flat index among the elements of the ranges, or -1."""
        if self.starts.size == 1:
            within = indices - self.starts[0]
            return np.where((within >= 0) & (within < self.length), within, -1)
        run = np.searchsorted(self.starts, indices, side="right") - 1
        within = indices - self.starts[run]
        inside = (run >= 0) & (within < self.length)
        return np.where(inside, run * self.length + within, -1)


def row_major_strides(shape: Sequence[int]) -> list[int]:
    """Elements from one index to the next along each axis, slowest axis first."""
    return [prod(shape[axis + 1 :]) for axis in range(len(shape))]


def entry_length(entry: Entry) -> int:
    """Number of elements of an axis that an entry selects."""
    if isinstance(entry, slice):
        return len(range(entry.start, entry.stop, entry.step))
    return entry.size


def _ends(entry: Entry) -> tuple[int, int]:
    if isinstance(entry, slice):
        return entry.start, entry.stop - 1
    return int(entry[0]), int(entry[-1])


def entry_part(entry: Entry, first: int, count: int) -> Entry:
    """The entry for at most `count` of an entry's elements, from element `first` on."""
    if not isinstance(entry, slice):
        return entry[first : first + count]
    part = range(entry.start, entry.stop, entry.step)[first : first + count]
    return slice(part[0], part[-1] + 1, entry.step)


def entry_from_indices(indices: Integers) -> Entry:
    """The entry for strictly ascending indices: a slice where they are consecutive."""
    if not indices.size:
        return slice(0, 0, 1)
    first, last = int(indices[0]), int(indices[-1])
    return slice(first, last + 1, 1) if last - first + 1 == indices.size else indices


def _is_consecutive(entry: slice) -> bool:
    return entry.step == 1 or entry_length(entry) == 1


def entry_indices(entry: Entry) -> Integers:
    """The indices of an entry."""
    if isinstance(entry, slice):
        return np.arange(entry.start, entry.stop, entry.step, dtype=np.int64)
    return entry


def apply_indexers(values: Array, keys: Sequence[PostIndexer]) -> Array:
    """Apply a key to each axis, to some rows at a time where several are arrays."""
    first, more = keys[0] if keys else KEEP, any(isinstance(key, np.ndarray) for key in keys[1:])
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
    # From the last axis to the first, as dropping an axis renumbers those behind it.
    for axis in reversed(range(len(keys))):
        key = keys[axis]
        if isinstance(key, np.ndarray):
            values = np.take(values, key, axis=axis)
        elif key != KEEP:
            values = values[(slice(None),) * axis + (key, ...)]
    return values
