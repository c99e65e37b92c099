"""Writing planned files: on the disk, as streams into a store, or into one by way of the disk."""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import attrgetter, itemgetter
from threading import Condition

import dask
import dask.local
import dask.threaded
import numpy as np
from dask.base import get_scheduler
from dask.delayed import Delayed
from fsspec.implementations.memory import MemoryFileSystem

from xr_tensorfmt.core.extents import Bytes
from xr_tensorfmt.core.layout import Encoded
from xr_tensorfmt.sources.places import Place
from xr_tensorfmt.sources.threads import in_thread
from xr_tensorfmt.writing.atomic_file import AtomicFile, Piece, opened, runs_of, write_at
from xr_tensorfmt.writing.file_plan import FilePlan, Placed
from xr_tensorfmt.writing.graph import compare, writing
from xr_tensorfmt.writing.unfinished import beside
from xr_tensorfmt.writing.upload import Upload

MOST_WAITING = 128 << 20
"""Bytes of chunks that may wait in memory for their turn."""

_BLOCK = 8 << 20


class OrderedStream:
    """An object that takes chunks from any thread, and sends them in order from its own.

    Chunks wait in memory up to a limit. Beyond it the threads that bring them wait while something
    is being sent, and write to a temporary file where the next chunk is still missing.
    """

    def __init__(
        self,
        file_plan: FilePlan,
        ranges: Sequence[tuple[int, int]],
        upload: Upload,
        directory: str,
    ) -> None:
        self.target = self.path = upload.url
        self._size, self._ranges, self._upload = file_plan.size, ranges, upload
        self._pieces = [piece for piece in file_plan.pieces if piece.data]
        self._directory = directory
        # Chunks have the offsets there that they have in the object.
        self._file = tempfile.SpooledTemporaryFile(dir=directory)  # noqa: SIM115
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
                number = bisect_right(self._ranges, start, key=itemgetter(0)) - 1
                first, stop = self._ranges[number]
                content = self._without_values(first, stop)
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
        self._fail(OSError(f"{self.target}: the upload was given up"))
        wait([self._sent] if self._sent else [])
        if not self._publishing:
            self._upload.discard()
        return not self._publishing

    def _arrive(self, number: int, content: Bytes) -> None:
        """Keep a chunk until its turn; wait for room while there will be some."""

        def has_room() -> bool:
            return number == self._next or self._waiting + content.size <= MOST_WAITING

        with self._changed:
            self._wait(lambda: has_room() or not (self._sending or self._next in self._arrived))
            if has_room():
                self._waiting += content.size
                self._arrived[number] = content
            else:
                self._put_on_disk(self._ranges[number][0], content)
                self._arrived[number] = None
            self._changed.notify_all()

    def _wait(self, predicate: Callable[[], bool]) -> None:
        """Wait until something is true; raise the error that ends all waits."""
        self._changed.wait_for(lambda: self._failure or predicate())
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: BaseException) -> None:
        """Let all raise an error that wait, or bring a chunk from now on."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _put_on_disk(self, start: int, content: Bytes) -> None:
        try:
            self._file.rollover()
            self._file.seek(start)
            self._file.write(content.data)
            self._file.flush()
        except OSError as error:
            reason = (
                f"{error.strerror}, where bytes wait until those before them are sent; "
                "set dask's 'temporary-directory' to a directory with more space"
            )
            raise OSError(error.errno, reason, self._directory) from error

    def _send(self) -> None:
        with self._file:
            try:
                for block in self._blocks():
                    self._upload.write(block)
                    del block  # or else it would be kept until the next one has arrived
            except BaseException as error:
                self._fail(error)
                raise

    def _blocks(self) -> Iterator[Bytes]:
        """All bytes of the object: chunks, and what is between them."""
        position = 0
        for number, (start, stop) in enumerate(self._ranges):
            if position < start:
                yield self._without_values(position, start)
            yield self._taken(number)
            position = stop
        if position < self._size:
            yield self._without_values(position, self._size)

    def _without_values(self, start: int, stop: int) -> Bytes:
        """The pieces in a range, and zeros."""
        content: Bytes = np.zeros(stop - start, dtype=np.uint8)
        first, last = (
            bisect_left(self._pieces, each, key=attrgetter("offset")) for each in (start, stop)
        )
        for piece in self._pieces[first:last]:
            data = np.frombuffer(piece.data, np.uint8)
            content[piece.offset - start :][: data.size] = data
        return content

    def _taken(self, number: int) -> Bytes:
        """A chunk, when it has arrived."""
        with self._changed:
            self._next, self._sending = number, False
            self._changed.notify_all()
            self._wait(lambda: number in self._arrived)
            content = self._arrived.pop(number)
            if content is None:
                start, stop = self._ranges[number]
                content = np.memmap(self._file, np.uint8, "c", start, (stop - start,))
            else:
                self._waiting -= content.size
            self._next, self._sending = number + 1, True
            self._changed.notify_all()
            return content


@dataclass(frozen=True)
class LocalCopy(AtomicFile):
    """A local file in which processes put an object together before it is uploaded."""

    place: Place
    way_out = "set dask's 'temporary-directory' to a directory that all workers share"

    def complete(self, pieces: Sequence[Piece]) -> None:
        """Write the pieces."""
        with self._explained(), opened(self.path) as descriptor:
            for piece in pieces:
                write_at(descriptor, memoryview(piece.data), piece.offset)

    def publish(self) -> None:
        """Upload the file, and remove it."""
        self._abort_previous()
        upload = Upload(self.place, self.size, replace=self.replace)
        try:
            for start in (*range(0, self.size, _BLOCK), self.size):
                upload.write(self._block(start, upload.token))
            upload.finish()
        except BaseException:
            upload.discard()
            raise
        finally:
            super().discard()

    def _block(self, start: int, token: str) -> Bytes:
        """Read a block, and note the upload behind the bytes of the file.

        OSError where another thread has removed the file, as after Ctrl-C.
        """
        with self._explained(), open(self.path, "r+b") as file:
            file.seek(self.size)
            file.write(token.encode())
            file.seek(start)
            return np.frombuffer(file.read(min(_BLOCK, self.size - start)), np.uint8)

    def discard(self) -> bool:
        """Remove the file, and give up the upload of a process that was lost."""
        self._abort_previous()
        return super().discard()

    def _abort_previous(self) -> None:
        """Abort the upload that another process began, and noted behind the bytes of the file."""
        with suppress(Exception), open(self.path, "rb") as file:
            file.seek(self.size)
            if token := file.read().decode():
                fs = self.place.for_this_process().fs
                bucket, key, _ = fs.split_path(self.place.path)
                fs.abort_mpu(bucket, key, token)


def save(
    files: Sequence[tuple[FilePlan, AtomicFile | OrderedStream]], *, compute: bool
) -> Delayed | None:
    """Write planned files; they appear one after the other when all are complete."""
    cuts, begun = [file_plan.cuts for file_plan, _ in files], [file for _, file in files]
    finish = partial(_publish, [(file_plan.pieces, file_plan.compared) for file_plan, _ in files])
    if not compute:
        begins = [file.begin_another for file in begun if isinstance(file, AtomicFile)]
        return writing(list(zip(begins, cuts, strict=True)), finish)
    try:
        # A task could still run after another one has failed, and leave its file behind.
        for file in begun:
            file.begin()
        in_order = isinstance(begun[-1], OrderedStream)
        tasks = writing(list(zip(begun, cuts, strict=True)), finish, in_order=in_order)
        tasks.compute()  # type: ignore[no-untyped-call]
    except BaseException as error:
        discarded = [file.discard() for file in begun]
        if all(discarded):
            note = f"{begun[-1].target} was not written; what was there before is unchanged."
            error.add_note(note)
        raise
    return None


def _publish(
    contents: Sequence[tuple[Sequence[Piece], Sequence[Placed]]],
    files: Sequence[AtomicFile | OrderedStream],
) -> None:
    for (pieces, compared), file in zip(contents, files, strict=True):
        if compared:
            compare(file, compared)
        file.complete(pieces)
    for file in files:
        file.publish()


def send(
    objects: Sequence[tuple[FilePlan, Place]], *, replace: bool, compute: bool
) -> Delayed | None:
    """Write planned objects, as streams where threads compute their chunks in the files' order."""
    directory = os.path.abspath(
        dask.config.get("temporary-directory", None) or tempfile.gettempdir()
    )
    in_threads = _runs_in_this_process()
    url, fs = objects[-1][1].url, objects[-1][1].fs
    if compute and not in_threads and isinstance(fs, MemoryFileSystem):
        raise ValueError(
            f"{url}: the memory of another process is out of reach; compute with dask's threads"
        )
    ranges = [_ranges(file_plan) if compute and in_threads else None for file_plan, _ in objects]
    streams, copies = [], []
    for (file_plan, place), chunks in zip(objects, ranges, strict=True):
        # The URL is without its query, which may be secret.
        path = beside(os.path.join(directory, os.path.basename(place.url)))
        copies.append((file_plan, LocalCopy(place.url, path, file_plan.size, replace, place)))
        if chunks is not None:
            upload = Upload(place, file_plan.size, replace=replace)
            streams.append((file_plan, OrderedStream(file_plan, chunks, upload, directory)))
    return save(streams if len(streams) == len(objects) else copies, compute=compute)


def _runs_in_this_process() -> bool:
    """Whether dask computes with threads, and not with processes or on a cluster."""
    scheduler = get_scheduler(cls=Delayed)  # type: ignore[no-untyped-call]
    return scheduler in (dask.threaded.get, dask.local.get_sync)


def _ranges(file_plan: FilePlan) -> list[tuple[int, int]] | None:
    """First byte of each chunk and the one after its last; None where they cannot be a stream."""
    if file_plan.compared:
        return None
    bounds = (
        blocks.bounds(number) for _, blocks in file_plan.cuts for number in range(blocks.count)
    )
    ranges = sorted(each for each in bounds if each is not None)
    overlap = any(stop > start for (_, stop), (start, _) in pairwise(ranges))
    return None if overlap else ranges
