"""Keys of one axis, normalized: the indices to read, and how to arrange their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.core.selection import KEEP, Indices, PostIndexer, indices_to_array

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


NOTHING = AxisIndexer(range(0), KEEP)
"""No index."""


def build_axis_indexer(key: Any, length: int) -> AxisIndexer:
    """Normalize a slice, an integer or an integer array."""
    if isinstance(key, slice):
        return _from_range(range(*key.indices(length)))
    indices = normalize_indices(np.asarray(key), length)
    if indices.ndim == 0:
        return AxisIndexer(range(int(indices), int(indices) + 1), 0)
    return _from_array(indices)


def _from_range(indices: range) -> AxisIndexer:
    if not indices:
        return NOTHING
    if indices.step > 0:
        return AxisIndexer(indices, KEEP)
    return AxisIndexer(indices[::-1], _REVERSE)


def _from_array(indices: Integers) -> AxisIndexer:
    if not indices.size:
        return NOTHING
    first, last = int(indices[0]), int(indices[-1])
    steps = np.diff(indices)
    step = int(steps[0]) if steps.size else 1
    if step and (steps == step).all():
        return _from_range(range(first, last + (1 if step > 0 else -1), step))
    if (steps > 0).all():
        return AxisIndexer(indices, KEEP)
    unique, inverse = np.unique(indices, return_inverse=True)
    return AxisIndexer(_from_array(unique).indices, inverse)


def normalize_indices(indices: NDArray[Any], length: int) -> Integers:
    """Return non-negative indices. Raise IndexError if an index is out of bounds."""
    wide = indices.astype(np.int64, copy=False)
    out_of_bounds = (wide < -length) | (wide >= length)
    if out_of_bounds.any():
        first = int(wide[out_of_bounds].flat[0])
        raise IndexError(f"index {first} is out of bounds for an axis of length {length}")
    negative = wide < 0
    return np.where(negative, wide + length, wide) if negative.any() else wide
