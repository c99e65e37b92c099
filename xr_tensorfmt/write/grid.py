"""How arrays are cut for writing: arithmetic on chunks alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import isqrt, prod

from xr_tensorfmt.chunks import TARGET
from xr_tensorfmt.layouts.base import WHOLE

Chunks = tuple[tuple[int, ...], ...]
"""Lengths of the chunks along each axis."""

SHORTEST_RUN = 512
"""Bytes below which a system call a piece costs more than merging neighbouring chunks first."""


MOST_MERGED = 4 * TARGET
"""Bytes of memory up to which chunks are merged for the sake of longer pieces."""


def writable_chunks(chunks: Chunks, units: Sequence[int], item: float, held: int) -> Chunks:
    """Chunks that can be written where they belong, each without a look at its neighbours.

    Parameters
    ----------
    chunks : tuple of tuple of int
        Lengths of the chunks along each axis, slowest axis first.
    units : sequence of int
        For each axis the multiple at which it may be cut, or `WHOLE`.
    item : float
        Bytes of an element in the file; less than 1 for bits.
    held : int
        Bytes of an element in memory.

    Returns
    -------
    tuple of tuple of int
        The same chunks, or neighbours of them merged: where a chunk would end inside of a byte,
        and where its pieces in the file would be tiny, as far as memory allows.
    """
    merged = [_aligned(lengths, unit) for lengths, unit in zip(chunks, units, strict=True)]
    for axis in reversed(range(len(merged))):
        whole = prod(sum(lengths) for lengths in merged[axis + 1 :])
        wanted = -(-SHORTEST_RUN // max(1, int(item * whole)))
        others = prod(max(each, default=1) for i, each in enumerate(merged) if i != axis)
        most = MOST_MERGED // max(1, held * others)
        merged[axis] = _at_least(merged[axis], min(wanted, most), most)
        if len(merged[axis]) > 1:
            break
    return tuple(merged)


def _aligned(lengths: tuple[int, ...], unit: int) -> tuple[int, ...]:
    """Without the bounds that are no multiples of the unit."""
    if unit == WHOLE:
        return (sum(lengths),)
    stops = list(accumulate(lengths))
    return _between([stop for stop in stops[:-1] if stop % unit == 0], stops)


def _at_least(lengths: tuple[int, ...], wanted: int, most: int) -> tuple[int, ...]:
    """Neighbours merged until each has as many elements as wanted, but perhaps the last."""
    stops = list(accumulate(lengths))
    kept, last = [], 0
    for stop, following in pairwise(stops):
        if stop - last >= wanted or following - last > most:
            kept.append(stop)
            last = stop
    return _between(kept, stops)


def cut_evenly(shape: tuple[int, ...], block: tuple[int, ...]) -> Chunks:
    """Chunks of one shape, but the last ones.

    Parameters
    ----------
    shape : tuple of int
        Lengths of the axes.
    block : tuple of int
        Lengths of a chunk, which may be larger.

    Returns
    -------
    tuple of tuple of int
    """
    return tuple(
        (step,) * (length // step) + ((length % step,) if length % step else ())
        for length, step in zip(shape, map(min, block, shape), strict=True)
    )


def tile(shape: tuple[int, ...], fast: int, most: int) -> tuple[int, ...]:
    """A block that is long along the axis that is fastest to read, and along the one to write.

    Parameters
    ----------
    shape : tuple of int
        Lengths of the axes, of which the last is fastest where the block is written.
    fast : int
        The axis that is fastest where it is read; another one.
    most : int
        Most elements.

    Returns
    -------
    tuple of int
        Multiples of 64 where an axis is cut.
    """
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


def _between(kept: list[int], stops: list[int]) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in pairwise([0, *kept, *stops[-1:]]))
