"""Writing planned objects into a store: as streams, or by way of local files."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise

import dask
import dask.local
import dask.threaded
import numpy as np
from dask.base import get_scheduler
from dask.delayed import Delayed
from fsspec.implementations.memory import MemoryFileSystem

from xr_tensorfmt.core.extents import Bytes
from xr_tensorfmt.sources.remote import Place, of_this_process
from xr_tensorfmt.writing.atomic_file import AtomicFile, Piece, opened, write_at
from xr_tensorfmt.writing.file_plan import FilePlan
from xr_tensorfmt.writing.graph import save_planned
from xr_tensorfmt.writing.ordered_stream import OrderedStream
from xr_tensorfmt.writing.unfinished import beside
from xr_tensorfmt.writing.upload import Upload

_BLOCK = 8 << 20


@dataclass(frozen=True)
class LocalCopy(AtomicFile):
    """A local file in which processes put an object together before it is uploaded."""

    place: Place

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
            for start in range(0, self.size, _BLOCK):
                upload.write(self._block(start, upload.token))
            self._block(self.size, upload.token)
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
                fs = of_this_process(self.place.fs)
                bucket, key, _ = fs.split_path(self.place.path)
                fs.abort_mpu(bucket, key, token)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        with super()._explained():
            try:
                yield
            except FileNotFoundError:
                reason = (
                    f"this process sees no {self.path}, where the object is put together before "
                    "it is sent; "
                    "set dask's 'temporary-directory' to a directory that all workers share"
                )
                raise FileNotFoundError(errno.ENOENT, reason, self.target) from None


def send(
    objects: Sequence[tuple[FilePlan, Place]], *, replace: bool, compute: bool
) -> Delayed | None:
    """Write planned objects, as streams where threads compute their chunks in the files' order."""
    directory = os.path.abspath(
        dask.config.get("temporary-directory", None) or tempfile.gettempdir()
    )
    in_threads = compute and _runs_in_this_process()
    url, fs = objects[-1][1].url, objects[-1][1].fs
    if compute and not in_threads and isinstance(fs, MemoryFileSystem):
        raise ValueError(
            f"{url}: the memory of another process is out of reach; compute with dask's threads"
        )
    ranges = [_ranges(each) for each, _ in objects] if in_threads else [None]
    files: list[tuple[FilePlan, AtomicFile | OrderedStream]] = []
    for number, (each, place) in enumerate(objects):
        chunks = ranges[number] if None not in ranges else None
        if chunks is None:
            # The URL is without its query, which may be secret.
            path = beside(os.path.join(directory, os.path.basename(place.url)))
            files.append((each, LocalCopy(place.url, path, each.size, replace, place)))
        else:
            upload = Upload(place, each.size, replace=replace)
            files.append((each, OrderedStream(each.size, each.pieces, chunks, upload, directory)))
    return save_planned(files, compute=compute)


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
