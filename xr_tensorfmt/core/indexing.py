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

from xr_tensorfmt.core.axis_picks import NOTHING, AxisPick, normalize_indices, pick_axis
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.core.layout import Layout, ReorderingLayout, SourceExtents
from xr_tensorfmt.core.selection import Selection, apply_indexers
from xr_tensorfmt.core.source import Source

ResultAxes = tuple[tuple[int, ...], ...]
"""For each axis of the values read, the axes of the result that it maps to."""


@dataclass(frozen=True, eq=False)
class OuterPlan:
    """Read plan for a key that applies to each axis independently: basic or outer indexing.

    Parameters
    ----------
    tensor_shape : tuple of int
        Shape of the tensor.
    picks : tuple of AxisPick
        The key of every axis.
    result_axes : tuple of tuple of int, optional
        The axes of the result that each axis of the values maps to. By default, the axes keep
        their order.
    shape : tuple of int
        Shape of the result, if there are `result_axes`.

    Examples
    --------
    ``tensor[[5, 1, 1], ::-1]`` reads rows 1 and 5 in the order of the file, and then arranges them:

    >>> plan = plan_outer((np.array([5, 1, 1]), slice(None, None, -1)), (6, 4))
    >>> plan.selection.indices
    (range(1, 6, 4), range(0, 4))
    >>> [pick.post_indexer for pick in plan.picks]
    [array([1, 0, 0]), slice(None, None, -1)]
    """

    tensor_shape: tuple[int, ...]
    picks: tuple[AxisPick, ...]
    result_axes: ResultAxes | None = None
    shape: tuple[int, ...] = ()

    @property
    def selection(self) -> Selection:
        """Selection to read."""
        return Selection(self.tensor_shape, tuple(pick.indices for pick in self.picks))

    def source_extents(self, layout: Layout, source: Source) -> list[SourceExtents]:
        """Return the byte ranges that `read` would fetch, grouped by source."""
        return layout.source_extents(source, self.selection)

    def read(self, layout: Layout, source: Source) -> Array:
        """Read the selection and rearrange the values."""
        selection, keys = self.selection, [pick.post_indexer for pick in self.picks]
        if not selection.size:
            # Do not expand the indices of the other axes, which may be long.
            values = apply_indexers(np.empty(selection.shape, dtype=layout.dtype), keys)
        elif isinstance(layout, ReorderingLayout):
            values = layout.read_in_order(source, selection, keys)
        else:
            values = apply_indexers(layout.read(source, selection), keys)
        return values if self.result_axes is None else arrange(values, self.result_axes, self.shape)


def plan_outer(key: Sequence[Any], shape: tuple[int, ...]) -> OuterPlan:
    """Plan a key of integers, slices and one-dimensional arrays that apply independently."""
    return OuterPlan(shape, tuple(map(pick_axis, key, shape)))


def arrange(values: Array, result_axes: ResultAxes, shape: tuple[int, ...]) -> Array:
    """Arrange the axes of an array in the order of a broadcast result."""
    axes = [axis for group in result_axes for axis in group]
    split = values.reshape([shape[axis] for axis in axes])
    ordered = split.transpose(np.argsort(axes)) if axes else split
    missing = [axis for axis in range(len(shape)) if axis not in axes]
    expanded = np.expand_dims(ordered, tuple(missing))
    return expanded if expanded.shape == shape else np.broadcast_to(expanded, shape).copy()


# Points with at least this many elements are read one by one, because indices cost more.
_LARGE_POINT = 512
# Points are read in batches, to bound the memory of their indices.
_MAX_POINTS = 1 << 21


