"""What is wrong with a file, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError, shortened

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a file.

    Parameters
    ----------
    path : str
        The file; of a matrix of blocks perhaps that of a block.
    offset : int or None
        Position in bytes from the start of the file; None where the fault has no single place.
    field : str
        The part of the file, in the words of its format.
    message : str
        What is there, what should be, and what to do.
    severity : {"error", "warning"}
        A warning is about what breaks a rule and leaves no doubt about the values.
    """

    path: str
    offset: int | None
    field: str
    message: str
    severity: Severity = "error"

    def __str__(self) -> str:
        """One line, without the path."""
        place = "" if self.offset is None else f" at byte {self.offset}"
        field = f"{shortened(self.field)}: " if self.field else ""
        return f"{self.severity}{place}: {field}{self.message}"

    @property
    def sentence(self) -> str:
        """What a warning says: the path, the field, its place and the message."""
        place = "" if self.offset is None else f" at byte {self.offset}"
        return f"{self.path}: {shortened(self.field)}{place}: {self.message}"


def finding_of(error: TensorFormatError, within: str = "") -> Finding:
    """What a reader refuses, as a finding."""
    field = f"{error.field} of {within}" if within else error.field
    message = f"{shortened(error.found)}, expected {shortened(error.expected)}; {error.hint}"
    return Finding(error.path, error.offset, field, message)


_PIECE = 4 << 20
_BATCH = 16 << 20
_MOST_GAPS = 1 << 14


@dataclass(frozen=True)
class Gap:
    """A range of a file that holds nothing.

    Parameters
    ----------
    start, stop : int
        The range, in bytes.
    what : str
        What it is, for the finding.
    fillers : tuple of int
        Bytes that it may be filled with.
    severity : {"error", "warning"}
        How bad other bytes are.
    """

    start: int
    stop: int
    what: str
    fillers: tuple[int, ...] = (0,)
    severity: Severity = "error"


def check_gaps(source: Source, gaps: Iterable[Gap]) -> Iterator[Finding]:
    """Look for bytes in gaps that are not filler.

    Parameters
    ----------
    source : Source
        The file.
    gaps : iterable of Gap
        In any order, none overlapping; empty ones do not matter.

    Yields
    ------
    Finding
        One for each gap, and for each 4 MiB of a long one, at its first wrong byte.
    """
    batch: list[Gap] = []
    size = 0
    for gap in _pieces(gaps):
        if size + gap.stop - gap.start > _BATCH or len(batch) == _MOST_GAPS:
            yield from _check_batch(source, batch)
            batch, size = [], 0
        batch.append(gap)
        size += gap.stop - gap.start
    yield from _check_batch(source, batch)


def _pieces(gaps: Iterable[Gap]) -> Iterator[Gap]:
    for gap in sorted(gaps, key=lambda each: each.start):
        for start in range(gap.start, gap.stop, _PIECE):
            yield replace(gap, start=start, stop=min(gap.stop, start + _PIECE))


def _check_batch(source: Source, batch: list[Gap]) -> Iterator[Finding]:
    if not batch:
        return
    starts = np.array([each.start for each in batch], dtype=np.int64)
    lengths = np.array([each.stop for each in batch], dtype=np.int64) - starts
    raw = source.read(Extents(starts, lengths))
    position = 0
    for gap, length in zip(batch, lengths.tolist(), strict=True):
        yield from _check(source.name, gap, raw[position : position + length])
        position += length


def _check(path: str, gap: Gap, raw: Bytes) -> Iterator[Finding]:
    wrong = np.logical_and.reduce([raw != filler for filler in gap.fillers])
    count = int(np.count_nonzero(wrong))
    if count:
        first = int(np.argmax(wrong))
        expected = " or ".join(f"{filler:#04x}" for filler in gap.fillers)
        yield Finding(
            path,
            gap.start + first,
            gap.what,
            f"{count} of the {raw.size} bytes from byte {gap.start} on are not {expected}, the "
            f"first {int(raw[first]):#04x}; no reader looks at them, so that the file may have "
            "been damaged, or something was written there: compare it with its origin",
            gap.severity,
        )


def trailing(source: Source, stop: int, after: str, severity: Severity = "error") -> list[Finding]:
    """What to say of bytes after the end."""
    more = source.size - stop
    if more <= 0:
        return []
    message = (
        f"{more} more bytes, expected the end of the file; something was added to it, or its "
        "header is damaged: compare its size with that at its origin"
    )
    return [Finding(source.name, stop, f"the end of {after}", message, severity)]
