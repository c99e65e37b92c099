"""The random choices of mutations.

Measured with the faults of `tests.fuzz.faults`, the same mutations, 20 s of processor time each,
and another engine that makes the choices: atheris 3.0, which is led by the coverage of the
package, and the targeted search of hypothesis, whose target was how many functions of the package
were entered. Cases and seconds until a fault was found, of one seed:

=============================================  ===========  ============  ============
fault                                          random       atheris       hypothesis
=============================================  ===========  ============  ============
a key that is not in the pool                  86, 0.5 s    1703, 10.2 s  1213, 17.8 s
lengths that are no numbers                    302, 1.0 s   376, 2.8 s    no
metadata of another type                       90, 0.6 s    78, 0.6 s     3, 0.9 s
a header that numpy's parser cannot tokenize   37, 0.4 s    no            14, 0.9 s
offsets that are no numbers                    52, 0.5 s    1249, 7.5 s   no
a value of YAML of another type                7, 0.5 s     5, 0.2 s      121, 2.1 s
=============================================  ===========  ============  ============

What is found depends on the mutations, which all had, and on the rate: 170 to 580 cases a second of
processor time with random choices, 130 to 400 with atheris, 60 to 80 with hypothesis. So none of
the two is used. A case of a seed is also the same in whatever process it is made.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Choices(Protocol):
    """The source of random choices."""

    def below(self, count: int) -> int:
        """Return an integer from 0 to `count` - 1."""


class Seeded:
    """Choices of a seeded random generator."""

    def __init__(self, seed: int, number: int) -> None:
        self._random = random.Random(f"{seed}:{number}")
        self.below = self._random.randrange


def pick(choices: Choices, items: Sequence[Item]) -> Item:
    return items[choices.below(len(items))]


def choose_often(choices: Choices, times: int, of: int) -> bool:
    """Return True with a probability of `times` in `of`."""
    return choices.below(of) < times
