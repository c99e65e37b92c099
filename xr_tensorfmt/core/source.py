"""Parts: which bytes one request fetches, and where they go. Pure planning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.errors import TensorFormatError


@dataclass(frozen=True, eq=False)
class Part:
    """The bytes ``[start, stop)``, fetched by one request."""

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
    """One part for each group of near ranges, however long a range is."""
    position = 0
    for group in extents.merged(gap=gap, limit=limit):
        yield Part(*group.bounds, group, position)
        position += group.nbytes


def even_parts(extents: Extents, *, gap: int, smallest: int, largest: int, most: int) -> list[Part]:
    """Parts of about one size, which several requests at a time fetch best."""
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


Fill = Callable[[int, memoryview], int]
"""Fill a buffer with the bytes from an offset on; returns how many there were."""

LARGEST_WINDOW = 64 << 20
"""Bytes of the windows that values are copied out of.

The pages of a window that were touched count as memory of the process while it is there.
"""

# A request costs about as much as moving this many bytes, so that smaller gaps are read over.
_GAP = 16 << 10
# Merged requests span about this much, which bounds the memory that they take.
_SCRATCH = 8 << 20


class Source(ABC):
    """A file, or what stands for one: its size, its name and its bytes.

    Sources are stateless and picklable: nothing stays open between two reads.
    """

    size: int
    mapped: bool = False
    """Whether `window` gives windows, so that values are best converted straight out of them."""
    distant: bool = False
    """Whether each request takes its time, so that few and large ones are best."""
    read_ahead: int = 4096
    """Bytes worth fetching at least for a header; by default what a disk reads anyway."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The path, or a word for what has none; it opens every error message."""

    @abstractmethod
    def opened(self) -> AbstractContextManager[Fill]:
        """Make ready for a batch of requests."""

    def window(self, start: int, stop: int) -> Bytes | None:
        """Bytes that are fetched only where they are touched.

        Parameters
        ----------
        start, stop : int
            The range, in bytes from the start of the file.

        Returns
        -------
        ndarray of uint8 or None
            Writable memory that is the caller's own, or None where the source has no such thing
            or the range is too small to profit.
        """
        return None

    def sibling(self, path: str) -> Source | None:
        """Another file beside this one.

        Parameters
        ----------
        path : str
            Its path, with ``/`` between its parts, from the folder of this file on.

        Returns
        -------
        Source or None
            None where this source is not in a folder.

        Raises
        ------
        OSError
            There is no such file.
        """
        return None

    def run(self, read: Callable[[int], None], numbers: Iterable[int]) -> None:
        """Do several reads; a source that takes its time to answer does some at the same time."""
        for number in numbers:
            read(number)

    def parts(self, extents: Extents) -> Iterable[Part]:
        """What `read` would fetch by one request each, in the order of the file."""
        return merged_parts(extents, gap=_GAP, limit=_SCRATCH)

    def fetched(self, part: Part) -> int:
        """Bytes that fetching a part moves."""
        return part.size

    def read(self, extents: Extents) -> Bytes:
        """Fetch byte ranges.

        Parameters
        ----------
        extents : Extents
            The ranges; at least one.

        Returns
        -------
        ndarray of uint8
            The ranges one after the other, in memory that is the caller's own.

        Raises
        ------
        TensorFormatError
            The source ends before a range does.
        SourceChangedError
            The file is no longer the one that was opened.
        """
        packed = np.empty(extents.nbytes, dtype=np.uint8)
        with self.opened() as fill:
            for part in self.parts(extents):
                if part.whole:
                    self._fill(fill, part.start, part.target(packed))
                    continue
                around = np.empty(part.size, dtype=np.uint8)
                self._fill(fill, part.start, around)
                part.place(packed, around)
        return packed

    def _fill(self, fill: Fill, start: int, target: Bytes) -> None:
        view = target.data
        done = 0
        while done < target.size:
            count = fill(start + done, view[done:])
            if not count:
                raise TensorFormatError(
                    self.name,
                    "the file's end",
                    start + done,
                    f"{target.size} bytes from byte {start} on",
                    "the file was cut off while it was read; fetch it again",
                    offset=start + done,
                )
            done += count
