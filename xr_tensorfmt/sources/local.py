"""Local files, file objects and memory.

Files are read into new memory or through windows: private memory maps.
"""

from __future__ import annotations

import mmap
import os
import pickle
import platform
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from errno import EMFILE
from io import BytesIO, FileIO
from operator import attrgetter
from typing import Any, BinaryIO, Self
from uuid import uuid4
from weakref import WeakSet

import numpy as np

from xr_tensorfmt.core.extents import PAGE, Bytes, Extents
from xr_tensorfmt.core.locks import ForkSafeLock, share_lock
from xr_tensorfmt.core.source import InputOutput, Source
from xr_tensorfmt.errors import SAME_BYTES, SourceChangedError, build_directory_error, redact

# Before Python 3.13, a memory map keeps a file descriptor open. Our maps use at most a quarter of
# the limit of the process.
_DESCRIPTOR_FRACTION = 4

# Linux refuses a writable window that is larger than the memory without this flag. Python 3.13
# added it. The value is for x86, ARM, RISC-V and s390.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)

# Smaller windows cost more than a copy. Pages of larger ones count as memory once they are read.
_MIN_WINDOW, _MAX_WINDOW = 64 << 10, 64 << 20
# Mean length of ranges up to which copying them from a window is faster than requests.
_MAX_PIECE = 64 << 10
# Opening a named pipe, which may have replaced the file, would wait for a writer.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_HOST = platform.node()


class _Window(mmap.mmap):
    """A private memory map of a file."""

    path: str


_windows: WeakSet[_Window] = WeakSet()


