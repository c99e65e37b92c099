"""Layout of a dense tensor over the outer product of the labels of its blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.core.header import check_size
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.open_options import OpenOptions
from xr_tensorfmt.core.selection import Points, Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import Composite, Part
from xr_tensorfmt.errors import Hint, TensorFormatError
from xr_tensorfmt.formats.vespa.blocks import Blocks
from xr_tensorfmt.formats.vespa.spec import Strings, VespaHeader

MAX_PRODUCT_CELLS = 1 << 32
"""Limit on the cells of an outer product, unless the user passes ``fill_value``."""


@dataclass(frozen=True, eq=False)
class OuterProduct(Composite):
    """A grid of blocks with a fill value in its gaps."""

    blocks: Layout
    # Number of distinct labels of every mapped dimension.
    grid: tuple[int, ...]
    # Row-major indices in the grid that have a block, sorted, and the indices of these blocks.
    grid_indices: Integers
    block_indices: Integers
    fill_value: float

    prefers_points = True  # every read searches for its blocks

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the grid, and of a block."""
        return (*self.grid, *self.blocks.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.blocks.dtype

    def split(self, selection: Selection) -> Iterator[Part]:
        """Yield the cells of the selected blocks."""
        rank = len(self.grid)
        if isinstance(selection, Points):
            requested = np.ravel_multi_index(selection.indices[:rank], self.grid)
            is_stored = np.isin(requested, self.grid_indices)
            number = np.searchsorted(self.grid_indices, requested[is_stored])
            cells = (axis[is_stored] for axis in selection.indices[rank:])
            points = Points(self.blocks.shape, (self.block_indices[number], *cells))
            yield Part(self.blocks, points, is_stored)
            return
        block_indices, targets = self._find_blocks(selection)
        order = np.argsort(block_indices)
        indices = (block_indices[order], *selection.indices[rank:])
        target = np.unravel_index(targets[order], selection.shape[:rank])
        yield Part(self.blocks, Selection(self.blocks.shape, indices), target)

    def _find_blocks(self, selection: Selection) -> tuple[Integers, Integers]:
        """Return the selected blocks, and their indices in the selected part of the grid."""
        rank = len(self.grid)
        arrays = selection.index_arrays[:rank]
        # The grid indices are sorted, so the blocks between two rows of the grid are a range.
        bounds = np.array([arrays[0][0], arrays[0][-1] + 1]) * prod(self.grid[1:])
        start, stop = np.searchsorted(self.grid_indices, bounds).tolist()
        block_indices = self.block_indices[start:stop]
        targets = np.zeros(block_indices.shape, dtype=np.int64)
        inside = np.ones(block_indices.shape, dtype=np.bool_)
        axes = np.unravel_index(self.grid_indices[start:stop], self.grid)
        for selected, indices in zip(arrays, axes, strict=True):
            nearest = np.minimum(np.searchsorted(selected, indices), selected.size - 1)
            inside &= selected[nearest] == indices
            targets = targets * selected.size + nearest
        return block_indices[inside], targets[inside]


def build_outer_product(
    source: Source,
    header: VespaHeader,
    blocks: Layout,
    labels: Sequence[Strings],
    options: OpenOptions,
) -> tuple[OuterProduct, list[Strings]]:
    """Spread the blocks over the outer product of their labels, and return the distinct labels."""
    factorized = [_factorize(column) for column in labels]
    grid = tuple(distinct.size for distinct, _ in factorized)
    fill_value = _choose_fill_value(source, header, options, has_holes=prod(grid) > header.blocks)
    cells = prod(grid) * header.cells
    if cells > MAX_PRODUCT_CELLS and options.fill_value is None:
        raise ValueError(
            f"{source.name}: {header.blocks} blocks belong to a tensor of {cells} cells, expected "
            f"at most {MAX_PRODUCT_CELLS}; open it with sparse='stored', or pass "
            f"fill_value={fill_value} as well to fill in all cells"
        )
    check_size(source.name, (*grid, *header.lengths), blocks.dtype.itemsize, header.stop)
    codes = tuple(codes for _, codes in factorized)
    grid_indices = np.ravel_multi_index(codes, grid) if header.blocks else np.empty(0, np.int64)
    order = np.argsort(grid_indices, kind="stable")
    _check_unique(source, blocks, grid_indices[order], order)
    product = OuterProduct(blocks, grid, grid_indices[order], order, fill_value)
    return product, [distinct for distinct, _ in factorized]


def _factorize(labels: Strings) -> tuple[Strings, Integers]:
    """Return the distinct labels in order of their first blocks, and a code per label."""
    strings = labels.tolist()
    codes = {string: code for code, string in enumerate(dict.fromkeys(strings))}
    distinct = np.fromiter(codes, labels.dtype, len(codes))
    return distinct, np.fromiter(map(codes.__getitem__, strings), np.int64, labels.size)


def _choose_fill_value(
    source: Source, header: VespaHeader, options: OpenOptions, *, has_holes: bool
) -> float:
    dtype, value = header.element.dtype, options.fill_value
    if dtype.kind == "f":
        return float("nan") if value is None else float(value)
    if value is None and not has_holes:
        return 0
    limits = np.iinfo(dtype)
    if value is None or not limits.min <= value <= limits.max or value != int(value):
        raise ValueError(
            f"{source.name}: cells of type {header.cell_type} cannot hold fill_value={value!r}; "
            f"pass an integer from {limits.min} to {limits.max}"
        )
    return int(value)


def _check_unique(source: Source, blocks: Layout, grid_indices: Integers, order: Integers) -> None:
    repeated = np.flatnonzero(grid_indices[1:] == grid_indices[:-1])
    if repeated.size:
        first, second = order[repeated[0] : repeated[0] + 2].tolist()
        raise TensorFormatError(
            source.name,
            field=f"the labels of block {second}",
            actual=f"those of block {first} as well",
            expected="labels that occur once",
            hint=Hint("no dense tensor holds both blocks; open it with {sparse}", sparse="stored"),
            offset=int(blocks.offsets[second]) if isinstance(blocks, Blocks) else None,
        )
