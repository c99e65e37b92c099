"""Tensors stored as blocks. Elements outside the blocks are zero by symmetry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Bytes, Extents, Integers
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.selection import Points, Selection, compute_row_major_strides
from xr_tensorfmt.core.views import Composite, Part
from xr_tensorfmt.formats.cc4s.header import Properties, TensorEntry

MAX_BLOCKS = 1 << 22
"""Limit on the blocks of a tensor: enough for 160 points if momentum is conserved."""

MAX_INDICES = 1 << 24
"""Limit on the lengths of dimensions of a tensor of blocks. Indices are kept in memory."""


@dataclass(frozen=True, eq=False)
class Axis:
    """Disjoint sets of indices along an axis. A block covers one set."""

    # Number of the set of every index, or -1.
    labels: Integers
    # Indices sorted by set, and where sets begin and end. Indices in no set come first.
    order: Integers
    starts: Integers

    @classmethod
    def from_labels(cls, labels: Integers, count: int) -> Axis:
        """Sort indices by the number of their set; there are `count` sets."""
        order = np.argsort(labels, kind="stable")
        return cls(labels, order, np.searchsorted(labels[order], np.arange(count + 1)))

    @cached_property
    def positions(self) -> Integers:
        """Position of every index in its set. Positions of indices without a set are not used."""
        positions = np.empty_like(self.order)
        positions[self.order] = np.arange(self.order.size)
        return np.asarray(positions - self.starts[self.labels])


@dataclass(frozen=True, eq=False)
class StoredBlocks:
    """Blocks of a tensor in the order of the file. The slowest axis comes first."""

    lengths: tuple[int, ...]
    axes: tuple[Axis, ...]
    # Number of the set of indices, per block and axis.
    labels: Integers

    @cached_property
    def shapes(self) -> Integers:
        """Shapes of the blocks, one per row."""
        sizes = [np.diff(axis.starts) for axis in self.axes]
        columns = [size[label] for size, label in zip(sizes, self.labels.T, strict=True)]
        return np.stack(columns, axis=1)

    @cached_property
    def offsets(self) -> Integers:
        """Index of the first element of every block, and the number of all elements."""
        return np.concatenate(([0], np.cumsum(self.shapes.prod(axis=1))))

    @property
    def stored(self) -> int:
        """Number of stored elements."""
        return int(self.offsets[-1])

    def locate(self, points: tuple[Integers, ...]) -> tuple[Integers, Integers]:
        """Return the positions in `points` of those in a block, and their stored indices.

        A stored index counts the elements of all blocks in the order of the file.
        """
        axes = list(zip(self.axes, points, strict=True))
        labels = np.stack([axis.labels[indices] for axis, indices in axes], axis=1)
        within = np.stack([axis.positions[indices] for axis, indices in axes], axis=1)
        row_numbers = _number_rows(np.concatenate((self.labels, labels)))
        block_by_row_number = np.full(row_numbers.size, -1)
        block_by_row_number[row_numbers[: len(self.labels)]] = np.arange(len(self.labels))
        block = block_by_row_number[row_numbers[len(self.labels) :]]
        inside = np.flatnonzero(block >= 0)
        shapes = self.shapes[block[inside]]
        strides = np.ones_like(shapes)
        strides[:, :-1] = np.cumprod(shapes[:, :0:-1], axis=1)[:, ::-1]
        return inside, self.offsets[block[inside]] + (within[inside] * strides).sum(axis=1)


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
    table = np.stack(labels, axis=1)
    if len(table) > 1 + _number_rows(table).max(initial=-1):
        hint = "each block is stored once; correct the file"
        raise fields.error(key, "a block twice", "different blocks", hint)
    return StoredBlocks(header.lengths[::-1], tuple(axes), table)


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
    label_of_row = np.full(row.size, -1)
    label_of_row[used] = np.arange(used.size)
    return Axis.from_labels(label_of_row[row[count:]], used.size), label


def _number_rows(table: Integers) -> Integers:
    """Number the rows of a table from 0. Equal rows have equal numbers."""
    order = np.lexsort(table.T)
    ascending = table[order]
    numbers = np.zeros(len(table), dtype=np.int64)
    numbers[order[1:]] = np.cumsum((ascending[1:] != ascending[:-1]).any(axis=1))
    return numbers


_NO_INDICES = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class ZeroFilledBlocks(Composite):
    """All elements of a tensor stored in blocks. Elements outside the blocks are zero."""

    inner: Layout
    blocks: StoredBlocks

    prefers_points = True  # `locate` finds points without searching all blocks

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the full tensor, slowest axis first."""
        return self.blocks.lengths

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the stored elements."""
        return self.inner.dtype

    def split(self, selection: Selection) -> Iterator[Part]:
        """Yield all selected elements that are stored, as one part."""
        if isinstance(selection, Points):
            inside, flat = self.blocks.locate(selection.indices)
            targets: list[tuple[tuple[Integers, ...], Integers]] = [((inside,), flat)]
        else:
            targets = list(self._locate_blocks(selection))
            flat = np.concatenate([offsets.ravel() for _, offsets in targets] or [_NO_INDICES])
        if flat.size:
            yield Part(self.inner, Points(self.inner.shape, (flat,)), targets)

    def put(self, values: Array, target: Any, stored: Array) -> None:
        """Set the elements of all blocks."""
        position = 0
        for indices, offsets in target:
            part = stored[position : position + offsets.size]
            values[indices] = part.reshape(offsets.shape)
            position += offsets.size

    def _locate_blocks(
        self, selection: Selection
    ) -> Iterator[tuple[tuple[Integers, ...], Integers]]:
        """Yield, per block, the indices in the selection and the indices in the file."""
        groups = self._group_indices(selection)
        touched = np.ones(len(self.blocks.labels), dtype=np.bool_)
        for axis, sets in enumerate(groups):
            is_selected = np.array([targets.size > 0 for targets, _ in sets], dtype=np.bool_)
            touched &= is_selected[self.blocks.labels[:, axis]]
        for number in np.flatnonzero(touched).tolist():
            labels = self.blocks.labels[number]
            targets, positions = zip(
                *(sets[label] for sets, label in zip(groups, labels, strict=True)), strict=True
            )
            strides = compute_row_major_strides(self.blocks.shapes[number].tolist())
            steps = zip(np.ix_(*positions), strides, strict=True)
            first = np.full((1,) * len(positions), self.blocks.offsets[number])
            yield np.ix_(*targets), sum((index * stride for index, stride in steps), first)

    def _group_indices(self, selection: Selection) -> list[list[tuple[Integers, Integers]]]:
        """Return, per axis and set of indices, the indices in the selection and in a block."""
        groups = []
        for indices, axis in zip(selection.index_arrays, self.blocks.axes, strict=True):
            selected = Axis.from_labels(axis.labels[indices], axis.starts.size - 1)
            targets = [
                selected.order[start:stop] for start, stop in pairwise(selected.starts.tolist())
            ]
            groups.append([(target, axis.positions[indices[target]]) for target in targets])
        return groups


@dataclass(frozen=True)
class IndexOfStored(Layout):
    """Indices of the stored elements along an axis. They are computed, not read."""

    blocks: StoredBlocks
    axis: int

    dtype = np.dtype(np.int64)
    layout_to_validate = None  # no byte is stored

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of stored elements."""
        return (self.blocks.stored,)

    def locate(self, selection: Selection) -> Extents:
        """Return no byte ranges."""
        return Extents.empty()

    def decode(self, packed: Bytes, selection: Selection, out: Array | None = None) -> Array:
        """Compute the indices."""
        (flat,) = selection.index_arrays
        block = np.searchsorted(self.blocks.offsets, flat, side="right") - 1
        shapes = self.blocks.shapes[block]
        stride = shapes[:, self.axis + 1 :].prod(axis=1)
        within = (flat - self.blocks.offsets[block]) // stride % shapes[:, self.axis]
        axis, labels = self.blocks.axes[self.axis], self.blocks.labels[block, self.axis]
        return np.asarray(axis.order[axis.starts[labels] + within])
