"""Variables in blocks that have places of their own in a file."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any, Protocol

import numpy as np
from xarray import Variable

from xr_tensorfmt.chunks import TARGET
from xr_tensorfmt.elements import Array
from xr_tensorfmt.layouts import Dense, Layout
from xr_tensorfmt.layouts.base import Encoded
from xr_tensorfmt.layouts.view import Transposed
from xr_tensorfmt.lazyarray import unchunked, unread
from xr_tensorfmt.selection import MOST_RUNS, Selection
from xr_tensorfmt.write.blueprint import Placed
from xr_tensorfmt.write.conversion import Conversion
from xr_tensorfmt.write.grid import Chunks, cut_evenly, tile, writable_chunks


class Writable(Protocol):
    """A file that takes bytes in any order, from any thread or process."""

    @property
    def target(self) -> str:
        """What a user calls it."""

    @property
    def identity(self) -> Hashable:
        """What tells it from what was begun for the same target at another time."""

    def write(self, batches: Iterator[Encoded]) -> None:
        """Put bytes into their places."""


@dataclass(frozen=True)
class BlockGrid:
    """A variable, cut into blocks that can be written one by one.

    Parameters
    ----------
    layout : Layout
        Where the whole variable goes, or the whole that it is a part of; not transposed.
    conversion : Conversion
        What becomes of its dtype.
    chunks : tuple of tuple of int
        Lengths of the blocks along each axis.
    origin : tuple of int
        Index of the first value in the layout.
    """

    layout: Layout
    conversion: Conversion
    chunks: Chunks
    origin: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of blocks."""
        return prod(map(len, self.chunks))

    @cached_property
    def _stops(self) -> list[list[int]]:
        return [list(accumulate(lengths)) for lengths in self.chunks]

    def index(self, number: int) -> tuple[int, ...]:
        """Number of a block along each axis, from its number in C order."""
        return tuple(map(int, np.unravel_index(number, tuple(map(len, self.chunks)))))

    def part(self, number: int) -> tuple[slice, ...]:
        """Which elements of the variable a block is."""
        return tuple(
            slice(stops[i] - lengths[i], stops[i], 1)
            for i, stops, lengths in zip(self.index(number), self._stops, self.chunks, strict=True)
        )

    def selection(self, number: int) -> Selection:
        """Which elements of the layout a block is."""
        part = zip(self.part(number), self.origin, strict=True)
        entries = tuple(slice(each.start + first, each.stop + first, 1) for each, first in part)
        return Selection(self.layout.shape, entries)

    def bounds(self, number: int) -> tuple[int, int] | None:
        """First byte of the file that a block fills, and the one after its last; None if none."""
        selection = self.selection(number)
        parts = selection.batches(runs=MOST_RUNS, span=selection.span) if selection.size else ()
        extents = [self.layout.extents(part) for part in parts]
        ends = [each.bounds for each in extents if len(each)]
        return (min(ends)[0], max(stop for _, stop in ends)) if ends else None

    def write(self, number: int, values: Any, file: Writable) -> None:
        """Put the values of a block into a file.

        Parameters
        ----------
        number : int
            The block.
        values : ndarray, or what numpy can make one of
            Its values.
        file : Writable
            The file.

        Raises
        ------
        TypeError, ValueError
            They are not what dask has said of them, or what the file cannot hold.
        """
        selection = self.selection(number)
        converted = self.conversion.apply(self.plain(values, selection.shape))
        file.write(self.layout.encode(selection, converted))

    def plain(self, values: Any, shape: tuple[int, ...]) -> Array:
        """A block as numpy has it; TypeError or ValueError if it is not what dask announced."""
        name = self.conversion.name
        if np.ma.isMaskedArray(values):
            raise TypeError(f"{name!r} has masked values; fill them first, as by da.ma.filled")
        array = np.asarray(values)
        if array.shape != shape:
            raise ValueError(
                f"{name!r} has a chunk of shape {array.shape} where dask has announced {shape}; "
                "give map_blocks and its kin the chunks= that they make"
            )
        return array


Cut = tuple[Variable, BlockGrid]
"""A variable with its axes in the order of the file, and where its blocks go."""


def cut_all(placed: Iterable[Placed], kind: type[BlockGrid] = BlockGrid) -> list[Cut]:
    """Cut all variables that have elements; as `cut`."""
    return [cut(each, kind) for each in placed if each.variable.size]


def cut(placed: Placed, kind: type[BlockGrid] = BlockGrid) -> Cut:
    """Cut a variable into blocks: its own chunks where it has some, else those of the file.

    Parameters
    ----------
    placed : Placed
        The variable; it has elements.
    kind : type of BlockGrid
        What is done with each block.

    Returns
    -------
    variable : Variable
        The same, with its axes in the order of the file; its chunks are the blocks, if it has any.
    blocks : BlockGrid
        Where they go.
    """
    across = _across(placed)
    placed = across[0] if across else in_file_order(placed)
    variable, layout = placed.variable, placed.layout
    block = across[1] if across else layout.chunk_shape(TARGET)
    chunks: Chunks = variable.chunks or cut_evenly(variable.shape, block)
    item = variable.dtype.itemsize
    chunks = writable_chunks(chunks, layout.write_units, layout.bytes_per_element, item)
    if variable.chunks is not None and chunks != variable.chunks:
        variable = variable.chunk(dict(zip(variable.dims, chunks, strict=True)))
    origin = placed.origin or (0,) * variable.ndim
    return variable, kind(layout, placed.conversion, chunks, origin)


def _across(placed: Placed) -> tuple[Placed, tuple[int, ...]] | None:
    """A variable whose own file has another axis fastest, without chunks, and tiles for it.

    Its chunks are ranges of the one file and tiny pieces of the other. Tiles are neither.
    """
    lazy = in_file_order(replace(placed, variable=unchunked(placed.variable)))
    found = unread(lazy.variable) if lazy.variable.chunks is None else None
    if found is None or not found.source.mapped:
        return None
    shape, stored = lazy.variable.shape, found.layout
    inner = stored.inner if isinstance(stored, Transposed) else stored
    if not isinstance(inner, Dense) or stored.shape != shape or len(shape) < 2:
        return None
    axis = stored.axes.index(len(shape) - 1) if isinstance(stored, Transposed) else len(shape) - 1
    if axis == len(shape) - 1:
        return None
    return lazy, tile(shape, axis, max(1, TARGET // lazy.variable.dtype.itemsize))


def in_file_order(placed: Placed) -> Placed:
    """The same with the axes in the order of the file, slowest first."""
    layout = placed.layout
    if not isinstance(layout, Transposed):
        return placed
    order = [layout.axes.index(axis) for axis in range(len(layout.axes))]
    dims = [placed.variable.dims[axis] for axis in order]
    origin = placed.origin and tuple(placed.origin[axis] for axis in order)
    return Placed(placed.variable.transpose(*dims), layout.inner, placed.conversion, origin)
