"""Findings: the faults of a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import numpy as np

from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import (
    Hint,
    SourceChangedError,
    TensorFormatError,
    shorten,
)

Severity = Literal["error", "warning"]

_PIECE = 4 << 20
_BATCH = 16 << 20


@dataclass(frozen=True)
class Finding:
    """A fault of a file.

    `xr_tensorfmt.validate` returns findings. Opening a file warns of a finding if the file can
    still be read. ``str(finding)`` is one line without the path.

    Parameters
    ----------
    path : str
        The file with the fault: the opened file or a sibling.
    offset : int or None
        Offset of the fault in bytes, or None if it has no single offset.
    field : str
        The invalid field, as the format calls it. Empty if the whole file is meant.
    message : str
        The actual and the expected value, and what to do.
    severity : {"error", "warning"}
        A warning is a violation of the format that leaves the values certain.

    Examples
    --------
    >>> from xr_tensorfmt import Finding
    >>> finding = Finding(
    ...     "a.mag",
    ...     28,
    ...     "the data offset",
    ...     "4095, expected a multiple of 4096",
    ... )
    >>> print(finding)
    error at byte 28: the data offset: 4095, expected a multiple of 4096
    """

    path: str
    offset: int | None
    field: str
    message: str
    severity: Severity = "error"

    def __str__(self) -> str:
        """Return one line without the path."""
        field = f"{shorten(self.field)}: " if self.field else ""
        return f"{self.severity}{self._at_byte}: {field}{self.message}"

    @property
    def sentence(self) -> str:
        """Text of a warning: path, field, offset and message."""
        field = f"{shorten(self.field)}{self._at_byte}".strip()
        return f"{self.path}: {field}: {self.message}" if field else f"{self.path}: {self.message}"

    @property
    def _at_byte(self) -> str:
        return "" if self.offset is None else f" at byte {self.offset}"


def finding_from_error(error: TensorFormatError, owner: str = "") -> Finding:
    """Convert an error about field `owner` to a finding, or raise a SourceChangedError."""
    if isinstance(error, SourceChangedError):
        raise error
    field = f"{error.field} of {owner}" if owner else error.field
    message = f"{shorten(error.actual)}, expected {shorten(error.expected)}; {error.hint}"
    return Finding(error.path, error.offset, field, message)


@dataclass(frozen=True)
class Gap:
    """A range ``[start, stop)`` that should contain only `fillers`. Findings name it `field`."""

    start: int
    stop: int
    field: str
    fillers: tuple[int, ...] = (0,)
    severity: Severity = "error"


def check_gaps(source: Source, gaps: Iterable[Gap], limit: int = 1) -> Iterator[Finding]:
    """Find bytes in gaps that are not filler: up to `limit` findings per gap, one per 4 MiB."""
    pieces = [
        (gap, replace(gap, start=start, stop=min(gap.stop, start + _PIECE)))
        for gap in sorted(gaps, key=lambda gap: gap.start)
        for start in range(gap.start, gap.stop, _PIECE)
    ]
    lengths = np.array([piece.stop - piece.start for _, piece in pieces], dtype=np.int64)
    batches = (np.cumsum(lengths) // _BATCH).tolist()
    counts: Counter[Gap] = Counter()
    for _, batch in groupby(range(len(pieces)), key=batches.__getitem__):
        numbers = list(batch)
        sizes = lengths[numbers[0] : numbers[-1] + 1]
        starts = np.array([pieces[number][1].start for number in numbers], dtype=np.int64)
        contents = np.split(source.read(Extents(starts, sizes)), np.cumsum(sizes)[:-1])
        for number, raw in zip(numbers, contents, strict=True):
            gap, piece = pieces[number]
            finding = _check_gap(source.name, piece, raw) if counts[gap] < limit else None
            if finding is not None:
                counts[gap] += 1
                yield finding


def _check_gap(path: str, gap: Gap, raw: Bytes) -> Finding | None:
    wrong = np.logical_and.reduce([raw != filler for filler in gap.fillers])
    count = int(np.count_nonzero(wrong))
    if not count:
        return None
    first = int(np.argmax(wrong))
    expected = " or ".join(f"{filler:#04x}" for filler in gap.fillers)
    message = (
        f"{count} of the {raw.size} bytes from byte {gap.start} on are not {expected}, the first "
        f"is {int(raw[first]):#04x}; readers ignore them, but the file may be corrupt: compare it "
        "with the original"
    )
    return Finding(path, gap.start + first, gap.field, message, gap.severity)


@dataclass(frozen=True)
class End:
    """The end ``stop`` of the contents of a file. A warning if programs write trailing bytes."""

    source: Source
    stop: int
    last_part: str
    severity: Severity = "error"

    @property
    def error(self) -> TensorFormatError | None:
        """Error about trailing bytes, or None."""
        extra = self.source.size - self.stop
        if extra <= 0:
            return None
        return TensorFormatError(
            self.source.name,
            field=f"the end of {self.last_part}",
            actual=f"{extra} more bytes",
            expected="the end of the file",
            hint=Hint(
                "the header is corrupt or bytes were appended: compare the size with the original "
                "({verify} ignores trailing bytes)",
                verify=False,
            ),
            offset=self.stop,
        )
