"""Local files, file objects and memory.

Files are read into new memory or through windows: private memory maps.
"""

from __future__ import annotations

import glob
import mmap
import os
import pickle
import platform
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from errno import ENOENT
from io import BytesIO, FileIO
from typing import Any, BinaryIO, Self
from uuid import uuid4
from weakref import WeakSet

import numpy as np

from xr_tensorfmt.core.extents import PAGE, Bytes, Extents
from xr_tensorfmt.core.locks import ForkSafeLock, share_lock
from xr_tensorfmt.core.source import Fill, InputOutput, Source
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
# Bytes of a line of the processor cache.
_ALIGNMENT = 64
# Opening a named pipe, which may have replaced the file, would wait for a writer.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_HOST = platform.node()


class _Window(mmap.mmap):
    """A private memory map of a file."""

    path: str


_windows: WeakSet[_Window] = WeakSet()


@dataclass(slots=True)
class _OpenFile:
    """An open file, which fills buffers."""

    descriptor: int

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def __call__(self, start: int, buffer: memoryview) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self.descriptor, [buffer], start)
        with FileIO(self.descriptor, closefd=False) as file:
            file.seek(start)
            return file.readinto(buffer)


def _build_window(descriptor: int, origin: int, length: int) -> _Window | None:
    if sys.platform == "win32":
        return _Window(descriptor, length, access=mmap.ACCESS_COPY, offset=origin)
    flags = mmap.MAP_PRIVATE | _NO_RESERVE
    if sys.version_info >= (3, 13):
        return _Window(descriptor, length, flags, offset=origin, trackfd=False)
    if len(_windows) >= os.sysconf("SC_OPEN_MAX") // _DESCRIPTOR_FRACTION:
        return None
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

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], *, io: InputOutput = "auto") -> Self:
        """Return the file at `path`; ``~`` is the home directory."""
        return cls.open_head(path, io)[0]

    @classmethod
    def open_head(
        cls, path: str | os.PathLike[str], io: InputOutput, *, verify_unchanged: bool = True
    ) -> tuple[Self, bytes]:
        """Return the file at `path` and its first page, to open the file once for both."""
        absolute = os.path.abspath(os.path.expanduser(path))
        try:
            file = _OpenFile(os.open(absolute, _READ))
        except FileNotFoundError:
            if not glob.has_magic(absolute):
                raise
            reason = "No file has this name; use xarray.open_mfdataset for a pattern"
            raise FileNotFoundError(ENOENT, reason, absolute) from None
        except PermissionError:
            if os.path.isdir(absolute):  # Windows opens no directory
                raise build_directory_error(absolute) from None
            raise
        with file:
            status = os.fstat(file.descriptor)
            if stat.S_ISDIR(status.st_mode):
                raise build_directory_error(absolute)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{absolute} is not a regular file, so it cannot be opened")
            head = os.read(file.descriptor, PAGE)
        size, mtime_ns, inode = status.st_size, status.st_mtime_ns, status.st_ino
        return cls(absolute, size, mtime_ns, inode, _HOST, io, verify_unchanged), head

    @property
    def short_gap(self) -> int:  # type: ignore[override]
        """Shorter gaps are in the same pages as the values between them."""
        return super().short_gap if self.io == "read" else PAGE

    @property
    def name(self) -> str:
        """The absolute path."""
        return self.path

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """Return path, size, time and inode, so that a replaced file gets another token."""
        return type(self).__name__, self.path, self.size, self.mtime_ns, self.inode, self.io

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
            hint = "it was changed or replaced after it was opened; open it again"
            if self.size == status.st_size:
                hint += f", {SAME_BYTES}"
            descriptions = _describe(*actual), _describe(*expected)
            raise SourceChangedError(self.path, "the file", *descriptions, hint)

    def check_unchanged(self) -> None:
        """Raise OSError or SourceChangedError if the file was changed, replaced or removed."""
        self._check(os.stat(self.path))

    def open(self) -> _OpenFile:
        """Open the file for a batch of reads, and check that it has not changed."""
        descriptor = os.open(self.path, _READ)
        try:
            self._check(os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        return _OpenFile(descriptor)

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
        planned = self.plan_windows(extents)
        if planned is not None and len(extents) == 1:
            window = self._map(*extents.bounds)
            if window is not None:
                return window
        packed = _allocate(extents.bounds[0], extents.nbytes)
        if planned is None or not self._copy_from_windows(extents, planned, packed):
            self._read_into(packed, extents)
        return packed

    def _copy_from_windows(self, extents: Extents, windows: Extents, packed: Bytes) -> bool:
        """Copy ranges from windows; return False if one cannot be mapped."""
        for start, stop, ranges, out in extents.iterate_transfers(windows, packed):
            window = self._map(start, stop)
            if window is None:
                return False
            ranges.gather(window, start, out)
        return True

    def _map(self, start: int, stop: int) -> Bytes | None:
        """Map a range, copy-on-write, or return None if that is impossible."""
        origin = start - start % mmap.ALLOCATIONGRANULARITY
        window = None
        with self.open() as file, suppress(OSError, ValueError, OverflowError):
            window = _build_window(file.descriptor, origin, stop - origin)
        if window is None:
            return None
        window.path = self.path
        _windows.add(window)
        return np.frombuffer(window, dtype=np.uint8)[start - origin :]


def _allocate(start: int, size: int) -> Bytes:
    """Return memory for bytes of a file, half a page away from the position of `start` in its page.

    Copying takes three times as long if bytes move up by 1 to 31 bytes, modulo a page.
    """
    if size < _MIN_WINDOW:
        return np.empty(size, dtype=np.uint8)
    memory = np.empty(size + PAGE, dtype=np.uint8)
    aligned = (start + PAGE // 2) // _ALIGNMENT * _ALIGNMENT
    shift = (aligned - memory.ctypes.data) % PAGE
    return memory[shift : shift + size]


def _describe(size: int, mtime_ns: int, inode: int) -> str:
    time = np.datetime64(mtime_ns // 1_000_000, "ms")
    return f"{size} bytes modified at {time}Z (inode {inode})"


class FileObject(Source):
    """A seekable binary file object. Its position is the same after each read."""

    def __init__(self, file: BinaryIO, token: str = "", name: str = "") -> None:
        self._token = token or uuid4().hex
        name = name or getattr(file, "name", "")
        self._name = redact(name) if name and isinstance(name, str) else f"<{type(file).__name__}>"
        self._set_file(file)
        try:
            with self._use() as file:
                file.seek(0, os.SEEK_END)
                self.size = file.tell()
                is_text = isinstance(file.read(0), str)
        except (OSError, AttributeError) as error:
            raise TypeError(f"{self.name} is not seekable; pass a path or the bytes") from error
        if is_text:
            raise TypeError(f"{self.name} is opened in text mode; open the file with mode 'rb'")

    def _set_file(self, file: BinaryIO) -> tuple[BinaryIO, ForkSafeLock, int]:
        self._shared = file, share_lock(("file object", id(file))), os.getpid()
        return self._shared

    def __dask_tokenize__(self) -> str:
        """Return a random token, because dask would hash the content for every variable."""
        return self._token

    @property
    def name(self) -> str:
        """Name of the file object, or its type."""
        return self._name

    @contextmanager
    def _use(self) -> Iterator[BinaryIO]:
        """Lock the file object, because all sources of it share its position."""
        file, lock, process = self._shared
        if process != os.getpid() and not isinstance(file, BytesIO):
            # The file object of a forked process shares the position with its parent.
            file, lock, _ = self._set_file(pickle.loads(self._pickle()))  # noqa: S301  # own bytes
        if getattr(file, "closed", False):
            raise ValueError(
                f"{self.name} is closed, so its values cannot be read; load the values before "
                "closing the file, or open it by path"
            )
        with lock.current:
            position = file.tell()
            try:
                yield file
            finally:
                file.seek(position)

    @contextmanager
    def open(self) -> Iterator[Fill]:
        """Lock the file object for a batch of reads."""
        with self._use() as file:

            def fill(start: int, buffer: memoryview) -> int:
                file.seek(start)
                if hasattr(file, "readinto"):
                    return int(file.readinto(buffer))
                # obstore returns a buffer that is not bytes.
                piece = memoryview(file.read(len(buffer)))
                buffer[: len(piece)] = piece
                return len(piece)

            yield fill

    def _pickle(self) -> bytes:
        try:
            return pickle.dumps(self._shared[0])
        except TypeError as error:
            raise TypeError(
                f"{self.name} is an open file, so it cannot be sent to other processes; "
                "open it by path"
            ) from error

    def __reduce__(self) -> tuple[Callable[..., FileObject], tuple[bytes, str, str]]:
        """Pickle the file object without the lock; raise TypeError if it cannot be pickled."""
        return _unpickle_file, (self._pickle(), self._token, self._name)


def _unpickle_file(content: bytes, token: str, name: str) -> FileObject:
    return FileObject(pickle.loads(content), token, name)  # noqa: S301  # pickled by this module


class Memory(FileObject):
    """The content of a file in memory."""

    def __init__(self, content: bytes | bytearray | memoryview, name: str = "") -> None:
        name = name or f"<{memoryview(content).nbytes} bytes in memory>"
        super().__init__(BytesIO(content), name=name)
