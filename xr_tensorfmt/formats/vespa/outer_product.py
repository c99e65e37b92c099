"""Blocks at their places in the outer product of their labels, with a filling between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.chunk_grid import contiguous_chunk
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Extents, Integers
from xr_tensorfmt.core.header import check_size
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.core.selection import Entry, Selection, entry_indices
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import InMemory
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.vespa.blocks import Blocks
from xr_tensorfmt.formats.vespa.labels import Labels, may_repeat
from xr_tensorfmt.formats.vespa.spec import Header


@dataclass(frozen=True, eq=False)
class OuterProduct(Layout):
    """Each block at one place of a grid; where there is none, a filling."""

    blocks: Blocks
    grid: tuple[int, ...]
    places: Integers
    numbers: Integers
    filling: float

    @property
    def shape(self) -> tuple[int, ...]:
        """The grid, and the axes of a block."""
        return (*self.grid, *self.blocks.lengths)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.blocks.dtype

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Equal parts of the slowest axis that fits."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def extents(self, selection: Selection) -> Extents:
        """The cells of those blocks that lie in the selection."""
        numbers = np.sort(self._stored(selection)[0])
        if not numbers.size:
            return Extents.none()
        return self.blocks.extents(self._of_blocks(numbers, selection))

    def read(self, source: Source, selection: Selection) -> Array:
        """Fill a selection and put the blocks in their places."""
        values = np.full(selection.shape, self.filling, dtype=self.dtype)
        numbers, positions = self._stored(selection)
        if not numbers.size or not values.size:
            return values
        order = np.argsort(numbers)
        stored = self.blocks.read(source, self._of_blocks(numbers[order], selection))
        rank = len(self.grid)
        flat = values.reshape(prod(selection.shape[:rank]), *selection.shape[rank:])
        flat[positions[order]] = stored
        return values

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Look up the block of each point."""
        rank = len(self.grid)
        values = np.full(points[0].shape, self.filling, dtype=self.dtype)
        if not self.places.size:
            return values
        wanted = np.ravel_multi_index(points[:rank], self.grid)
        nearest = np.minimum(np.searchsorted(self.places, wanted), self.places.size - 1)
        found = self.places[nearest] == wanted
        if found.any():
            cells = (axis[found] for axis in points[rank:])
            number = self.numbers[nearest[found]]
            values[found] = self.blocks.read_points(source, (number, *cells))
        return values

    @property
    def prefers_points(self) -> bool:
        """Whether many points at once are better: each read looks for its blocks."""
        return True

    def _of_blocks(self, numbers: Integers, selection: Selection) -> Selection:
        return Selection(self.blocks.shape, (numbers, *selection.entries[len(self.grid) :]))

    def _stored(self, selection: Selection) -> tuple[Integers, Integers]:
        """Blocks in a selection, and where each is in the grid of what is selected."""
        rank = len(self.grid)
        entries = selection.entries[:rank]
        if not all(selection.shape[:rank]):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        # Places are sorted, so that those along the first axis are one range.
        row = prod(self.grid[1:])
        along = entry_indices(entries[0])
        bounds = np.array([along[0] * row, (along[-1] + 1) * row])
        first, last = np.searchsorted(self.places, bounds).tolist()
        numbers = self.numbers[first:last]
        indices = np.unravel_index(self.places[first:last], self.grid)
        position = np.zeros(numbers.shape, dtype=np.int64)
        inside = np.ones(numbers.shape, dtype=np.bool_)
        for entry, index, length in zip(entries, indices, selection.shape[:rank], strict=True):
            within, is_in = _position(entry, index)
            inside &= is_in
            position = position * length + within
        return numbers[inside], position[inside]


def _position(entry: Entry, index: Integers) -> tuple[Integers, NDArray[np.bool_]]:
    """Where indices are among those that an entry selects, and whether they are at all."""
    if isinstance(entry, slice):
        position, rest = np.divmod(index - entry.start, entry.step)
        return position, (rest == 0) & (position >= 0) & (index < entry.stop)
    nearest = np.minimum(np.searchsorted(entry, index), entry.size - 1)
    return nearest, entry[nearest] == index


@dataclass(frozen=True, eq=False)
class Grid:
    """The labels that occur, and which of them each block has."""

    labels: tuple[Array, ...]
    codes: tuple[Integers, ...]

    @classmethod
    def of(cls, labels: Sequence[Array]) -> Grid:
        """Number the labels."""
        numbered = [_numbered(each) for each in labels]
        return cls(tuple(each for each, _ in numbered), tuple(codes for _, codes in numbered))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Different labels of each mapped dimension."""
        return tuple(each.size for each in self.labels)

    @property
    def size(self) -> int:
        """Number of places, in Python's unbounded integers."""
        return prod(self.lengths)

    def sorted_places(self) -> tuple[Integers, Integers]:
        """The flat places of the blocks, ascending, and the blocks in this order."""
        if not self.size:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        places = np.ravel_multi_index(self.codes, self.lengths)
        order = np.argsort(places, kind="stable")
        return places[order], order


def _numbered(labels: Array) -> tuple[Array, Integers]:
    texts = labels.tolist()
    number_of = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    different = np.empty(len(number_of), dtype=labels.dtype)
    different[:] = list(number_of)
    return different, np.fromiter(map(number_of.__getitem__, texts), np.int64, labels.size)


def repeated_block(labels: Sequence[Array]) -> int | None:
    """Find a block all of whose labels an earlier block has as well."""
    if not may_repeat(labels):
        return None
    addresses = list(zip(*(each.tolist() for each in labels), strict=True))
    number_of = dict(zip(reversed(addresses), reversed(range(len(addresses))), strict=True))
    return next((n for n, each in enumerate(addresses) if number_of[each] != n), None)


MOST_FILLED_CELLS = 1 << 32
"""Limit on the cells of an outer product, unless ``fill_value`` says that it is wanted."""


def filled(
    source: Source,
    blocks: Blocks,
    labels: tuple[Labels, ...],
    header: Header,
    options: OpenOptions,
) -> tuple[Layout, tuple[Layout, ...]]:
    """Spread the blocks over the outer product of their labels."""
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
    along = tuple(InMemory(each) for each in grid.labels)
    return OuterProduct(blocks, grid.lengths, places, numbers, filling), along


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
