"""Blocks as a dense tensor over the outer product of their labels."""

from __future__ import annotations

import numpy as np

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.extents import Integers
from xr_tensorfmt.formats.base import OpenOptions
from xr_tensorfmt.formats.limits import check_size
from xr_tensorfmt.formats.vespa.grid import Grid
from xr_tensorfmt.formats.vespa.header import Header
from xr_tensorfmt.layouts import Blocks, Held, Labels, Layout, Scattered
from xr_tensorfmt.selection import Selection
from xr_tensorfmt.sources import Source

MOST_FILLED_CELLS = 1 << 32
"""Limit on the cells of an outer product, unless ``fill_value`` says that it is wanted."""


def filled(
    source: Source,
    blocks: Blocks,
    labels: tuple[Labels, ...],
    header: Header,
    options: OpenOptions,
) -> tuple[Layout, tuple[Layout, ...]]:
    """Spread the blocks over the outer product of their labels.

    Parameters
    ----------
    source : Source
        The file; all labels are read.
    blocks : Blocks
        What is stored.
    labels : tuple of Labels
        For each mapped dimension the label of each block.
    header : Header
        The header.
    options : OpenOptions
        The value of cells that are not stored.

    Returns
    -------
    layout : Layout
        The dense tensor.
    along : tuple of Layout
        For each mapped dimension its labels.

    Raises
    ------
    TensorFormatError
        Two blocks have the same labels.
    ValueError
        There are too many cells, or what is not stored has no value.
    """
    everything = Selection.everything((header.blocks,))
    grid = Grid.of([each.read(source, everything) for each in labels])
    filling = _filling(source, header, options, has_holes=grid.size > header.blocks)
    cells = grid.size * header.cells
    if cells > MOST_FILLED_CELLS and options.fill_value is None:
        raise ValueError(
            f"{source.name}: {header.blocks} blocks belong to a tensor of {cells} cells; open it "
            f"with sparse='stored', or say fill_value={filling} as well if that is what you want"
        )
    lengths = (*grid.lengths, *header.lengths)
    check_size(source.name, lengths, blocks.dtype.itemsize, header.stop)
    places, numbers = grid.sorted_places()
    _check_unique(source, blocks, places, numbers)
    along = tuple(Held(each) for each in grid.labels)
    return Scattered(blocks, grid.lengths, places, numbers, filling), along


def _filling(source: Source, header: Header, options: OpenOptions, *, has_holes: bool) -> float:
    dtype, value = header.element.dtype, options.fill_value
    if dtype.kind == "f":
        return float("nan") if value is None else float(value)
    if value is None and not has_holes:
        return 0
    limits = np.iinfo(dtype)
    if value is None or value != value // 1 or not limits.min <= value <= limits.max:
        raise ValueError(
            f"fill_value={value!r} is no value of the cells of {source.name}, which are "
            f"{header.cell_type.name}; give a whole number from {limits.min} to {limits.max}"
        )
    return int(value)


def _check_unique(source: Source, blocks: Blocks, places: Integers, numbers: Integers) -> None:
    repeated = np.flatnonzero(places[1:] == places[:-1])
    if repeated.size:
        first, second = numbers[repeated[0] : repeated[0] + 2].tolist()
        raise TensorFormatError(
            source.name,
            f"the labels of block {second}",
            f"those of block {first} as well",
            "labels that occur once",
            "there is no dense tensor of such blocks; open it with sparse='stored'",
            offset=int(blocks.table.places.starts(np.array([second]))[0]),
        )
