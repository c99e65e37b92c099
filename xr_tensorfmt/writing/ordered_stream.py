"""Chunks that arrive in any order from any thread, sent in the order of the file."""

from __future__ import annotations

import errno
import tempfile
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import FileIO
from threading import Condition, Lock
from typing import NoReturn

import numpy as np

from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.core.layout import Encoded
from xr_tensorfmt.writing.atomic_file import Piece
from xr_tensorfmt.writing.file_io import read_blocks, write_extents
from xr_tensorfmt.writing.upload import Upload


@dataclass(frozen=True)
class Segment:
    """A byte range that is sent when all chunks that write into it have arrived."""

    start: int
    stop: int
    chunks: int
    pieces: tuple[Piece, ...] = ()

    @property
    def nbytes(self) -> int:
        """Its length."""
        return self.stop - self.start


def segments_of(pieces: Sequence[Piece], ranges: Iterable[tuple[int, int]]) -> tuple[Segment, ...]:
    """Join pieces and the byte ranges of chunks where they overlap; the rest of a file is zero."""
    parts = [Segment(start, stop, 1) for start, stop in ranges]
    parts += [
        Segment(piece.offset, piece.offset + len(piece.data), 0, (piece,))
        for piece in pieces
        if piece.data
    ]
    joined: list[list[Segment]] = []
    stop = 0
    for part in sorted(parts, key=lambda segment: segment.start):
        if not joined or part.start >= stop:
            joined.append([])
        joined[-1].append(part)
        stop = max(stop, part.stop)
    return tuple(map(_join, joined))


def _join(parts: Sequence[Segment]) -> Segment:
    pieces = tuple(piece for part in parts for piece in part.pieces)
    stop = max(part.stop for part in parts)
    return Segment(parts[0].start, stop, sum(part.chunks for part in parts), pieces)


class MemoryBuffer:
    """The bytes of a segment in memory, until they are sent."""

    def __init__(self, segment: Segment) -> None:
        self.nbytes = segment.nbytes
        self._start = segment.start
        self._content: Bytes = np.zeros(segment.nbytes, dtype=np.uint8)

    def write(self, extents: Extents, data: Bytes) -> None:
        """Copy bytes to their offsets; several threads may do so at once."""
        position = 0
        starts = (extents.starts - self._start).tolist()
        for start, length in zip(starts, extents.lengths.tolist(), strict=True):
            self._content[start : start + length] = data[position : position + length]
            position += length

    def blocks(self) -> Iterable[Bytes]:
        """All bytes at once."""
        return [self._content]


class DiskBuffer:
    """The bytes of a segment in a temporary file, at the offsets that they have in the object."""

    nbytes = 0

    def __init__(self, segment: Segment, file: FileIO, directory: str) -> None:
        self._segment = segment
        self._file = file
        self._directory = directory

    def write(self, extents: Extents, data: Bytes) -> None:
        """Write bytes at their offsets; several threads may do so at once."""
        with _explained(self._directory):
            write_extents(self._file.fileno(), extents, data)

    def blocks(self) -> Iterable[Bytes]:
        """All bytes, a few at a time."""
        return read_blocks(self._file.fileno(), self._segment.start, self._segment.stop)


@contextmanager
def _explained(directory: str) -> Iterator[None]:
    """Say of an error of the local disk what is stored there."""
    try:
        yield
    except OSError as error:
        reason = (
            f"{error.strerror}, where bytes wait until those before them are sent; "
            "set dask's 'temporary-directory' to a directory with more space"
        )
        raise OSError(error.errno, reason, directory) from error


_ZEROS: Bytes = np.zeros(1 << 20, dtype=np.uint8)


