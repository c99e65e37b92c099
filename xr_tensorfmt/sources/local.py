"""Local files, read through windows: private memory maps that live as long as their array.

If a program writes to the file, the pages of its windows change. Before this package writes to a
file, `detach` copies the pages of all windows of this process.
"""

from __future__ import annotations

import glob
import mmap
import os
import platform
import re
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from errno import ENOENT
from io import FileIO
from weakref import WeakKeyDictionary

import numpy as np

from xr_tensorfmt.core.chunk_grid import PAGE
from xr_tensorfmt.core.extents import Bytes, Extents, Fetch, merge_fetches
from xr_tensorfmt.core.locks import ForkSafeLock
from xr_tensorfmt.core.source import MAX_WINDOW, Fill, Source
from xr_tensorfmt.errors import SourceChangedError, build_directory_error

# Before Python 3.13, a memory map keeps a file descriptor open. Our maps use at most a quarter of
# the limit of the process.
_DESCRIPTOR_FRACTION = 4

# Linux refuses a writable window that is larger than the memory without this flag. Python 3.13
# added it. The value is for x86, ARM, RISC-V and s390.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)

_FileKey = tuple[int, int]
_windows: WeakKeyDictionary[mmap.mmap, _FileKey] = WeakKeyDictionary()
_changed_files: set[_FileKey] = set()
_lock = ForkSafeLock()


def map_window(descriptor: int, start: int, stop: int, *, scattered: bool = False) -> Bytes | None:
    """Map ``[start, stop)`` of an open file, copy-on-write; return None if that is impossible."""
    origin = start - start % mmap.ALLOCATIONGRANULARITY
    key = _get_key(os.fstat(descriptor))
    with _lock.current:
        if key in _changed_files:
            return None
        try:
            mapping = _map(descriptor, origin, stop - origin)
        except (OSError, ValueError, OverflowError):
            return None
        if mapping is None:
            return None
        _windows[mapping] = key
    if scattered and hasattr(mmap, "MADV_RANDOM"):
        mapping.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapping, dtype=np.uint8)[start - origin :]


def _map(descriptor: int, origin: int, length: int) -> mmap.mmap | None:
    if sys.platform == "win32":
        return mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY, offset=origin)
    flags = mmap.MAP_PRIVATE | _NO_RESERVE
    if sys.version_info >= (3, 13):
        return mmap.mmap(descriptor, length, flags, offset=origin, trackfd=False)
    if len(_windows) >= os.sysconf("SC_OPEN_MAX") // _DESCRIPTOR_FRACTION:
        return None
    return mmap.mmap(descriptor, length, flags, offset=origin)


def detach(status: os.stat_result) -> None:
    """Copy all windows of a file into private memory, and do not map the file again."""
    key = _get_key(status)
    with _lock.current:
        _changed_files.add(key)
        mappings = [mapping for mapping, file_key in _windows.items() if file_key == key]
    for mapping in mappings:
        # Writing to a page copies it.
        pages = np.frombuffer(mapping, np.uint8)[:: mmap.PAGESIZE]
        np.bitwise_or(pages, 0, out=pages)
        with _lock.current:
            _windows.pop(mapping, None)


def _get_key(status: os.stat_result) -> _FileKey:
    return status.st_dev, status.st_ino


# Smaller ranges are copied, which is faster than page faults.
_MIN_WINDOW = 64 << 10
# A page fault without read-ahead takes about as long as a sequential read of this size.
_SPARSE_SPACING = 64 << 10
# Two changes within this many nanoseconds may have the same time.
_CLOCK_RESOLUTION = 2 * 10**9


