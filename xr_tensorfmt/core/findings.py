"""Findings: what is wrong with a file, where, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError, shorten

Severity = Literal["error", "warning"]

_PIECE = 4 << 20
_BATCH = 16 << 20


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a file.

    `xr_tensorfmt.validate` returns findings, and opening a file warns of those that do not keep
    it from being read. ``str(finding)`` is one line without the path.

    Parameters
    ----------
    path : str
        The file. Values of some files are in several, so that it may be another one than was
        opened.
    offset : int or None
        Position in bytes from the start of the file; None where the fault has no single position.
    field : str
        The part of the file that is wrong, in the terms of its format; empty if it is all of it.
    message : str
        What the file contains, what was expected, and what to do.
    severity : {"error", "warning"}
        A warning is about something that breaks a rule of the format, but leaves no doubt about
        the values.

    See Also
    --------
    validate : Check a file.

    Examples
    --------
    >>> from xr_tensorfmt import Finding
    >>> print(Finding("a.mag", 28, "the data offset", "4095, expected a multiple of 4096"))
    error at byte 28: the data offset: 4095, expected a multiple of 4096
    """

    path: str
    offset: int | None
    field: str
    message: str
    severity: Severity = "error"

    def __str__(self) -> str:
        """One line, without the path."""
        place = "" if self.offset is None else f" at byte {self.offset}"
        field = f"{shorten(self.field)}: " if self.field else ""
        return f"{self.severity}{place}: {field}{self.message}"

    @property
    def sentence(self) -> str:
        """What a warning says: the path, the field, its offset and the message."""
        place = "" if self.offset is None else f" at byte {self.offset}"
        return f"{self.path}: {shorten(self.field)}{place}: {self.message}"


def finding_from_error(error: TensorFormatError, within: str = "") -> Finding:
    """The finding about what a reader refuses, in a part of the file if it is known."""
    field = f"{error.field} of {within}" if within else error.field
    message = f"{shorten(error.found)}, expected {shorten(error.expected)}; {error.hint}"
    return Finding(error.path, error.offset, field, message)


@dataclass(frozen=True)
class Gap:
    """A range of a file that contains nothing but filler bytes.

    Parameters
    ----------
    start, stop : int
        The range, in bytes.
    what : str
        The field of a finding about it.
    fillers : tuple of int
        Values of the bytes that it may be filled with.
    severity : {"error", "warning"}
        Severity of a finding about it.
    """

    start: int
    stop: int
    what: str
    fillers: tuple[int, ...] = (0,)
    severity: Severity = "error"


def check_gaps(source: Source, gaps: Iterable[Gap], most: int = 1) -> Iterator[Finding]:
    """Look for bytes in gaps that are not filler.

    Parameters
    ----------
    source : Source
        The file.
    gaps : iterable of Gap
        In any order and without overlaps; they may be empty.
    most : int
        Limit on the findings about one gap.

    Yields
    ------
    Finding
        For each gap one, at its first wrong byte, or up to `most`, for each 4 MiB of a longer one.
    """
    found: Counter[Gap] = Counter()
    for batch in _batches(sorted(gaps, key=lambda gap: gap.start)):
        wanted = [(gap, piece) for gap, piece in batch if found[gap] < most]
        contents = _contents(source, [piece for _, piece in wanted])
        for (gap, piece), raw in zip(wanted, contents, strict=True):
            finding = _check(source.name, piece, raw)
            if finding is not None and found[gap] < most:
                found[gap] += 1
                yield finding


def _batches(gaps: Iterable[Gap]) -> Iterator[list[tuple[Gap, Gap]]]:
    """The gaps with their parts, as many at a time as are read together."""
    batch, size = [], 0
    for gap in gaps:
        # A file without data may have very many parts.
        for start in range(gap.start, gap.stop, _PIECE):
            stop = min(gap.stop, start + _PIECE)
            batch.append((gap, replace(gap, start=start, stop=stop)))
            size += stop - start
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
    yield batch


def _contents(source: Source, gaps: Sequence[Gap]) -> Sequence[Bytes]:
    if not gaps:
        return []
    starts = np.array([gap.start for gap in gaps], dtype=np.int64)
    lengths = np.array([gap.stop for gap in gaps], dtype=np.int64) - starts
    return np.split(source.read(Extents(starts, lengths)), np.cumsum(lengths)[:-1])


def _check(path: str, gap: Gap, raw: Bytes) -> Finding | None:
    wrong = np.logical_and.reduce([raw != filler for filler in gap.fillers])
    count = int(np.count_nonzero(wrong))
    if not count:
        return None
    first = int(np.argmax(wrong))
    expected = " or ".join(f"{filler:#04x}" for filler in gap.fillers)
    message = (
        f"{count} of the {raw.size} bytes from byte {gap.start} on are not {expected}, the first "
        f"is {int(raw[first]):#04x}; no reader uses them, so the file may be damaged, or something "
        "was written there: compare it with its origin"
    )
    return Finding(path, gap.start + first, gap.what, message, gap.severity)


@dataclass(frozen=True)
class End:
    """Where the contents of a file end: no byte should follow.

    Parameters
    ----------
    source : Source
        The file.
    stop : int
        The byte after the last one that the format defines.
    what : str
        What ends there, for the message.
    severity : {"error", "warning"}
        "warning" if programs of the format leave bytes after the end themselves.
    """

    source: Source
    stop: int
    what: str
    severity: Severity = "error"

    @property
    def error(self) -> TensorFormatError | None:
        """The error about bytes that follow, if there are any."""
        extra = self.source.size - self.stop
        if extra <= 0:
            return None
        return TensorFormatError(
            self.source.name,
            f"the end of {self.what}",
            f"{extra} more bytes",
            "the end of the file",
            "something was appended, or the header is damaged: compare the size of the file with "
            "that at its origin, or pass verify=False to ignore the rest",
            offset=self.stop,
        )
