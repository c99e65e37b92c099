"""Plans that turn an index key into a Selection and rearrange its values.

A plan reads the file only in its method ``read``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Extents, Integers
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.reading import locate, read
from xr_tensorfmt.core.selection import (
    KEEP,
    Indices,
    Points,
    PostIndexer,
    Selection,
    apply_post_indexers,
    indices_to_array,
)
from xr_tensorfmt.core.source import Source

_REVERSE = slice(None, None, -1)


@dataclass(frozen=True, eq=False)
class AxisIndexer:
    """The indices to read along an axis, and the key to apply to the values afterwards."""

    indices: Indices
    post_indexer: PostIndexer

    @property
    def ordered_indices(self) -> Integers:
        """The indices in the order of the key, with repetitions."""
        return np.atleast_1d(indices_to_array(self.indices)[self.post_indexer])

    @property
    def is_dropped(self) -> bool:
        """Whether the key is an integer, so that the result does not have the axis."""
        return isinstance(self.post_indexer, int)


EMPTY_INDEXER = AxisIndexer(range(0), KEEP)
"""Selects no elements of an axis."""


def build_axis_indexer(key: Any, length: int) -> AxisIndexer:
    """Normalize a slice, an integer or an integer array."""
    if isinstance(key, slice):
        return _indexer_from_range(range(*key.indices(length)))
    indices = normalize_indices(np.asarray(key), length)
    if indices.ndim == 0:
        return AxisIndexer(range(int(indices), int(indices) + 1), 0)
    return _indexer_from_array(indices)


def _indexer_from_range(indices: range) -> AxisIndexer:
    if not indices:
        return EMPTY_INDEXER
    if indices.step > 0:
        return AxisIndexer(indices, KEEP)
    return AxisIndexer(indices[::-1], _REVERSE)


def _indexer_from_array(indices: Integers) -> AxisIndexer:
    if not indices.size:
        return EMPTY_INDEXER
    first, last = int(indices[0]), int(indices[-1])
    steps = np.diff(indices)
    step = int(steps[0]) if steps.size else 1
    if step and (steps == step).all():
        return _indexer_from_range(range(first, last + (1 if step > 0 else -1), step))
    if (steps > 0).all():
        return AxisIndexer(indices, KEEP)
    unique, inverse = np.unique(indices, return_inverse=True)
    return AxisIndexer(_indexer_from_array(unique).indices, inverse)


def normalize_indices(indices: NDArray[Any], length: int) -> Integers:
    """Return non-negative indices. Raise IndexError if an index is out of bounds."""
    wide = indices.astype(np.int64, copy=False)
    out_of_bounds = (wide < -length) | (wide >= length)
    if out_of_bounds.any():
        first = int(wide[out_of_bounds].flat[0])
        raise IndexError(f"index {first} is out of bounds for an axis of length {length}")
    negative = wide < 0
    return np.where(negative, wide + length, wide) if negative.any() else wide


@dataclass(frozen=True)
class Arrangement:
    """The axes and the shape of a broadcast result.

    Parameters
    ----------
    result_axes : tuple of tuple of int
        For each axis of the values read, the axes of the result that it maps to.
    shape : tuple of int
        Shape of the result.

    Examples
    --------
    The first axis of the values becomes the second one of the result, and the last is broadcast:

    >>> Arrangement(((1,), (0,)), (3, 2, 4)).apply(np.zeros((2, 3))).shape
    (3, 2, 4)
    """

    result_axes: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]

    def apply(self, values: Array) -> Array:
        """Split, transpose and broadcast the axes of the values."""
        axes = [axis for group in self.result_axes for axis in group]
        split = values.reshape([self.shape[axis] for axis in axes])
        ordered = split.transpose(np.argsort(axes)) if axes else split
        missing = [axis for axis in range(len(self.shape)) if axis not in axes]
        expanded = np.expand_dims(ordered, tuple(missing))
        if expanded.shape == self.shape:
            return expanded
        return np.broadcast_to(expanded, self.shape).copy()


@dataclass(frozen=True, eq=False)
class OuterPlan:
    """Read plan for a key that applies to each axis independently: basic or outer indexing.

    Parameters
    ----------
    tensor_shape : tuple of int
        Shape of the tensor.
    indexers : tuple of AxisIndexer
        The key of every axis.
    arrangement : Arrangement, optional
        How to broadcast the values. By default, the axes keep their order.

    Examples
    --------
    ``tensor[[5, 1, 1], ::-1]`` reads rows 1 and 5 in the order of the file, and then arranges them:

    >>> plan = plan_outer((np.array([5, 1, 1]), slice(None, None, -1)), (6, 4))
    >>> plan.selection.indices
    (range(1, 6, 4), range(0, 4))
    >>> [indexer.post_indexer for indexer in plan.indexers]
    [array([1, 0, 0]), slice(None, None, -1)]
    """

    tensor_shape: tuple[int, ...]
    indexers: tuple[AxisIndexer, ...]
    arrangement: Arrangement | None = None

    @property
    def selection(self) -> Selection:
        """Selection to read."""
        return Selection(self.tensor_shape, tuple(indexer.indices for indexer in self.indexers))

    def locate(self, layout: Layout, source: Source) -> list[tuple[Source, Extents]]:
        """Return the byte ranges that `read` fetches, by source."""
        return locate(layout, source, self.selection)

    def read(self, layout: Layout, source: Source) -> Array:
        """Read the selection and rearrange the values."""
        values = read(layout, source, self.selection)
        values = apply_post_indexers(values, [indexer.post_indexer for indexer in self.indexers])
        return values if self.arrangement is None else self.arrangement.apply(values)


def plan_outer(key: Sequence[Any], shape: tuple[int, ...]) -> OuterPlan:
    """Plan a key of integers, slices and one-dimensional arrays that apply independently."""
    return OuterPlan(shape, tuple(map(build_axis_indexer, key, shape)))


# A point that spans at least this many elements gets its own read, because indices cost more.
_LARGE_POINT = 512
# Points are read in batches, to bound the memory of their indices.
_MAX_POINTS = 1 << 21


@dataclass(frozen=True, eq=False)
class PointPlan:
    """Read plan for pointwise (vectorized) indexing along some axes, and outer along the others.

    Parameters
    ----------
    tensor_shape : tuple of int
        Shape of the tensor.
    points : dict
        The indices of all points along each axis that is indexed pointwise.
    indexers : dict
        The key of every other axis, by axis.
    arrangement : Arrangement
        How to broadcast the values. Their first axis is the points, and the others are the axes
        of `indexers` that the key does not drop.

    Examples
    --------
    ``tensor[[0, 2], [1, 3], 1:5]`` reads a row of 4 elements for each of 2 points:

    >>> plan = plan_vectorized((np.array([0, 2]), np.array([1, 3]), slice(1, 5)), (3, 4, 9))
    >>> plan.points
    {0: array([0, 2]), 1: array([1, 3])}
    >>> plan.indexers[2].indices
    range(1, 5)
    >>> plan.arrangement
    Arrangement(result_axes=((0,), (1,)), shape=(2, 4))
    """

    tensor_shape: tuple[int, ...]
    points: dict[int, Integers]
    indexers: dict[int, AxisIndexer]
    arrangement: Arrangement

    def locate(self, layout: Layout, source: Source) -> list[tuple[Source, Extents]]:
        """Return the byte ranges that `read` fetches, by source."""
        if self._reads_per_point(layout):
            plans, _ = self._build_plans()
            return [part for plan in plans for part in plan.locate(layout, source)]
        return locate(layout, source, self._expand_points(slice(0, self._count)))

    def read(self, layout: Layout, source: Source) -> Array:
        """Gather single elements, or make one read per point if each point spans many elements."""
        per_point = self._reads_per_point(layout)
        read_points = self._read_per_point if per_point else self._gather_elements
        return self.arrangement.apply(read_points(layout, source))

    @property
    def _count(self) -> int:
        return next(iter(self.points.values())).size

    @property
    def _point_shape(self) -> tuple[int, ...]:
        """Shape of the values of a point."""
        kept = (indexer for indexer in self.indexers.values() if not indexer.is_dropped)
        return tuple(indexer.ordered_indices.size for indexer in kept)

    def _reads_per_point(self, layout: Layout) -> bool:
        return prod(self._point_shape) >= _LARGE_POINT and not layout.prefers_points

    def _build_plans(self) -> tuple[list[OuterPlan], Integers]:
        """Return a plan per distinct point, and the index of the plan of every point."""
        lengths = [self.tensor_shape[axis] for axis in self.points]
        flat = np.ravel_multi_index(tuple(self.points.values()), lengths)
        unique, inverse = np.unique(flat, return_inverse=True)
        plans = []
        for point in zip(*np.unravel_index(unique, lengths), strict=True):
            fixed = map(build_axis_indexer, point, lengths)
            indexers = self.indexers | dict(zip(self.points, fixed, strict=True))
            plans.append(OuterPlan(self.tensor_shape, tuple(indexers[a] for a in sorted(indexers))))
        return plans, inverse

    def _read_per_point(self, layout: Layout, source: Source) -> Array:
        plans, inverse = self._build_plans()
        values = np.empty((len(plans), *self._point_shape), dtype=layout.dtype)

        def read_point(index: int) -> None:
            values[index] = plans[index].read(layout, source)

        source.run(read_point, range(len(plans)))
        is_identity = np.array_equal(inverse, np.arange(len(plans)))
        return values if is_identity else values[inverse]

    def _gather_elements(self, layout: Layout, source: Source) -> Array:
        shape, count = self._point_shape, self._count
        values = np.empty((count, prod(shape)), dtype=layout.dtype)
        step = max(1, _MAX_POINTS // max(1, prod(shape)))
        for first in range(0, count, step):
            batch = slice(first, min(first + step, count))
            elements = read(layout, source, self._expand_points(batch))
            values[batch] = elements.reshape(-1, prod(shape))
        return values.reshape(count, *shape)

    def _expand_points(self, batch: slice) -> Points:
        """Return all elements of a batch of points."""
        mesh = np.ix_(*(indexer.ordered_indices for indexer in self.indexers.values()))
        column = (-1, *(1,) * len(mesh))
        indices = dict(zip(self.indexers, mesh, strict=True))
        indices |= {axis: line[batch].reshape(column) for axis, line in self.points.items()}
        broadcast = np.broadcast_arrays(*(indices[axis] for axis in sorted(indices)))
        return Points(self.tensor_shape, tuple(array.ravel() for array in broadcast))


def plan_vectorized(
    key: Sequence[slice | Integers], tensor_shape: tuple[int, ...]
) -> OuterPlan | PointPlan:
    """Plan a key of integer arrays that broadcast against each other.

    Sliced axes follow the broadcast axes, as in ``xarray.core.indexing.VectorizedIndexer``.
    """
    arrays = _broadcast(key, tensor_shape)
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    if 0 in shape:
        # An empty array can be reshaped to any other empty shape.
        arrangement = Arrangement((tuple(range(len(shape))),), shape)
        return OuterPlan(tensor_shape, (EMPTY_INDEXER,) * len(tensor_shape), arrangement)
    # Axes of the tensor that vary along the same axis of the result are read as points. The other
    # axes are independent.
    varying = list(map(_find_varying_axes, arrays))
    uses = Counter(axis for axes in varying for axis in axes)
    joint_axes = [axis for axis, axes in enumerate(varying) if any(uses[a] > 1 for a in axes)]
    indexers = {
        axis: build_axis_indexer(_flatten_axes(arrays[axis], varying[axis]), tensor_shape[axis])
        for axis in range(len(tensor_shape))
        if axis not in joint_axes
    }
    result_axes = tuple(varying[axis] for axis in indexers if not indexers[axis].is_dropped)
    if not joint_axes:
        arrangement = Arrangement(result_axes, shape)
        return OuterPlan(tensor_shape, tuple(indexers.values()), arrangement)
    joint_result_axes = tuple(sorted({a for axis in joint_axes for a in varying[axis]}))
    points = {axis: _flatten_axes(arrays[axis], joint_result_axes) for axis in joint_axes}
    arrangement = Arrangement((joint_result_axes, *result_axes), shape)
    return PointPlan(tensor_shape, points, indexers, arrangement)


def _broadcast(key: Sequence[slice | Integers], tensor_shape: tuple[int, ...]) -> list[Integers]:
    """Broadcast all indices. The axes of slices follow the axes of arrays."""
    count = sum(isinstance(entry, slice) for entry in key)
    arrays, trailing = [], count
    for entry, length in zip(key, tensor_shape, strict=True):
        if isinstance(entry, slice):
            trailing -= 1
            indices = np.arange(*entry.indices(length), dtype=np.int64)
            arrays.append(indices.reshape(-1, *(1,) * trailing))
        else:
            indices = normalize_indices(entry, length)
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
