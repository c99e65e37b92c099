"""Space on the disk for a file, before there is anything to write into it."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from errno import EINTR, EINVAL, ENOSYS, ENOTSUP, EOPNOTSUPP
from functools import cache

_UNABLE = {EINVAL, ENOSYS, ENOTSUP, EOPNOTSUPP}


def reserve(descriptor: int, size: int) -> None:
    """Give a file its size and, where the file system can, all of its space.

    Parameters
    ----------
    descriptor : int
        The file.
    size : int
        Its bytes.

    Raises
    ------
    OSError
        There is not so much.
    """
    try:
        fallocate(descriptor, size)
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
    os.ftruncate(descriptor, size)


def fallocate(descriptor: int, size: int) -> None:
    """Ask Linux for space; elsewhere nothing is asked.

    `os.posix_fallocate` is not for this: where the file system cannot reserve, as those of many
    networks cannot, the C library writes a byte into every block of the file.

    Parameters
    ----------
    descriptor : int
        The file.
    size : int
        Bytes from its beginning on.

    Raises
    ------
    OSError
        There is not so much, or the file system cannot reserve.
    """
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
