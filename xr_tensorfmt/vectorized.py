"""Vectorised keys: outer products in disguise read as such, points read as points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from xr_tensorfmt.elements import Array
from xr_tensorfmt.extents import Integers
from xr_tensorfmt.keys import (
    ArrangedPlan,
    AxisPick,
    OuterPlan,
    arrange,
    checked_indices,
    pick,
)
from xr_tensorfmt.layouts.base import Layout, Read
from xr_tensorfmt.selection import entry_indices
from xr_tensorfmt.sources.base import Source

# From so many elements a point on, a read for each point costs less than an index for each element.
_LARGE_POINT = 512
# Points are fetched in batches, so that their indices need little memory.
_MOST_POINTS = 1 << 21


@dataclass(frozen=True, eq=False)
class PointPlan:
    """A key in which several axes advance together, perhaps with an outer product of others.

    Parameters
    ----------
    extent : tuple of int
        Shape of the tensor.
    points : dict of int to ndarray
        For each axis that advances with others its indices, all one-dimensional and equally long.
    picks : dict of int to AxisPick
        The other axes, which act independently.
    spread : tuple of tuple of int
        Result axes of the points, then those of each axis that `picks` keeps.
    shape : tuple of int
        Shape of the result.
    """

    extent: tuple[int, ...]
    points: dict[int, Integers]
    picks: dict[int, AxisPick]
    spread: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]

    def reads(self, layout: Layout, source: Source) -> list[Read]:
        """What `read` would fetch at most."""
        if self._singly(layout):
            return [read for plan in self._plans()[0] for read in plan.reads(layout, source)]
        count = next(iter(self.points.values())).size
        return layout.point_reads(source, self._all_indices(slice(0, count)))

    def read(self, layout: Layout, source: Source) -> Array:
        """Read each point, alone or with the outer product that belongs to it."""
        read = self._read_each if self._singly(layout) else self._read_all
        return arrange(read(layout, source), self.spread, self.shape)

    def _singly(self, layout: Layout) -> bool:
        outer = prod(_picked(each).size for each in self.picks.values())
        return outer >= _LARGE_POINT and not layout.prefers_points

    @property
    def _kept(self) -> tuple[int, ...]:
        """Lengths of the axes that `picks` keeps."""
        return tuple(
            _picked(each).size for each in self.picks.values() if not isinstance(each.then, int)
        )

    def _plans(self) -> tuple[list[OuterPlan], Integers]:
        """One plan for each different point, and which of them each point is."""
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
        return values if _is_identity(inverse) else values[inverse]

    def _read_all(self, layout: Layout, source: Source) -> Array:
        kept = self._kept
        count = next(iter(self.points.values())).size
        values = np.empty((count, prod(kept)), dtype=layout.dtype)
        for batch in _batches(count, max(1, _MOST_POINTS // max(1, prod(kept)))):
            indices = self._all_indices(batch)
            values[batch] = layout.read_points(source, indices).reshape(-1, prod(kept))
        return values.reshape(count, *kept)

    def _all_indices(self, batch: slice) -> tuple[Integers, ...]:
        """Index arrays for the points of a batch times the outer product, flattened."""
        lines = [_picked(each) for each in self.picks.values()]
        mesh = np.ix_(np.arange(batch.stop - batch.start), *lines)
        outer = dict(zip(self.picks, mesh[1:], strict=True))
        points = {axis: line[batch][mesh[0]] for axis, line in self.points.items()}
        together = np.broadcast_arrays(*((points | outer)[a] for a in range(len(self.extent))))
        return tuple(array.ravel() for array in together)


def plan_vectorized(
    key: Sequence[Integers | slice], extent: tuple[int, ...]
) -> OuterPlan | ArrangedPlan | PointPlan:
    """Plan a key of integer arrays that are broadcast against each other.

    Parameters
    ----------
    key : sequence of ndarray or slice
        One entry an axis: arrays of one rank, of shapes that broadcast; the axes of slices come
        after those of the arrays in the result.
    extent : tuple of int
        Shape of the tensor.

    Returns
    -------
    ArrangedPlan or PointPlan
        `ArrangedPlan` if no two arrays vary along the same axis of the result, as those of a lazy
        transpose; else `PointPlan`.

    Raises
    ------
    IndexError
        The key reaches outside of an axis.
    """
    arrays = _as_arrays(key, extent)
    shape = np.broadcast_shapes(*(each.shape for each in arrays))
    if 0 in shape:
        empty = tuple(AxisPick(slice(0, 0, 1), slice(None)) for _ in extent)
        return ArrangedPlan(OuterPlan(extent, empty), (tuple(range(len(shape))),), shape)
    varying = [_varying_axes(each) for each in arrays]
    together = {axis for axis, own in enumerate(varying) if _shares(axis, own, varying)}
    picks = {
        axis: pick(_line(arrays[axis], varying[axis]), extent[axis])
        for axis in range(len(extent))
        if axis not in together
    }
    spread = tuple(varying[axis] for axis, each in picks.items() if not isinstance(each.then, int))
    if not together:
        return ArrangedPlan(OuterPlan(extent, tuple(picks.values())), spread, shape)
    joint = tuple(sorted({axis for each in together for axis in varying[each]}))
    points = {axis: _line(arrays[axis], joint, shape) for axis in sorted(together)}
    return PointPlan(extent, points, picks, (joint, *spread), shape)


def _as_arrays(key: Sequence[Integers | slice], extent: tuple[int, ...]) -> list[Integers]:
    sliced = [axis for axis, entry in enumerate(key) if isinstance(entry, slice)]
    rank = max((entry.ndim for entry in key if not isinstance(entry, slice)), default=0)
    arrays = []
    for axis, (entry, length) in enumerate(zip(key, extent, strict=True)):
        if isinstance(entry, slice):
            after = len(sliced) - 1 - sliced.index(axis)
            line = np.arange(*entry.indices(length))
            arrays.append(line.reshape((1,) * (rank + sliced.index(axis)) + (-1,) + (1,) * after))
        else:
            indices = checked_indices(entry, length)
            arrays.append(indices.reshape(indices.shape + (1,) * len(sliced)))
    return arrays


def _varying_axes(array: Integers) -> tuple[int, ...]:
    return tuple(
        axis
        for axis, length in enumerate(array.shape)
        if length > 1 and array.strides[axis] and not _constant_along(array, axis)
    )


def _constant_along(array: Integers, axis: int) -> bool:
    return bool((array == array.take([0], axis=axis)).all())


def _shares(axis: int, own: tuple[int, ...], varying: list[tuple[int, ...]]) -> bool:
    return any(set(own) & set(other) for number, other in enumerate(varying) if number != axis)


def _line(array: Integers, axes: tuple[int, ...], shape: tuple[int, ...] | None = None) -> Integers:
    """The values of an array along some axes, flattened; a scalar if there are none."""
    if shape is not None:
        array = np.broadcast_to(array, shape)
    first = array[tuple(slice(None) if axis in axes else 0 for axis in range(array.ndim))]
    return first.ravel() if axes else first


def _picked(each: AxisPick) -> Integers:
    """The indices that a pick stands for, in its order."""
    return np.atleast_1d(entry_indices(each.entry)[each.then])


def _batches(count: int, size: int) -> Iterator[slice]:
    for first in range(0, count, size):
        yield slice(first, min(first + size, count))


def _is_identity(inverse: Integers) -> bool:
    return bool((inverse == np.arange(inverse.size)).all())
