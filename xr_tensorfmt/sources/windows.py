"""Windows: page-aligned private mappings that live as long as the array over them."""

from __future__ import annotations

import mmap
import os
import sys
from weakref import WeakSet

import numpy as np

from xr_tensorfmt.extents import Bytes

# Until Python 3.13 every mapping holds a file descriptor; most of those are left to others.
_SHARE_OF_DESCRIPTORS = 4
_with_descriptor: WeakSet[mmap.mmap] = WeakSet()

# Python names this flag from 3.13 on; Linux has the same number on x86, ARM, RISC-V and s390.
# Without it Linux refuses a writable window that is larger than the memory.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


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
        many of them), so that the caller can read instead.
    """
    origin = start - start % mmap.ALLOCATIONGRANULARITY
    try:
        mapping = _map(descriptor, origin, stop - origin)
    except (OSError, ValueError, OverflowError):
        return None
    if mapping is None:
        return None
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
