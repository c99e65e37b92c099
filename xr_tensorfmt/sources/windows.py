"""Windows: page-aligned private mappings that live as long as the array over them.

A page of a window that was not written to shows what the file holds, and changes when any program
writes into the file. Before we do, `detach` gives the windows pages of their own.
"""

from __future__ import annotations

import mmap
import os
import sys
from errno import EINVAL
from threading import Lock
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from xr_tensorfmt.extents import Bytes

# Until Python 3.13 every mapping holds a file descriptor; most of those are left to others.
_SHARE_OF_DESCRIPTORS = 4
_with_descriptor: WeakSet[mmap.mmap] = WeakSet()

# Python names this flag from 3.13 on; Linux has the same number on x86, ARM, RISC-V and s390.
# Without it Linux refuses a writable window that is larger than the memory.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)

# Linux makes all pages of a range private at once by this, from 5.14 on; Python has no name for it.
_POPULATE_WRITE = 23

_FileKey = tuple[int, int]
_attached: WeakKeyDictionary[mmap.mmap, _FileKey] = WeakKeyDictionary()
_written_into: set[_FileKey] = set()
_lock = Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


def map_window(descriptor: int, start: int, stop: int, *, scattered: bool = False) -> Bytes | None:
    """Map ``[start, stop)`` of an open file, copy-on-write.

    Parameters
    ----------
    descriptor : int
        The open file; it may be closed afterwards.
    start, stop : int
        The range in bytes; it must lie within the file.
    scattered : bool
        Whether few, distant pages of it will be touched, so that reading ahead would be in vain.

    Returns
    -------
    ndarray of uint8 or None
        Writable memory over the file's pages: the pages are fetched when they are touched, and a
        write stays in memory. None where the system refuses (a file system without mappings, too
        many of them) and of a file that was detached, so that the caller can read instead.
    """
    origin = start - start % mmap.ALLOCATIONGRANULARITY
    key = _key(os.fstat(descriptor))
    with _lock:
        if key in _written_into:
            return None
        try:
            mapping = _map(descriptor, origin, stop - origin)
        except (OSError, ValueError, OverflowError):
            return None
        if mapping is None:
            return None
        _attached[mapping] = key
    if scattered and hasattr(mmap, "MADV_RANDOM"):
        mapping.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapping, dtype=np.uint8)[start - origin :]


def _map(descriptor: int, origin: int, length: int) -> mmap.mmap | None:
    if sys.platform == "win32":
        return mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY, offset=origin)
    flags = mmap.MAP_PRIVATE | _NO_RESERVE
    if sys.version_info >= (3, 13):
        return mmap.mmap(descriptor, length, flags, offset=origin, trackfd=False)
    if len(_with_descriptor) >= os.sysconf("SC_OPEN_MAX") // _SHARE_OF_DESCRIPTORS:
        return None
    mapping = mmap.mmap(descriptor, length, flags, offset=origin)
    _with_descriptor.add(mapping)
    return mapping


def is_detached(status: os.stat_result) -> bool:
    """Whether a file is not to be mapped any more, as `detach` was called for it.

    Parameters
    ----------
    status : stat_result
        What tells the file from others.

    Returns
    -------
    bool
    """
    return _key(status) in _written_into


def detach(status: os.stat_result) -> None:
    """Make all windows of a file memory of their own, and map no more of it in this process.

    Parameters
    ----------
    status : stat_result
        What tells the file from others.

    Raises
    ------
    OSError
        There is not enough memory, or the file was cut off meanwhile.
    """
    key = _key(status)
    with _lock:
        _written_into.add(key)
        mappings = [mapping for mapping, of in _attached.items() if of == key]
    for mapping in mappings:
        _copy_pages(mapping)
        with _lock:
            _attached.pop(mapping, None)


def _key(status: os.stat_result) -> _FileKey:
    return status.st_dev, status.st_ino


def _copy_pages(mapping: mmap.mmap) -> None:
    """Make each page private, as a write to it does."""
    for start in range(0, len(mapping), LARGEST_WINDOW):
        length = min(LARGEST_WINDOW, len(mapping) - start)
        if sys.platform == "linux":
            try:
                mapping.madvise(_POPULATE_WRITE, start, length)
                continue
            except OSError as error:
                if error.errno != EINVAL:
                    raise
        pages = np.frombuffer(mapping, np.uint8, length, start)[:: mmap.PAGESIZE]
        np.bitwise_or(pages, 0, out=pages)
