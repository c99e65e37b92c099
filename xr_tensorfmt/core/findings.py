"""Findings: the faults of a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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

    See Also
    --------
    validate : Check a file.

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
    """Convert an error of a reader to a finding. `owner` is the part of the file with the field.

    Raise a SourceChangedError, because it is no fault of the file.
    """
    if isinstance(error, SourceChangedError):
        raise error
    field = f"{error.field} of {owner}" if owner else error.field
    message = f"{shorten(error.actual)}, expected {shorten(error.expected)}; {error.hint}"
    return Finding(error.path, error.offset, field, message)


@dataclass(frozen=True)
class Gap:
    """A range of a file that should contain only filler bytes.

    Parameters
    ----------
    start, stop : int
        The range in bytes.
    field : str
        Field name for findings.
    fillers : tuple of int
        Allowed byte values.
    severity : {"error", "warning"}
        Severity of findings.
    """

    start: int
    stop: int
    field: str
    fillers: tuple[int, ...] = (0,)
    severity: Severity = "error"


def check_gaps(source: Source, gaps: Iterable[Gap], limit: int = 1) -> Iterator[Finding]:
    """Find bytes in gaps that are not filler.

    Parameters
    ----------
    source : Source
        The file.
    gaps : iterable of Gap
        The gaps, disjoint and in any order. They may be empty.
    limit : int
        Limit on the findings per gap.

    Yields
    ------
    Finding
        One finding per 4 MiB of a gap, at the first wrong byte.
    """
    counts: Counter[Gap] = Counter()
    for batch in _batch_gaps(sorted(gaps, key=lambda gap: gap.start)):
        remaining = [(gap, piece) for gap, piece in batch if counts[gap] < limit]
        contents = _read_gaps(source, [piece for _, piece in remaining])
        for (gap, piece), raw in zip(remaining, contents, strict=True):
            finding = _check_gap(source.name, piece, raw)
            if finding is not None and counts[gap] < limit:
                counts[gap] += 1
                yield finding


def _batch_gaps(gaps: Iterable[Gap]) -> Iterator[list[tuple[Gap, Gap]]]:
    """Split gaps into pieces, and batch the pieces that are read together."""
    batch, size = [], 0
    for gap in gaps:
        for start in range(gap.start, gap.stop, _PIECE):
            stop = min(gap.stop, start + _PIECE)
            batch.append((gap, replace(gap, start=start, stop=stop)))
            size += stop - start
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
    yield batch


def _read_gaps(source: Source, gaps: Sequence[Gap]) -> Sequence[Bytes]:
    if not gaps:
        return []
    starts = np.array([gap.start for gap in gaps], dtype=np.int64)
    lengths = np.array([gap.stop for gap in gaps], dtype=np.int64) - starts
    return np.split(source.read(Extents(starts, lengths)), np.cumsum(lengths)[:-1])


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
    """The end of the contents of a file.

    Parameters
    ----------
    source : Source
        The file.
    stop : int
        The byte after the last byte that the format defines.
    last_part : str
        Name of the last part, for the message.
    severity : {"error", "warning"}
        "warning" if programs of the format write trailing bytes.
    """

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
