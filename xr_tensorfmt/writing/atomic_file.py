"""Writing of local files by calls of the system; a whole file appears when it is complete."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from errno import EACCES, EINVAL, ELOOP, ENOSPC, ENOSYS, ENOTSUP, EOPNOTSUPP, EPERM, EROFS
from typing import Self

from xr_tensorfmt.core.chunk_grid import PAGE
from xr_tensorfmt.core.layout import Encoded
from xr_tensorfmt.writing.unfinished import remove_orphaned, unfinished_path
from xr_tensorfmt.writing.write_target import Piece


def exists_already(path: str) -> FileExistsError:
    """The error about a file that must not be replaced."""
    return FileExistsError(f"{path} exists already; pass mode='w' to replace it")


def target_of(path: str, *, replace: bool) -> str:
    """The file that a path leads to; OSError where it cannot be written or replaced."""
    target = os.path.realpath(path)
    if os.path.islink(target):
        raise OSError(ELOOP, "its symbolic links lead to each other", path)
    directory = os.path.dirname(target)
    if os.path.isdir(target):
        raise IsADirectoryError(f"{path} is a directory; give the name of a file")
    if not os.path.isdir(directory):
        raise FileNotFoundError(f"{path}: there is no directory {directory}; make it first")
    if os.path.exists(target) and not os.path.isfile(target):
        raise OSError(EINVAL, "it is not a regular file, so that it cannot be replaced", path)
    if not replace and os.path.exists(target):
        raise exists_already(target)
    check_writable(target)
    return target


_ANY_WRITES = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def check_writable(path: str) -> None:
    """Raise OSError if a file exists and must not be written, even if it could be replaced."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return
    if hasattr(os, "statvfs") and os.statvfs(path).f_flag & os.ST_RDONLY:
        raise OSError(EROFS, "its file system is read-only; write to another directory", path)
    # Root may write to every file, but the mode says what its owner meant.
    if not mode & _ANY_WRITES or not os.access(path, os.W_OK):
        reason = f"it is write-protected (mode {mode:04o}); allow to write to it, or remove it"
        raise PermissionError(EACCES, reason, path)


# Pieces below this may share pages with others that are still to come.
_LARGE = 1 << 20

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
_OF_ONE_USER = stat.S_IRUSR | stat.S_IWUSR
_OF_NEW_FILES = 0o666
_NO_LINKS = (EPERM, ENOSYS, ENOTSUP, EOPNOTSUPP)


@contextmanager
def opened(path: str, flags: int = os.O_RDWR, mode: int = _OF_ONE_USER) -> Iterator[int]:
    """Open a file, by default one that exists for reading and writing."""
    # Windows would convert line ends without the flag.
    descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0), mode)
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


def write_batches(path: str, batches: Iterator[Encoded]) -> None:
    """Write bytes at their offsets into an existing file."""
    with opened(path) as descriptor:
        for start, data in _runs_of(batches):
            write_at(descriptor, data, start)
            if len(data) >= _LARGE:
                _start_writing_out(descriptor, start, len(data))


def _runs_of(batches: Iterator[Encoded]) -> Iterator[tuple[int, memoryview]]:
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


def _mode_of(target: str, path: str) -> int:
    """The mode of the file that another one replaces, or else that of new files."""
    with suppress(FileNotFoundError):
        return stat.S_IMODE(os.stat(target).st_mode)
    # Only the system knows it, by the process and by the rules of the directory.
    probe = unfinished_path(os.path.join(os.path.dirname(path), os.path.basename(target)))
    with opened(probe, _NEW, _OF_NEW_FILES) as descriptor:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    os.unlink(probe)
    return mode


@dataclass(frozen=True, kw_only=True)
class AtomicFile:
    """An unfinished file that replaces `target` when it is complete.

    Only its owner can read it before that, because others may share the directory.
    """

    target: str
    size: int
    replace: bool
    path: str = ""

    @property
    def _final(self) -> str:
        """The name of the target, in the directory of the unfinished file."""
        return self.target

    def begin(self) -> Self:
        """Return a new file of this size; OSError if the disk has less free space.

        Files left by ended processes that wrote to the same target are removed.
        """
        remove_orphaned(self._final)
        return replace(self, path=unfinished_path(self._final)).create()

    def create(self) -> Self:
        """Create the unfinished file at `path`."""
        with self._explained(discards=True), opened(self.path, _NEW) as descriptor:
            usage = shutil.disk_usage(os.path.dirname(self.path))
            if usage.total and usage.free < self.size:
                raise OSError(ENOSPC, f"{os.strerror(ENOSPC)} ({usage.free} bytes are free)")
            os.ftruncate(descriptor, self.size)
        return self

    def write(self, batches: Iterator[Encoded]) -> None:
        """Write bytes at their offsets; any number of threads and processes may do so at once."""
        with self._explained():
            write_batches(self.path, batches)

    def complete(self, pieces: Sequence[Piece]) -> None:
        """Write the pieces, and wait until the disk has all bytes."""
        with self._explained(discards=True), opened(self.path) as descriptor:
            # The disk may take bytes in any order, but not across a sync: the header is last.
            for group in (pieces[1:], pieces[:1]):
                for piece in group:
                    write_at(descriptor, memoryview(piece.data), piece.offset)
                os.fsync(descriptor)
            with suppress(OSError):  # file systems without modes
                os.chmod(self.path, _mode_of(self.target, self.path))

    def publish(self) -> None:
        """Rename the complete file."""
        with self._explained(discards=True):
            self._rename()
        # The disk gets the new name as well, if the system can sync directories.
        with suppress(OSError), opened(os.path.dirname(self.target), os.O_RDONLY) as descriptor:
            os.fsync(descriptor)

    def discard(self) -> bool:
        """Remove the unfinished file; False if there is none because it was renamed."""
        try:
            os.unlink(self.path)
        except OSError:
            return False
        return True

    def _rename(self) -> None:
        if self.replace:
            os.replace(self.path, self.target)
            return
        try:
            os.link(self.path, self.target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # Without links, another program could create the target between these two calls.
            if os.path.exists(self.target):
                raise exists_already(self.target) from None
            os.rename(self.path, self.target)
        else:
            os.unlink(self.path)

    @contextmanager
    def _explained(self, *, discards: bool = False) -> Iterator[None]:
        """Add the file that was written to an error of the system; its type stays."""
        try:
            yield
        except OSError as error:
            if discards:
                self.discard()
            if error.errno is None or error.filename == self.target:
                raise
            raise self._explain(error) from error

    def _explain(self, error: OSError) -> OSError:
        size = f"its {self.size} bytes" if self.size else "it"
        reason = f"{error.strerror}, while writing {size}"
        if isinstance(error, FileNotFoundError):
            advice = "write to a directory that all workers share"
            reason = f"this process sees no {self.path}, which becomes it; {advice}"
        return OSError(error.errno, f"{reason}; what was there before is unchanged", self.target)


def atomic_file_for(path: str, size: int, *, replace: bool) -> AtomicFile:
    """Return the file for a path; nothing is created yet."""
    return AtomicFile(target=target_of(path, replace=replace), size=size, replace=replace)