@dataclass(frozen=True)
class LocalFile(Source):
    """A local file, which is opened for every read.

    A read raises SourceChangedError if size or modification time have changed. On the same host,
    it also compares the change time of the inode, which programs cannot set. This detects files
    that ``rsync -t`` or ``cp -p`` replaced by files of the same size and modification time. A new
    change time of the same inode is ignored if mode, owner or number of links have changed.
    """

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    host: str
    attributes: tuple[int, ...] = ()
    """Mode, owner, group and number of links."""
    is_recent: bool = False
    """Whether the file changed so recently that another file may have the same times."""
    mapped: bool = True

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], *, mapped: bool = True) -> LocalFile:
        """Return the file at `path`; ``~`` is the home directory."""
        absolute = os.path.abspath(os.path.expanduser(path))
        try:
            status = os.stat(absolute)
        except FileNotFoundError:
            if glob.has_magic(absolute):
                reason = "No file has this name; use xarray.open_mfdataset for a pattern"
            elif re.search(r"/\w\w+:/", absolute):
                reason = "No file has this name; put two slashes after the colon of a URL"
            else:
                raise
            raise FileNotFoundError(ENOENT, reason, absolute) from None
        if stat.S_ISDIR(status.st_mode):
            raise build_directory_error(absolute)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{absolute} is not a regular file, so it cannot be opened")
        return cls(
            absolute,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_ino,
            platform.node(),
            _get_attributes(status),
            is_recent=time.time_ns() - status.st_ctime_ns < _CLOCK_RESOLUTION,
            mapped=mapped and _get_key(status) not in _changed_files,
        )

    @property
    def name(self) -> str:
        """The absolute path."""
        return self.path

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """Return path, size and times, so that a replaced file gets another token."""
        return type(self).__name__, self.path, self.size, self.mtime_ns, self.ctime_ns, self.mapped

    def sibling(self, path: str) -> tuple[LocalFile, bytes]:
        """Open another file in the same directory or below it, with the same `mapped`."""
        directory = os.path.dirname(self.path)
        sibling = os.path.join(directory, *path.split("/"))
        return type(self).from_path(sibling, mapped=self.mapped), b""

    @contextmanager
    def _open_file(self) -> Iterator[FileIO]:
        with FileIO(self.path, opener=_open_without_waiting) as file:
            self._check(os.fstat(file.fileno()))
            yield file

    def _check(self, status: os.stat_result) -> None:
        """Raise SourceChangedError if the file has changed since it was opened."""
        is_same = (status.st_size, status.st_mtime_ns) == (self.size, self.mtime_ns)
        if is_same and (self.host != platform.node() or not self._may_be_replacement(status)):
            return
        raise SourceChangedError(
            self.path,
            field="the file",
            actual="another one with this size and time"
            if is_same
            else _describe(status.st_size, status.st_mtime_ns),
            expected=_describe(self.size, self.mtime_ns),
            hint="it was changed or replaced after it was opened; open it again",
        )

    def _may_be_replacement(self, status: os.stat_result) -> bool:
        """Return whether a file of the same size and modification time may be another file.

        - Same change time, same inode: no.
        - Same change time, other inode: only if the file changed just before it was opened.
        - Other change time, same inode: yes, unless mode, owner or link count explain the change.
        - Other change time, other inode: yes.
        """
        is_other = status.st_ino != self.inode
        if status.st_ctime_ns == self.ctime_ns:
            # Some network file systems renumber inodes, so another inode alone is no evidence of
            # another file, unless the times are too recent to be unique.
            return is_other and self.is_recent
        return is_other or _get_attributes(status) == self.attributes

    @contextmanager
    def open(self) -> Iterator[Fill]:
        """Open the file for a batch of reads, and check that it has not changed."""
        with self._open_file() as file:

            def fill(start: int, buffer: memoryview) -> int:
                file.seek(start)
                return file.readinto(buffer)

            yield fill

    def window(self, start: int, stop: int, *, scattered: bool = False) -> Bytes | None:
        """Map a range; writing to the map does not change the file."""
        if not self.mapped or stop - start < _MIN_WINDOW:
            return None
        with self._open_file() as file:
            return map_window(file.fileno(), start, stop, scattered=scattered)

    def plan_fetches(self, extents: Extents) -> Iterable[Fetch]:
        """Windows of up to 64 MiB if the file is mapped."""
        if not self.mapped:
            return super().plan_fetches(extents)
        return merge_fetches(extents, gap=MAX_WINDOW, limit=MAX_WINDOW)

    def count_transferred(self, fetch: Fetch) -> int:
        """Return the bytes of the touched pages of a window, or the size of a copy."""
        in_window = self.mapped and fetch.size >= _MIN_WINDOW
        return fetch.extents.count_pages(PAGE) * PAGE if in_window else fetch.size

    def read(self, extents: Extents) -> Bytes:
        """Fetch one range as a window, or copy several ranges from windows."""
        if not self.mapped:
            return super().read(extents)
        first, *others = self.plan_fetches(extents)
        if not others:
            return self._read_window(extents)
        packed = np.empty(extents.nbytes, dtype=np.uint8)
        for fetch in (first, *others):
            fetch.view(packed)[:] = self._read_window(fetch.extents)
        return packed

    def read_bytes(self, start: int, stop: int) -> bytes:
        """Copy one short range, which is faster than a window."""
        content = np.empty(stop - start, dtype=np.uint8)
        with self.open() as fill:
            self._fill(fill, start, content)
        return content.tobytes()

    def _read_window(self, group: Extents) -> Bytes:
        start, stop = group.bounds
        sparse = (stop - start) // len(group) > _SPARSE_SPACING
        window = self.window(start, stop, scattered=len(group) > 1 and sparse)
        if window is None:
            return replace(self, mapped=False).read(group)
        return window if len(group) == 1 else group.gather(window, start)


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file. A named pipe that has replaced the file would wait for a writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _get_attributes(status: os.stat_result) -> tuple[int, ...]:
    """Return attributes whose changes affect the change time, but not the content."""
    return status.st_mode, status.st_uid, status.st_gid, status.st_nlink


def _describe(size: int, mtime_ns: int) -> str:
    return f"{size} bytes modified at {np.datetime64(mtime_ns // 1_000_000, 'ms')}Z"
