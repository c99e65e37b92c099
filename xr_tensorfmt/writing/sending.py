"""A planned file that is written into a store; `saving` does the same on the local disk."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from glob import escape, glob
from weakref import WeakValueDictionary

import dask
from dask.delayed import Delayed
from dask.system import CPU_COUNT
from fsspec.implementations.memory import MemoryFileSystem

from xr_tensorfmt.core.layout import Encoded
from xr_tensorfmt.sources.remote import Place
from xr_tensorfmt.writing.atomic_file import AtomicFile, unfinished
from xr_tensorfmt.writing.file_io import opened, read_blocks, write_at
from xr_tensorfmt.writing.file_plan import FilePlan, FirstPass, Placed, cut_all
from xr_tensorfmt.writing.graph import writing
from xr_tensorfmt.writing.ordered_stream import OrderedStream, Segment, segments_of
from xr_tensorfmt.writing.saving import after_first_pass, compare_written, unchanged
from xr_tensorfmt.writing.upload import Upload, check_place


@dataclass(frozen=True)
class Spool(AtomicFile):
    """A local file in which an object is put together before it is uploaded."""

    def begin(self) -> Spool:
        """Create the file."""
        self._check(os.path.dirname(self.path))
        super().begin()
        return self

    def write(self, batches: Iterator[Encoded]) -> None:
        """Write bytes at their offsets; processes that share the directory may do so at once."""
        self._check(self.path)
        super().write(batches)

    def send(self, segments: tuple[Segment, ...], upload: Upload) -> None:
        """Complete the file, upload it, and remove it."""
        try:
            with opened(self.path) as descriptor:
                for segment in segments:
                    for piece in segment.pieces:
                        write_at(descriptor, memoryview(piece.data), piece.offset)
                for block in read_blocks(descriptor, 0, self.size):
                    upload.write(block)
            upload.finish()
        except BaseException:
            upload.discard()
            raise
        finally:
            self.discard()

    def _check(self, path: str) -> None:
        if not os.path.exists(path):
            reason = (
                f"this worker sees no {path}, where the workers put the object together before it "
                "is sent; set dask's 'temporary-directory' to a directory that they share"
            )
            raise FileNotFoundError(errno.ENOENT, reason, self.target)


LEAST_BUFFERED = 64 << 20
"""Bytes that may wait in memory for their turn, or one chunk for each thread if that is more."""

_RUNNING: WeakValueDictionary[str, OrderedStream] = WeakValueDictionary()


@dataclass(frozen=True)
class PlannedUpload:
    """An object that is to be written, by one process as a stream or by several through a file."""

    place: Place
    size: int
    segments: tuple[Segment, ...]
    directory: str
    token: str
    process: int
    replace: bool
    compared: tuple[Placed, ...] = ()

    def begin(self) -> OrderedStream | Spool:
        """Begin the stream where all chunks will come in this process, and else the file."""
        if not (self.compared or self._is_distributed()):
            stream = self._stream()
            _RUNNING[self.token] = stream
            return stream
        if isinstance(self.place.fs, MemoryFileSystem) and os.getpid() != self.process:
            raise ValueError(
                f"{self.place.url}: the memory of another process is out of reach; "
                "compute with dask's threads"
            )
        path = f"{self._path_prefix}{unfinished()}"
        return Spool(self.place.url, path, self.size, self.replace).begin()

    def finish(self, begun: OrderedStream | Spool) -> None:
        """Make the object appear, once all chunks have come."""
        if isinstance(begun, OrderedStream):
            begun.finish()
            return
        if self.compared:
            compare_written(self.compared, begun)
        begun.send(self.segments, self._upload())

    def discard(self) -> bool:
        """Give up what was begun, and leave nothing behind; True, as nothing had appeared."""
        stream = _RUNNING.get(self.token)
        if stream is not None:
            stream.discard()
        for path in glob(f"{escape(self._path_prefix)}*"):
            with suppress(OSError):
                os.unlink(path)
        return True

    def _is_distributed(self) -> bool:
        """Whether tasks may run in other processes."""
        if os.getpid() != self.process:
            return True
        if "distributed" in sys.modules:
            with suppress(ValueError):  # this is not a worker
                return sys.modules["distributed"].get_worker() is not None
        return False

    def _upload(self) -> Upload:
        return Upload(self.place, self.size, replace=self.replace)

    def _stream(self) -> OrderedStream:
        threads = dask.config.get("num_workers", None) or CPU_COUNT
        largest = max(
            (each.nbytes // each.chunks for each in self.segments if each.chunks), default=0
        )
        most = max(LEAST_BUFFERED, threads * largest)
        return OrderedStream(self.size, self.segments, self._upload(), most, self.directory)

    @property
    def _path_prefix(self) -> str:
        """How the paths of its local files begin, one for each time that it is computed."""
        return os.path.join(self.directory, f"tensorfmt-{self.token}")


def send(
    file_plan: FilePlan | FirstPass, place: Place, *, replace: bool, compute: bool
) -> Delayed | None:
    """Write an object into a store."""
    check_place(place, replace=replace)
    if isinstance(file_plan, FirstPass):
        write = partial(send, place=place, replace=replace, compute=True)
        return after_first_pass(file_plan, write, compute=compute)
    cuts = cut_all(file_plan.placed)
    ranges = [blocks.bounds(number) for _, blocks in cuts for number in range(blocks.count)]
    directory = dask.config.get("temporary-directory", None) or tempfile.gettempdir()
    planned = PlannedUpload(
        place,
        file_plan.size,
        segments_of(file_plan.pieces, filter(None, ranges)),
        os.path.abspath(directory),
        uuid.uuid4().hex[:8],
        os.getpid(),
        replace,
        file_plan.compared,
    )
    tasks = writing(cuts, planned.begin, planned.finish, in_turn=True)
    if not compute:
        return tasks
    with unchanged(place.url, planned.discard):
        tasks.compute()  # type: ignore[no-untyped-call]
    return None
