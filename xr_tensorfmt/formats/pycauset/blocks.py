"""The layout of a BLOCK matrix: blocks in other files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from xr_tensorfmt.contract import (
    Array,
    Extents,
    Integers,
    Layout,
    Selection,
    Source,
    SourceExtents,
    array_to_indices,
)


@dataclass(frozen=True)
class Block:
    """Block of a BLOCK matrix: its file, its layout, and its first row and column."""

    source: Source
    layout: Layout
    corner: tuple[int, int]


@dataclass(frozen=True)
class BlockMatrix(Layout):
    """Matrix assembled from blocks in other files."""

    lengths: tuple[int, int]
    blocks: tuple[Block, ...]

    layout_to_validate = None  # the check of PyCauset reads the stored elements of the blocks

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns of all blocks together."""
        return self.lengths

    @property
    def dtype(self) -> np.dtype[Any]:
        """Common dtype of the blocks."""
        return np.result_type(*self.dtypes)

    @property
    def dtypes(self) -> set[np.dtype[Any]]:
        """dtypes of the blocks."""
        return {block.layout.dtype for block in self.blocks}

    @property
    def rounds_integers(self) -> bool:
        """Whether 64-bit integers become floats because of the dtypes of other blocks."""
        integers = {np.dtype(np.int64), np.dtype(np.uint64)}
        return self.dtype.kind in "fc" and bool(self.dtypes & integers)

    def extents(self, selection: Selection) -> Extents:
        """Return no ranges, because the blocks are in other files."""
        return Extents.empty()

    def _select_blocks(
        self, selection: Selection
    ) -> Iterator[tuple[Block, tuple[slice, ...], Selection]]:
        """Yield the selected blocks, their slices of the values, and their inner selections."""
        arrays = selection.index_arrays
        for block in self.blocks:
            shape, parts, indices = block.layout.shape, [], []
            for array, low, length in zip(arrays, block.corner, shape, strict=True):
                parts.append(slice(*np.searchsorted(array, (low, low + length)).tolist()))
                indices.append(array_to_indices(array[parts[-1]] - low))
            inner = Selection(shape, tuple(indices))
            if inner.size:
                yield block, tuple(parts), inner

    def _locate_points(
        self, points: tuple[Integers, ...]
    ) -> Iterator[tuple[Block, Integers, tuple[Integers, ...]]]:
        """Yield the blocks with points, the positions of these points, and their inner indices."""
        for block in self.blocks:
            moved = np.stack(points) - np.array(block.corner)[:, np.newaxis]
            inside = (moved >= 0) & (moved < np.array(block.layout.shape)[:, np.newaxis])
            positions = np.flatnonzero(inside.all(axis=0))
            if positions.size:
                yield block, positions, tuple(moved[:, positions])

    def extents_by_source(self, source: Source, selection: Selection) -> list[SourceExtents]:
        """Return the byte ranges of the selected blocks, grouped by source."""
        return [
            extents
            for block, _, part in self._select_blocks(selection)
            for extents in block.layout.extents_by_source(block.source, part)
        ]

    def point_extents_by_source(
        self, source: Source, points: tuple[Integers, ...]
    ) -> list[SourceExtents]:
        """Return the byte ranges of the blocks with points, grouped by source."""
        return [
            extents
            for block, _, inner in self._locate_points(points)
            for extents in block.layout.point_extents_by_source(block.source, inner)
        ]

    def read(self, source: Source, selection: Selection) -> Array:
        """Read the selected blocks."""
        values = np.empty(selection.shape, dtype=self.dtype)
        for block, slices, part in self._select_blocks(selection):
            values[slices] = block.layout.read(block.source, part)
        return values

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read the points of the blocks."""
        values = np.empty(points[0].size, dtype=self.dtype)
        for block, positions, inner in self._locate_points(points):
            values[positions] = block.layout.read_points(block.source, inner)
        return values
