"""The protocol of files that are written, and the bytes that are known in advance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, Self

from xr_tensorfmt.core.layout import EncodedBatch


@dataclass(frozen=True)
class Piece:
    """Bytes of a file that do not depend on values, such as a header.

    Parameters
    ----------
    offset : int
        Position of the first byte in the file.
    data : bytes
        The bytes.
    """

    offset: int
    data: bytes


class WriteTarget(Protocol):
    """A file that several threads or processes write in any order."""

    @property
    def target(self) -> str:
        """Path or URL of the complete file."""

    @property
    def path(self) -> str:
        """Path of the unfinished file, which differs for every call of `begin`."""

    def begin(self) -> Self:
        """Create an unfinished file and return its target."""

    def check(self) -> None:
        """Raise an error if the file must not be written any longer. Each task calls this."""

    def write(self, batches: Iterator[EncodedBatch]) -> None:
        """Write bytes at their offsets."""
