"""Files that are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from xr_tensorfmt.core.layout import Encoded


@dataclass(frozen=True)
class Piece:
    """Bytes of a file that are known before any value is computed.

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
    """A file that is written in any order by several threads or processes."""

    @property
    def target(self) -> str:
        """Path or URL of the complete file."""

    @property
    def path(self) -> str:
        """Path of the unfinished file; every call of `begin` returns another one."""

    def begin(self) -> Self:
        """Return a file that is ready for writing."""

    def write(self, batches: Iterator[Encoded]) -> None:
        """Write bytes at their offsets."""

    def complete(self, pieces: Sequence[Piece]) -> None:
        """Write the remaining bytes."""

    def publish(self) -> None:
        """Make the complete file appear at its target."""

    def discard(self) -> bool:
        """Remove the unfinished file; return whether the target is known to be unchanged."""
