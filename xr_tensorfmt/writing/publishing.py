"""Publishing of sets of files: readers find all old files, all new files, or no index."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from errno import ETIMEDOUT
from functools import partial
from time import monotonic, sleep

from xr_tensorfmt.core.locks import call_in_children
from xr_tensorfmt.writing.atomic_file import (
    UNCHANGED,
    AtomicFile,
    attempt,
    build_exists_error,
    get_temporary_path,
    identify,
    remove,
)

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

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
