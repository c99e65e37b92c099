"""Names of unfinished files, and the removal of those whose process has ended.

A name says on which host, and by which of its processes, the file is written. It is removed only
where that process is known to have ended: on this host, since it was started, in the same
container. A file is never opened for that.
"""

from __future__ import annotations

import os
import platform
import re
import stat
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

_LONGEST_NAME = 255
_LONGEST_SUFFIX = 40
_NAME = re.compile(r"(\..*)\.([0-9a-f]{12})-(\d{1,10})-[0-9a-f]{8}\.part", re.DOTALL)
_SEVERAL = 0
_UNKNOWN_HOST = 12 * "0"


def suffix_of_unfinished() -> str:
    """A suffix for the name of an unfinished file of this process, another one with each call."""
    process = _SEVERAL if _is_worker_of_cluster() else os.getpid()
    return f".{_host()}-{process}-{uuid.uuid4().hex[:8]}.part"


def beside(target: str) -> str:
    """A path for an unfinished file in the directory of the one that it will become."""
    directory, name = os.path.split(target)
    return os.path.join(directory, f".{_shortened(name)}{suffix_of_unfinished()}")


def _shortened(name: str) -> str:
    """A name to which a dot and a suffix can be added."""
    return os.fsencode(name)[: _LONGEST_NAME - _LONGEST_SUFFIX - 1].decode(errors="ignore")


@dataclass(frozen=True)
class Unfinished:
    """What a process was writing: a file in a directory or in a store, or an upload to S3.

    `modified` is when a file was last written to or an upload was begun, where the store tells;
    `process` is 0 where several processes of a cluster write a file, and None of an upload.
    """

    path: str
    size: int
    modified: float | None
    remove: Callable[[], object]
    host: str = _UNKNOWN_HOST
    process: int | None = None

    @property
    def noun(self) -> str:
        """What it is called."""
        return "upload" if self.process is None else "file"

    @property
    def is_being_written(self) -> bool:
        """Whether its process is known to run, or another one of that number on this host."""
        return bool(self.process and self.host == _host() and _is_running(self.process))

    @property
    def reason_to_keep(self) -> str:
        """Why it must not be removed; empty where its process has ended."""
        if self.process is None:
            return "a process may be sending it"
        if self.process == _SEVERAL:
            return "processes of a cluster write it, of which some may be running"
        if self.is_being_written:
            return f"process {self.process} is running"
        if self.host == _host() != _UNKNOWN_HOST:
            return ""
        return (
            f"process {self.process} of another host or container writes it, or of this one "
            "before it was started again"
        )


def unfinished_in(directory: str, target: str | None = None) -> Iterator[Unfinished]:
    """The unfinished files in a directory, or those among them that would become one file."""
    stem = None if target is None else f".{_shortened(os.path.basename(target))}"
    # Directories may have many files, so that most names are only looked at so far.
    for name in [each for each in os.listdir(directory) if each[-5:] == ".part"]:
        found = parts_of(name)
        if found is None or stem not in (None, found[0]):
            continue
        path = os.path.join(directory, name)
        with suppress(OSError):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                remove = partial(os.unlink, path)
                yield Unfinished(path, status.st_size, status.st_mtime, remove, *found[1:])


def parts_of(name: str) -> tuple[str, str, int] | None:
    """What the name of an unfinished file begins with, host and process; None for others."""
    found = _NAME.fullmatch(name)
    return found and (found[1], found[2], int(found[3]))


def remove_abandoned(target: str) -> None:
    """Remove unfinished files that would have become a file, if their processes have ended."""
    with suppress(OSError):
        for each in unfinished_in(os.path.dirname(target), target):
            if not each.reason_to_keep:
                each.remove()


def remove_own(directory: str) -> None:
    """Remove the unfinished files of this process in a directory, as far as that is possible."""
    with suppress(OSError):
        for each in unfinished_in(directory):
            if (each.process, each.host) == (os.getpid(), _host()):
                each.remove()


def _host() -> str:
    """What tells this host, since it was started, and this container, from all others."""
    parts: list[object] = [platform.node()]
    if sys.platform == "linux":
        # Numbers of processes mean something within one namespace of one kernel alone.
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                parts += [file.read(), os.stat("/proc/self/ns/pid").st_ino]
        except OSError:
            return _UNKNOWN_HOST
    else:
        parts.append(uuid.getnode())
    return sha256(repr(parts).encode()).hexdigest()[:12]


def _is_running(process: int) -> bool:
    """Whether there is a process of this number; where that cannot be known, there is."""
    if sys.platform == "win32":
        return True  # os.kill would end it
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


def _is_worker_of_cluster() -> bool:
    """Whether a worker of dask.distributed calls this, which may leave a file to others."""
    distributed = sys.modules.get("distributed")
    with suppress(ValueError):
        if distributed is not None:
            distributed.get_worker()
            return True
    return False
