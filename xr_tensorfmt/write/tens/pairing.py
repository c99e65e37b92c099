"""Elements that are not zero, as pairs of index and value: how many, and their bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.elements import Array
from xr_tensorfmt.extents import Extents, Integers
from xr_tensorfmt.layouts import Layout, Pairs
from xr_tensorfmt.layouts.base import BATCH, Encoded, raw_bytes
from xr_tensorfmt.layouts.pairtable import INDEX_BYTES
from xr_tensorfmt.selection import MOST_RUNS, Selection
from xr_tensorfmt.sources.base import Source
from xr_tensorfmt.write.grid import Chunks

Found = tuple[Integers, Array]
"""Global indices, ascending, and the stored values there, each with its components."""


def pair_dtype(stored: np.dtype[Any], components: int) -> np.dtype[Any]:
    """A pair as it lies in a file.

    Parameters
    ----------
    stored : dtype
        One component of a value.
    components : int
        Numbers that make up a value.

    Returns
    -------
    dtype
        With fields ``index`` and ``value``.
    """
    return np.dtype([("index", "<u8"), ("value", stored, (components,))])


@dataclass(frozen=True, eq=False)
class CountedPairs(Layout):
    """Pairs whose number is known for each block in which they are written.

    Parameters
    ----------
    pairs : Pairs
        The tensor, all its pairs, and where the first of them is.
    chunks : tuple of tuple of int
        Lengths of the blocks along each axis.
    counts : ndarray of int64
        How many pairs each block has, blocks in C order.
    """

    pairs: Pairs
    chunks: Chunks
    counts: Integers

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the tensor."""
        return self.pairs.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.pairs.dtype

    @cached_property
    def _begins(self) -> list[list[int]]:
        return [list(accumulate(lengths, initial=0)) for lengths in self.chunks]

    @cached_property
    def _stops(self) -> Integers:
        return np.cumsum(self.counts)

    def numbers(self, selection: Selection) -> tuple[int, int]:
        """Number of the first pair of a block, and that behind its last; or those of all."""
        if not selection.size:
            return 0, 0  # it begins where another block does
        if selection.size == prod(self.shape):
            return 0, self.pairs.count
        begins = zip(self._begins, _starts(selection), strict=True)
        block = [bisect_right(*each) - 1 for each in begins]
        lengths = tuple(each[i] for each, i in zip(self.chunks, block, strict=True))
        assert selection.shape == lengths, "pairs are counted in other blocks"
        number = int(np.ravel_multi_index(block, tuple(map(len, self.chunks))))
        stop = int(self._stops[number])
        return stop - int(self.counts[number]), stop

    def extents(self, selection: Selection) -> Extents:
        """The pairs of a block, or all of them."""
        first, stop = self.numbers(selection)
        if first == stop:
            return Extents.none()
        stride, begin = self.pairs.table.stride, self.pairs.offset
        return Extents.single(begin + first * stride, begin + stop * stride)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """That of the tensor."""
        return self.pairs.chunk_shape(target)

    def read(self, source: Source, selection: Selection) -> Array:
        """Read a selection, which may be any."""
        return self.pairs.read(source, selection)

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read single elements."""
        return self.pairs.read_points(source, points)

    @property
    def write_units(self) -> tuple[int, ...]:
        """Those of the tensor."""
        return self.pairs.write_units

    @property
    def bytes_per_element(self) -> float:
        """As if no element were zero."""
        return self.pairs.bytes_per_element

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """The pairs of a block, as many as were counted."""
        pairs, (first, stop) = self.pairs, self.numbers(selection)
        dtype = pair_dtype(pairs.element.stored, pairs.components)
        done = first
        for index, stored in found(pairs, selection, values):
            made = np.empty(index.size, dtype=dtype)
            made["index"], made["value"] = index, stored
            begin = pairs.offset + done * dtype.itemsize
            done += index.size
            if done > stop:
                break
            if index.size:
                yield Extents.single(begin, begin + made.nbytes), raw_bytes(made)
        if done != stop:
            raise ValueError(
                f"{stop - first} values of a chunk were not zero when they were counted, and "
                f"{'more' if done > stop else done - first} when they were written; they must be "
                "the same each time they are computed, so call load() or persist() first"
            )


def found(layout: Pairs, selection: Selection, values: Array) -> Iterator[Found]:
    """The elements of a block that are stored.

    Parameters
    ----------
    layout : Pairs
        The tensor. Of the elements that its symmetries relate, the first one stands for all.
    selection : Selection
        Which elements the block has: slices of step 1, and all components.
    values : ndarray
        The values.

    Yields
    ------
    tuple of (ndarray of int64, ndarray)
        A batch of them. What has any bit set is stored: NaN and the negative zero too.
    """
    rank, components = len(layout.lengths), layout.components
    block = Selection.everything(values.shape[:rank])
    step = max(1, BATCH // (components * layout.element.stored.itemsize))
    for batch in block.batches(runs=MOST_RUNS, span=step):
        stored = layout.element.encode(values[(*batch.entries, ...)]).reshape(-1, components)
        positions = np.flatnonzero(_has_bits(stored))
        index = _global(positions, batch, selection, layout.lengths)
        for operation in layout.orbit[1:]:
            kept = operation.images(index, layout.lengths) >= index
            positions, index = positions[kept], index[kept]
        yield index, stored[positions]


def count(layout: Pairs, selection: Selection, values: Array) -> int:
    """How many elements of a block are stored; as `found`."""
    return sum(index.size for index, _ in found(layout, selection, values))


def _has_bits(stored: Array) -> NDArray[np.bool_]:
    """Rows in which any bit is set."""
    size = min(INDEX_BYTES, stored.itemsize)
    words = stored.view(f"u{size}")
    found = words[:, 0] != 0
    for column in range(1, words.shape[1]):
        found |= words[:, column] != 0
    return np.asarray(found)


def _global(
    positions: Integers, batch: Selection, block: Selection, whole: tuple[int, ...]
) -> Integers:
    """Flat positions in a part of a block as flat positions in the tensor."""
    if not whole:
        return positions
    along = np.unravel_index(positions, batch.shape)
    starts = zip(_starts(batch), _starts(block), strict=False)  # a component has no index
    index = tuple(each + sum(start) for each, start in zip(along, starts, strict=True))
    return np.ravel_multi_index(index, whole).astype(np.int64, copy=False)


def _starts(selection: Selection) -> list[int]:
    """Where slices begin."""
    return [entry.start for entry in selection.entries if isinstance(entry, slice)]
