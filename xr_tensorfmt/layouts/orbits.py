"""Permutations of axes with a sign, and the group that some of them generate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from xr_tensorfmt.extents import Integers

MOST_OPERATIONS = 5040
"""Limit on the size of a group: all permutations of 7 axes."""


@dataclass(frozen=True)
class Operation:
    """``T[i] = sign * T[j]`` with ``j[p] = i[axes[p]]``.

    Parameters
    ----------
    axes : tuple of int
        A permutation of the axes.
    sign : int
        1 or -1.
    """

    axes: tuple[int, ...]
    sign: int

    def after(self, other: Operation) -> Operation:
        """The operation that applies `other` and then this one."""
        return Operation(tuple(other.axes[axis] for axis in self.axes), self.sign * other.sign)

    def images(self, flat: Integers, shape: Sequence[int]) -> Integers:
        """Flat indices ``i`` of the elements that stored elements at flat ``j`` determine."""
        if self.axes == tuple(range(len(shape))):
            return flat
        stored = np.unravel_index(flat, tuple(shape))
        image = [stored[self.axes.index(axis)] for axis in range(len(shape))]
        return np.ravel_multi_index(tuple(image), tuple(shape)).astype(np.int64)


def generated(operations: Iterable[Operation], rank: int) -> tuple[Operation, ...] | None:
    """All products of operations, the identity first.

    Parameters
    ----------
    operations : iterable of Operation
        The generators.
    rank : int
        Number of axes.

    Returns
    -------
    tuple of Operation or None
        The group; None if it has more than 5040 operations.
    """
    group = {Operation(tuple(range(rank)), 1): None}
    generators: list[Operation] = []
    for operation in operations:
        # One that the others generate adds nothing; any other at least doubles the group.
        if operation in group:
            continue
        generators.append(operation)
        fresh = list(group)
        while fresh:
            made, fresh = fresh, []
            for product in (each.after(other) for each in made for other in generators):
                if product not in group:
                    group[product] = None
                    fresh.append(product)
                    if len(group) > MOST_OPERATIONS:
                        return None
    return tuple(group)