class OrderedStream:
    """A file that takes chunks from any thread and sends them in order.

    The thread that brings the next segment sends it, and all that are complete after it. Segments
    that are not next wait in memory up to a limit. Beyond it a thread waits while another one is
    sending, and writes to a temporary file where none is.
    """

    def __init__(
        self,
        size: int,
        segments: Sequence[Segment],
        upload: Upload,
        most_bytes: int,
        directory: str,
    ) -> None:
        self._size = size
        self._segments = segments
        self._upload = upload
        self._most_bytes = most_bytes
        self._directory = directory
        self._starts = [segment.start for segment in segments]
        self._missing = [segment.chunks for segment in segments]
        self._buffers: dict[int, MemoryBuffer | DiskBuffer] = {}
        self._buffered = 0
        self._next = 0
        self._position = 0
        self._sending = False
        self._failure: BaseException | None = None
        self._changed = Condition()
        self._give_up = weakref.finalize(self, upload.discard)
        self._giving_up = Lock()

    @property
    def target(self) -> str:
        """URL of the object."""
        return self._upload.url

    @property
    def identity(self) -> int:
        """That of the Python object, which stays in its process."""
        return id(self)

    def __reduce__(self) -> NoReturn:
        """Stay in this process, which has the connection."""
        raise TypeError(
            "an upload cannot move to another process; compute with dask's threads, with its "
            "processes or on a cluster of dask.distributed"
        )

    def write(self, batches: Iterator[Encoded]) -> None:
        """Take the bytes of a chunk, and send what can be sent."""
        number = -1
        for extents, data in batches:
            if len(extents):
                number = bisect_right(self._starts, extents.bounds[0]) - 1
                self._buffer(number).write(extents, data)
        if number < 0:
            return
        with self._changed:
            self._missing[number] -= 1
        self._send()

    def finish(self) -> None:
        """Send what is left, once every chunk has arrived, and make the object appear."""
        self._send()
        with self._changed:
            self._check()
            assert self._next == len(self._segments), "a chunk is missing"
        try:
            self._send_zeros(self._size)
            self._upload.finish()
        except BaseException as error:
            self._fail(error)
            raise
        self._give_up.detach()

    def discard(self) -> None:
        """Give the upload up."""
        self._fail(OSError(errno.ECANCELED, "the upload was given up", self._upload.url))

    def _buffer(self, number: int) -> MemoryBuffer | DiskBuffer:
        """The buffer of a segment, once there is one."""
        with self._changed:
            while number not in self._buffers:
                self._check()
                buffer = self._new_buffer(number)
                if buffer is None:
                    self._changed.wait()
                else:
                    self._buffers[number] = buffer
                    self._buffered += buffer.nbytes
            return self._buffers[number]

    def _new_buffer(self, number: int) -> MemoryBuffer | DiskBuffer | None:
        """A buffer in memory or on the disk; None if the thread should wait for memory."""
        segment = self._segments[number]
        # The chunk that is next is sent at once, and is in memory anyway.
        is_next = number == self._next and segment.chunks <= 1
        if is_next or self._buffered + segment.nbytes <= self._most_bytes:
            return MemoryBuffer(segment)
        if self._sending and segment.nbytes <= self._most_bytes:
            return None
        return DiskBuffer(segment, self._file, self._directory)

    @cached_property
    def _file(self) -> FileIO:
        """A file without a name, which is gone with this object or the process."""
        with _explained(self._directory):
            file = tempfile.TemporaryFile(buffering=0, dir=self._directory)  # noqa: SIM115
        weakref.finalize(self, file.close)
        return file

    def _send(self) -> None:
        """Send all segments that are next and complete, unless another thread does."""
        with self._changed:
            if self._sending:
                return
            self._sending = True
        try:
            while (number := self._next_complete()) is not None:
                self._send_segment(number)
        except BaseException as error:
            self._fail(error, sending=True)
            raise

    def _next_complete(self) -> int | None:
        """The next segment if it is complete; else this thread no longer is the sending one."""
        with self._changed:
            self._changed.notify_all()
            self._check()
            if self._next < len(self._segments) and not self._missing[self._next]:
                self._next += 1
                return self._next - 1
            self._sending = False
            return None

    def _send_segment(self, number: int) -> None:
        segment = self._segments[number]
        self._send_zeros(segment.start)
        with self._changed:
            # A segment that no chunk writes into has no buffer yet.
            buffer = self._buffers.pop(number, None) or MemoryBuffer(segment)
        for piece in segment.pieces:
            extents = Extents.single(piece.offset, piece.offset + len(piece.data))
            buffer.write(extents, np.frombuffer(piece.data, np.uint8))
        for block in buffer.blocks():
            self._upload.write(block)
        self._position = segment.stop
        if segment.chunks:
            with self._changed:
                self._buffered -= buffer.nbytes

    def _send_zeros(self, stop: int) -> None:
        while self._position < stop:
            block = _ZEROS[: stop - self._position]
            self._upload.write(block)
            self._position += block.size

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: BaseException, *, sending: bool = False) -> None:
        """Let no thread go on, and give the upload up; `sending` says that this thread sends."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            if sending:
                self._sending = False
            self._changed.notify_all()
            while self._sending:
                self._changed.wait()
        # Whoever comes second waits, so that no part is left when the error arrives.
        with self._giving_up:
            self._give_up()
