"""Chunks that are ready in any order become one stream of bytes in the order of the file."""

from __future__ import annotations

import errno
import weakref
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from threading import Condition
from typing import NoReturn

import numpy as np

from xr_tensorfmt.extents import Bytes
from xr_tensorfmt.layouts.base import Encoded
from xr_tensorfmt.write.stores.segments import Contents
from xr_tensorfmt.write.stores.upload import Upload
from xr_tensorfmt.write.stores.waiting import InMemory, OnDisk, Scratch, Waiting

_ZEROS: Bytes = np.zeros(1 << 20, dtype=np.uint8)


class Stream:
    """A file that takes chunks from any thread and sends them in order.

    It has no thread of its own: who brings what is to be sent next sends it, and all that waits
    behind it. A thread waits only while another one sends and there is no room for what it
    brings; it never waits for a chunk that is still to be computed. What finds no room while
    nothing can be sent goes to the disk.

    If it is forgotten before it is finished, as by a computation that has failed, the upload is
    given up.

    Parameters
    ----------
    contents : Contents
        The file.
    upload : Upload
        Where it is sent to.
    room : int
        Bytes of memory for what waits for its turn.
    folder : str
        Where on the disk the rest may wait.
    """

    def __init__(self, contents: Contents, upload: Upload, room: int, folder: str) -> None:
        self._contents = contents
        self._upload = upload
        self._room = room
        self._folder = folder
        self._starts = [each.start for each in contents.segments]
        self._missing = [each.chunks for each in contents.segments]
        self._waiting: dict[int, Waiting] = {}
        self._held = 0
        self._next = 0
        self._position = 0
        self._sending = False
        self._failure: BaseException | None = None
        self._changed = Condition()
        self._give_up = weakref.finalize(self, upload.discard)

    @property
    def target(self) -> str:
        """What it is to become."""
        return self._upload.url

    @property
    def identity(self) -> int:
        """That of the object, which stays in its process."""
        return id(self)

    def __reduce__(self) -> NoReturn:
        """Stay in this process, which has the connection."""
        raise TypeError(
            "an upload cannot move to another process; compute with dask's threads, with its "
            "processes or on a cluster of dask.distributed"
        )

    def write(self, batches: Iterator[Encoded]) -> None:
        """Take the bytes of a chunk, and send what can be sent.

        Parameters
        ----------
        batches : iterator of (Extents, ndarray of uint8)
            Ranges of the file, and what belongs there.

        Raises
        ------
        OSError
            The store, or the disk, does not take them.
        """
        packed = [each for each in batches if len(each[0])]
        if not packed:
            return
        number = bisect_right(self._starts, packed[0][0].bounds[0]) - 1
        self._place(number).put(packed)
        with self._changed:
            self._missing[number] -= 1
        self._send()

    def finish(self) -> None:
        """Send what is left, once every chunk was brought, and make the object appear.

        Raises
        ------
        OSError
            The store does not take it.
        """
        self._send()
        with self._changed:
            self._check()
            assert self._next == len(self._starts), "a chunk was not brought"
        try:
            self._send_zeros(self._contents.size)
            self._upload.finish()
        except BaseException as error:
            self._fail(error)
            raise
        self._give_up.detach()

    def discard(self) -> None:
        """Give the upload up."""
        self._fail(OSError(errno.ECANCELED, "the upload was given up", self._upload.url))

    def _place(self, number: int) -> Waiting:
        """Where bytes of a segment wait for their turn; this may have to wait itself."""
        with self._changed:
            while number not in self._waiting:
                self._check()
                place = self._offered(number)
                if place is None:
                    self._changed.wait()
                else:
                    self._waiting[number] = place
                    self._held += place.held
            return self._waiting[number]

    def _offered(self, number: int) -> Waiting | None:
        segment = self._contents.segments[number]
        # The chunk that is next is sent at once, and is in memory anyway.
        is_next = number == self._next and segment.chunks == 1
        if is_next or self._held + segment.nbytes <= self._room:
            return InMemory(segment)
        if self._sending and segment.nbytes <= self._room:
            return None
        return OnDisk(segment, self._scratch)

    @cached_property
    def _scratch(self) -> Scratch:
        return Scratch(self._folder)

    def _send(self) -> None:
        """Send all that is complete, unless another thread does."""
        with self._changed:
            if self._sending:
                return
            self._sending = True
        try:
            while (number := self._taken()) is not None:
                self._send_segment(number)
        except BaseException as error:
            self._fail(error, sending=True)
            raise

    def _taken(self) -> int | None:
        """The segment that is next, if it is complete; else the thread has nothing to send."""
        with self._changed:
            self._changed.notify_all()
            self._check()
            if self._next < len(self._starts) and not self._missing[self._next]:
                self._next += 1
                return self._next - 1
            self._sending = False
            return None

    def _send_segment(self, number: int) -> None:
        segment = self._contents.segments[number]
        self._send_zeros(segment.start)
        with self._changed:
            # What is made of pieces alone was put nowhere.
            place = self._waiting.pop(number, None) or InMemory(segment)
        for block in place.blocks():
            self._upload.write(block)
        self._position = segment.stop
        if segment.chunks:
            with self._changed:
                self._held -= place.held
                self._changed.notify_all()

    def _send_zeros(self, stop: int) -> None:
        while self._position < stop:
            block = _ZEROS[: stop - self._position]
            self._upload.write(block)
            self._position += block.size

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: BaseException, *, sending: bool = False) -> None:
        """Let no thread go on, and give up what is uploaded; `sending` says who it is."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            if sending:
                self._sending = False
            self._changed.notify_all()
            while self._sending:
                self._changed.wait()
        self._give_up()
