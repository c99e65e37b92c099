"""Atomic writing: readers find all old files, all new files, or no index."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from errno import (
    EACCES,
    EEXIST,
    EINVAL,
    ENOSPC,
    ENOSYS,
    ENOTSUP,
    EOPNOTSUPP,
    EPERM,
    EROFS,
    ETIMEDOUT,
)
from functools import partial
from secrets import token_hex
from time import monotonic, sleep
from typing import Self, TypeVar

from xr_tensorfmt.core.layout import EncodedBatch
from xr_tensorfmt.core.locks import call_in_children
from xr_tensorfmt.writing.file_plan import Piece

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Result = TypeVar("Result")

UNCHANGED = "the target is unchanged"
REPLACED = "but the new file is in place"
UNKNOWN = "it is unknown whether the new file is in place"

_CREATE = os.O_RDWR | os.O_CREAT
_MAX_NAME_BYTES = 255
# Windows reports EINVAL if a file system has no hard links, such as exFAT.
_NO_HARD_LINKS = (EPERM, ENOSYS, ENOTSUP, EOPNOTSUPP, EINVAL)


def build_exists_error(path: str) -> FileExistsError:
    """Return the error for a file that must not be overwritten."""
    return FileExistsError(f"{path} exists already; pass mode='w' or --overwrite to replace it")


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


def write_batches(descriptor: int, batches: Iterator[EncodedBatch]) -> None:
    """Write bytes at their offsets."""
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


def get_temporary_path(target: str, suffix: str = "") -> str:
    """Return a path for a temporary file, in the directory of its target."""
    directory, name = os.path.split(target)
    suffix = suffix or build_suffix()
    space = _MAX_NAME_BYTES - len(suffix) - 1
    shortened = os.fsencode(name)[:space].decode(errors="ignore")
    return os.path.join(directory, f".{shortened}{suffix}")


def identify(path: str) -> tuple[int, int] | None:
    """Return what distinguishes a file from all others, or None if there is no file."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def link_or_rename(path: str, target: str) -> None:
    """Rename a file; raise FileExistsError if there is a target, without links as best effort."""
    try:
        os.link(path, target)
    except OSError as error:
        if error.errno not in (EEXIST, *_NO_HARD_LINKS):
            raise
        # NFS may repeat a request whose reply is lost, and report that the link exists.
        if (existing := identify(target)) is not None:
            if existing != identify(path):
                raise build_exists_error(target) from None
        else:  # without hard links, another program could create the target meanwhile
            os.rename(path, target)
            return
    remove(path)


def remove(path: str) -> bool:
    """Remove a file. Return False if it does not exist, or cannot be removed."""
    with suppress(OSError):
        os.unlink(path)
        return True
    return False


def attempt(call: Callable[[], Result]) -> Result | None:
    """Return the result of a call after a failure, or None if it fails twice, such as by Ctrl-C."""
    for _ in range(2):
        with suppress(BaseException):
            return call()
    return None


