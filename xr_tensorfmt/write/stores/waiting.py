"""Where bytes of a segment are until their turn comes: in memory, or in a file without a name."""

from __future__ import annotations

import os
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from threading import Lock

import numpy as np

from xr_tensorfmt.extents import Bytes, Extents
from xr_tensorfmt.layouts.base import Encoded
from xr_tensorfmt.write.placing import write_extents
from xr_tensorfmt.write.stores.segments import Segment

BLOCK = 8 << 20
"""Bytes that are read of a file at a time, to be sent."""


class Waiting(ABC):
    """The bytes of a segment, as they come.

    Parameters
    ----------
    segment : Segment
        Which.
    """

    held = 0
    """Bytes of memory that it takes."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment

    @abstractmethod
    def put(self, packed: Sequence[Encoded]) -> None:
        """Take the bytes of a chunk; several threads may do so at once."""

    @abstractmethod
    def blocks(self) -> Iterator[Bytes]:
        """All bytes in order, once they are complete."""


class InMemory(Waiting):
    """Bytes of one chunk as they are, of several chunks put together."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment)
        self.held = segment.nbytes
        self._lock = Lock()
        self._blocks: list[Bytes] = []

    def put(self, packed: Sequence[Encoded]) -> None:
        """Keep them, or copy them to their places where something lies between."""
        if _is_whole(packed, self.segment):
            self._blocks = [data for _, data in packed]
            return
        for extents, data in packed:
            _scatter(self._assembled(), self.segment.start, extents, data)

    def blocks(self) -> Iterator[Bytes]:
        """Those of the chunk, or one."""
        yield from self._blocks or [self._assembled()]

    def _assembled(self) -> Bytes:
        with self._lock:
            if not self._blocks:
                whole: Bytes = np.zeros(self.segment.nbytes, dtype=np.uint8)
                for piece in self.segment.pieces:
                    begin = piece.offset - self.segment.start
                    whole[begin : begin + len(piece.data)] = np.frombuffer(piece.data, np.uint8)
                self._blocks = [whole]
            return self._blocks[0]


def _is_whole(packed: Sequence[Encoded], segment: Segment) -> bool:
    """Whether these are all bytes of a segment, one after the other."""
    position = segment.start
    for extents, data in packed:
        start, stop = extents.bounds
        if start != position or stop - start != data.size:
            return False
        position = stop
    return position == segment.stop


def _scatter(whole: Bytes, origin: int, extents: Extents, data: Bytes) -> None:
    position = 0
    starts = (extents.starts - origin).tolist()
    for start, length in zip(starts, extents.lengths.tolist(), strict=True):
        whole[start : start + length] = data[position : position + length]
        position += length


class OnDisk(Waiting):
    """Bytes in a file, at the places that they will have.

    Parameters
    ----------
    segment : Segment
        Which.
    scratch : Scratch
        The file.
    """

    def __init__(self, segment: Segment, scratch: Scratch) -> None:
        super().__init__(segment)
        self._scratch = scratch
        for piece in segment.pieces:
            extents = Extents.single(piece.offset, piece.offset + len(piece.data))
            self.put([(extents, np.frombuffer(piece.data, np.uint8))])

    def put(self, packed: Sequence[Encoded]) -> None:
        """Write them."""
        for extents, data in packed:
            self._scratch.write(extents, data)

    def blocks(self) -> Iterator[Bytes]:
        """Read them, a few at a time."""
        yield from read_blocks(self._scratch.descriptor, self.segment.start, self.segment.stop)


class Scratch:
    """A file of this machine that has no name, so that it goes with the process at the latest.

    It takes as much of the disk as is written into it.

    Parameters
    ----------
    folder : str
        Where the system keeps it.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.descriptor, path = tempfile.mkstemp(prefix="tensorfmt-", dir=folder)
        weakref.finalize(self, os.close, self.descriptor)
        os.unlink(path)

    def write(self, extents: Extents, data: Bytes) -> None:
        """Put bytes into their places.

        Parameters
        ----------
        extents : Extents
            The places.
        data : ndarray of uint8
            The bytes, one after the other.

        Raises
        ------
        OSError
            The disk is full.
        """
        try:
            write_extents(self.descriptor, extents, data)
        except OSError as error:
            reason = (
                f"{error.strerror}, where bytes wait until those before them are sent; "
                "set dask's 'temporary-directory' to a folder with more space"
            )
            raise OSError(error.errno, reason, self._folder) from error


def read_blocks(descriptor: int, start: int, stop: int) -> Iterator[Bytes]:
    """Read a part of an open file.

    Parameters
    ----------
    descriptor : int
        The file.
    start, stop : int
        Which bytes; what was never written of them is zero.

    Yields
    ------
    ndarray of uint8
        A few MiB.
    """
    while start < stop:
        wanted = min(BLOCK, stop - start)
        # The file may end before: nothing is written at the end of a segment that is zero there.
        data = os.pread(descriptor, wanted, start).ljust(wanted, b"\0")
        yield np.frombuffer(data, dtype=np.uint8)
        start += wanted
