"""Reading and writing parts of local files by calls of the system."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from xr_tensorfmt.core.chunk_grid import PAGE
from xr_tensorfmt.core.extents import Bytes, Extents

BINARY = getattr(os, "O_BINARY", 0)
"""Flag for opening a file without conversion of line ends, which Windows needs."""

# Pieces below this may share pages with others that are still to come.
_LARGE = 1 << 20


@contextmanager
def opened(path: str) -> Iterator[int]:
    """Open an existing file for reading and writing."""
    descriptor = os.open(path, os.O_RDWR | BINARY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _start_writing_out(descriptor: int, offset: int, length: int) -> None:
    """Let the disk begin to write, so that the sync at the end is short."""
    if hasattr(os, "posix_fadvise"):
        # The first and the last page may still be incomplete, and would be written twice.
        start, stop = -(-offset // PAGE) * PAGE, (offset + length) // PAGE * PAGE
        # Linux drops only pages that are on the disk, and begins to write the others.
        os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_DONTNEED)


def write_batches(path: str, batches: Iterator[tuple[Extents, Bytes]]) -> None:
    """Write bytes at their offsets into an existing file."""
    with opened(path) as descriptor:
        for start, data in runs_of(batches):
            write_at(descriptor, data, start)
            if len(data) >= _LARGE:
                _start_writing_out(descriptor, start, len(data))


def runs_of(batches: Iterable[tuple[Extents, Bytes]]) -> Iterator[tuple[int, memoryview]]:
    """Offsets and the bytes that belong there."""
    for extents, data in batches:
        buffer, position = data.data, 0
        for start, length in zip(extents.starts.tolist(), extents.lengths.tolist(), strict=True):
            yield start, buffer[position : position + length]
            position += length


def write_at(descriptor: int, buffer: memoryview, offset: int) -> None:
    """Write all bytes of a buffer at an offset."""
    while buffer:
        if hasattr(os, "pwrite"):
            count = os.pwrite(descriptor, buffer, offset)
        else:  # Windows
            os.lseek(descriptor, offset, os.SEEK_SET)
            count = os.write(descriptor, buffer)
        buffer = buffer[count:]
        offset += count


def sync_directory(directory: str) -> None:
    """Write a new name to the disk, where the system can sync directories."""
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def give_size(descriptor: int, size: int, directory: str) -> None:
    """Give a new file its size; OSError where its directory has less space than that."""
    usage = shutil.disk_usage(directory)
    if usage.total and usage.free < size:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} ({usage.free} bytes are free)")
    os.ftruncate(descriptor, size)