@dataclass(frozen=True, eq=False)
class PointPlan:
    """Read plan for a key that selects points along some axes, and applies to others independently.

    Parameters
    ----------
    tensor_shape : tuple of int
        Shape of the tensor.
    points : dict
        The indices of all points by axis, for the axes that vary together.
    picks : dict
        The key of every other axis, by axis.
    result_axes : tuple of tuple of int
        The axes of the result that the points map to, followed by the axes for every axis of
        `picks`.
    shape : tuple of int
        Shape of the result.

    Examples
    --------
    ``tensor[[0, 2], [1, 3], 1:5]`` reads a row of 4 elements for each of 2 points:

    >>> plan = plan_vectorized((np.array([0, 2]), np.array([1, 3]), slice(1, 5)), (3, 4, 9))
    >>> plan.points
    {0: array([0, 2]), 1: array([1, 3])}
    >>> plan.picks[2].indices
    range(1, 5)
    >>> plan.result_axes, plan.shape
    (((0,), (1,)), (2, 4))
    """

    tensor_shape: tuple[int, ...]
    points: dict[int, Integers]
    picks: dict[int, AxisPick]
    result_axes: ResultAxes
    shape: tuple[int, ...]

    def source_extents(self, layout: Layout, source: Source) -> list[SourceExtents]:
        """Return the byte ranges that `read` would fetch, grouped by source."""
        if self._reads_one_by_one(layout):
            plans, _ = self._build_plans()
            return [part for plan in plans for part in plan.source_extents(layout, source)]
        return layout.point_extents(source, self._find_elements(slice(0, self._count)))

    def read(self, layout: Layout, source: Source) -> Array:
        """Read all points at once, or one by one if they have many elements."""
        one_by_one = self._reads_one_by_one(layout)
        read = self._read_one_by_one if one_by_one else self._read_together
        return arrange(read(layout, source), self.result_axes, self.shape)

    @property
    def _count(self) -> int:
        return next(iter(self.points.values())).size

    @property
    def _point_shape(self) -> tuple[int, ...]:
        """Shape of the values of a point."""
        picks = self.picks.values()
        return tuple(pick.ordered_indices.size for pick in picks if not pick.is_dropped)

    def _reads_one_by_one(self, layout: Layout) -> bool:
        return prod(self._point_shape) >= _LARGE_POINT and not layout.prefers_points

    def _build_plans(self) -> tuple[list[OuterPlan], Integers]:
        """Return a plan per distinct point, and the index of the plan of every point."""
        lengths = [self.tensor_shape[axis] for axis in self.points]
        flat = np.ravel_multi_index(tuple(self.points.values()), lengths)
        unique, inverse = np.unique(flat, return_inverse=True)
        plans = []
        for point in zip(*np.unravel_index(unique, lengths), strict=True):
            fixed = map(pick_axis, point, lengths)
            picks = self.picks | dict(zip(self.points, fixed, strict=True))
            plans.append(OuterPlan(self.tensor_shape, tuple(picks[a] for a in sorted(picks))))
        return plans, inverse

    def _read_one_by_one(self, layout: Layout, source: Source) -> Array:
        plans, inverse = self._build_plans()
        values = np.empty((len(plans), *self._point_shape), dtype=layout.dtype)

        def read(index: int) -> None:
            values[index] = plans[index].read(layout, source)

        source.run(read, range(len(plans)))
        is_identity = np.array_equal(inverse, np.arange(len(plans)))
        return values if is_identity else values[inverse]

    def _read_together(self, layout: Layout, source: Source) -> Array:
        shape, count = self._point_shape, self._count
        values = np.empty((count, prod(shape)), dtype=layout.dtype)
        step = max(1, _MAX_POINTS // max(1, prod(shape)))
        for first in range(0, count, step):
            batch = slice(first, min(first + step, count))
            elements = self._find_elements(batch)
            values[batch] = layout.read_points(source, elements).reshape(-1, prod(shape))
        return values.reshape(count, *shape)

    def _find_elements(self, batch: slice) -> tuple[Integers, ...]:
        """Return the indices of all elements of a batch of points."""
        mesh = np.ix_(*(pick.ordered_indices for pick in self.picks.values()))
        column = (-1, *(1,) * len(mesh))
        indices = dict(zip(self.picks, mesh, strict=True))
        indices |= {axis: line[batch].reshape(column) for axis, line in self.points.items()}
        broadcast = np.broadcast_arrays(*(indices[axis] for axis in sorted(indices)))
        return tuple(array.ravel() for array in broadcast)


def plan_vectorized(
    key: Sequence[slice | Integers], tensor_shape: tuple[int, ...]
) -> OuterPlan | PointPlan:
    """Plan a key of integer arrays that broadcast against each other.

    Sliced axes follow the broadcast axes, as in ``xarray.core.indexing.VectorizedIndexer``.
    """
    arrays = _broadcast(key, tensor_shape)
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    if 0 in shape:
        empty = (NOTHING,) * len(tensor_shape)
        return OuterPlan(tensor_shape, empty, (tuple(range(len(shape))),), shape)
    varying = list(map(_find_varying_axes, arrays))
    uses = Counter(axis for axes in varying for axis in axes)
    joint_axes = [axis for axis, axes in enumerate(varying) if any(uses[a] > 1 for a in axes)]
    picks = {
        axis: pick_axis(_flatten_axes(arrays[axis], varying[axis]), tensor_shape[axis])
        for axis in range(len(tensor_shape))
        if axis not in joint_axes
    }
    result_axes = tuple(varying[axis] for axis, pick in picks.items() if not pick.is_dropped)
    if not joint_axes:
        return OuterPlan(tensor_shape, tuple(picks.values()), result_axes, shape)
    joint_result_axes = tuple(sorted({a for axis in joint_axes for a in varying[axis]}))
    points = {axis: _flatten_axes(arrays[axis], joint_result_axes) for axis in joint_axes}
    return PointPlan(tensor_shape, points, picks, (joint_result_axes, *result_axes), shape)


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
    return tuple(
        axis
        for axis, length in enumerate(array.shape)
        if length > 1 and array.strides[axis] and (array != array.take([0], axis=axis)).any()
    )


def _flatten_axes(array: Integers, axes: tuple[int, ...]) -> Integers:
    """Return the values of an array along some axes, flattened, or a scalar without axes."""
    first = array[tuple(slice(None) if axis in axes else 0 for axis in range(array.ndim))]
    return first.ravel() if axes else first
