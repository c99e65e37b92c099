"""The blocks in which variables are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import isqrt, prod
from typing import TYPE_CHECKING, Any

import numpy as np
from xarray import Variable

from xr_tensorfmt.core.chunk_grid import DEFAULT_CHUNK_BYTES
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.layout import WHOLE, WritableLayout
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.views import Transposed, file_order
from xr_tensorfmt.datasets.lazy_array import drop_chunks, get_lazy_read
from xr_tensorfmt.writing.conversion import Conversion, check_dense
from xr_tensorfmt.writing.write_target import WriteTarget

if TYPE_CHECKING:
    from xr_tensorfmt.writing.file_plan import PlannedVariable

Chunks = tuple[tuple[int, ...], ...]
"""Lengths of the chunks along each axis."""

SHORTEST_RUN = 512
"""Bytes of a piece below which merging neighbouring chunks costs less than a system call."""

MAX_MERGED = 4 * DEFAULT_CHUNK_BYTES
"""Bytes of memory up to which chunks are merged into longer pieces."""


def writable_chunks(chunks: Chunks, units: Sequence[int], stored: float, itemsize: int) -> Chunks:
    """Merge chunks that would share bytes or be written in tiny pieces.

    `stored` and `itemsize` are the bytes of an element in the file and in memory.
    """
    merged = [_aligned(lengths, unit) for lengths, unit in zip(chunks, units, strict=True)]
    for axis in reversed(range(len(merged))):
        whole = prod(sum(lengths) for lengths in merged[axis + 1 :])
        wanted = -(-SHORTEST_RUN // max(1, int(stored * whole)))
        others = prod(max(each, default=1) for i, each in enumerate(merged) if i != axis)
        most = MAX_MERGED // max(1, itemsize * others)
        merged[axis] = _at_least(merged[axis], min(wanted, most), most)
        if len(merged[axis]) > 1:
            break
    return tuple(merged)


def _aligned(lengths: tuple[int, ...], unit: int) -> tuple[int, ...]:
    """Merge chunks whose bounds are not multiples of the unit."""
    if unit == WHOLE:
        return (sum(lengths),)
    merged: list[int] = []
    for length in lengths:
        if merged and merged[-1] % unit:
            merged[-1] += length
        else:
            merged.append(length)
    return tuple(merged)


def _at_least(lengths: tuple[int, ...], wanted: int, most: int) -> tuple[int, ...]:
    """Merge neighbours until all but the last have as many elements as wanted, but not too many."""
    merged: list[int] = []
    for length in lengths:
        if merged and merged[-1] < wanted and merged[-1] + length <= most:
            merged[-1] += length
        else:
            merged.append(length)
    return tuple(merged)


def cut_evenly(shape: tuple[int, ...], block: tuple[int, ...]) -> Chunks:
    """Cut a shape into blocks of one shape, but for the last ones."""
    return tuple(
        (step,) * (length // step) + ((length % step,) if length % step else ())
        for length, step in zip(shape, map(min, block, shape), strict=True)
    )


def tile(shape: tuple[int, ...], fast: int, most: int) -> tuple[int, ...]:
    """Shape of a block that is long along the fastest axis of both the source and the file."""
    last = len(shape) - 1
    side = max(1, isqrt(most))
    block = [1] * len(shape)
    block[last] = _rounded(shape[last], max(side, most // max(1, shape[fast])))
    block[fast] = _rounded(shape[fast], most // block[last])
    for axis in reversed(range(last)):
        if axis != fast:
            block[axis] = min(max(1, shape[axis]), max(1, most // prod(block)))
    return tuple(block)


def _rounded(length: int, most: int) -> int:
    if most >= length:
        return max(1, length)
    return max(1, most - most % 64 if most >= 64 else most)


@dataclass(frozen=True)
class BlockGrid:
    """The blocks of a variable, which can be written independently."""

    layout: WritableLayout
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
        """Indices of a block along each axis, from its number in C order."""
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

    def write(self, number: int, values: Any, file: WriteTarget) -> None:
        """Convert, encode and write the values of a block."""
        file.write(self.layout.encode(*self.converted(number, values)))

    def converted(self, number: int, values: Any) -> tuple[Selection, Array]:
        """Which elements of the layout a block is, and its values with the dtype of the file."""
        selection = self.selection(number)
        return selection, self.conversion.apply(self.plain(values, selection.shape))

    def plain(self, values: Any, shape: tuple[int, ...]) -> Array:
        """Values as a plain array; TypeError if they are masked, ValueError if of another shape."""
        name = self.conversion.name
        check_dense(name, values)
        if np.ma.isMaskedArray(values):
            raise TypeError(f"{name!r} has masked values; fill them first, as by da.ma.filled")
        array = np.asarray(values)
        if array.shape != shape:
            raise ValueError(
                f"{name!r} has a chunk of shape {array.shape} where dask has announced {shape}; "
                "pass the right chunks= to map_blocks or the like"
            )
        return array


GriddedVariable = tuple[Variable, BlockGrid]
"""A variable with its axes in the order of the file, and its blocks."""


def block_grids(variables: Iterable[PlannedVariable]) -> list[GriddedVariable]:
    """Divide all variables that have elements into blocks."""
    return [block_grid(placed) for placed in variables if placed.variable.size]


def block_grid(placed: PlannedVariable) -> GriddedVariable:
    """Divide a variable into its own chunks, or else into chunks of the layout."""
    across = _with_other_fastest_axis(placed)
    variable, layout, origin = across[0] if across else in_file_order(placed)
    block = across[1] if across else layout.chunk_shape(DEFAULT_CHUNK_BYTES)
    chunks: Chunks = variable.chunks or cut_evenly(variable.shape, block)
    item = variable.dtype.itemsize
    stored_bytes = layout.extents(Selection.everything(layout.shape)).nbytes / prod(layout.shape)
    chunks = writable_chunks(chunks, layout.write_units, stored_bytes, item)
    if variable.chunks is not None and chunks != variable.chunks:
        variable = variable.chunk(dict(zip(variable.dims, chunks, strict=True)))
    return variable, BlockGrid(layout, placed.conversion, chunks, origin)


Ordered = tuple[Variable, WritableLayout, tuple[int, ...]]
"""A variable, its layout and its origin, with the axes in file order."""


def _with_other_fastest_axis(placed: PlannedVariable) -> tuple[Ordered, tuple[int, ...]] | None:
    """A lazy variable whose own file has another fastest axis, and the shape of blocks for it."""
    lazy = in_file_order(replace(placed, variable=drop_chunks(placed.variable)))
    variable = lazy[0]
    found = get_lazy_read(variable) if variable.chunks is None else None
    if found is None or not found.source.mapped:
        return None
    shape, stored = variable.shape, found.layout
    if not isinstance(stored, Transposed) or not isinstance(stored.inner, Dense):
        return None
    axis = stored.axes.index(len(shape) - 1)
    if stored.shape != shape or axis == len(shape) - 1:
        return None
    return lazy, tile(shape, axis, max(1, DEFAULT_CHUNK_BYTES // variable.dtype.itemsize))


def in_file_order(placed: PlannedVariable) -> Ordered:
    """Transpose a variable so that its axes are in file order, slowest first."""
    layout, axes = file_order(placed.layout)
    origin = placed.origin or (0,) * len(axes)
    variable = placed.variable.transpose(*(placed.variable.dims[axis] for axis in axes))
    return variable, layout, tuple(origin[axis] for axis in axes)
