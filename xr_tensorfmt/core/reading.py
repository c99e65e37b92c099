"""Plans of reads: the byte ranges to fetch, and how their bytes become values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Bytes, Extents, Integers
from xr_tensorfmt.core.selection import Indices, Selection, array_to_indices
from xr_tensorfmt.core.source import Source

if TYPE_CHECKING:
    from xr_tensorfmt.core.layout import Layout


@dataclass(frozen=True, eq=False)
class Plan:
    """A read: byte ranges to fetch at once, and the function that makes values of their bytes.

    Parameters
    ----------
    source : Source
        The file.
    extents : Extents
        The byte ranges. Empty for values in memory, or of parts.
    decode : callable
        Converts the concatenated bytes to values. The second argument is a contiguous array for the
        values, or None. Returns this array, or another one that holds no more memory than its
        values.
    needed_bytes : int, optional
        Bytes of the values among the bytes of `extents`: all of them by default.
    parts : callable, optional
        Yields the plans of the parts that `decode` reads. They are built one by one, so that a plan
        is smaller than its values.
    """

    source: Source
    extents: Extents
    decode: Callable[[Bytes, Array | None], Array]
    needed_bytes: int = -1
    parts: Callable[[], Iterable[Plan]] = tuple

    def read(self, out: Array | None = None) -> Array:
        """Fetch and decode."""
        has_bytes = len(self.extents) > 0
        packed = self.source.read(self.extents) if has_bytes else np.empty(0, np.uint8)
        return self.decode(packed, out)

    def convert(self, convert: Callable[[Array], Array]) -> Plan:
        """Return the plan of values that are computed from those of this plan."""
        return replace(self, decode=lambda packed, _: convert(self.decode(packed, None)))

    def iterate_fetches(self) -> Iterator[Plan]:
        """Yield this plan and its parts if they have byte ranges, without reading."""
        if len(self.extents):
            yield self
        for part in self.parts():
            yield from part.iterate_fetches()

    def count_needed_bytes(self) -> int:
        """Return the number of bytes of the values, without those of parts."""
        return self.extents.nbytes if self.needed_bytes < 0 else self.needed_bytes


Step = tuple[Plan, Callable[[Array, Array], object] | None]
"""The plan of a part, and the function that puts its values into the array of all values."""


def plan_batches(
    source: Source,
    divide: Callable[[], Iterable[Selection]],
    plan: Callable[[Selection], Plan],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    *,
    is_concurrent: bool = False,
) -> Plan:
    """Plan to read selections, whose values follow each other in an array of a `shape`."""

    def number() -> Iterator[tuple[int, Selection]]:
        stop = 0
        for batch in divide():
            stop += batch.size
            yield stop, batch

    def decode(*_: object) -> Array:
        values = np.empty(shape, dtype=dtype)

        def read_batch(numbered: tuple[int, Selection]) -> None:
            stop, batch = numbered
            target = values.reshape(-1)[stop - batch.size : stop].reshape(batch.shape)
            decoded = plan(batch).read(target)
            if decoded is not target:
                target[...] = decoded

        if is_concurrent:
            source.run(read_batch, number())
        else:
            for numbered in number():
                read_batch(numbered)
        return values

    return Plan(source, Extents.empty(), decode, parts=lambda: map(plan, divide()))


def read(layout: Layout, source: Source, selection: Selection) -> Array:
    """Read a selection into memory of its own."""
    return layout.plan(source, selection).read()


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
        return Plan(source, Extents.empty(), lambda *_: np.empty(shape, layout.dtype))
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

    def divide() -> Iterator[Selection]:
        for first in range(0, count, step):
            batch = {axis: line[first : first + step] for axis, line in points.items()}
            yield _select_points(layout.shape, batch, others)

    shape, plan_batch = (count, *outer.shape), partial(layout.plan, source)
    plan = plan_batches(source, divide, plan_batch, shape, layout.dtype, is_concurrent=True)
    return plan, order


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
