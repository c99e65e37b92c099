"""Plans for keys: which Selection to read, and how to arrange the values in the order of the key.

Nothing is read before the method ``read`` of a plan is called.
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
from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.core.layout import ByteRead, Layout, ReorderingLayout
from xr_tensorfmt.core.selection import (
    KEEP,
    Entry,
    PostIndexer,
    Selection,
    apply_indexers,
    entry_indices,
)
from xr_tensorfmt.core.source import Source

_REVERSE = slice(None, None, -1)
_EMPTY = slice(0, 0, 1)

Spread = tuple[tuple[int, ...], ...]
"""For each axis the axes of a broadcast result that it becomes."""


@dataclass(frozen=True, eq=False)
class AxisPick:
    """What is read along one axis, and the key that is then applied to what was read."""

    entry: Entry
    then: PostIndexer


def pick(key: Any, length: int) -> AxisPick:
    """Plan one axis."""
    if isinstance(key, slice):
        return _pick_slice(range(*key.indices(length)))
    if np.ndim(key) == 0:
        index = int(checked_indices(np.asarray(key), length))
        return AxisPick(slice(index, index + 1, 1), 0)
    return _pick_array(checked_indices(np.asarray(key), length))


def _pick_slice(indices: range) -> AxisPick:
    if not indices:
        return AxisPick(_EMPTY, KEEP)
    if indices.step > 0:
        return AxisPick(slice(indices[0], indices[-1] + 1, indices.step), KEEP)
    return AxisPick(slice(indices[-1], indices[0] + 1, -indices.step), _REVERSE)


def _pick_array(indices: Integers) -> AxisPick:
    if not indices.size:
        return AxisPick(_EMPTY, KEEP)
    steps = np.diff(indices)
    if (regular := _regular(indices, steps)) is not None:
        return _pick_slice(regular)
    if (steps > 0).all():
        return AxisPick(indices, KEEP)
    unique, inverse = np.unique(indices, return_inverse=True)
    return AxisPick(_pick_array(unique).entry, inverse)


def _regular(indices: Integers, steps: Integers) -> range | None:
    first = int(indices[0])
    if not steps.size:
        return range(first, first + 1)
    step = int(steps[0])
    if step == 0 or not (steps == step).all():
        return None
    return range(first, int(indices[-1]) + (1 if step > 0 else -1), step)


def checked_indices(indices: NDArray[Any], length: int) -> Integers:
    """Indices counted from the start of the axis; IndexError where one is outside of it."""
    wide = indices.astype(np.int64, copy=False)
    outside = (wide < -length) | (wide >= length)
    if outside.any():
        first = int(wide[outside].flat[0])
        raise IndexError(f"index {first} is out of bounds for an axis of length {length}")
    negative = wide < 0
    return np.where(negative, wide + length, wide) if negative.any() else wide


@dataclass(frozen=True, eq=False)
class OuterPlan:
    """A key that is an outer product of one key for each axis.

    `spread` says which axes of a broadcast result of `shape` each axis becomes; without it the
    axes stay as they are.
    """

    extent: tuple[int, ...]
    picks: tuple[AxisPick, ...]
    spread: Spread | None = None
    shape: tuple[int, ...] = ()

    @property
    def selection(self) -> Selection:
        """The Selection to read."""
        return Selection(self.extent, tuple(axis.entry for axis in self.picks))

    def reads(self, layout: Layout, source: Source) -> list[ByteRead]:
        """What `read` would fetch at most."""
        return layout.reads(source, self.selection)

    def read(self, layout: Layout, source: Source) -> Array:
        """Read the selection and bring it into the order of the key."""
        selection, keys = self.selection, [axis.then for axis in self.picks]
        if not selection.size:
            # Nothing is computed of an axis, which may be long where another one is empty.
            values = apply_indexers(np.empty(selection.shape, dtype=layout.dtype), keys)
        elif isinstance(layout, ReorderingLayout):
            values = layout.read_in_order(source, selection, keys)
        else:
            values = apply_indexers(layout.read(source, selection), keys)
        return values if self.spread is None else arrange(values, self.spread, self.shape)


def plan_outer(key: Sequence[Any], shape: tuple[int, ...]) -> OuterPlan:
    """Plan a key of integers, slices and one-dimensional arrays that act independently."""
    return OuterPlan(shape, tuple(map(pick, key, shape)))


def arrange(values: Array, spread: Spread, shape: tuple[int, ...]) -> Array:
    """Arrange the axes of an array as those of a broadcast result."""
    axes = [axis for group in spread for axis in group]
    split = values.reshape([shape[axis] for axis in axes])
    ordered = split.transpose(np.argsort(axes)) if axes else split
    missing = [axis for axis in range(len(shape)) if axis not in axes]
    expanded = np.expand_dims(ordered, tuple(missing))
    return expanded if expanded.shape == shape else np.broadcast_to(expanded, shape).copy()


# From so many elements per point on, one read per point costs less than one index per element.
_LARGE_POINT = 512
# Points are read in batches, which bounds the memory of their indices.
_MAX_POINTS = 1 << 21


@dataclass(frozen=True, eq=False)
class PointPlan:
    """A key with points along several axes, and perhaps an outer product along the other axes."""

    extent: tuple[int, ...]
    points: dict[int, Integers]
    picks: dict[int, AxisPick]
    spread: Spread
    shape: tuple[int, ...]

    def reads(self, layout: Layout, source: Source) -> list[ByteRead]:
        """What `read` would fetch at most."""
        if self._singly(layout):
            return [read for plan in self._plans()[0] for read in plan.reads(layout, source)]
        return layout.point_reads(source, self._all_indices(slice(0, self._count)))

    def read(self, layout: Layout, source: Source) -> Array:
        """Read all points at once, or one after the other where each has many elements."""
        read = self._read_each if self._singly(layout) else self._read_all
        return arrange(read(layout, source), self.spread, self.shape)

    @property
    def _count(self) -> int:
        return next(iter(self.points.values())).size

    def _singly(self, layout: Layout) -> bool:
        outer = prod(_picked(axis).size for axis in self.picks.values())
        return outer >= _LARGE_POINT and not layout.prefers_points

    @property
    def _kept(self) -> tuple[int, ...]:
        """Lengths of the axes that `picks` keeps."""
        return tuple(
            _picked(axis).size for axis in self.picks.values() if not isinstance(axis.then, int)
        )

    def _plans(self) -> tuple[list[OuterPlan], Integers]:
        """A plan for each distinct point, and the index of the plan for each point."""
        lengths = [self.extent[axis] for axis in self.points]
        flat = np.ravel_multi_index(tuple(self.points.values()), lengths)
        unique, inverse = np.unique(flat, return_inverse=True)
        plans = []
        for point in zip(*np.unravel_index(unique, lengths), strict=True):
            here = {a: pick(i, self.extent[a]) for a, i in zip(self.points, point, strict=True)}
            picks = tuple((here | self.picks)[axis] for axis in range(len(self.extent)))
            plans.append(OuterPlan(self.extent, picks))
        return plans, inverse

    def _read_each(self, layout: Layout, source: Source) -> Array:
        plans, inverse = self._plans()
        values = np.empty((len(plans), *self._kept), dtype=layout.dtype)

        def read(number: int) -> None:
            values[number] = plans[number].read(layout, source)

        source.run(read, range(len(plans)))
        is_identity = np.array_equal(inverse, np.arange(len(plans)))
        return values if is_identity else values[inverse]

    def _read_all(self, layout: Layout, source: Source) -> Array:
        kept, count = self._kept, self._count
        values = np.empty((count, prod(kept)), dtype=layout.dtype)
        step = max(1, _MAX_POINTS // max(1, prod(kept)))
        for first in range(0, count, step):
            batch = slice(first, min(first + step, count))
            indices = self._all_indices(batch)
            values[batch] = layout.read_points(source, indices).reshape(-1, prod(kept))
        return values.reshape(count, *kept)

    def _all_indices(self, batch: slice) -> tuple[Integers, ...]:
        """Flat index arrays of a batch of points, combined with the outer product."""
        lines = [_picked(axis) for axis in self.picks.values()]
        mesh = np.ix_(np.arange(batch.stop - batch.start), *lines)
        outer = dict(zip(self.picks, mesh[1:], strict=True))
        points = {axis: line[batch][mesh[0]] for axis, line in self.points.items()}
        together = np.broadcast_arrays(*((points | outer)[a] for a in range(len(self.extent))))
        return tuple(array.ravel() for array in together)


def plan_vectorized(
    key: Sequence[slice | Integers], extent: tuple[int, ...]
) -> OuterPlan | PointPlan:
    """Plan a key of integer arrays that are broadcast against each other.

    Axes of slices follow the broadcast axes, as in ``xarray.core.indexing.VectorizedIndexer``.
    """
    arrays = list(map(checked_indices, _without_slices(key, extent), extent))
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    if 0 in shape:
        empty = (AxisPick(_EMPTY, KEEP),) * len(extent)
        return OuterPlan(extent, empty, (tuple(range(len(shape))),), shape)
    varying = list(map(_varying_axes, arrays))
    uses = Counter(axis for axes in varying for axis in axes)
    together = [axis for axis, axes in enumerate(varying) if any(uses[a] > 1 for a in axes)]
    picks = {
        axis: pick(_line(arrays[axis], varying[axis]), extent[axis])
        for axis in range(len(extent))
        if axis not in together
    }
    spread = tuple(varying[axis] for axis, own in picks.items() if not isinstance(own.then, int))
    if not together:
        return OuterPlan(extent, tuple(picks.values()), spread, shape)
    joint = tuple(sorted({a for axis in together for a in varying[axis]}))
    points = {axis: _line(np.broadcast_to(arrays[axis], shape), joint) for axis in together}
    return PointPlan(extent, points, picks, (joint, *spread), shape)


def _without_slices(key: Sequence[slice | Integers], extent: tuple[int, ...]) -> list[Integers]:
    """Replace slices by arrays of their indices, with axes after those of the other arrays."""
    rank = max((entry.ndim for entry in key if not isinstance(entry, slice)), default=0)
    sliced = [axis for axis, entry in enumerate(key) if isinstance(entry, slice)]
    arrays: list[Integers] = []
    for axis, entry in enumerate(key):
        if isinstance(entry, slice):
            indices = np.arange(*entry.indices(extent[axis]), dtype=np.int64)
            shape = [1] * (rank + len(sliced))
            shape[rank + sliced.index(axis)] = indices.size
            arrays.append(indices.reshape(shape))
        else:
            arrays.append(entry.reshape(entry.shape + (1,) * len(sliced)))
    return arrays


def _varying_axes(array: Integers) -> tuple[int, ...]:
    return tuple(
        axis
        for axis, length in enumerate(array.shape)
        if length > 1 and array.strides[axis] and (array != array.take([0], axis=axis)).any()
    )


def _line(array: Integers, axes: tuple[int, ...]) -> Integers:
    """The values of an array along some axes, flattened; a scalar if there is no axis."""
    first = array[tuple(slice(None) if axis in axes else 0 for axis in range(array.ndim))]
    return first.ravel() if axes else first


def _picked(axis: AxisPick) -> Integers:
    """The indices of a pick, in the order of the key."""
    return np.atleast_1d(entry_indices(axis.entry)[axis.then])
