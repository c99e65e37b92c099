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
from xr_tensorfmt.formats.vespa.blocks import Blocks, build_strings
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
        axes = selection.index_arrays[:rank]
        mesh = axes if isinstance(selection, Points) else np.ix_(*axes)
        requested = np.ravel_multi_index(mesh, self.grid).ravel()
        # A number after the last index of the grid marks the end.
        stored = np.append(self.grid_indices, prod(self.grid))
        places = np.searchsorted(stored, requested)
        targets = np.flatnonzero(stored[places] == requested)
        blocks, cells = self.block_indices[places[targets]], selection.indices[rank:]
        if isinstance(selection, Points):
            chosen = tuple(axis[targets] for axis in selection.indices[rank:])
            yield Part(self.blocks, Points(self.blocks.shape, (blocks, *chosen)), targets)
            return
        order = np.argsort(blocks)
        target = np.unravel_index(targets[order], selection.shape[:rank])
        yield Part(self.blocks, Selection(self.blocks.shape, (blocks[order], *cells)), target)


def build_outer_product(
    source: Source,
    header: VespaHeader,
    blocks: Blocks,
    labels: Sequence[Strings],
    options: OpenOptions,
) -> tuple[OuterProduct, list[Strings]]:
    """Spread the blocks over the outer product of their labels, and return the distinct labels."""
    distinct, codes = zip(*map(_factorize, labels), strict=True)
    grid = tuple(column.size for column in distinct)
    fill_value = _choose_fill_value(source, header, options, has_holes=prod(grid) > header.blocks)
    cells = prod(grid) * header.cells
    if cells > MAX_PRODUCT_CELLS and options.fill_value is None:
        raise ValueError(
            f"{source.name}: {header.blocks} blocks belong to a tensor of {cells} cells, expected "
            f"at most {MAX_PRODUCT_CELLS}; open it with sparse='stored', or pass "
            f"fill_value={fill_value} as well to fill in all cells"
        )
    check_size(source.name, (*grid, *header.lengths), blocks.dtype.itemsize, header.stop)
    grid_indices = np.ravel_multi_index(codes, grid) if header.blocks else np.empty(0, np.int64)
    order = np.argsort(grid_indices, kind="stable")
    grid_indices = grid_indices[order]
    repeated = np.flatnonzero(grid_indices[1:] == grid_indices[:-1])
    if repeated.size:
        first, second = order[repeated[0] : repeated[0] + 2].tolist()
        raise TensorFormatError(
            source.name,
            field=f"the labels of block {second}",
            actual=f"those of block {first} as well",
            expected="labels that occur once",
            hint=Hint("no dense tensor holds both blocks; open it with {sparse}", sparse="stored"),
            offset=int(blocks.offsets[second]),
        )
    return OuterProduct(blocks, grid, grid_indices, order, fill_value), list(distinct)


def _factorize(labels: Strings) -> tuple[Strings, Integers]:
    """Return the distinct labels in order of their first blocks, and a code per label."""
    strings = labels.tolist()
    codes = {string: code for code, string in enumerate(dict.fromkeys(strings))}
    numbers = np.fromiter(map(codes.__getitem__, strings), np.int64, labels.size)
    return build_strings(list(codes)), numbers


def _choose_fill_value(
    source: Source, header: VespaHeader, options: OpenOptions, *, has_holes: bool
) -> float:
    is_int8 = header.cell_type == "int8"
    value = options.fill_value
    if value is None:
        value = 0 if is_int8 and not has_holes else np.nan
    if is_int8 and value not in range(-128, 128):
        raise ValueError(
            f"{source.name}: cells of type int8 cannot hold fill_value={options.fill_value!r}; "
            "pass an integer from -128 to 127"
        )
    return float(value)