@contextmanager
def _open_file(path: str) -> Iterator[FileIO]:
    descriptor = os.open(path, _READ)
    try:
        with FileIO(descriptor, closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def _build_window(descriptor: int, origin: int, length: int) -> _Window:
    if sys.platform == "win32":
        return _Window(descriptor, length, access=mmap.ACCESS_COPY, offset=origin)
    flags = mmap.MAP_PRIVATE | _NO_RESERVE
    if sys.version_info >= (3, 13):
        return _Window(descriptor, length, flags, offset=origin, trackfd=False)
    if len(_windows) >= os.sysconf("SC_OPEN_MAX") // _DESCRIPTOR_FRACTION:
        raise OSError(EMFILE, "this process has many memory maps")
    return _Window(descriptor, length, flags, offset=origin)


def find_mapped_file(values: object) -> str | None:
    """Return the file whose map holds an array, "" if it is unknown, or None without a map."""
    base: Any = values
    while isinstance(base, np.ndarray | memoryview):
        if isinstance(base, np.memmap) and isinstance(base.filename, str | os.PathLike):
            return os.fspath(base.filename)
        base = base.obj if isinstance(base, memoryview) else base.base
    if isinstance(base, _Window):
        return base.path
    # Arrays of other libraries may be maps.
    is_memory = base is None or isinstance(base, bytes | bytearray)
    return None if is_memory or not isinstance(values, np.ndarray) else ""


@dataclass(frozen=True)
class LocalFile(Source):
    """A local file, which is opened and compared with the file at the beginning for every read."""

    path: str
    size: int
    mtime_ns: int
    inode: int
    host: str
    io: InputOutput = "auto"
    verify_unchanged: bool = True

    short_gap = PAGE  # the gaps are in the same pages as the values between them

    @classmethod
    def open_head(
        cls,
        path: str | os.PathLike[str],
        io: InputOutput = "auto",
        *,
        verify_unchanged: bool = True,
    ) -> tuple[Self, bytes]:
        """Return the file at `path` and its first page; ``~`` is the home directory."""
        absolute = os.path.abspath(os.path.expanduser(path))
        if os.path.isdir(absolute):  # Windows would raise PermissionError
            raise build_directory_error(absolute)
        with _open_file(absolute) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{absolute} is not a regular file, so it cannot be opened")
            head = file.read(PAGE)
        size, mtime_ns, inode = status.st_size, status.st_mtime_ns, status.st_ino
        return cls(absolute, size, mtime_ns, inode, _HOST, io, verify_unchanged), head

    name = property(attrgetter("path"))

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """Identify the version of the file. dask would tokenize every field, which is slower."""
        version = self.size, self.mtime_ns, self.inode
        return type(self).__name__, self.path, *version, self.io, self.verify_unchanged

    def sibling(self, path: str) -> tuple[Self, bytes]:
        """Open another file in the same directory or below it, with the same `io`."""
        directory = os.path.dirname(self.path)
        sibling = os.path.join(directory, *path.split("/"))
        return type(self).open_head(sibling, self.io, verify_unchanged=self.verify_unchanged)

    def _check(self, status: os.stat_result) -> None:
        """Raise SourceChangedError if the file has changed since it was opened."""
        # A copy on another host has another inode.
        inode = status.st_ino if self.host == _HOST else self.inode
        actual = status.st_size, status.st_mtime_ns, inode
        expected = self.size, self.mtime_ns, self.inode
        if actual != expected and (self.verify_unchanged or self.size != status.st_size):
            hint = f"it was changed or replaced after it was opened; open it again, {SAME_BYTES}"
            hint += " or written by region="
            descriptions = _describe(*actual), _describe(*expected)
            raise SourceChangedError(self.path, "the file", *descriptions, hint)

    def check_unchanged(self) -> None:
        """Raise OSError or SourceChangedError if the file was changed, replaced or removed."""
        self._check(os.stat(self.path))

    @contextmanager
    def open(self) -> Iterator[FileIO]:
        """Open the file for a batch of reads, and check that it has not changed."""
        with _open_file(self.path) as file:
            self._check(os.fstat(file.fileno()))
            yield file

    def allow_windows(self) -> LocalFile:
        """Return the file with ``io="mmap"`` unless the user chose another mode."""
        return replace(self, io="mmap") if self.io == "auto" else self

    def plan_windows(self, extents: Extents) -> Extents | None:
        """Return the ranges to map: one for `io="mmap"`, or several short ranges in few windows."""
        if self.io == "read" or (len(extents) == 1 and self.io == "auto"):
            return None
        windows = extents
        if len(extents) > 1:
            if extents.nbytes > _MAX_PIECE * len(extents):
                return None
            windows = extents.merge(gap=_MAX_WINDOW, limit=_MAX_WINDOW)
        return windows if windows.nbytes >= _MIN_WINDOW * len(windows) else None

    def read(self, extents: Extents) -> Bytes:
        """Fetch ranges into new memory, copy them from windows, or return the only window."""
        windows = self.plan_windows(extents)
        if windows is not None:
            with suppress(OSError, ValueError, OverflowError):  # the file cannot be mapped
                if len(extents) == 1:
                    return self._map(*extents.bounds)
                packed = np.empty(extents.nbytes, dtype=np.uint8)
                for start, stop, ranges, out in extents.iterate_transfers(windows, packed):
                    ranges.gather(self._map(start, stop), start, out)
                return packed
        return super().read(extents)

    def _map(self, start: int, stop: int) -> Bytes:
        """Map a range, copy-on-write."""
        origin = start - start % mmap.ALLOCATIONGRANULARITY
        with self.open() as file:
            window = _build_window(file.fileno(), origin, stop - origin)
        window.path = self.path
        _windows.add(window)
        return np.frombuffer(window, dtype=np.uint8)[start - origin :]


def _describe(size: int, mtime_ns: int, inode: int) -> str:
    time = np.datetime64(mtime_ns // 1_000_000, "ms")
    return f"{size} bytes modified at {time}Z (inode {inode})"


class FileObject(Source):
    """A seekable binary file object. Its position is the same after each read."""

    name = property(attrgetter("_name"))

    def __init__(self, file: BinaryIO, token: str = "", name: str = "") -> None:
        self._token = token or uuid4().hex
        # Files of fsspec have no `name`.
        found = [name, *(getattr(file, key, None) for key in ("name", "full_name", "path"))]
        named = next((text for text in found if text and isinstance(text, str)), "")
        self._name = redact(named) or f"<{type(file).__name__}>"
        self._set_file(file)
        with self.open():
            file.seek(0, os.SEEK_END)  # returns None for a memory map before Python 3.13
            self.size = file.tell()

    def _set_file(self, file: BinaryIO) -> tuple[BinaryIO, ForkSafeLock, int]:
        self._shared = file, share_lock(("file object", id(file))), os.getpid()
        return self._shared

    def __dask_tokenize__(self) -> str:
        """Return a random token, because dask would hash the content for every variable."""
        return self._token

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Lock the file object for a batch of reads. All sources of it share its position."""
        file, lock, process = self._shared
        if process != os.getpid() and not isinstance(file, BytesIO):
            # It shares the position with the parent process, unless it is opened again.
            file, lock, _ = self._set_file(pickle.loads(pickle.dumps(file)))  # noqa: S301  # own bytes
        with lock.current:
            position = file.tell()
            try:
                yield file
            finally:
                file.seek(position)

    def __reduce__(self) -> tuple[type[FileObject], tuple[BinaryIO, str, str]]:
        """Pickle the file object without the lock."""
        return FileObject, (self._shared[0], self._token, self._name)
