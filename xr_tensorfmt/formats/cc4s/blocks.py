"""Tensors stored as blocks. Elements outside the blocks are zero by symmetry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.selection import Points, Selection
from xr_tensorfmt.core.views import Composite, Part
from xr_tensorfmt.formats.cc4s.header import Properties, TensorEntry

MAX_BLOCKS = 1 << 22
"""Limit on the blocks of a tensor: enough for 160 points if momentum is conserved."""

MAX_INDICES = 1 << 24
"""Limit on the lengths of dimensions of a tensor of blocks. Indices are kept in memory."""

_BATCH = 1 << 20


@dataclass(frozen=True, eq=False)
class Axis:
    """Disjoint sets of indices along an axis. A block covers one set."""

    # Number of the set of every index. The last set has the indices that are in no block.
    labels: Integers
    # Position of every index in its set, and the sizes of the sets.
    positions: Integers
    sizes: Integers

    @classmethod
    def from_labels(cls, labels: Integers, count: int) -> Axis:
        """Count the indices of every set; there are `count` sets that are in blocks."""
        sizes = np.bincount(labels, minlength=count + 1)
        order = np.argsort(labels, kind="stable")
        positions = np.empty_like(order)
        positions[order] = np.arange(order.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return cls(labels, positions, sizes)


@dataclass(frozen=True, eq=False)
class StoredBlocks:
    """Blocks of a tensor. The slowest axis comes first."""

    axes: tuple[Axis, ...]
    # A number per block that identifies its sets of indices, in ascending order.
    keys: Integers
    # Index of the first stored element of every block, and its strides, one per axis.
    offsets: Integers
    strides: Integers
    # Number of stored elements.
    stored: int

    @classmethod
    def from_labels(cls, axes: tuple[Axis, ...], labels: Integers) -> StoredBlocks:
        """Order blocks by key. The labels are the sets of every block, in the order of the file."""
        shapes = [axis.sizes[label] for axis, label in zip(axes, labels.T, strict=True)]
        strides = np.ones_like(labels)
        for axis in reversed(range(len(axes) - 1)):
            strides[:, axis] = strides[:, axis + 1] * shapes[axis + 1]
        stops = np.cumsum(strides[:, 0] * shapes[0])
        keys = _combine(axes, [*labels.T])
        order = np.argsort(keys)
        offsets = stops - strides[:, 0] * shapes[0]
        stored = int(stops[-1]) if stops.size else 0
        return cls(axes, keys[order], offsets[order], strides[order], stored)

    def locate(self, indices: Sequence[Integers]) -> tuple[Integers, Integers]:
        """Return the flat positions of elements in a block, and their indices in the file.

        The arrays of indices are broadcast against each other.
        """
        labels = [axis.labels[index] for axis, index in zip(self.axes, indices, strict=True)]
        keys = np.asarray(_combine(self.axes, labels))
        block = np.minimum(np.searchsorted(self.keys, keys), self.keys.size - 1)
        inside = np.flatnonzero(self.keys[block] == keys)
        block = block.ravel()[inside]
        flat = self.offsets[block]
        for number, (axis, index) in enumerate(zip(self.axes, indices, strict=True)):
            within = np.broadcast_to(axis.positions[index], keys.shape).ravel()[inside]
            flat += within * self.strides[block, number]
        return inside, flat


def _combine(axes: Sequence[Axis], labels: Sequence[Integers]) -> Integers:
    """Return a number for every combination of sets."""
    keys: Any = 0
    for axis, label in zip(axes, labels, strict=True):
        keys = keys * axis.sizes.size + label
    return np.asarray(keys)


@dataclass(frozen=True)
class ZeroFilledBlocks(Composite):
    """All elements of a tensor stored in blocks. Elements outside the blocks are zero."""

    inner: Layout
    blocks: StoredBlocks

    prefers_points = True  # many points need one read

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the full tensor, slowest axis first."""
        return tuple(axis.labels.size for axis in self.blocks.axes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the stored elements."""
        return self.inner.dtype

    def split(self, selection: Selection) -> Iterator[Part]:
        """Yield the selected elements that are stored. Targets are flat positions."""
        start = 0
        for batch in selection.divide(_BATCH) if self.blocks.stored else ():
            is_outer = not isinstance(batch, Points)
            indices = np.ix_(*batch.index_arrays) if is_outer else batch.index_arrays
            inside, flat = self.blocks.locate(indices)
            if flat.size:
                yield Part(self.inner, Points(self.inner.shape, (flat,)), start + inside)
            start += batch.size

    def put(self, values: Array, target: Any, stored: Array) -> None:
        """Set the elements at flat positions."""
        values.reshape(-1)[target] = stored


def find_blocks(entry: TensorEntry, properties: Mapping[str, Properties]) -> StoredBlocks:
    """Return the blocks of a tensor. The first condition varies fastest."""
    fields, header, key = entry.fields, entry.header, "nonZeroCondition"
    count = prod(len(condition.non_zeros) for condition in header.conditions)
    if count > MAX_BLOCKS:
        raise fields.error(key, f"{count} blocks", f"at most {MAX_BLOCKS}", "split the file")
    if max(header.lengths, default=0) > MAX_INDICES:
        actual = f"blocks of a tensor of shape {header.lengths}"
        raise fields.error(key, actual, f"lengths up to {MAX_INDICES}", "the file is damaged")
    # Block k is the k-th combination of rows. Without rows, max() avoids a division by zero.
    numbers = np.arange(count)
    chosen = []
    for condition in header.conditions:
        rows = condition.non_zeros
        chosen.append(rows[numbers % max(1, len(rows))])
        numbers //= max(1, len(rows))
    axes, labels = [], []
    for dimension in reversed(range(len(header.dimensions))):
        constraints = [
            (_find_indices(entry, dimension, name, properties), rows[:, column])
            for condition, rows in zip(header.conditions, chosen, strict=True)
            for column, (name, constrained) in enumerate(condition.properties)
            if constrained == dimension
        ]
        axis, label = _build_axis(header.dimensions[dimension].length, constraints, count)
        axes.append(axis)
        labels.append(label)
    if prod(axis.sizes.size for axis in axes) >= 1 << 63:
        raise fields.error(key, "too many kinds of blocks", f"at most {1 << 63}", "split the file")
    blocks = StoredBlocks.from_labels(tuple(axes), np.stack(labels, axis=1))
    if not np.diff(blocks.keys).all():
        hint = "each block is stored once; correct the file"
        raise fields.error(key, "a block twice", "different blocks", hint)
    return blocks


def _find_indices(
    entry: TensorEntry, dimension: int, name: str, properties: Mapping[str, Properties]
) -> Integers:
    """Return a property of a dimension as an array with one integer per index."""
    length, dimension_type = astuple(entry.header.dimensions[dimension])
    of_type = properties.get(dimension_type or "")
    indices = None if of_type is None else of_type.indices.get(name)
    if indices is None or indices.size != length:
        state = "missing" if indices is None else f"given for {indices.size} indices"
        file = f"{dimension_type}.yaml"
        raise entry.fields.error(
            "nonZeroCondition",
            actual=f"the property {name!r} of dimension {dimension}, which is {state}",
            expected=f"the property for {length} indices in {file} in the same directory",
            hint="fetch that file too",
        )
    return indices


def _build_axis(
    length: int, constraints: Sequence[tuple[Integers, Integers]], count: int
) -> tuple[Axis, Integers]:
    """Return the sets of indices along a dimension, and the set of every block."""
    if not constraints:
        return Axis.from_labels(np.zeros(length, np.int64), 1), np.zeros(count, np.int64)
    index_rows = np.stack([indices for indices, _ in constraints], axis=1)
    block_rows = np.stack([values for _, values in constraints], axis=1)
    row = _number_rows(np.concatenate((block_rows, index_rows)))
    used, label = np.unique(row[:count], return_inverse=True)
    label_of_row = np.full(row.size, used.size)
    label_of_row[used] = np.arange(used.size)
    return Axis.from_labels(label_of_row[row[count:]], used.size), label


def _number_rows(table: Integers) -> Integers:
    """Number the rows of a table from 0. Equal rows have equal numbers."""
    order = np.lexsort(table.T)
    ascending = table[order]
    numbers = np.zeros(len(table), dtype=np.int64)
    numbers[order[1:]] = np.cumsum((ascending[1:] != ascending[:-1]).any(axis=1))
    return numbers
