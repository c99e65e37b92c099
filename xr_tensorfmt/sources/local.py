"""A file on a disk of this machine, mapped or read."""

from __future__ import annotations

import os
import platform
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import FileIO

import numpy as np

from xr_tensorfmt.chunks import PAGE
from xr_tensorfmt.errors import SourceChangedError
from xr_tensorfmt.extents import Bytes, Extents
from xr_tensorfmt.sources.base import LARGEST_WINDOW, Fill, Source
from xr_tensorfmt.sources.parts import Part, merged_parts
from xr_tensorfmt.sources.windows import is_detached, map_window

# Below this, a copy is quicker than a mapping and its page faults.
_SMALLEST_WINDOW = 64 << 10
# A page fault without read-ahead costs about as much as reading this many bytes in sequence.
_FAR_APART = 64 << 10
# Two files that have changed within so many nanoseconds may bear the same time of change.
_SAME_TICK = 2 * 10**9


@dataclass(frozen=True)
class LocalFile(Source):
    """A local file, opened anew for each read.

    Parameters
    ----------
    path : str
        Absolute path, so that workers in other folders find it.
    size : int
        Bytes of the file when it was opened.
    mtime_ns : int
        Its time of modification then, in nanoseconds.
    ctime_ns : int
        Its time of change then, which no program can set. It is compared on `host` alone, as
        copies of a file on several machines differ in it.
    inode : int or None
        Its inode number, if the change was so recent that a replacement may bear the same time;
        else None, as some file systems number their files anew while they are not open.
    host : str
        The machine on which it was looked at.
    mapped : bool
        Whether reads map a window of the file; otherwise they copy into memory of their own,
        which suits network file systems and files that others rewrite.
    """

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int | None
    host: str
    mapped: bool = True

    @classmethod
    def at(cls, path: str | os.PathLike[str], *, mapped: bool = True) -> LocalFile:
        """Take note of the file at `path` (``~`` is the home folder).

        Parameters
        ----------
        path : str or PathLike
            The file.
        mapped : bool
            As for the class.

        Returns
        -------
        LocalFile

        Raises
        ------
        OSError
            There is no such file, or it may not be looked at.
        """
        absolute = os.path.abspath(os.path.expanduser(path))
        status = os.stat(absolute)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(f"{absolute} is a folder; name the tensor file in it")
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{absolute} is a pipe or a device; only regular files can be opened")
        recent = time.time_ns() - status.st_ctime_ns < _SAME_TICK
        return cls(
            absolute,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_ino if recent else None,
            platform.node(),
            mapped and not is_detached(status),
        )

    @property
    def name(self) -> str:
        """The absolute path."""
        return self.path

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """What tells contents apart: a replaced file has another name in dask."""
        return type(self).__name__, self.path, self.size, self.mtime_ns, self.ctime_ns, self.mapped

    def sibling(self, path: str) -> LocalFile:
        """Another file of the same folder or below it, read in the same way."""
        folder = os.path.dirname(self.path)
        return LocalFile.at(os.path.join(folder, *path.split("/")), mapped=self.mapped)

    @contextmanager
    def _open(self) -> Iterator[FileIO]:
        with FileIO(self.path, opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            self._check(status)
            yield file

    def _check(self, status: os.stat_result) -> None:
        """Refuse a file that is no longer the one that was opened."""
        if (status.st_size, status.st_mtime_ns) != (self.size, self.mtime_ns):
            raise SourceChangedError(
                self.path,
                "the file",
                f"{status.st_size} bytes modified at {_time(status.st_mtime_ns)}",
                f"{self.size} bytes modified at {_time(self.mtime_ns)}",
                "it has changed since it was opened; open it again",
            )
        if self.host != platform.node():
            return
        if status.st_ctime_ns != self.ctime_ns or self.inode not in (None, status.st_ino):
            raise SourceChangedError(
                self.path,
                "the file",
                f"inode {status.st_ino} changed at {_time(status.st_ctime_ns)}",
                f"{self._inode} changed at {_time(self.ctime_ns)}",
                "it was replaced, written to, renamed, linked or given other permissions since it "
                "was opened, though its size and time of modification are the same; open it again",
            )

    @property
    def _inode(self) -> str:
        return "a file" if self.inode is None else f"inode {self.inode}"

    @contextmanager
    def opened(self) -> Iterator[Fill]:
        """Open the file, check that it is still the same, and close it after the batch."""
        with self._open() as file:

            def fill(start: int, buffer: memoryview) -> int:
                file.seek(start)
                return file.readinto(buffer)

            yield fill

    def window(self, start: int, stop: int) -> Bytes | None:
        """Map the range, privately: what the caller writes there never reaches the file."""
        return self._map(start, stop, scattered=False)

    def _map(self, start: int, stop: int, *, scattered: bool) -> Bytes | None:
        if not self.mapped or stop - start < _SMALLEST_WINDOW:
            return None
        with self._open() as file:
            return map_window(file.fileno(), start, stop, scattered=scattered)

    def parts(self, extents: Extents) -> Iterable[Part]:
        """Windows as far as mapped, of which only those pages are fetched that are needed."""
        if not self.mapped:
            return super().parts(extents)
        return merged_parts(extents, gap=LARGEST_WINDOW, limit=LARGEST_WINDOW)

    def fetched(self, part: Part) -> int:
        """Whole pages, of a window."""
        in_window = self.mapped and part.size >= _SMALLEST_WINDOW
        return part.extents.blocks(PAGE) * PAGE if in_window else part.size

    def read(self, extents: Extents) -> Bytes:
        """Fetch byte ranges: one range as a window, several copied out of windows."""
        if not self.mapped:
            return super().read(extents)
        packed: Bytes | None = None
        position = 0
        for group in extents.merged(gap=LARGEST_WINDOW, limit=LARGEST_WINDOW):
            piece = self._read_group(group)
            if piece.size == extents.nbytes:
                return piece
            if packed is None:
                packed = np.empty(extents.nbytes, dtype=np.uint8)
            packed[position : position + piece.size] = piece
            position += piece.size
        assert packed is not None, "there is at least one range"
        return packed

    def _read_group(self, group: Extents) -> Bytes:
        start, stop = group.bounds
        far_apart = (stop - start) // len(group) > _FAR_APART
        window = self._map(start, stop, scattered=len(group) > 1 and far_apart)
        if window is None:
            return replace(self, mapped=False).read(group)
        return window if len(group) == 1 else group.gather(window, start)


def _open_without_waiting(path: str, flags: int) -> int:
    """Open even a pipe that has taken the file's place, for which nobody may ever write."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _time(nanoseconds: int) -> str:
    return f"{np.datetime64(nanoseconds, 'ns')}Z"
