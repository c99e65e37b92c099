"""Tensors stored as blocks. Elements outside the blocks are zero by symmetry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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

_ELEMENTS_AT_ONCE = 1 << 20


@dataclass(frozen=True, eq=False)
class Axis:
    """Disjoint sets of indices along an axis. A block covers one set."""

    # Number of the set of every index, and its position in the set.
    labels: Integers
    positions: Integers
    # Sizes of the sets.
    sizes: Integers

    @classmethod
    def from_labels(cls, labels: Integers, count: int) -> Axis:
        """Count the indices of `count` sets."""
        sizes = np.bincount(labels, minlength=count)
        order = np.argsort(labels, kind="stable")
        positions = np.empty_like(order)
        positions[order] = np.arange(order.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return cls(labels, positions, sizes)


@dataclass(frozen=True, eq=False)
class StoredBlocks:
    """Blocks of a tensor, sorted by key. The slowest axis comes first."""

    axes: tuple[Axis, ...]
    # A number per block that identifies its sets of indices.
    keys: Integers
    # Index of the first stored element of every block, and its strides along the axes.
    offsets: Integers
    strides: Integers
    # Number of stored elements.
    stored: int

    @classmethod
    def from_labels(cls, axes: tuple[Axis, ...], labels: Sequence[Integers]) -> StoredBlocks:
        """Find the blocks. The labels, one array per axis, are in the order of the file."""
        strides = [np.ones_like(labels[0])]
        for axis, label in zip(axes[::-1], labels[::-1], strict=True):
            strides.append(strides[-1] * axis.sizes[label])
        sizes = strides.pop()
        keys = _combine_labels(axes, labels)
        order = np.argsort(keys)
        offsets = (np.cumsum(sizes) - sizes)[order]
        return cls(axes, keys[order], offsets, np.stack(strides[::-1])[:, order], int(sizes.sum()))

    def locate(self, indices: Sequence[Integers]) -> tuple[Integers, Integers]:
        """Return the flat positions of elements in a block, and their indices in the file.

        The arrays of indices are broadcast against each other.
        """
        pairs = list(zip(self.axes, indices, strict=True))
        keys = _combine_labels(self.axes, [axis.labels[index] for axis, index in pairs])
        block = np.minimum(np.searchsorted(self.keys, keys), self.keys.size - 1)
        inside = np.flatnonzero(self.keys[block] == keys)
        block = block.ravel()[inside]
        flat = self.offsets[block]
        for (axis, index), strides in zip(pairs, self.strides, strict=True):
            positions = np.broadcast_to(axis.positions[index], keys.shape)
            flat += positions.ravel()[inside] * strides[block]
        return inside, flat


def _combine_labels(axes: Sequence[Axis], labels: Sequence[Integers]) -> Integers:
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
        for batch in selection.divide(_ELEMENTS_AT_ONCE) if self.blocks.stored else ():
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
    # Per dimension, a property of its indices and of the blocks.
    constraints: list[list[tuple[Integers, Integers]]] = [[] for _ in header.dimensions]
    for condition in header.conditions:
        rows = condition.non_zeros
        chosen = rows[numbers % max(1, len(rows))]
        numbers //= max(1, len(rows))
        for (name, dimension), column in zip(condition.properties, chosen.T, strict=True):
            indices = _find_indices(entry, dimension, name, properties)
            constraints[dimension].append((indices, column))
    axes, labels = [], []
    for length, columns in zip(header.lengths[::-1], constraints[::-1], strict=True):
        # Equal rows of properties have equal labels.
        table = np.zeros((length + count, 1 + len(columns)), dtype=np.int64)
        for number, pair in enumerate(columns):
            table[:, number] = np.concatenate(pair)
        distinct, label = np.unique(table, axis=0, return_inverse=True)
        label = label.ravel()
        axes.append(Axis.from_labels(label[:length], len(distinct)))
        labels.append(label[length:])
    if prod(axis.sizes.size for axis in axes) >= 1 << 63:
        raise fields.error(key, "too many kinds of blocks", f"at most {1 << 63}", "split the file")
    blocks = StoredBlocks.from_labels(tuple(axes), labels)
    if not np.diff(blocks.keys).all():
        hint = "each block is stored once; correct the file"
        raise fields.error(key, "a block twice", "different blocks", hint)
    return blocks


def _find_indices(
    entry: TensorEntry, dimension: int, name: str, properties: Mapping[str, Properties]
) -> Integers:
    """Return a property of a dimension as an array with one integer per index."""
    length, kind = entry.header.lengths[dimension], entry.header.types[dimension]
    of_type = properties.get(kind or "")
    indices = None if of_type is None else of_type.indices.get(name)
    if indices is None or indices.size != length:
        state = "missing" if indices is None else f"given for {indices.size} indices"
        raise entry.fields.error(
            "nonZeroCondition",
            actual=f"the property {name!r} of dimension {dimension}, which is {state}",
            expected=f"the property for {length} indices in {kind}.yaml in the same directory",
            hint="fetch that file too",
        )
    return indices
