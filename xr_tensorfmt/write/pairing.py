"""Elements that are not zero, as pairs of index and value: how many, and their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.elements import Array
from xr_tensorfmt.extents import Extents, Integers
from xr_tensorfmt.layouts import Pairs
from xr_tensorfmt.layouts.pairtable import INDEX_BYTES
from xr_tensorfmt.write.packing import BATCH, Packed, raw_bytes

Found = tuple[Integers, Array]
"""Global indices, ascending, and the stored values there, each with its components."""


@dataclass(frozen=True)
class Box:
    """Which elements of a tensor a block has, and its values.

    Parameters
    ----------
    start : tuple of int
        Index of its first element, without that of the component.
    values : ndarray
        The values, axes in the order of the file; components are the last axis, where there are
        several.
    """

    start: tuple[int, ...]
    values: Array


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


def found(layout: Pairs, box: Box) -> Iterator[Found]:
    """The elements of a block that are stored.

    Parameters
    ----------
    layout : Pairs
        The tensor. Of the elements that its symmetries relate, the first one stands for all.
    box : Box
        The block.

    Yields
    ------
    tuple of (ndarray of int64, ndarray)
        A batch of them. What has any bit set is stored: NaN and the negative zero too.
    """
    rank, components = len(layout.lengths), layout.components
    lengths = box.values.shape[:rank]
    stored = layout.element.encode(box.values).reshape(-1, components)
    step = max(1, BATCH // (components * stored.itemsize))
    for first in range(0, len(stored), step):
        positions = first + np.flatnonzero(_has_bits(stored[first : first + step]))
        index = _global(positions, lengths, box.start, layout.lengths)
        for operation in layout.orbit[1:]:
            kept = operation.images(index, layout.lengths) >= index
            positions, index = positions[kept], index[kept]
        yield index, stored[positions]


def count(layout: Pairs, box: Box) -> int:
    """How many elements of a block are stored."""
    return sum(index.size for index, _ in found(layout, box))


def pack_pairs(layout: Pairs, box: Box, first: int, expected: int) -> Iterator[Packed]:
    """The pairs of a block as bytes.

    Parameters
    ----------
    layout : Pairs
        The tensor, and where its first pair is.
    box : Box
        The block.
    first : int
        Number of the first of its pairs.
    expected : int
        How many there are.

    Yields
    ------
    tuple of (Extents, ndarray of uint8)
        A batch of pairs.

    Raises
    ------
    ValueError
        There are more or fewer, for which no place was left.
    """
    dtype = pair_dtype(layout.element.stored, layout.components)
    done = 0
    for index, values in found(layout, box):
        pairs = np.empty(index.size, dtype=dtype)
        pairs["index"], pairs["value"] = index, values
        done += index.size
        if done > expected:
            break
        begin = layout.offset + (first + done - index.size) * dtype.itemsize
        if index.size:
            yield Extents.single(begin, begin + pairs.nbytes), raw_bytes(pairs)
    if done != expected:
        raise ValueError(
            f"{expected} values of a chunk were not zero when they were counted, and "
            f"{'more' if done > expected else done} when they were written; they must be the same "
            "each time they are computed, so call load() or persist() first"
        )


def _has_bits(stored: Array) -> NDArray[np.bool_]:
    """Rows in which any bit is set."""
    size = min(INDEX_BYTES, stored.itemsize)
    words = stored.view(f"u{size}")
    found = words[:, 0] != 0
    for column in range(1, words.shape[1]):
        found |= words[:, column] != 0
    return np.asarray(found)


def _global(
    positions: Integers, block: tuple[int, ...], start: tuple[int, ...], whole: tuple[int, ...]
) -> Integers:
    """Flat positions in a block as flat positions in the tensor."""
    if not block:
        return positions
    along = np.unravel_index(positions, block)
    index = tuple(each + first for each, first in zip(along, start, strict=True))
    return np.ravel_multi_index(index, whole).astype(np.int64, copy=False)