@dataclass(frozen=True, kw_only=True)
class AtomicFile:
    """An unfinished file at `path` that replaces `target` when it is complete.

    Its name is derived from `base` if it is uploaded, or else from the target. Only the owner can
    read it if it is uploaded or the target exists. If `is_planned`, the first task that needs the
    file creates it.
    """

    target: str
    size: int
    overwrite: bool
    path: str = ""
    base: str = ""
    is_planned: bool = False

    def renew(self, *, is_planned: bool) -> Self:
        """Draw another path."""
        path = get_temporary_path(self.base or self.target)
        return replace(self, path=path, is_planned=is_planned)

    def create(self) -> None:
        """Create the unfinished file; raise OSError if the disk has too little free space."""
        mode = 0o600 if self.base or os.path.exists(self.target) else 0o666
        try:
            with self.explain_errors(), open_descriptor(self.path, _CREATE, mode) as descriptor:
                if os.fstat(descriptor).st_size != self.size:
                    self._check_free_space()
                    os.ftruncate(descriptor, self.size)
        except BaseException:  # Ctrl-C, too
            if not self.is_planned:  # other tasks may have written to the file
                self.discard()
            raise

    def _check_free_space(self) -> None:
        usage = shutil.disk_usage(os.path.dirname(self.path))
        if usage.total and usage.free < self.size:
            raise OSError(ENOSPC, f"{os.strerror(ENOSPC)} ({usage.free} bytes are free)")

    @contextmanager
    def _open(self) -> Iterator[int]:
        """Open the unfinished file, and create a planned one unless another task has done so."""
        with self.explain_errors():
            if self.is_planned and not os.path.exists(self.path):
                self.create()
            with open_descriptor(self.path) as descriptor:
                yield descriptor

    def write(self, batches: Iterator[EncodedBatch]) -> int:
        """Write bytes at their offsets, in any process. Return the inode of the file."""
        with self._open() as descriptor:
            write_batches(descriptor, batches)
            return os.fstat(descriptor).st_ino

    def complete(self, pieces: Sequence[Piece]) -> None:
        """Write the pieces, and flush the file to the disk unless it is uploaded."""
        with self._open() as descriptor:
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

    def move(self) -> None:
        """Rename the complete file to the target itself, not to the target of a link."""
        if self.overwrite:
            os.replace(self.path, self.target)
        else:
            link_or_rename(self.path, self.target)

    def publish(self) -> None:
        """Let the complete file appear, and flush its name to the disk (best effort)."""
        try:
            new = identify(self.path)
            self.move()
        except BaseException as error:
            is_new = attempt(lambda: new is not None and identify(self.target) == new)
            self.fail(error, UNKNOWN if is_new is None else REPLACED if is_new else UNCHANGED)
            raise
        self.flush_names()

    def flush_names(self) -> None:
        """Flush the names in the directory to the disk."""
        with (
            suppress(OSError),
            open_descriptor(os.path.dirname(self.target), os.O_RDONLY) as folder,
        ):
            os.fsync(folder)

    def discard(self) -> bool:
        """Remove the unfinished file; return False if it does not exist or was renamed."""
        return remove(self.path)

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

    def fail(self, error: BaseException, outcome: str) -> None:
        """Raise an OSError with what is in place, or add this as a note to another error."""
        if isinstance(error, OSError) and (explained := self.explain(error, outcome)) is not error:
            raise explained from error
        said = "the write failed" if outcome == REPLACED else f"{self.target} was not written"
        error.add_note(f"{said}; {outcome}.")

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
    file = AtomicFile(target=target, size=size, overwrite=overwrite)
    return file.renew(is_planned=False)


MAX_LOCK_WAIT = 20.0
"""Seconds to wait for another writer of the same set, which only publishes it."""

_REPLACED = "but all of its files are replaced"

_held: set[int] = set()


def _close_inherited() -> None:
    """Close the locks of the threads that a forked process lacks."""
    for descriptor in list(_held):
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


call_in_children(_close_inherited)


@contextmanager
def lock_set(index: str) -> Iterator[None]:
    """Let other writers of a set wait, by a file that only this user can open or lock."""
    path = get_temporary_path(index, ".lock.part")
    descriptor = None if fcntl is None else _acquire(path, index)
    with ExitStack() as stack:  # Ctrl-C must not leave out a step
        if descriptor is not None:
            stack.callback(_close, descriptor)
            stack.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)  # a child may keep it open
            stack.callback(remove, path)
        yield


def _close(descriptor: int) -> None:
    _held.discard(descriptor)
    with suppress(OSError):
        os.close(descriptor)


