"""Bytes into their places in a local file, by plain calls of the system."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import EINTR, EINVAL, ENOSYS, ENOTSUP, EOPNOTSUPP
from functools import cache

from xr_tensorfmt.core.chunk_grid import PAGE
from xr_tensorfmt.core.extents import Bytes, Extents

BINARY = getattr(os, "O_BINARY", 0)
"""Flag for opening a file without changes to line ends, which one system needs."""

# Pieces below this may share pages with others that are still to come.
_LARGE = 1 << 20


@contextmanager
def opened(path: str) -> Iterator[int]:
    """Open a file that is there already, for writing into it."""
    descriptor = os.open(path, os.O_RDWR | BINARY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_batches(path: str, batches: Iterator[tuple[Extents, Bytes]]) -> None:
    """Put bytes into their places in a file that is there already."""
    with opened(path) as descriptor:
        for extents, data in batches:
            write_extents(descriptor, extents, data)


def _start_writing_out(descriptor: int, offset: int, length: int) -> None:
    """Let the disk begin, so that waiting for it at the end is short, and no others must wait."""
    if hasattr(os, "posix_fadvise"):
        # The first and the last page may be still to be completed, and would be written twice.
        start, stop = -(-offset // PAGE) * PAGE, (offset + length) // PAGE * PAGE
        # What is not on the disk yet is not dropped by this advice, but its writing is begun.
        os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_DONTNEED)


def write_extents(descriptor: int, extents: Extents, data: Bytes) -> None:
    """Put bytes into their places in an open file."""
    buffer = data.data
    position = 0
    for start, length in zip(extents.starts.tolist(), extents.lengths.tolist(), strict=True):
        write_at(descriptor, buffer[position : position + length], start)
        position += length
        if length >= _LARGE:
            _start_writing_out(descriptor, start, length)


def write_at(descriptor: int, buffer: memoryview, offset: int) -> None:
    """Write all bytes of a buffer from a place on."""
    while buffer:
        count = os.pwrite(descriptor, buffer, offset)
        buffer = buffer[count:]
        offset += count


def sync_folder(folder: str) -> None:
    """Make a new name last; where folders cannot be synced the system sees to it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


_UNABLE = {EINVAL, ENOSYS, ENOTSUP, EOPNOTSUPP}


def reserve(descriptor: int, size: int) -> None:
    """Give a file its size and, where the file system can, all of its space."""
    try:
        fallocate(descriptor, size)
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
    os.ftruncate(descriptor, size)


def fallocate(descriptor: int, size: int) -> None:
    """Ask Linux for space; elsewhere nothing is asked."""
    call = _linux_fallocate()
    while call is not None and size and call(descriptor, 0, 0, size):
        number = ctypes.get_errno()
        if number != EINTR:
            raise OSError(number, os.strerror(number))


@cache
def _linux_fallocate() -> Callable[[int, int, int, int], int] | None:
    if sys.platform != "linux" or sys.maxsize < 1 << 32:  # offsets of other sizes
        return None
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    call.restype = ctypes.c_int
    function: Callable[[int, int, int, int], int] = call
    return function
