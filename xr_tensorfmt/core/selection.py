"""Selections: the elements to read, in the order of the file, and plans to read keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Extents, Integers, contiguous_chunk, iterate_chunks
from xr_tensorfmt.core.source import Plan, Source, Step, plan_steps

if TYPE_CHECKING:
    from xr_tensorfmt.core.layout import Layout

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
        inner, lengths = self._slowest_run_axis, self.tensor_shape
        if not self.size:
            return Extents.empty()
        start = int(self.indices[inner][0]) if inner < len(lengths) else 0
        starts = np.array([offset + item * start * prod(lengths[inner + 1 :])], np.int64)
        for axis in reversed(range(inner)):
            steps = indices_to_array(self.indices[axis]) * (item * prod(lengths[axis + 1 :]))
            starts = np.add.outer(steps, starts).ravel()
        return Extents.uniform(starts, item * prod(map(len, self.indices[inner:])))

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
        if self.size <= max_size:
            yield self, (...,)
            return
        chunk = contiguous_chunk(self.shape, 1, max(1, max_size))
        for ranges in iterate_chunks(self.shape, chunk):
            axes = zip(self.indices, cycle(ranges), strict=False)
            indices = tuple(axis[positions.start : positions.stop] for axis, positions in axes)
            index = (*(slice(positions.start, positions.stop) for positions in ranges), ...)
            yield Selection(self.tensor_shape, indices, self.is_pointwise), index

    def find_rows(
        self, count: int, stored: Integers, numbers: Integers | None = None
    ) -> tuple[Selection, Any]:
        """Find the selected rows that are stored. An axis of rows replaces the first `count` axes.

        `stored` are the flat indices along these axes that have a row, ascending, and `numbers` are
        the indices of these rows, by default in their order. Return the selection of rows, and the
        index of its elements in the values of this one.
        """
        first = Selection(self.tensor_shape[:count], self.indices[:count], self.is_pointwise)
        if self.is_pointwise or first.size <= stored.size:
            places, is_stored = _search(stored, first.flat)
            positions = np.flatnonzero(is_stored)
            rows = places[positions]
        else:  # search the fewer stored rows along each axis
            sought = np.unravel_index(stored, first.tensor_shape)
            axes = list(map(_search, first.index_arrays, sought))
            rows = np.flatnonzero(np.all([is_selected for _, is_selected in axes], axis=0))
            matches = tuple(places[rows] for places, _ in axes)
            positions = np.ravel_multi_index(matches, first.shape)
        rows = rows if numbers is None else numbers[rows]
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


def _search(known: Integers, sought: Integers) -> tuple[Integers, NDArray[np.bool_]]:
    """Return the places of numbers in an ascending list, and whether they are in it."""
    places = np.searchsorted(known, sought)
    return places, np.append(known, -1)[places] == sought


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


PostIndexer = int | slice | Integers
"""The key to apply to an axis of the values that were read."""

_KEEP = slice(None)
_REVERSE = slice(None, None, -1)

# A point that spans at least this many elements gets its own read, because indices cost more.
_LARGE_POINT = 512
# Points are read in batches, to bound the memory of their indices.
_MAX_POINTS = 1 << 21


def plan_key(
    layout: Layout, source: Source, key: Sequence[Any], *, is_vectorized: bool = False
) -> Plan:
    """Plan the read of a key of integers, slices and arrays, which are outer or vectorized."""
    if is_vectorized:
        return _plan_vectorized(layout, source, key)
    entries = list(map(normalize_entry, key, layout.shape))
    plan = layout.plan(source, Selection(layout.shape, tuple(indices for indices, _ in entries)))
    post_indexers = [post_indexer for _, post_indexer in entries]
    if all(post_indexer is _KEEP for post_indexer in post_indexers):
        return plan
    return plan.convert(lambda values: _index_axes(values, post_indexers))


def _index_axes(values: Array, post_indexers: Sequence[PostIndexer]) -> Array:
    """Apply the keys that are left to the axes of values."""
    # Start with the last axis, because dropping an axis renumbers the axes behind it.
    for axis, post_indexer in reversed(list(enumerate(post_indexers))):
        if isinstance(post_indexer, np.ndarray):
            values = np.take(values, post_indexer, axis=axis)
        elif post_indexer is not _KEEP:
            values = values[(_KEEP,) * axis + (post_indexer, ...)]
    return values


def _spread_axes(values: Array, groups: Sequence[tuple[int, ...]], shape: tuple[int, ...]) -> Array:
    """Divide each axis into a group of axes of the result, order them, and broadcast them."""
    axes = [axis for group in groups for axis in group]
    split = values.reshape([shape[axis] for axis in axes])
    ordered = split.transpose(np.argsort(axes)) if axes else split
    missing = [axis for axis in range(len(shape)) if axis not in axes]
    expanded = np.expand_dims(ordered, tuple(missing))
    return expanded if expanded.shape == shape else np.broadcast_to(expanded, shape).copy()


def normalize_entry(entry: Any, length: int) -> tuple[Indices, PostIndexer]:
    """Return the ascending indices to read for an entry of a key, and the key that is left."""
    if isinstance(entry, slice):
        indices = range(*entry.indices(length))
        return (indices, _KEEP) if indices.step > 0 else (indices[::-1], _REVERSE)
    array = _normalize_indices(np.asarray(entry), length)
    if array.ndim == 0:
        return range(int(array), int(array) + 1), 0  # the key 0 drops the axis
    steps = np.diff(array)
    if steps.size and steps[0] and (steps == steps[0]).all():
        first, last, step = int(array[0]), int(array[-1]), int(steps[0])
        if step < 0:
            return range(last, first + 1, -step), _REVERSE
        return range(first, last + 1, step), _KEEP
    if (steps > 0).all():
        return array_to_indices(array), _KEEP
    unique, inverse = np.unique(array, return_inverse=True)
    return normalize_entry(unique, length)[0], inverse


def _normalize_indices(indices: NDArray[Any], length: int) -> Integers:
    """Return non-negative indices. Raise IndexError if an index is out of bounds."""
    wide = indices.astype(np.int64, copy=False)
    out_of_bounds = (wide < -length) | (wide >= length)
    if out_of_bounds.any():
        first = int(wide[out_of_bounds].flat[0])
        raise IndexError(f"index {first} is out of bounds for an axis of length {length}")
    return np.where(wide < 0, wide + length, wide)


def _plan_vectorized(layout: Layout, source: Source, key: Sequence[slice | Integers]) -> Plan:
    arrays = _broadcast(key, layout.shape)
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    if 0 in shape:
        return Plan(source, Extents.empty(), lambda _: np.empty(shape, layout.dtype))
    # Axes of the tensor that vary along the same axis of the result are read as points. The other
    # axes are independent.
    varying = list(map(_find_varying_axes, arrays))
    uses = Counter(axis for axes in varying for axis in axes)
    joint = [axis for axis, axes in enumerate(varying) if any(uses[a] > 1 for a in axes)]
    entries = {
        axis: normalize_entry(_flatten_axes(arrays[axis], varying[axis]), layout.shape[axis])
        for axis in range(len(arrays))
        if axis not in joint
    }
    others = {axis: indices for axis, (indices, _) in entries.items()}
    post_indexers = [post_indexer for _, post_indexer in entries.values()]
    groups = [varying[axis] for axis, (_, post) in entries.items() if not isinstance(post, int)]
    if joint:
        points_axes = tuple(sorted({a for axis in joint for a in varying[axis]}))
        points = {axis: _flatten_axes(arrays[axis], points_axes) for axis in joint}
        plan, order = _plan_points(layout, source, points, others)
        groups, post_indexers = [points_axes, *groups], [order, *post_indexers]
    else:
        plan = layout.plan(source, Selection(layout.shape, tuple(others.values())))
    return plan.convert(
        lambda values: _spread_axes(_index_axes(values, post_indexers), groups, shape)
    )


def _plan_points(
    layout: Layout, source: Source, points: Mapping[int, Integers], others: Mapping[int, Indices]
) -> tuple[Plan, PostIndexer]:
    """Plan the read of points along some axes, and of all others, and return their order."""
    outer = Selection(layout.shape, tuple(others.values()))
    order: PostIndexer = _KEEP
    step = max(1, _MAX_POINTS // max(1, outer.size))
    if outer.size >= _LARGE_POINT:
        lengths = [layout.shape[axis] for axis in points]
        flat = np.ravel_multi_index(tuple(points.values()), lengths)
        flat, order = np.unique(flat, return_inverse=True)
        points, step = dict(zip(points, np.unravel_index(flat, lengths), strict=True)), 1
    count = next(iter(points.values())).size

    def plan_parts() -> Iterator[Step]:
        for first in range(0, count, step):
            part = slice(first, first + step)
            batch = {axis: line[part] for axis, line in points.items()}
            plan = layout.plan(source, _select_points(layout.shape, batch, others))
            yield plan, partial(_put_points, part)

    shape = (count, *outer.shape)
    return plan_steps(source, shape, layout.dtype, plan_parts, is_concurrent=True), order


def _put_points(part: slice, values: Array, stored: Array) -> None:
    values[part].reshape(stored.shape)[...] = stored


def _select_points(
    shape: tuple[int, ...], points: Mapping[int, Integers], others: Mapping[int, Indices]
) -> Selection:
    """Select all elements at some points: one by one, or as an outer product at a single point."""
    if all(len(line) == 1 for line in points.values()):
        indices = {**others, **{axis: array_to_indices(line) for axis, line in points.items()}}
        return Selection(shape, tuple(indices[axis] for axis in range(len(shape))))
    mesh = dict(zip(others, Selection(shape, tuple(others.values())).mesh, strict=True))
    column = (-1, *(1,) * len(mesh))
    mesh |= {axis: line.reshape(column) for axis, line in points.items()}
    arrays = np.broadcast_arrays(*(mesh[axis] for axis in range(len(shape))))
    return Selection(shape, tuple(array.ravel() for array in arrays), is_pointwise=True)


def _broadcast(key: Sequence[slice | Integers], tensor_shape: tuple[int, ...]) -> list[Integers]:
    """Broadcast all indices. The axes of slices follow the axes of arrays."""
    trailing = count = sum(isinstance(entry, slice) for entry in key)
    arrays = []
    for entry, length in zip(key, tensor_shape, strict=True):
        if isinstance(entry, slice):
            trailing -= 1
            indices = np.arange(*entry.indices(length), dtype=np.int64)
            arrays.append(indices.reshape(-1, *(1,) * trailing))
        else:
            indices = _normalize_indices(entry, length)
            arrays.append(indices.reshape(*indices.shape, *(1,) * count))
    return list(np.broadcast_arrays(*arrays))


def _find_varying_axes(array: Integers) -> tuple[int, ...]:
    """Return the axes along which the values change. Axes of stride 0 are broadcast."""
    return tuple(
        axis
        for axis, length in enumerate(array.shape)
        if length > 1 and array.strides[axis] and (array != array.take([0], axis=axis)).any()
    )


def _flatten_axes(array: Integers, axes: tuple[int, ...]) -> Integers:
    """Return the values of an array along some axes, flattened, or a scalar without axes."""
    first = array[tuple(slice(None) if axis in axes else 0 for axis in range(array.ndim))]
    return first.ravel() if axes else first
