"""Names of temporary files, and removal of orphaned ones.

The name contains the host and the process that writes the file. A file is removed only if the
process certainly ended: on this host, since it started, in the same container.
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

_MAX_NAME_BYTES = 255
_MAX_SUFFIX_BYTES = 40
_NAME = re.compile(r"(\..*)\.([0-9a-f]{12})-(\d{1,10})-[0-9a-f]{8}\.part", re.DOTALL)
_SEVERAL = 0
_UNKNOWN_HOST = 12 * "0"


def build_suffix() -> str:
    """Return a unique suffix for a temporary file of this process."""
    process = _SEVERAL if _is_cluster_worker() else os.getpid()
    return f".{_get_host()}-{process}-{uuid.uuid4().hex[:8]}.part"


def get_unfinished_path(target: str) -> str:
    """Return a path for a temporary file, in the directory of its target."""
    directory, name = os.path.split(target)
    return os.path.join(directory, f".{_shorten_name(name)}{build_suffix()}")


def _shorten_name(name: str) -> str:
    """Shorten a name, to leave space for a dot and a suffix."""
    return os.fsencode(name)[: _MAX_NAME_BYTES - _MAX_SUFFIX_BYTES - 1].decode(errors="ignore")


@dataclass(frozen=True)
class UnfinishedFile:
    """A temporary file of a process. `process` is 0 for the workers of a cluster."""

    path: str
    size: int
    modified: float
    host: str
    process: int

    @property
    def is_being_written(self) -> bool:
        """Whether the process runs on this host."""
        return bool(self.process and self.host == _get_host() and _is_running(self.process))

    @property
    def reason_to_keep(self) -> str:
        """Reason not to remove the file, or an empty string if its process ended."""
        if self.process == _SEVERAL:
            return "processes of a cluster write it, and some may be running"
        if self.is_being_written:
            return f"process {self.process} is running"
        if self.host == _get_host() and self.host != _UNKNOWN_HOST:
            return ""
        return (
            f"process {self.process} of another host or container writes it, or this host was "
            "restarted"
        )


def find_unfinished(directory: str, target: str | None = None) -> Iterator[UnfinishedFile]:
    """Yield the unfinished files of a target in a directory, by default of all targets."""
    stem = None if target is None else f".{_shorten_name(os.path.basename(target))}"
    # Filter by the suffix first, because directories may contain many files.
    for name in [name for name in os.listdir(directory) if name[-5:] == ".part"]:
        match = _NAME.fullmatch(name)
        if match is None or stem not in (None, match[1]):
            continue
        path = os.path.join(directory, name)
        with suppress(OSError):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                size, modified = status.st_size, status.st_mtime
                yield UnfinishedFile(path, size, modified, match[2], int(match[3]))


def remove_orphaned(target: str) -> None:
    """Remove temporary files of a target whose processes ended."""
    with suppress(OSError):
        for file in find_unfinished(os.path.dirname(target), target):
            if not file.reason_to_keep:
                os.unlink(file.path)


def remove_own(directory: str) -> None:
    """Remove the temporary files of this process in a directory, best effort."""
    with suppress(OSError):
        for file in find_unfinished(directory):
            if (file.process, file.host) == (os.getpid(), _get_host()):
                os.unlink(file.path)


def _get_host() -> str:
    """Return an identifier of this host, its start, and this container."""
    parts: list[object] = [platform.node()]
    if sys.platform == "linux":
        # Process numbers are unique only in a namespace of a running kernel.
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                parts += [file.read(), os.stat("/proc/self/ns/pid").st_ino]
        except OSError:
            return _UNKNOWN_HOST
    else:
        parts.append(uuid.getnode())
    return sha256(repr(parts).encode()).hexdigest()[:12]


def _is_running(process: int) -> bool:
    """Return whether a process runs, or True if unknown."""
    if sys.platform == "win32":
        return True  # os.kill would end it
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


def _is_cluster_worker() -> bool:
    """Return whether this is a dask.distributed worker, which may share a file with others."""
    distributed = sys.modules.get("distributed")
    with suppress(ValueError):
        if distributed is not None:
            distributed.get_worker()
            return True
    return False
