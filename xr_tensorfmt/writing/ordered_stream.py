"""Chunks that arrive in any order from the threads of a process, sent in the order of the file."""

from __future__ import annotations

import tempfile
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from functools import cached_property
from threading import Condition
from typing import IO

import numpy as np

from xr_tensorfmt.core.extents import Bytes
from xr_tensorfmt.core.layout import Encoded
from xr_tensorfmt.sources.threads import in_thread
from xr_tensorfmt.writing.atomic_file import Piece, runs_of
from xr_tensorfmt.writing.upload import Upload

MOST_WAITING = 128 << 20
"""Bytes of chunks that may wait in memory for their turn."""

_ZEROS: Bytes = np.zeros(1 << 20, dtype=np.uint8)


class OrderedStream:
    """An object that takes chunks from any thread, and sends them in order from its own.

    Chunks wait in memory up to a limit. Beyond it the threads that bring them wait while something
    is being sent, and write to a temporary file where the next chunk is still missing.
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
        self._waiting = self._next = 0
        self._sending = self._publishing = False
        self._failure: BaseException | None = None
        self._sent: Future[None] | None = None
        self._changed = Condition()

    def begin(self) -> OrderedStream:
        """Start the thread that sends."""
        self._sent = in_thread(self._send)
        return self

    def write(self, batches: Iterator[Encoded]) -> None:
        """Take the bytes of a chunk."""
        content: Bytes | None = None
        for start, data in runs_of(batches):
            if content is None:
                number = bisect_right(self._starts, start) - 1
                first, stop = self._ranges[number]
                content = np.zeros(stop - first, dtype=np.uint8)
            content[start - first :][: len(data)] = data
        if content is not None:
            self._arrive(number, content)

    def complete(self, pieces: Sequence[Piece]) -> None:
        """Wait until all is sent, with the pieces that the stream has had from the beginning."""
        del pieces
        assert self._sent is not None, "it has not begun"
        self._sent.result()

    def publish(self) -> None:
        """Make the object appear."""
        self._publishing = True
        self._upload.finish()

    def discard(self) -> bool:
        """Give the upload up, when nothing is being sent; False if the object may be there."""
        with self._changed:
            self._failure = self._failure or OSError(f"{self.target}: the upload was given up")
            self._changed.notify_all()
        wait([self._sent] if self._sent else [])
        if not self._publishing:
            self._upload.discard()
        return not self._publishing

    def _arrive(self, number: int, content: Bytes) -> None:
        """Keep a chunk until its turn; wait for room while there will be some."""

        def has_room() -> bool:
            return number == self._next or self._waiting + content.size <= MOST_WAITING

        def will_have_room() -> bool:
            return self._sending or self._next in self._arrived

        with self._changed:
            self._changed.wait_for(lambda: self._failure or has_room() or not will_have_room())
            self._check()
            if has_room():
                self._waiting += content.size
                self._arrived[number] = content
            else:
                self._put_on_disk(self._ranges[number][0], content)
                self._arrived[number] = None
            self._changed.notify_all()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

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

    def _send(self) -> None:
        try:
            for block in self._blocks():
                self._upload.write(block)
                del block  # or else it would be kept until the next one has arrived
        except BaseException as error:
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()
            raise

    def _blocks(self) -> Iterator[Bytes]:
        """All bytes of the object: chunks with the pieces that lie in them, and those between."""
        position = 0
        for number, (start, stop) in enumerate(self._ranges):
            yield from self._between(position, start)
            yield self._with_pieces(self._taken(number), start)
            position = stop
        yield from self._between(position, self._size)

    def _with_pieces(self, content: Bytes, start: int) -> Bytes:
        while self._pieces and self._pieces[0].offset < start + content.size:
            piece = self._pieces.popleft()
            content[piece.offset - start :][: len(piece.data)] = as_bytes(piece)
        return content

    def _taken(self, number: int) -> Bytes:
        """A chunk, when it has arrived."""
        with self._changed:
            self._next, self._sending = number, False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._failure or number in self._arrived)
            self._check()
            content = self._arrived.pop(number)
            if content is None:
                start, stop = self._ranges[number]
                content = np.memmap(self._file, np.uint8, "c", start, (stop - start,))
            else:
                self._waiting -= content.size
            self._next, self._sending = number + 1, True
            self._changed.notify_all()
            return content

    def _between(self, start: int, stop: int) -> Iterator[Bytes]:
        """The bytes of a range that is in no chunk: pieces, and zeros between them."""
        while start < stop:
            gap = min(self._pieces[0].offset if self._pieces else stop, stop) - start
            block = _ZEROS[:gap] if gap else as_bytes(self._pieces.popleft())
            yield block
            start += block.size


def as_bytes(piece: Piece) -> Bytes:
    """The bytes of a piece as an array."""
    return np.frombuffer(piece.data, np.uint8)
