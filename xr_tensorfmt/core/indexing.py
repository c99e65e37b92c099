"""Plans that turn a key into Selections, and their values into the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Extents, Integers
from xr_tensorfmt.core.layout import Layout, SearchedLayout
from xr_tensorfmt.core.reading import locate, read
from xr_tensorfmt.core.selection import Indices, Points, Selection, array_to_indices
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import Composite, View

PostIndexer = int | slice | Integers
"""The key to apply to an axis of the values that were read."""

_KEEP = slice(None)
_REVERSE = slice(None, None, -1)

# A point that spans at least this many elements gets its own read, because indices cost more.
_LARGE_POINT = 512
# Points are read in batches, to bound the memory of their indices.
_MAX_POINTS = 1 << 21


@dataclass(frozen=True, eq=False)
class ReadPlan:
    """The Selections of batches of rows, and how their values are arranged in the result."""

    shape: tuple[int, ...]
    batches: Sequence[slice]
    select: Callable[[slice], Selection]
    post_indexers: Sequence[PostIndexer]
    result_axes: Sequence[tuple[int, ...]] | None = None
    result_shape: tuple[int, ...] = ()

    def locate(self, layout: Layout, source: Source) -> list[tuple[Source, Extents]]:
        """Return the byte ranges that `read` fetches, by source."""
        selections = map(self.select, self.batches)
        return [part for selection in selections for part in locate(layout, source, selection)]

    def read(self, layout: Layout, source: Source) -> Array:
        """Read the Selections and arrange the values."""
        if len(self.batches) == 1:
            values = read(layout, source, self.select(self.batches[0])).reshape(self.shape)
        else:
            values = np.empty(self.shape, dtype=layout.dtype)

            def read_batch(number: int) -> None:
                rows = values[self.batches[number]]
                selection = self.select(self.batches[number])
                rows[...] = read(layout, source, selection).reshape(rows.shape)

            source.run(read_batch, range(len(self.batches)))
        # Start with the last axis, because dropping an axis renumbers the axes behind it.
        for axis, post_indexer in reversed(list(enumerate(self.post_indexers))):
            if isinstance(post_indexer, np.ndarray):
                values = np.take(values, post_indexer, axis=axis)
            elif post_indexer != _KEEP:
                values = values[(_KEEP,) * axis + (post_indexer, ...)]
        return values if self.result_axes is None else self._broadcast(values, self.result_axes)

    def _broadcast(self, values: Array, result_axes: Sequence[tuple[int, ...]]) -> Array:
        """Split, transpose and broadcast the axes of the values."""
        axes = [axis for group in result_axes for axis in group]
        split = values.reshape([self.result_shape[axis] for axis in axes])
        ordered = split.transpose(np.argsort(axes)) if axes else split
        missing = [axis for axis in range(len(self.result_shape)) if axis not in axes]
        expanded = np.expand_dims(ordered, tuple(missing))
        if expanded.shape == self.result_shape:
            return expanded
        return np.broadcast_to(expanded, self.result_shape).copy()


def plan_read(key: Sequence[Any], layout: Layout, *, is_vectorized: bool) -> ReadPlan:
    """Plan the read of a key of integers, slices and arrays, which are outer or vectorized.

    >>> from xr_tensorfmt.core.views import InMemory
    >>> key = np.array([5, 1, 1]), slice(None, None, -1)
    >>> plan = plan_read(key, InMemory(np.zeros((6, 4))), is_vectorized=False)
    >>> plan.select(plan.batches[0]).indices, plan.post_indexers
    ((range(1, 6, 4), range(0, 4)), (array([1, 0, 0]), slice(None, None, -1)))
    """
    if is_vectorized:
        return _plan_vectorized(key, layout)
    return _plan_outer(layout.shape, list(map(normalize_entry, key, layout.shape)))


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


def _plan_outer(
    tensor_shape: tuple[int, ...],
    entries: Sequence[tuple[Indices, PostIndexer]],
    result_axes: Sequence[tuple[int, ...]] | None = None,
    result_shape: tuple[int, ...] = (),
) -> ReadPlan:
    """Plan a key that applies to each axis independently."""
    selection = Selection(tensor_shape, tuple(indices for indices, _ in entries))
    post_indexers = tuple(post_indexer for _, post_indexer in entries)
    shape = selection.shape
    return ReadPlan(shape, (_KEEP,), lambda _: selection, post_indexers, result_axes, result_shape)


def _plan_vectorized(key: Sequence[slice | Integers], layout: Layout) -> ReadPlan:
    arrays = _broadcast(key, layout.shape)
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    if 0 in shape:
        # An empty array can be reshaped to any other empty shape.
        nothing = [(range(0), _KEEP)] * len(arrays)
        return _plan_outer(layout.shape, nothing, (tuple(range(len(shape))),), shape)
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
    axes = [varying[axis] for axis, (_, post) in entries.items() if not isinstance(post, int)]
    if not joint:
        return _plan_outer(layout.shape, list(entries.values()), axes, shape)
    joint_axes = tuple(sorted({a for axis in joint for a in varying[axis]}))
    points = {axis: _flatten_axes(arrays[axis], joint_axes) for axis in joint}
    return _plan_points(layout, points, entries, (joint_axes, *axes), shape)


def _plan_points(
    layout: Layout,
    points: Mapping[int, Integers],
    entries: Mapping[int, tuple[Indices, PostIndexer]],
    result_axes: Sequence[tuple[int, ...]],
    result_shape: tuple[int, ...],
) -> ReadPlan:
    """Plan a key that is pointwise along some axes and independent along the others."""
    rank = len(layout.shape)
    outer = Selection(layout.shape, tuple(indices for indices, _ in entries.values()))
    post_indexers = [post_indexer for _, post_indexer in entries.values()]

    def select_point(batch: slice) -> Selection:
        fixed = {axis: int(line[batch.start]) for axis, line in points.items()}
        indices = dict(zip(entries, outer.indices, strict=True))
        indices |= {axis: range(index, index + 1) for axis, index in fixed.items()}
        return Selection(layout.shape, tuple(indices[axis] for axis in range(rank)))

    def expand_points(batch: slice) -> Points:
        mesh = outer.mesh
        indices = dict(zip(entries, mesh, strict=True))
        column = (-1, *(1,) * len(mesh))
        indices |= {axis: line[batch].reshape(column) for axis, line in points.items()}
        broadcast = np.broadcast_arrays(*(indices[axis] for axis in range(rank)))
        return Points(layout.shape, tuple(array.ravel() for array in broadcast))

    select: Callable[[slice], Selection] = expand_points
    order: PostIndexer = _KEEP
    step = max(1, _MAX_POINTS // max(1, outer.size))
    stored = layout
    while isinstance(stored, View):
        stored = stored.inner
    # Other layouts search for each selection.
    is_searched = isinstance(stored, SearchedLayout | Composite)
    if outer.size >= _LARGE_POINT and not is_searched:
        lengths = [layout.shape[axis] for axis in points]
        flat = np.ravel_multi_index(tuple(points.values()), lengths)
        flat, order = np.unique(flat, return_inverse=True)
        points = dict(zip(points, np.unravel_index(flat, lengths), strict=True))
        select, step = select_point, 1
    count = next(iter(points.values())).size
    batches = [slice(first, min(first + step, count)) for first in range(0, count, step)]
    shape = (count, *outer.shape)
    return ReadPlan(shape, batches, select, (order, *post_indexers), result_axes, result_shape)


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
