"""A local file that is written into where it stands."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from xr_tensorfmt.errors import SourceChangedError
from xr_tensorfmt.extents import Bytes, Extents
from xr_tensorfmt.sources import LocalFile
from xr_tensorfmt.sources.windows import detach
from xr_tensorfmt.write.placing import opened, write_batches


class SharedFile(LocalFile):
    """A file whose header stays as it is while others write values into it."""

    def _check(self, status: os.stat_result) -> None:
        if status.st_size != self.size:
            super()._check(status)


@dataclass(frozen=True)
class ExistingFile:
    """A file whose header stays as it is; what is written takes the place of what was there.

    Parameters
    ----------
    target : str
        The file.
    identity : tuple of int
        What tells it from another file that has taken its place.
    """

    target: str
    identity: tuple[int, ...]

    @classmethod
    def at(cls, path: str) -> ExistingFile:
        """Take note of the file at a path; what was loaded of it will not change with it."""
        detach_file(path)
        return cls(path, _identity(path))

    def begin(self) -> ExistingFile:
        """Let the processes of a cluster keep what they have loaded, before all else."""
        detach_file(self.target)
        distributed = sys.modules.get("distributed")
        if distributed is not None:
            with suppress(ValueError):  # there is no cluster
                client = distributed.get_client()
                if not client.asynchronous:
                    client.run(detach_file, self.target)
        return self

    def write(self, batches: Iterator[tuple[Extents, Bytes]]) -> None:
        """Put bytes into their places; as `Draft.write`."""
        if _identity(self.target) != self.identity:
            raise SourceChangedError(
                self.target,
                "the file",
                "another one",
                "the one whose header was read",
                "it has been replaced since then; call the writer again",
            )
        detach_file(self.target)
        write_batches(self.target, batches)

    def sync(self) -> None:
        """Wait until the disk has all of it."""
        with opened(self.target) as descriptor:
            os.fsync(descriptor)


def detach_file(path: str) -> None:
    """Give all values that this process has loaded from a file memory of their own.

    Parameters
    ----------
    path : str
        The file; where there is none, as on another machine, nothing was loaded from it.

    Raises
    ------
    OSError
        There is not enough memory, or the file was cut off meanwhile.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return
    try:
        detach(status)
    except OSError as error:
        reason = (
            "values that were loaded from it would change with it, as they cannot be copied "
            f"({error.strerror}); delete them, or write a whole new file"
        )
        raise OSError(error.errno, reason, path) from error


def _identity(path: str) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_ino, status.st_size  # the device has another number on another machine
