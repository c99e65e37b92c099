"""How arrays are cut for writing: arithmetic on chunks alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod

from xr_tensorfmt.write.packing import WHOLE

Chunks = tuple[tuple[int, ...], ...]
"""Lengths of the chunks along each axis."""

SHORTEST_RUN = 512
"""Bytes below which a system call a piece costs more than merging neighbouring chunks first."""


def writable_chunks(chunks: Chunks, units: Sequence[int], item: float) -> Chunks:
    """Chunks that can be written where they belong, each without a look at its neighbours.

    Parameters
    ----------
    chunks : tuple of tuple of int
        Lengths of the chunks along each axis, slowest axis first.
    units : sequence of int
        For each axis the multiple at which it may be cut, or `WHOLE`.
    item : float
        Bytes of an element in the file; less than 1 for bits.

    Returns
    -------
    tuple of tuple of int
        The same chunks, or neighbours of them merged: where a chunk would end inside of a byte,
        and where its pieces in the file would be tiny.
    """
    merged = [_aligned(lengths, unit) for lengths, unit in zip(chunks, units, strict=True)]
    for axis in reversed(range(len(merged))):
        whole = prod(sum(lengths) for lengths in merged[axis + 1 :])
        wanted = -(-SHORTEST_RUN // max(1, int(item * whole)))
        merged[axis] = _at_least(merged[axis], wanted)
        if len(merged[axis]) > 1:
            break
    return tuple(merged)


def _aligned(lengths: tuple[int, ...], unit: int) -> tuple[int, ...]:
    """Without the bounds that are no multiples of the unit."""
    if unit == WHOLE:
        return (sum(lengths),)
    stops = list(accumulate(lengths))
    return _between([stop for stop in stops[:-1] if stop % unit == 0], stops)


def _at_least(lengths: tuple[int, ...], wanted: int) -> tuple[int, ...]:
    """Neighbours merged until each has as many elements as wanted, but perhaps the last."""
    stops = list(accumulate(lengths))
    kept, last = [], 0
    for stop in stops[:-1]:
        if stop - last >= wanted:
            kept.append(stop)
            last = stop
    return _between(kept, stops)


def _between(kept: list[int], stops: list[int]) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in pairwise([0, *kept, *stops[-1:]]))
