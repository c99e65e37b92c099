"""Atomic writing of local files: a complete file, or set of files, replaces the target whole."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from errno import EACCES, EEXIST, EINVAL, ENOSPC, ENOSYS, ENOTSUP, EOPNOTSUPP, EPERM, EROFS
from secrets import token_hex
from typing import Self

from xr_tensorfmt.core.layout import EncodedBatch
from xr_tensorfmt.writing.file_plan import Piece

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


UNCHANGED = "the target is unchanged"
INCOMPLETE = "some of its files were replaced, so it cannot be read until it is written again"


def build_exists_error(path: str) -> FileExistsError:
    """Return the error for a file that must not be overwritten."""
    return FileExistsError(f"{path} exists already; pass mode='w' to replace it")


_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL
_MAX_NAME_BYTES = 255
LARGE_BYTES = 16 << 20
REMOVAL = "xr_tensorfmt removes a replaced file"
# Windows reports EINVAL if a file system has no hard links, such as exFAT.
_NO_HARD_LINKS = (EPERM, ENOSYS, ENOTSUP, EOPNOTSUPP, EINVAL)


@contextmanager
def open_descriptor(path: str, flags: int = os.O_RDWR, mode: int = 0) -> Iterator[int]:
    """Open a file descriptor, by default for reading and writing an existing file."""
    # Without this flag, Windows converts line endings.
    descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0), mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


_WRITE_BITS = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def _read_mode(path: str) -> int:
    """Return type and mode of a file, those of a writable file if there is none."""
    # One call, because another writer may move the file aside between two.
    try:
        return os.stat(path).st_mode
    except OSError:
        return stat.S_IFREG | _WRITE_BITS


def check_writable(path: str) -> None:
    """Raise OSError if a file is write-protected, even if its directory allows replacing it."""
    mode = _read_mode(path)
    # Root may write to any file, but the mode shows the intention of the owner.
    is_protected = not mode & _WRITE_BITS
    try:
        os.close(os.open(path, os.O_WRONLY))
    except OSError as error:  # others mean: there is none, or it is a directory
        is_protected |= error.errno in (EACCES, EPERM, EROFS)
    if is_protected:
        reason = (
            f"the file (mode {stat.S_IMODE(mode):04o}) or its file system is write-protected; "
            "make it writable, or write to another path"
        )
        raise PermissionError(EACCES, reason, path)


def write_batches(path: str, batches: Iterator[EncodedBatch]) -> None:
    """Write bytes at their offsets into an existing file."""
    with open_descriptor(path) as descriptor:
        for extents, data in batches:
            buffer = data.data
            for start, length in zip(extents.starts, extents.lengths, strict=True):
                write_at(descriptor, buffer[:length], start)
                buffer = buffer[length:]


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


def build_suffix() -> str:
    """Return a unique suffix for a temporary file."""
    return f".{token_hex(6)}.part"


def get_temporary_path(target: str) -> str:
    """Return a path for a temporary file, in the directory of its target."""
    directory, name = os.path.split(target)
    suffix = build_suffix()
    space = _MAX_NAME_BYTES - len(suffix) - 1
    shortened = os.fsencode(name)[:space].decode(errors="ignore")
    return os.path.join(directory, f".{shortened}{suffix}")


def _flush(descriptor: int) -> None:
    with suppress(OSError):
        os.fsync(descriptor)


def remove(path: str, size: int = 0) -> None:
    """Remove a file if it exists: a large one in a thread, because 64 MiB take about 10 ms."""
    if size >= LARGE_BYTES:
        with suppress(RuntimeError):  # the process is ending, or has too many threads
            threading.Thread(target=remove, args=(path,), name=REMOVAL).start()
            return
    with suppress(OSError):
        os.unlink(path)


@dataclass(frozen=True, kw_only=True)
class AtomicFile:
    """An unfinished file that replaces `target` when it is complete.

    Its name is derived from `base` if it is uploaded, or else from the target. Only the owner can
    read it if it is uploaded or the target exists.
    """

    target: str
    size: int
    overwrite: bool
    path: str = ""
    base: str = ""

    def begin(self) -> Self:
        """Create an unfinished file; raise OSError if the disk has too little free space."""
        for thread in threading.enumerate():
            if thread.name == REMOVAL:
                thread.join()  # The disk needs the space of replaced files.
        file = replace(self, path=get_temporary_path(self.base or self.target))
        try:
            file.create()
        except BaseException:  # Ctrl-C, too
            file.discard()
            raise
        return file

    def create(self) -> None:
        """Create the unfinished file at `path`."""
        mode = 0o600 if self.base or os.path.exists(self.target) else 0o666
        with self.explain_errors(), open_descriptor(self.path, _CREATE, mode) as descriptor:
            usage = shutil.disk_usage(os.path.dirname(self.path))
            if usage.total and usage.free < self.size:
                raise OSError(ENOSPC, f"{os.strerror(ENOSPC)} ({usage.free} bytes are free)")
            os.ftruncate(descriptor, self.size)

    def write(self, batches: Iterator[EncodedBatch]) -> None:
        """Write bytes at their offsets. Threads and processes may do so concurrently."""
        with self.explain_errors():
            write_batches(self.path, batches)

    def complete(self, pieces: Sequence[Piece]) -> None:
        """Write the pieces, and flush the file to the disk unless it is uploaded."""
        with self.explain_errors(), open_descriptor(self.path) as descriptor:
            for piece in reversed(pieces):  # the header last
                write_at(descriptor, memoryview(piece.data), piece.offset)
            if self.base:
                return
            os.fsync(descriptor)  # before the file is renamed, so it is never empty
            with suppress(OSError):  # the target is new, or the file system has no modes
                self._copy_permissions(os.stat(self.target))

    def _copy_permissions(self, status: os.stat_result) -> None:
        """Copy mode and group. Without the group, its rights are those of all others."""
        mode = stat.S_IMODE(status.st_mode)
        try:
            os.chown(self.path, -1, status.st_gid)
        except (AttributeError, OSError):  # Windows has no groups
            mode &= ~stat.S_IRWXG | (mode & stat.S_IRWXO) << 3
        os.chmod(self.path, mode)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Let other writers in the directory wait, then flush names to the disk (best effort)."""
        directory = os.path.dirname(self.target)
        with ExitStack() as stack:
            with suppress(OSError):  # a URL, or the system cannot open or lock directories
                descriptor = stack.enter_context(open_descriptor(directory, os.O_RDONLY))
                stack.callback(_flush, descriptor)
                if fcntl is not None:
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield

    def publish(self) -> None:
        """Rename the complete file to the target."""
        if self.overwrite:
            self._replace()
            return
        try:
            os.link(self.path, self.target)
        except OSError as error:
            if error.errno not in (EEXIST, *_NO_HARD_LINKS):
                raise
            # Without hard links, another program could create the target between these calls.
            if os.path.lexists(self.target):
                raise build_exists_error(self.target) from None
            os.rename(self.path, self.target)
        else:
            self.discard()

    def _replace(self) -> None:
        """Rename to the target. A large previous file keeps a name until a thread removes it."""
        if self.size < LARGE_BYTES:
            os.replace(self.path, self.target)
            return
        previous = get_temporary_path(self.target)
        try:
            with suppress(OSError):  # there is none, or the file system has no hard links
                os.link(self.target, previous)
            os.replace(self.path, self.target)
        finally:
            remove(previous, self.size)

    def discard(self) -> bool:
        """Remove the unfinished file; return False if it does not exist or was renamed."""
        try:
            os.unlink(self.path)
        except OSError:
            return False
        return True

    def plan_replacement(self, siblings: Sequence[Replacement] | None = None) -> Replacement:
        """Plan to replace one of a set of files; `siblings` are the others if it is the index."""
        return Replacement(self, get_temporary_path(self.target))

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Raise an OSError of the same type with the target and a hint."""
        try:
            yield
        except OSError as error:
            explained = self.explain(error, UNCHANGED)
            if explained is error:
                raise
            raise explained from error

    def explain(self, error: OSError, outcome: str) -> OSError:
        """Return the error with the target, and what has become of it."""
        if error.errno is None:
            return error
        size = f"its {self.size} bytes" if self.size else "it"
        reason = f"{error.strerror}, while writing {size}"
        if isinstance(error, FileNotFoundError):
            hint = "write to a directory that all workers share"
            reason = f"this process cannot find the unfinished file {error.filename}; {hint}"
        return OSError(error.errno, f"{reason}; {outcome}", self.target)


class Replacement:
    """The replacement of a file in a set of files, which can be undone."""

    def __init__(self, file: AtomicFile, kept: str) -> None:
        self.file, self._kept = file, kept

    def set_aside(self) -> None:
        """Rename the previous file if there is one."""
        if self.file.overwrite:
            with suppress(FileNotFoundError):
                os.rename(self.file.target, self._kept)
        elif os.path.lexists(self.file.target):
            raise build_exists_error(self.file.target)

    def publish(self) -> None:
        """Let the new file appear."""
        self.file.publish()

    def undo(self, *, is_complete: bool) -> None:
        """Restore the previous file, or remove the new one; an index only with all siblings."""
        if not is_complete:
            return
        with suppress(FileNotFoundError):
            os.replace(self._kept, self.file.target)
            return
        with suppress(FileNotFoundError):
            try:
                is_published = os.path.samefile(self.file.path, self.file.target)  # a hard link
            except FileNotFoundError:
                is_published = not os.path.lexists(self.file.path)
            if is_published:
                os.unlink(self.file.target)

    def forget(self) -> None:
        """Remove the previous file."""
        remove(self._kept, self.file.size)


def publish(files: Sequence[AtomicFile]) -> None:
    """Let complete files appear, the last one as their index. If one fails, restore the others."""
    *others, last = files
    if not others:
        with last.explain_errors():
            last.publish()
        return
    siblings = [file.plan_replacement() for file in others]
    index = last.plan_replacement(siblings)
    begun: list[Replacement] = []
    try:
        for replacement in (index, *siblings):
            begun.append(replacement)  # before, because Ctrl-C may end the next line
            replacement.set_aside()
        for replacement in (*siblings, index):
            replacement.publish()
    except BaseException as error:
        outcome = _undo(begun)
        if isinstance(error, OSError) and (explained := last.explain(error, outcome)) is not error:
            raise explained from error
        error.add_note(f"{last.target} was not written; {outcome}.")
        raise
    for replacement in begun:
        replacement.forget()


def _undo(begun: Sequence[Replacement]) -> str:
    """Restore the previous files, the index last. Return the state of the target."""
    is_restored = True
    for replacement in reversed(begun):
        try:
            replacement.undo(is_complete=is_restored)
        except OSError:
            is_restored = False
    return UNCHANGED if is_restored else INCOMPLETE


def build_atomic_file(path: str, size: int, *, overwrite: bool) -> AtomicFile:
    """Return the atomic file of a path, which replaces a link. Raise OSError if it must not."""
    target = os.path.abspath(path)
    directory = os.path.dirname(target)
    if not os.path.isdir(directory):
        raise FileNotFoundError(f"{path}: there is no directory {directory}; create it first")
    mode = _read_mode(target)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{path} is a directory, expected a file; choose another name")
    if not stat.S_ISREG(mode):
        raise OSError(EINVAL, "it is not a regular file, so it cannot be replaced", path)
    if not overwrite and os.path.lexists(target):
        raise build_exists_error(target)
    check_writable(target)
    return AtomicFile(target=target, size=size, overwrite=overwrite)
