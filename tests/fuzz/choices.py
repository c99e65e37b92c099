"""Who chooses how a file is mutated: a random generator, or what else searches for faults."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Choices(Protocol):
    """Where choices come from; `below` is all that there needs to be."""

    def below(self, count: int) -> int:
        """A number from 0 on, below a count."""


class Seeded:
    """Choices of a random generator: case `number` of a seed is the same for ever."""

    def __init__(self, seed: int, number: int) -> None:
        self._random = random.Random(f"{seed}:{number}")
        self.below = self._random.randrange


def pick(choices: Choices, items: Sequence[Item]) -> Item:
    return items[choices.below(len(items))]


def often(choices: Choices, times: int, of: int) -> bool:
    """True so many times of so many."""
    return choices.below(of) < times
