"""Parts: which bytes one request fetches, and where they go. Pure planning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from xr_tensorfmt.extents import Bytes, Extents


@dataclass(frozen=True, eq=False)
class Part:
    """The bytes ``[start, stop)``, fetched by one request.

    Parameters
    ----------
    start, stop : int
        What is fetched, in bytes from the start of the file.
    extents : Extents
        What is needed of it.
    position : int
        Where that goes among all that is needed.
    """

    start: int
    stop: int
    extents: Extents
    position: int

    @property
    def size(self) -> int:
        """Bytes that are fetched."""
        return self.stop - self.start

    @property
    def whole(self) -> bool:
        """Whether every byte that is fetched is needed."""
        return self.extents.nbytes == self.size

    def target(self, packed: Bytes) -> Bytes:
        """Where the needed bytes go, as a view of all of them."""
        return packed[self.position : self.position + self.extents.nbytes]

    def place(self, packed: Bytes, fetched: Bytes) -> None:
        """Put what was fetched where it goes, without what is not needed."""
        self.target(packed)[:] = fetched if self.whole else self.extents.gather(fetched, self.start)


def merged_parts(extents: Extents, *, gap: int, limit: int) -> Iterator[Part]:
    """One part for each group of near ranges, however long a range is.

    Parameters
    ----------
    extents : Extents
        What is needed.
    gap, limit : int
        As for `Extents.merged`.

    Yields
    ------
    Part
        In the order of the file.
    """
    position = 0
    for group in extents.merged(gap=gap, limit=limit):
        yield Part(*group.bounds, group, position)
        position += group.nbytes


def even_parts(extents: Extents, *, gap: int, smallest: int, largest: int, most: int) -> list[Part]:
    """Parts of about one size, which several requests at a time fetch best.

    Parameters
    ----------
    extents : Extents
        What is needed.
    gap : int
        Most bytes to fetch in vain in order to spare one request.
    smallest, largest : int
        Between these is the size of the parts of a long range.
    most : int
        How many requests go at the same time; parts are as small as gives work to all.

    Returns
    -------
    list of Part
        In the order of the file. None is longer than `largest`, and those of a long range are as
        equal as can be.
    """
    gaps = extents.gaps
    fetched = extents.nbytes + int(gaps[gaps <= gap].sum())
    size = min(max(fetched // most, smallest), largest)
    parts: list[Part] = []
    for group in merged_parts(extents, gap=gap, limit=size):
        parts += [group] if group.size <= size else _divided(group, size, largest)
    return parts


def _divided(group: Part, size: int, largest: int) -> Iterator[Part]:
    """Cut the last range of a group, which is all that can be long, off the others."""
    if len(group.extents) > 1:
        if group.size <= largest:
            yield group
            return
        before = Extents(group.extents.starts[:-1], group.extents.lengths[:-1])
        yield Part(*before.bounds, before, group.position)
    first, length = int(group.extents.starts[-1]), int(group.extents.lengths[-1])
    position = group.position + group.extents.nbytes - length
    count = -(-length // size)
    edges = [length * number // count for number in range(count + 1)]
    for lower, upper in pairwise(edges):
        piece = Extents.single(first + lower, first + upper)
        yield Part(first + lower, first + upper, piece, position + lower)
