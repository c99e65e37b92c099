"""A local file that is written into where it stands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from xr_tensorfmt.errors import SourceChangedError
from xr_tensorfmt.extents import Bytes, Extents
from xr_tensorfmt.sources import LocalFile
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
        """Take note of the file at a path."""
        return cls(path, _identity(path))

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
        write_batches(self.target, batches)

    def sync(self) -> None:
        """Wait until the disk has all of it."""
        with opened(self.target) as descriptor:
            os.fsync(descriptor)


def _identity(path: str) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size
