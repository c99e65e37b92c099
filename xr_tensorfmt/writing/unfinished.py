"""Names of unfinished files, and the removal of orphaned ones.

The name contains the host and the process that writes the file. The file is removed only if the
process is known to have ended: on this host, since its start, in the same container. The file is
not opened.
"""

from __future__ import annotations

import os
import platform
import re
import stat
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
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


def unfinished_path(target: str) -> str:
    """Return a path for an unfinished file, in the directory of its target."""
    directory, name = os.path.split(target)
    return os.path.join(directory, f".{_shortened(name)}{suffix_of_unfinished()}")


def _shortened(name: str) -> str:
    """A name to which a dot and a suffix can be added."""
    return os.fsencode(name)[: _LONGEST_NAME - _LONGEST_SUFFIX - 1].decode(errors="ignore")


@dataclass(frozen=True)
class UnfinishedFile:
    """A local file that a process was writing; `process` is 0 for the workers of a cluster."""

    path: str
    size: int
    modified: float
    host: str
    process: int

    @property
    def is_being_written(self) -> bool:
        """Whether a process of this number runs on this host."""
        return bool(self.process and self.host == _host() and _is_running(self.process))

    @property
    def reason_to_keep(self) -> str:
        """Why the file must not be removed; empty if its process has ended."""
        if self.process == _SEVERAL:
            return "processes of a cluster write it, and some may be running"
        if self.is_being_written:
            return f"process {self.process} is running"
        if self.host == _host() != _UNKNOWN_HOST:
            return ""
        return (
            f"process {self.process} of another host or container writes it, or of this one "
            "before it was started again"
        )


def unfinished_in(directory: str, target: str | None = None) -> Iterator[UnfinishedFile]:
    """Yield the unfinished files in a directory, by default those of all targets."""
    stem = None if target is None else f".{_shortened(os.path.basename(target))}"
    # Directories may have many files, so most names are only looked at so far.
    for name in [name for name in os.listdir(directory) if name[-5:] == ".part"]:
        match = _NAME.fullmatch(name)
        if match is None or stem not in (None, match[1]):
            continue
        path = os.path.join(directory, name)
        with suppress(OSError):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                modified, process = status.st_mtime, int(match[3])
                yield UnfinishedFile(path, status.st_size, modified, match[2], process)


def remove_orphaned(target: str) -> None:
    """Remove unfinished files of a target, if their processes have ended."""
    with suppress(OSError):
        for file in unfinished_in(os.path.dirname(target), target):
            if not file.reason_to_keep:
                os.unlink(file.path)


def remove_own(directory: str) -> None:
    """Remove the unfinished files of this process in a directory, best effort."""
    with suppress(OSError):
        for file in unfinished_in(directory):
            if (file.process, file.host) == (os.getpid(), _host()):
                os.unlink(file.path)


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
