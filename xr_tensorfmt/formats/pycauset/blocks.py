"""The layout of a BLOCK matrix: blocks in other files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.selection import Points, Selection, array_to_indices
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import Composite, Part


@dataclass(frozen=True)
class Block:
    """Block of a BLOCK matrix: its file, its layout, and its first row and column."""

    source: Source
    layout: Layout
    corner: tuple[int, int]


@dataclass(frozen=True)
class BlockMatrix(Composite):
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
        return np.result_type(*(block.layout.dtype for block in self.blocks))

    def split(self, selection: Selection) -> Iterator[Part]:
        """Yield the selected parts of blocks."""
        points = isinstance(selection, Points)
        for block in self.blocks:
            find = _find_points if points else _find_outer
            target, inner = find(selection, block.corner, block.layout.shape)
            if inner.size:
                yield Part(block.layout, inner, target, block.source)


def _find_outer(
    selection: Selection, corner: tuple[int, int], shape: tuple[int, ...]
) -> tuple[tuple[slice, ...], Selection]:
    """Return the slices of a block in the selected values, and the selection in the block."""
    target, indices = [], []
    for array, low, length in zip(selection.index_arrays, corner, shape, strict=True):
        part = slice(*np.searchsorted(array, (low, low + length)).tolist())
        target.append(part)
        indices.append(array_to_indices(array[part] - low))
    return tuple(target), Selection(shape, tuple(indices))


def _find_points(
    points: Selection, corner: tuple[int, int], shape: tuple[int, ...]
) -> tuple[Integers, Points]:
    """Return the positions of the points in a block, and their indices in the block."""
    moved = np.stack(points.index_arrays) - np.array(corner)[:, np.newaxis]
    inside = (moved >= 0) & (moved < np.array(shape)[:, np.newaxis])
    positions = np.flatnonzero(inside.all(axis=0))
    return positions, Points(shape, tuple(moved[:, positions]))
