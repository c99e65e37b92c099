"""The outer product of the labels of all blocks, and labels that are repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from xr_tensorfmt.elements import Array
from xr_tensorfmt.extents import Integers
from xr_tensorfmt.layouts.texts import may_repeat


@dataclass(frozen=True, eq=False)
class Grid:
    """The labels that occur, and which of them each block has.

    Parameters
    ----------
    labels : tuple of ndarray
        For each mapped dimension its different labels, in the order in which they first occur.
    codes : tuple of ndarray
        For each mapped dimension and each block the number of its label.
    """

    labels: tuple[Array, ...]
    codes: tuple[Integers, ...]

    @classmethod
    def of(cls, labels: Sequence[Array]) -> Grid:
        """Number the labels.

        Parameters
        ----------
        labels : sequence of ndarray of object
            For each mapped dimension the label of each block.

        Returns
        -------
        Grid
        """
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
    """Find a block all of whose labels an earlier block has as well.

    Parameters
    ----------
    labels : sequence of ndarray of object
        For each mapped dimension the label of each block.

    Returns
    -------
    int or None
        The number of the first such block.
    """
    if not may_repeat(labels):
        return None
    addresses = list(zip(*(each.tolist() for each in labels), strict=True))
    number_of = dict(zip(reversed(addresses), reversed(range(len(addresses))), strict=True))
    return next((n for n, each in enumerate(addresses) if number_of[each] != n), None)
