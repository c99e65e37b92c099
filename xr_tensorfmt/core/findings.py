"""Findings: the faults of a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import SourceChangedError, TensorFormatError, shorten

Severity = Literal["error", "warning"]


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
    >>> print(Finding("a.mag", 28, "the data offset", "4095, expected a multiple of 4096"))
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
        field, actual = f"the end of {self.last_part}", f"{extra} more bytes"
        hint = (
            "the header is corrupt or bytes were appended: compare the size with the original "
            "(verify=False or --no-verify ignores trailing bytes)"
        )
        expected = "the end of the file"
        return TensorFormatError(self.source.name, field, actual, expected, hint, offset=self.stop)
