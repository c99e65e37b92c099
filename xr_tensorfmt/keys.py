"""From the keys that users write to Selections, and from what was read back to what they asked for.

Pure planning: nothing here reads a byte before a plan's ``read`` is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.elements import Array
from xr_tensorfmt.extents import Integers
from xr_tensorfmt.layouts.base import Layout, Read
from xr_tensorfmt.selection import Entry, Selection
from xr_tensorfmt.sources.base import Source

_KEEP = slice(None)
_REVERSE = slice(None, None, -1)
_EMPTY = slice(0, 0, 1)


@dataclass(frozen=True, eq=False)
class AxisPick:
    """What is read along one axis, and what of that in which order.

    Parameters
    ----------
    entry : slice or ndarray
        The Selection's entry.
    then : int, slice or ndarray
        Key to apply to the axis after reading: 0 drops it, a slice keeps or reverses it, an array
        repeats and reorders.
    """

    entry: Entry
    then: int | slice | Integers


def pick(key: Any, length: int) -> AxisPick:
    """Plan one axis.

    Parameters
    ----------
    key : int, slice or one-dimensional integer array
        As numpy understands it, negative values and steps included.
    length : int
        Length of the axis.

    Returns
    -------
    AxisPick

    Raises
    ------
    IndexError
        The key reaches outside of the axis.
    """
    if isinstance(key, slice):
        return _pick_slice(range(*key.indices(length)))
    if np.ndim(key) == 0:
        index = int(checked_indices(np.asarray(key), length))
        return AxisPick(slice(index, index + 1, 1), 0)
    return _pick_array(checked_indices(np.asarray(key), length))


def _pick_slice(indices: range) -> AxisPick:
    if not indices:
        return AxisPick(_EMPTY, _KEEP)
    if indices.step > 0:
        return AxisPick(slice(indices[0], indices[-1] + 1, indices.step), _KEEP)
    return AxisPick(slice(indices[-1], indices[0] + 1, -indices.step), _REVERSE)


def _pick_array(indices: Integers) -> AxisPick:
    if not indices.size:
        return AxisPick(_EMPTY, _KEEP)
    steps = np.diff(indices)
    if (regular := _regular(indices, steps)) is not None:
        return _pick_slice(regular)
    if (steps > 0).all():
        return AxisPick(indices, _KEEP)
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
    """Count negative indices from the end, and refuse those outside of the axis."""
    wide = indices.astype(np.int64, copy=False)
    outside = (wide < -length) | (wide >= length)
    if outside.any():
        first = int(wide[outside].flat[0])
        raise IndexError(f"index {first} is outside of an axis of length {length}")
    negative = wide < 0
    return np.where(negative, wide + length, wide) if negative.any() else wide


@dataclass(frozen=True, eq=False)
class OuterPlan:
    """A key that is an outer product of one key an axis.

    Parameters
    ----------
    extent : tuple of int
        Shape of the tensor.
    picks : tuple of AxisPick
        One an axis.
    """

    extent: tuple[int, ...]
    picks: tuple[AxisPick, ...]

    @property
    def selection(self) -> Selection:
        """What is to be read."""
        return Selection(self.extent, tuple(each.entry for each in self.picks))

    def reads(self, layout: Layout, source: Source) -> list[Read]:
        """What `read` would fetch at most."""
        return layout.reads(source, self.selection)

    def read(self, layout: Layout, source: Source) -> Array:
        """Read the selection and bring it into the order of the key."""
        values = layout.read(source, self.selection)
        # From the last axis on, so that a dropped one does not renumber those before it.
        for axis in reversed(range(len(self.picks))):
            then = self.picks[axis].then
            if isinstance(then, np.ndarray):
                values = np.take(values, then, axis=axis)
            elif then != _KEEP:
                values = values[(slice(None),) * axis + (then, ...)]
        return values


def plan_outer(key: Sequence[Any], shape: tuple[int, ...]) -> OuterPlan:
    """Plan a key of integers, slices and one-dimensional arrays that act independently.

    Parameters
    ----------
    key : sequence
        One entry an axis.
    shape : tuple of int
        Shape of the tensor.

    Returns
    -------
    OuterPlan
    """
    return OuterPlan(shape, tuple(map(pick, key, shape)))


@dataclass(frozen=True, eq=False)
class ArrangedPlan:
    """An outer product whose axes are spread over the axes of a broadcast result.

    Parameters
    ----------
    outer : OuterPlan
        The outer product; each axis that it keeps stands for `spread` of the result.
    spread : tuple of tuple of int
        For each axis that `outer` keeps, the result axes it varies along.
    shape : tuple of int
        Shape of the result; axes that nothing varies along repeat the values.
    """

    outer: OuterPlan
    spread: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]

    def reads(self, layout: Layout, source: Source) -> list[Read]:
        """What `read` would fetch at most."""
        return self.outer.reads(layout, source)

    def read(self, layout: Layout, source: Source) -> Array:
        """Read the outer product and arrange it."""
        return arrange(self.outer.read(layout, source), self.spread, self.shape)


def arrange(values: Array, spread: Sequence[tuple[int, ...]], shape: tuple[int, ...]) -> Array:
    """Spread the axes of an array over those of a broadcast result.

    Parameters
    ----------
    values : ndarray
        Axis ``i`` has as many elements as the result axes ``spread[i]`` together.
    spread : sequence of tuple of int
        Result axes, each at most once.
    shape : tuple of int
        Shape of the result.

    Returns
    -------
    ndarray
        A writable view where no axis has to be repeated.
    """
    axes = [axis for group in spread for axis in group]
    split = values.reshape([shape[axis] for axis in axes])
    ordered = split.transpose(np.argsort(axes)) if axes else split
    missing = [axis for axis in range(len(shape)) if axis not in axes]
    expanded = np.expand_dims(ordered, tuple(missing))
    return expanded if expanded.shape == shape else np.broadcast_to(expanded, shape).copy()
