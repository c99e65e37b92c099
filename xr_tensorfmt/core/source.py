"""The protocol of a source of bytes, and how byte ranges become requests."""

from __future__ import annotations

import errno
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.errors import TensorFormatError


@dataclass(frozen=True, eq=False)
class Part:
    """The bytes ``[start, stop)``, fetched by one request for some ranges."""

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
        """Whether all bytes that are fetched are needed."""
        return self.extents.nbytes == self.size

    def target(self, packed: Bytes) -> Bytes:
        """The view of the packed bytes into which this part goes."""
        return packed[self.position : self.position + self.extents.nbytes]

    def place(self, packed: Bytes, fetched: Bytes) -> None:
        """Copy the needed bytes of what was fetched to their place."""
        self.target(packed)[:] = fetched if self.whole else self.extents.gather(fetched, self.start)


def merged_parts(extents: Extents, *, gap: int, limit: int) -> Iterator[Part]:
    """One part for each group of neighbouring ranges; long ranges are not divided."""
    position = 0
    for group in extents.merged(gap=gap, limit=limit):
        yield Part(*group.bounds, group, position)
        position += group.nbytes


def even_parts(extents: Extents, *, gap: int, smallest: int, largest: int, most: int) -> list[Part]:
    """Parts of similar size, for concurrent requests."""
    gaps = extents.gaps
    fetched = extents.nbytes + int(gaps[gaps <= gap].sum())
    size = min(max(fetched // most, smallest), largest)
    parts: list[Part] = []
    for group in merged_parts(extents, gap=gap, limit=size):
        parts += [group] if group.size <= size else _divided(group, size, largest)
    return parts


def _divided(group: Part, size: int, largest: int) -> Iterator[Part]:
    """Divide the last range of a group, which is the only one that can be long."""
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
"""Fills a buffer with the bytes from an offset on, and returns how many there were."""

MAX_WINDOW = 64 << 20
"""Limit on the bytes of a window that values are copied from.

Touched pages of a window count as memory of the process as long as the window exists.
"""

# A request costs about as much as reading this many bytes, so smaller gaps are read too.
_GAP = 16 << 10
# Limit on the span of a merged request, and so on its memory.
_SCRATCH = 8 << 20


class Source(ABC):
    """A file or its equivalent: name, size and bytes.

    A source of a path or URL keeps what identifies the file, such as its size and modification
    time, and no open file, so that it pickles small. A source of a file object keeps the object
    open and shares its position; a source of bytes in memory pickles all of them.
    """

    size: int
    mapped: bool = False
    """Whether `window` returns windows, from which values are converted without another copy."""
    high_latency: bool = False
    """Whether requests have a high latency, so that few large ones are best."""
    read_ahead: int = 4096
    """Least bytes to fetch for a header; by default one page."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The path or URL, or a description; every error message begins with it."""

    @property
    def store(self) -> Hashable:
        """What shares threads with this source; a store that does not answer blocks no other."""
        return None

    @abstractmethod
    def opened(self) -> AbstractContextManager[Fill]:
        """Open the source for a batch of requests."""

    def window(self, start: int, stop: int) -> Bytes | None:
        """Bytes that are fetched only where they are touched.

        Parameters
        ----------
        start, stop : int
            The range, in bytes from the start of the file.

        Returns
        -------
        ndarray of uint8 or None
            Writable memory that belongs to the caller; None where the source has no windows, or
            the range is too small for one.
        """
        return None

    def sibling(self, path: str) -> tuple[Source, bytes] | None:
        """Another file in the same directory.

        Parameters
        ----------
        path : str
            Its path relative to the directory of this file, with ``/`` as separator.

        Returns
        -------
        tuple of (Source, bytes) or None
            The file, and its first bytes where opening it fetches them; None where this source is
            not in a directory.

        Raises
        ------
        OSError
            The file does not exist.
        """
        return None

    def run(self, read: Callable[[int], None], numbers: Iterable[int]) -> None:
        """Do several reads; a source with a high latency does them concurrently."""
        for number in numbers:
            read(number)

    def parts(self, extents: Extents) -> Iterable[Part]:
        """The requests of `read`, in the order of the file."""
        return merged_parts(extents, gap=_GAP, limit=_SCRATCH)

    def fetched(self, part: Part) -> int:
        """Bytes that are transferred for a part."""
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
            The ranges one after the other, in memory that belongs to the caller.

        Raises
        ------
        TensorFormatError
            The source ends before a range does.
        SourceChangedError
            The file was changed or replaced after it had been opened.
        """
        packed = np.empty(extents.nbytes, dtype=np.uint8)
        with self.opened() as fill:
            for part in self.parts(extents):
                whole = part.whole
                fetched = part.target(packed) if whole else np.empty(part.size, dtype=np.uint8)
                self._fill(fill, part.start, fetched)
                if not whole:
                    part.place(packed, fetched)
        return packed

    def read_bytes(self, start: int, stop: int) -> bytes:
        """Fetch one short range, as of a header; the errors of `read`."""
        return self.read(Extents.single(start, stop)).tobytes()

    def _fill(self, fill: Fill, start: int, target: Bytes) -> None:
        view = target.data
        done = 0
        while done < target.size:
            count = fill(start + done, view[done:])
            if not count:
                end, expected = start + done, f"{target.size} bytes from byte {start} on"
                hint = "the file was truncated while it was read; fetch it again"
                raise TensorFormatError(
                    self.name, "the file's end", end, expected, hint, offset=end
                )
            done += count


_LONGEST_NAME = 255
_SURROGATE = re.compile("[\ud800-\udfff]")


def is_file_name(part: object) -> bool:
    """Whether something can be a part of the name of a file in the same directory."""
    if not isinstance(part, str) or part in ("", ".", "..") or set("/\\:\0") & set(part):
        return False
    # Not what no system allows, or UTF-8 cannot encode, as JSON can state it.
    return len(part.encode(errors="replace")) <= _LONGEST_NAME and not _SURROGATE.search(part)


def open_sibling(source: Source, file: str, reason: str) -> tuple[Source, bytes]:
    """Open a file in the same directory that is needed for a reason; the errors of `sibling`."""
    try:
        beside = source.sibling(file)
    except FileNotFoundError:
        place = re.sub(r"[^/\\]*\Z", lambda _: file, source.name, count=1)
        message = f"{reason} and is missing; fetch it too"
        raise FileNotFoundError(errno.ENOENT, message, place) from None
    if beside is None:
        raise no_sibling_error(source)
    return beside


def no_sibling_error(source: Source) -> ValueError:
    """The error about a source that is not in a directory and has need of other files."""
    return ValueError(
        f"{source.name} has no directory in which its files could be; open it by its path or URL"
    )