def _acquire(path: str, index: str) -> int | None:
    """Return the locked descriptor, or None if the system cannot lock it or it is of another user.

    Raise TimeoutError if another process holds the lock for too long.
    """
    deadline = monotonic() + MAX_LOCK_WAIT
    while monotonic() < deadline:
        descriptor, is_own = None, False
        try:
            # Windows has the one, other systems have the other.
            flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600)
            status = os.fstat(descriptor)
            is_own = status.st_uid == os.geteuid()
            if not is_own:  # another user never blocks this one
                return None
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if identify(path) == (status.st_dev, status.st_ino):  # not removed meanwhile
                _held.add(descriptor)
                return descriptor
        except BlockingIOError:
            sleep(0.005)
        except OSError:  # the system cannot lock files
            if is_own:
                remove(path)
            return None
        finally:
            if descriptor is not None and descriptor not in _held:
                _close(descriptor)
    reason = (
        f"another process has held {path} for {MAX_LOCK_WAIT:.0f} s, to replace the same files; "
        f"continue or end that process; {UNCHANGED}"
    )
    raise TimeoutError(ETIMEDOUT, reason, index)


class Replacement:
    """The replacement of a file of a set. The methods after `install` can be repeated."""

    def __init__(self, file: AtomicFile) -> None:
        self.file = file
        self.kept = get_temporary_path(file.target)
        self.is_prepared = False
        self._previous: tuple[int, int] | None = None
        self._new: tuple[int, int] | None = None

    def prepare(self) -> None:
        """Rename the previous file if there is one."""
        self._new, self._previous = identify(self.file.path), identify(self.file.target)
        if self._previous is not None and not self.file.overwrite:
            raise build_exists_error(self.file.target)
        self.is_prepared = True
        if self._previous is not None:
            os.rename(self.file.target, self.kept)

    def install(self) -> None:
        """Let the new file appear."""
        self.file.move()

    def is_installed(self) -> bool:
        """Return whether the new file is in place."""
        return self.is_prepared and identify(self.file.target) == self._new is not None

    def withdraw(self) -> None:
        """Remove the new file, so that readers do not find an index."""
        if self.is_installed():
            os.unlink(self.file.target)

    def restore(self) -> None:
        """Restore the previous file if there was one, or remove the new one."""
        if not self.is_prepared or identify(self.file.target) == self._previous:
            return
        self.withdraw()
        if self._previous is not None:
            os.replace(self.kept, self.file.target)

    def forget(self) -> None:
        """Remove the previous file."""
        remove(self.kept)


def publish_set(index: Replacement, siblings: Sequence[Replacement]) -> None:
    """Replace the files of a set. If one fails, restore the others, and say what is in place."""
    try:
        for replacement in (index, *siblings):
            replacement.prepare()
        for replacement in (*siblings, index):
            replacement.install()
    except BaseException as error:
        index.file.fail(error, _settle(index, siblings))
        raise
    with ExitStack() as stack:  # Ctrl-C must not leave previous files
        for replacement in (index, *siblings):
            stack.callback(replacement.forget)


def _settle(index: Replacement, siblings: Sequence[Replacement]) -> str:
    """Restore the previous files, the index last, or leave all new ones. Return the outcome."""
    parts = (index, *siblings)
    if index.file.overwrite and attempt(lambda: all(part.is_installed() for part in parts)):
        with ExitStack() as stack:
            for part in parts:
                stack.callback(attempt, part.forget)
        return _REPLACED
    is_without_index = attempt(partial(_succeed, index.withdraw))
    failed = [part for part in siblings if not attempt(partial(_succeed, part.restore))]
    if is_without_index and not failed:
        if attempt(partial(_succeed, index.restore)):
            return UNCHANGED
        failed = [index]
    names = ", ".join(
        f"{part.file.target} (before in {part.kept})" if part.kept else part.file.target
        for part in failed or [index]
    )
    if not index.file.overwrite:
        return f"these files may remain, so remove them: {names}"
    return (
        "some of its files were replaced, so it cannot be read until it is written again; not "
        f"restored: {names}"
    )


def _succeed(step: Callable[[], None]) -> bool:
    step()
    return True
