"""A local file that appears when it is complete, or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from errno import EINVAL, ELOOP, ENOTSUP, EOPNOTSUPP, EPERM

from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.writing.file_io import (
    BINARY,
    give_size,
    opened,
    sync_directory,
    write_at,
    write_batches,
)
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
    return target


_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | BINARY


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
    """An unfinished file at `path` that takes the place of `target` when it is complete."""

    target: str
    path: str
    size: int
    replace: bool

    @property
    def _final(self) -> str:
        """The name of the target, in the directory of the unfinished file."""
        return os.path.join(os.path.dirname(self.path), os.path.basename(self.target))

    @property
    def identity(self) -> str:
        """The path, which no other unfinished file has."""
        return self.path

    def begin_another(self) -> AtomicFile:
        """Create a file of another name; as `begin`."""
        return replace(self, path=beside(self._final)).begin()

    def begin(self) -> AtomicFile:
        """Create the file with its size; OSError where the disk has less free space than that.

        What processes that have ended left of the same file is removed before.
        """
        remove_abandoned(self._final)
        with self._explained():
            descriptor = os.open(self.path, _NEW, 0o666)
            try:
                self._keep_mode(descriptor, stat.S_IRUSR | stat.S_IWUSR)
                give_size(descriptor, self.size, os.path.dirname(self.path))
            except OSError:
                self.discard()
                raise
            finally:
                os.close(descriptor)
        return self

    def write(self, batches: Iterator[tuple[Extents, Bytes]]) -> None:
        """Write bytes at their offsets; any number of threads and processes may do so at once."""
        with self._explained():
            write_batches(self.path, batches)

    def finish(self, pieces: Sequence[Piece]) -> None:
        """Complete the file, and publish it."""
        self.complete(pieces)
        self.publish()

    def complete(self, pieces: Sequence[Piece]) -> None:
        """Write the pieces, and wait until the disk has all bytes."""
        with self._discarded_on_error(), opened(self.path) as descriptor:
            # The disk may take bytes in any order, but not across a sync: the header is last.
            for group in (pieces[1:], pieces[:1]):
                for piece in group:
                    write_at(descriptor, memoryview(piece.data), piece.offset)
                os.fsync(descriptor)
            self._keep_mode(descriptor)

    def publish(self) -> None:
        """Rename the complete file."""
        with self._discarded_on_error():
            self._rename()
        with self._explained():
            sync_directory(os.path.dirname(self.target))

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
            if error.errno not in (EPERM, ENOTSUP, EOPNOTSUPP):
                raise
            # File systems without links leave a moment between asking and renaming.
            if os.path.exists(self.target):
                raise exists_already(self.target) from None
            os.rename(self.path, self.target)
        else:
            os.unlink(self.path)

    def _keep_mode(self, descriptor: int, more: int = 0) -> None:
        """Give the file the mode of the one that it replaces, and the bits of `more`."""
        with suppress(OSError, AttributeError):
            os.fchmod(descriptor, stat.S_IMODE(os.stat(self.target).st_mode) | more)

    @contextmanager
    def _discarded_on_error(self) -> Iterator[None]:
        with self._explained():
            try:
                yield
            except OSError:
                self.discard()
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Add to an error of the system which file was written; its type stays."""
        try:
            yield
        except OSError as error:
            if error.errno is None or error.filename == self.target:
                raise
            what = f"its {self.size} bytes" if self.size else "it"
            reason = f"{error.strerror}, while writing {what}; what was there before is unchanged"
            raise OSError(error.errno, reason, self.target) from error


def atomic_file_for(path: str, size: int, *, replace: bool) -> AtomicFile:
    """The unfinished file for a path; nothing is created yet."""
    target = target_of(path, replace=replace)
    return AtomicFile(target, beside(target), size, replace)
