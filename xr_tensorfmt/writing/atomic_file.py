"""Writing of local files by calls of the system; a whole file appears when it is complete."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from errno import EACCES, EINVAL, ELOOP, ENOSPC, ENOSYS, ENOTSUP, EOPNOTSUPP, EPERM
from typing import ClassVar, Self

from xr_tensorfmt.core.chunk_grid import PAGE
from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.writing.unfinished import beside, remove_abandoned


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
    """Refuse what exists and is write-protected, although its directory lets it be replaced."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return
    # An administrator may write to everything, and yet the mode says what is meant.
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


def _mode_of(target: str, path: str) -> int:
    """The mode of the file that another one replaces, or else that of new files."""
    with suppress(FileNotFoundError):
        return stat.S_IMODE(os.stat(target).st_mode)
    # Only the system knows it, by the process and by the rules of the directory.
    probe = beside(os.path.join(os.path.dirname(path), os.path.basename(target)))
    with opened(probe, _NEW, _OF_NEW_FILES) as descriptor:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    os.unlink(probe)
    return mode


@dataclass(frozen=True)
class Piece:
    """Bytes of a file that are known before any value is computed.

    Parameters
    ----------
    offset : int
        Position of the first one in the file.
    data : bytes
        The bytes.
    """

    offset: int
    data: bytes


@dataclass(frozen=True)
class AtomicFile:
    """An unfinished file at `path` that takes the place of `target` when it is complete.

    Until then only its owner can read it, as the directory may be shared.
    """

    target: str
    path: str
    size: int
    replace: bool
    way_out: ClassVar[str] = "write to a directory that all workers share"

    @property
    def _final(self) -> str:
        """The name of the target, in the directory of the unfinished file."""
        return os.path.join(os.path.dirname(self.path), os.path.basename(self.target))

    def begin_another(self) -> Self:
        """Create a file of another name; as `begin`."""
        return replace(self, path=beside(self._final)).begin()

    def begin(self) -> Self:
        """Create the file with its size; OSError where the disk has less free space than that.

        What processes that have ended left of the same file is removed before.
        """
        remove_abandoned(self._final)
        with self._explained(discards=True), opened(self.path, _NEW) as descriptor:
            usage = shutil.disk_usage(os.path.dirname(self.path))
            if usage.total and usage.free < self.size:
                raise OSError(ENOSPC, f"{os.strerror(ENOSPC)} ({usage.free} bytes are free)")
            os.ftruncate(descriptor, self.size)
        return self

    def write(self, batches: Iterator[tuple[Extents, Bytes]]) -> None:
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
            with suppress(OSError):  # where files have no modes
                os.chmod(self.path, _mode_of(self.target, self.path))

    def publish(self) -> None:
        """Rename the complete file."""
        with self._explained(discards=True):
            self._rename()
        # So that the disk has the name, where the system can sync directories.
        with suppress(OSError), opened(os.path.dirname(self.target), os.O_RDONLY) as descriptor:
            os.fsync(descriptor)

    def discard(self) -> bool:
        """Remove the unfinished file; False where there is none, as it has been renamed."""
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
            # File systems without links leave a moment between asking and renaming.
            if os.path.exists(self.target):
                raise exists_already(self.target) from None
            os.rename(self.path, self.target)
        else:
            os.unlink(self.path)

    @contextmanager
    def _explained(self, *, discards: bool = False) -> Iterator[None]:
        """Add to an error of the system which file was written; its type stays."""
        try:
            yield
        except OSError as error:
            if discards:
                self.discard()
            if error.errno is None or error.filename == self.target:
                raise
            what = f"its {self.size} bytes" if self.size else "it"
            reason = f"{error.strerror}, while writing {what}"
            if isinstance(error, FileNotFoundError):
                reason = f"this process sees no {self.path}, which becomes it; {self.way_out}"
            reason = f"{reason}; what was there before is unchanged"
            raise OSError(error.errno, reason, self.target) from error


def atomic_file_for(path: str, size: int, *, replace: bool) -> AtomicFile:
    """The unfinished file for a path; nothing is created yet."""
    target = target_of(path, replace=replace)
    return AtomicFile(target, beside(target), size, replace)
