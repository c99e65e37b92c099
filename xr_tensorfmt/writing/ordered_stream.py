"""Chunks that arrive in any order from the threads of a process, sent in the order of the file."""

from __future__ import annotations

import tempfile
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from threading import Condition
from typing import IO

import numpy as np

from xr_tensorfmt.core.extents import Bytes, Integers
from xr_tensorfmt.core.layout import Encoded
from xr_tensorfmt.writing.atomic_file import Piece
from xr_tensorfmt.writing.upload import Upload

MOST_WAITING = 128 << 20
"""Bytes of chunks that may wait in memory for their turn."""

_ZEROS: Bytes = np.zeros(1 << 20, dtype=np.uint8)


class OrderedStream:
    """An object that takes chunks from any thread and sends them in order.

    The thread that brings the next chunk sends it, and all that follow it and have arrived. Other
    chunks wait in memory up to a limit. Beyond it a thread waits while another one is sending, and
    writes to a temporary file where none is.
    """

    def __init__(
        self,
        size: int,
        pieces: Sequence[Piece],
        ranges: Sequence[tuple[int, int]],
        upload: Upload,
        directory: str,
    ) -> None:
        self.target = upload.url
        self.identity = id(self)
        self._size = size
        self._pieces = deque(piece for piece in pieces if piece.data)
        self._ranges = ranges
        self._upload = upload
        self._directory = directory
        self._starts = [start for start, _ in ranges]
        self._arrived: dict[int, Bytes | None] = {}
        self._waiting = self._next = self._position = 0
        self._sending = self._finished = False
        self._failure: BaseException | None = None
        self._changed = Condition()

    def write(self, batches: Iterator[Encoded]) -> None:
        """Take the bytes of a chunk, and send what can be sent."""
        content: Bytes | None = None
        for extents, data in batches:
            if not len(extents):
                continue
            if content is None:
                number = bisect_right(self._starts, extents.bounds[0]) - 1
                start, stop = self._ranges[number]
                content = np.zeros(stop - start, dtype=np.uint8)
            _scatter(content, extents.starts - start, extents.lengths, data)
        if content is not None:
            self._arrive(number, content)
            while (chunk := self._claim()) is not None:
                self._send(*chunk)

    def finish(self) -> None:
        """Send what is left, once every chunk has been sent, and make the object appear."""
        assert self._next == len(self._ranges), "a chunk is missing"
        self._fill(self._size)
        self._upload.finish()
        self._finished = True

    def discard(self) -> bool:
        """Give the upload up, when no thread is sending; False if the object may be there."""
        with self._changed:
            self._failure = self._failure or OSError(f"{self.target}: the upload was given up")
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._sending)
        if not self._finished:
            self._upload.discard()
        return not self._finished and self._upload.is_unchanged

    def _arrive(self, number: int, content: Bytes) -> None:
        """Keep a chunk until its turn, and wait for room while another thread is sending."""

        def has_room() -> bool:
            return number == self._next or self._waiting + content.size <= MOST_WAITING

        with self._changed:
            self._changed.wait_for(lambda: self._failure or not self._is_busy() or has_room())
            self._check()
            if has_room():
                self._waiting += content.size
                self._arrived[number] = content
            else:
                self._put_on_disk(self._ranges[number][0], content)
                self._arrived[number] = None

    def _put_on_disk(self, start: int, content: Bytes) -> None:
        try:
            self._file.seek(start)
            self._file.write(content.data)
            self._file.flush()
        except OSError as error:
            reason = (
                f"{error.strerror}, where bytes wait until those before them are sent; "
                "set dask's 'temporary-directory' to a directory with more space"
            )
            raise OSError(error.errno, reason, self._directory) from error

    @cached_property
    def _file(self) -> IO[bytes]:
        """A file without a name, in which chunks have the offsets that they have in the object."""
        file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115
        weakref.finalize(self, file.close)
        return file

    def _is_busy(self) -> bool:
        """Whether a thread is sending, or is about to, so that there will be room."""
        return self._sending or self._next in self._arrived

    def _claim(self) -> tuple[int, Bytes] | None:
        """The next chunk and its offset, if it has arrived and no other thread is sending."""
        with self._changed:
            self._check()
            if self._sending or self._next not in self._arrived:
                return None
            start, stop = self._ranges[self._next]
            content = self._arrived.pop(self._next)
            if content is None:
                self._file.seek(start)
                content = np.frombuffer(bytearray(self._file.read(stop - start)), np.uint8)
            else:
                self._waiting -= content.size
            self._next += 1
            self._sending = True
            self._changed.notify_all()
            return start, content

    def _send(self, start: int, content: Bytes) -> None:
        """Send what lies before a chunk, and the chunk with the pieces that lie in it."""
        stop = start + content.size
        try:
            self._fill(start)
            while self._pieces and self._pieces[0].offset < stop:
                piece = self._pieces.popleft()
                first = piece.offset - start
                content[first : first + len(piece.data)] = np.frombuffer(piece.data, np.uint8)
            self._upload.write(content)
            self._position = stop
        except BaseException as error:
            self._failure = error
            raise
        finally:
            with self._changed:
                self._sending = False
                self._changed.notify_all()

    def _fill(self, stop: int) -> None:
        """Send what lies before an offset and in no chunk: pieces, and zeros between them."""
        while self._position < stop:
            gap = (self._pieces[0].offset if self._pieces else stop) - self._position
            if gap:
                block = _ZEROS[: min(gap, stop - self._position)]
            else:
                block = np.frombuffer(self._pieces.popleft().data, np.uint8)
            self._upload.write(block)
            self._position += block.size

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


def _scatter(content: Bytes, starts: Integers, lengths: Integers, data: Bytes) -> None:
    position = 0
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        content[start : start + length] = data[position : position + length]
        position += length
