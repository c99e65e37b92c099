"""Atomic writing: readers find all old files, all new files, or no index."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from secrets import token_hex
from time import monotonic, sleep
from typing import Any, ClassVar, Self

from xr_tensorfmt.core.layout import EncodedBatch
from xr_tensorfmt.writing.file_plan import Piece

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

UNCHANGED = "the target is unchanged"
_REPLACED = "but the new file is in place"
_UNKNOWN = "it is unknown whether the new file is in place"

_MAX_NAME_BYTES = 255


def build_exists_error(path: str) -> FileExistsError:
    """Return the error for a file that must not be overwritten."""
    reason = "it exists already; pass mode='w' or --overwrite to replace it"
    return FileExistsError(errno.EEXIST, reason, path)


@contextmanager
def open_descriptor(path: str, flags: int = os.O_RDWR, mode: int = 0) -> Iterator[int]:
    """Open a file descriptor, by default for reading and writing an existing file."""
    # Without this flag, Windows converts line endings.
    descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0), mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def check_writable(path: str) -> None:
    """Raise OSError if a file is write-protected, even if its directory allows replacing it."""
    with suppress(FileNotFoundError):  # another writer may move the file aside
        # Root may write to any file, but the mode shows the intention of the owner.
        mode = stat.S_IMODE(os.stat(path).st_mode)
        is_writable = bool(mode & 0o222)
        try:
            os.close(os.open(path, os.O_WRONLY))
        except OSError as error:
            is_writable &= error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS)
        if not is_writable:
            reason = f"the file (mode {mode:04o}) or its file system is write-protected"
            raise PermissionError(errno.EACCES, f"{reason}; write to another path", path)


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


def get_temporary_path(target: str, suffix: str = "") -> str:
    """Return a path for a temporary file or object, in the directory of its target."""
    name, suffix = os.path.basename(target), suffix or f".{token_hex(6)}.part"
    space = _MAX_NAME_BYTES - len(suffix) - 1
    shortened = os.fsencode(name)[:space].decode(errors="ignore")
    return f"{target.removesuffix(name)}.{shortened}{suffix}"


def identify(path: str) -> tuple[int, int] | None:
    """Return what distinguishes a file from all others, or None if there is no file."""
    with suppress(FileNotFoundError):
        status = os.lstat(path)
        return status.st_dev, status.st_ino
    return None


def remove(path: str) -> bool:
    """Remove a file. Return False if it does not exist, or cannot be removed."""
    with suppress(OSError):
        os.unlink(path)
        return True
    return False


def attempt(call: Callable[[], Any]) -> tuple[Any, ...]:
    """Return the result of a call after a failure, or () if it fails twice, such as by Ctrl-C."""
    for _ in range(2):
        with suppress(BaseException):
            return (call(),)
    return ()


@dataclass(frozen=True, kw_only=True)
class AtomicFile:
    """An unfinished file at `path` that replaces `target` when it is complete.

    Only the owner can read it if it is uploaded or the target exists. If `is_planned`, the first
    task that needs the file creates it.
    """

    target: str
    path: str
    size: int
    overwrite: bool
    is_planned: bool = False
    is_uploaded: ClassVar[bool] = False

    def create(self) -> None:
        """Create the unfinished file; raise OSError if the disk has too little free space."""
        with self._open(creates=True):
            pass

    @contextmanager
    def _open(self, *, creates: bool) -> Iterator[int]:
        mode = 0o600 if self.is_uploaded or os.path.exists(self.target) else 0o666
        flags = os.O_RDWR | (os.O_CREAT if creates else 0)
        try:
            with open_descriptor(self.path, flags, mode) as descriptor:
                if creates and os.fstat(descriptor).st_size != self.size:
                    self._allocate(descriptor)
                yield descriptor
        except OSError as error:
            self.fail(error, UNCHANGED)
            raise

    def _allocate(self, descriptor: int) -> None:
        usage = shutil.disk_usage(os.path.dirname(self.path))
        if usage.total and usage.free < self.size:
            reason = f"({usage.free} of {self.size} bytes are free)"
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} {reason}")
        os.ftruncate(descriptor, self.size)

    def write(self, batches: Iterator[EncodedBatch]) -> int:
        """Write bytes at their offsets, in any process. Return the inode of the file."""
        with self._open(creates=self.is_planned) as descriptor:
            write_batches(descriptor, batches)
            return os.fstat(descriptor).st_ino

    def complete(self, pieces: Sequence[Piece]) -> None:
        """Write the pieces, and flush the file to the disk unless it is uploaded."""
        with self._open(creates=self.is_planned) as descriptor:
            for piece in reversed(pieces):  # the header last
                write_at(descriptor, memoryview(piece.data), piece.offset)
            if self.is_uploaded:
                return
            os.fsync(descriptor)  # before the file is renamed, so it is never empty
            with suppress(OSError):  # the file system has no modes
                if os.path.exists(self.target):
                    self._copy_permissions(os.stat(self.target))
                elif stat.S_IMODE(os.fstat(descriptor).st_mode) == 0o600:  # it was removed
                    self._reset_mode()

    def _copy_permissions(self, status: os.stat_result) -> None:
        """Copy mode and group. If the group cannot be set, it gets the permissions of others."""
        mode = stat.S_IMODE(status.st_mode)
        try:
            os.chown(self.path, -1, status.st_gid)
        except (AttributeError, OSError):  # Windows has no groups
            mode &= ~stat.S_IRWXG | (mode & stat.S_IRWXO) << 3
        os.chmod(self.path, mode)

    def _reset_mode(self) -> None:
        """Set the mode that new files get. Reading the umask would change it for all threads."""
        path = get_temporary_path(self.target)
        try:
            with open_descriptor(path, os.O_CREAT | os.O_EXCL, 0o666) as descriptor:
                os.chmod(self.path, stat.S_IMODE(os.fstat(descriptor).st_mode))
        finally:
            remove(path)

    def move(self) -> None:
        """Rename the file to the target itself, which can be a link; raise if it must not."""
        if self.overwrite:
            os.replace(self.path, self.target)
            return
        try:
            os.link(self.path, self.target)
        except OSError:
            # NFS may repeat a request whose reply is lost, and report that the link exists.
            existing = identify(self.target)
            if existing is None:  # without links, another program could create it meanwhile
                os.rename(self.path, self.target)
                return
            if existing != identify(self.path):
                raise build_exists_error(self.target) from None
        remove(self.path)

    def publish(self, siblings: Sequence[Self] = ()) -> None:
        """Let complete files appear, this one last, and flush names to the disk (best effort)."""
        publish_set(Replacement(self), list(map(Replacement, siblings)))

    def discard(self) -> bool:
        """Remove the unfinished file; return False if it does not exist or was renamed."""
        return remove(self.path)

    def fail(self, error: BaseException, outcome: str) -> None:
        """Raise an OSError with what is in place, or add this as a note to another error."""
        if isinstance(error, OSError) and (explained := self.explain(error, outcome)) is not error:
            raise explained from error
        error.add_note(f"{self.target} was to be written; {outcome}.")

    def explain(self, error: OSError, outcome: str) -> OSError:
        """Return the error with the target and the outcome."""
        if error.errno in (None, errno.EEXIST):
            return error
        return OSError(
            error.errno, f"{error.strerror}, while writing {self.path}; {outcome}", self.target
        )


def build_atomic_file(path: str, size: int, *, overwrite: bool) -> AtomicFile:
    """Return the atomic file of a path, which replaces a link. Raise OSError if it must not."""
    target = os.path.abspath(path)
    directory = os.path.dirname(target)
    if not os.path.isdir(directory):
        raise FileNotFoundError(f"{path}: there is no directory {directory}; create it first")
    if not overwrite and os.path.lexists(target):
        raise build_exists_error(target)
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(target).st_mode):
            reason = "it is not a regular file, so it cannot be replaced"
            raise OSError(errno.EINVAL, f"{reason}; choose another name", path)
        check_writable(target)
    unfinished = get_temporary_path(target)
    return AtomicFile(target=target, path=unfinished, size=size, overwrite=overwrite)


MAX_LOCK_WAIT = 20.0
"""Seconds to wait for another writer of the same set, which only publishes it."""


@contextmanager
def lock_set(index: str) -> Iterator[None]:
    """Let other writers of a set wait, by a file that only this user can open or lock."""
    path, deadline = get_temporary_path(index, ".lock.part"), monotonic() + MAX_LOCK_WAIT
    with ExitStack() as stack:  # Ctrl-C must not leave out a step
        while fcntl is not None and not _try_lock(path, stack):
            if monotonic() > deadline:
                reason = f"another process holds {path} to replace the same files; end that process"
                raise TimeoutError(errno.ETIMEDOUT, f"{reason}; {UNCHANGED}", index)
            sleep(0.005)
        yield


def _try_lock(path: str, stack: ExitStack) -> bool:
    """Lock a file until the stack is closed. Return False if another writer holds the lock."""
    with ExitStack() as steps:
        try:
            flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600)
            steps.callback(os.close, descriptor)
            status = os.fstat(descriptor)
        except OSError:  # the system cannot lock the file
            return True
        if status.st_uid != os.geteuid():
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            steps.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)  # a child may keep it open
            if identify(path) != (status.st_dev, status.st_ino):  # removed meanwhile
                return False
        except BlockingIOError:
            return False
        except OSError:
            remove(path)
            return True
        steps.callback(remove, path)
        stack.enter_context(steps.pop_all())
        return True


class Replacement:
    """The replacement of a file of a set. The methods after `install` can be repeated."""

    def __init__(self, file: AtomicFile) -> None:
        self.file = file
        self.kept = get_temporary_path(file.target)
        self._new, self._previous = identify(file.path), identify(file.target)

    def prepare(self) -> None:
        """Rename the previous file if there is one."""
        if self._previous is not None and not self.file.overwrite:
            raise build_exists_error(self.file.target)
        if self._previous is not None:
            os.rename(self.file.target, self.kept)

    def install(self) -> None:
        """Let the new file appear."""
        self.file.move()

    def is_installed(self) -> bool:
        """Return whether the new file is in place."""
        return identify(self.file.target) == self._new is not None

    def withdraw(self) -> None:
        """Remove the new file, so that readers do not find an index."""
        if self.is_installed():
            os.unlink(self.file.target)

    def restore(self) -> None:
        """Restore the previous file if there was one, or remove the new one."""
        if identify(self.file.target) != self._previous:
            self.withdraw()
            if self._previous is not None:
                os.replace(self.kept, self.file.target)


def publish_set(index: Replacement, siblings: Sequence[Replacement] = ()) -> None:
    """Replace a file or a set of files. If one fails, restore all, and say what is in place."""
    try:
        for part in (index, *siblings) if siblings else ():
            part.prepare()
        for part in (*siblings, index):
            part.install()
    except BaseException as error:
        index.file.fail(error, _settle(index, siblings))
        raise
    _forget(index, *siblings)
    if not index.file.is_uploaded:
        directory = os.path.dirname(index.file.target)
        with suppress(OSError), open_descriptor(directory, os.O_RDONLY) as folder:
            os.fsync(folder)


def _settle(index: Replacement, siblings: Sequence[Replacement]) -> str:
    """Restore the previous files, the index last, or leave all new ones. Return the outcome."""
    parts = (index, *siblings)
    is_new = attempt(lambda: all(part.is_installed() for part in parts))
    if is_new == (True,) and (index.file.overwrite or not siblings):
        attempt(lambda: _forget(*parts))
        return _REPLACED
    if not siblings:
        return UNCHANGED if is_new else _UNKNOWN
    # An index that cannot be withdrawn needs the new siblings.
    failed = [] if attempt(index.withdraw) else [index]
    failed = failed or [part for part in siblings if not attempt(part.restore)]
    if not failed and attempt(index.restore):
        return UNCHANGED
    names = ", ".join(
        part.file.target + (f" (before in {part.kept})" if identify(part.kept) else "")
        for part in dict.fromkeys([*failed, index])
    )
    return f"write it again with mode='w', because these files are not restored: {names}"


def _forget(*parts: Replacement) -> None:
    with ExitStack() as stack:  # Ctrl-C must not leave previous files
        for part in parts:
            stack.callback(remove, part.kept)
