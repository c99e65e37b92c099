"""Writing planned objects into a store; `saving` does the same on the local disk."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import dask
import dask.local
import dask.threaded
import numpy as np
from dask.base import get_scheduler
from dask.delayed import Delayed
from fsspec.implementations.memory import MemoryFileSystem

from xr_tensorfmt.core.layout import Encoded
from xr_tensorfmt.sources.remote import Place
from xr_tensorfmt.writing.atomic_file import AtomicFile, Piece
from xr_tensorfmt.writing.file_io import opened, write_at
from xr_tensorfmt.writing.file_plan import Cut, FilePlan, cut_all
from xr_tensorfmt.writing.graph import FileTask, itself, writing
from xr_tensorfmt.writing.ordered_stream import OrderedStream
from xr_tensorfmt.writing.saving import save_planned, unchanged
from xr_tensorfmt.writing.unfinished import beside
from xr_tensorfmt.writing.upload import Upload, abort_upload

_BLOCK = 8 << 20


@dataclass(frozen=True)
class LocalCopy(AtomicFile):
    """A local file in which processes put an object together before it is uploaded."""

    place: Place

    def begin(self) -> LocalCopy:
        """Create the file."""
        self._check(os.path.dirname(self.path))
        super().begin()
        return self

    def write(self, batches: Iterator[Encoded]) -> None:
        """Write bytes at their offsets; processes that share the directory may do so at once."""
        self._check(self.path)
        super().write(batches)

    def complete(self, pieces: Sequence[Piece]) -> None:
        """Write the pieces."""
        with opened(self.path) as descriptor:
            for piece in pieces:
                write_at(descriptor, memoryview(piece.data), piece.offset)

    def publish(self) -> None:
        """Upload the file, and remove it."""
        self._abort_previous()
        upload = Upload(self.place, self.size, replace=self.replace)
        token = ""
        try:
            with opened(self.path) as descriptor, open(descriptor, "rb", closefd=False) as file:
                for start in range(0, self.size, _BLOCK):
                    self._check_not_discarded()
                    block = file.read(min(_BLOCK, self.size - start))
                    upload.write(np.frombuffer(block, np.uint8))
                    if upload.token != token:
                        token = upload.token
                        write_at(descriptor, memoryview(token.encode()), self.size)
            self._check_not_discarded()
            upload.finish()
        except BaseException:
            upload.discard()
            raise
        finally:
            super().discard()

    def _check_not_discarded(self) -> None:
        """Stop where another thread has removed the file, as after Ctrl-C."""
        if not os.path.exists(self.path):
            reason = "the upload was given up; what was there before is unchanged"
            raise OSError(errno.ECANCELED, reason, self.target)

    def discard(self) -> bool:
        """Remove the file, and give up the upload of a process that was lost."""
        self._abort_previous()
        return super().discard()

    def _abort_previous(self) -> None:
        """Abort the upload that another process began, and noted behind the bytes of the file."""
        with suppress(OSError), open(self.path, "rb") as file:
            file.seek(self.size)
            token = file.read()
            if token:
                abort_upload(self.place, token.decode())

    def _check(self, path: str) -> None:
        if not os.path.exists(path):
            reason = (
                f"this process sees no {path}, where the object is put together before it is "
                "sent; set dask's 'temporary-directory' to a directory that all workers share"
            )
            raise FileNotFoundError(errno.ENOENT, reason, self.target)


def send(
    objects: Sequence[tuple[FilePlan, Place]], *, replace: bool, compute: bool
) -> Delayed | None:
    """Write planned objects into a store."""
    directory = os.path.abspath(
        dask.config.get("temporary-directory", None) or tempfile.gettempdir()
    )
    if compute and _runs_in_this_process():
        _send_from_threads(objects, directory, replace=replace)
        return None
    url = objects[-1][1].url
    if compute and isinstance(objects[-1][1].fs, MemoryFileSystem):
        raise ValueError(
            f"{url}: the memory of another process is out of reach; compute with dask's threads"
        )
    copies = [(each, _copy_of(each, where, directory, replace)) for each, where in objects]
    return save_planned(copies, compute=compute)


def _copy_of(file_plan: FilePlan, place: Place, directory: str, replace: bool) -> LocalCopy:
    # The URL is without its query, which may be secret.
    path = beside(os.path.join(directory, os.path.basename(place.url)))
    return LocalCopy(place.url, path, file_plan.size, replace, place)


def _send_from_threads(
    objects: Sequence[tuple[FilePlan, Place]], directory: str, *, replace: bool
) -> None:
    """Send objects as streams if their chunks have an order, and else by way of local files."""
    cuts = [cut_all(file_plan.placed) for file_plan, _ in objects]
    ranges = list(map(_ranges, cuts))
    overlap = any(stop > start for each in ranges for (_, stop), (start, _) in pairwise(each))
    if overlap or any(file_plan.compared for file_plan, _ in objects):
        copies = [(each, _copy_of(each, where, directory, replace)) for each, where in objects]
        save_planned(copies, compute=True)
        return
    streams = []
    for (each, where), parts in zip(objects, ranges, strict=True):
        upload = Upload(where, each.size, replace=replace)
        streams.append(OrderedStream(each.size, each.pieces, parts, upload, directory))
    _stream(streams, cuts)


def _stream(streams: Sequence[OrderedStream], cuts: Sequence[Sequence[Cut]]) -> None:
    begins = [partial(itself, stream) for stream in streams]
    tasks = writing(list(map(FileTask, begins, cuts)), _finish_streams, in_turn=True)

    def discard() -> bool:
        discarded = [stream.discard() for stream in streams]
        return all(discarded)

    with unchanged(streams[-1].target, discard):
        tasks.compute()  # type: ignore[no-untyped-call]


def _finish_streams(streams: Sequence[OrderedStream]) -> None:
    for stream in streams:
        stream.finish()


def _runs_in_this_process() -> bool:
    """Whether dask computes with threads, and not with processes or on a cluster."""
    scheduler = get_scheduler(cls=Delayed)  # type: ignore[no-untyped-call]
    return scheduler in (dask.threaded.get, dask.local.get_sync)


def _ranges(cuts: Sequence[Cut]) -> list[tuple[int, int]]:
    """First byte of each chunk and the one after its last, in the order of the file."""
    bounds = (blocks.bounds(number) for _, blocks in cuts for number in range(blocks.count))
    return sorted(each for each in bounds if each is not None)
