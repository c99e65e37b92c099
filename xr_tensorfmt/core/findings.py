"""Findings: the faults of a file, and checks of all its values, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Literal

import numpy as np

from xr_tensorfmt.core.elements import Boolean, Plain
from xr_tensorfmt.core.extents import iterate_chunks
from xr_tensorfmt.core.layout import Dense, Layout, WholeLayout, find_offset
from xr_tensorfmt.core.reading import read
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import SourceChangedError, TensorFormatError, shorten

if TYPE_CHECKING:
    from xr_tensorfmt.core.container import Tensor

Severity = Literal["error", "warning"]

CHECKED_BYTES = 16 << 20
"""Bytes to check at a time."""

MAX_FINDINGS_PER_CHECK = 20
"""Limit on the findings of each kind if all findings are requested."""


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


def check_values(source: Source, tensors: Iterable[Tensor], limit: int) -> Iterator[Finding]:
    """Read all values that the format does not check, up to `limit` findings per variable."""
    for tensor in tensors:
        for layout in tensor.layout.stored_parts:
            owner = tensor.source or source
            if isinstance(layout, Dense) and isinstance(layout.element, Boolean):
                findings = _check_booleans(owner, tensor.name, layout)
            else:
                findings = check_readable(owner, layout, shorten(repr(tensor.name)))
            yield from islice(findings, limit)


def iterate_selections(layout: Layout, target: int = CHECKED_BYTES) -> Iterator[Selection]:
    """Yield the selections of all chunks of a layout."""
    for chunk in iterate_chunks(layout.shape, layout.chunk_shape(target)):
        yield Selection(layout.shape, chunk)


def report_errors(check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a check. If the reader raises an error, it is the last finding."""
    try:
        yield from check()
    except TensorFormatError as error:
        yield finding_from_error(error)


def check_readable(source: Source, layout: Layout, owner: str = "") -> Iterator[Finding]:
    """Yield a finding for every chunk that cannot be read. `owner` is the name of the tensor."""
    checks: Iterable[Callable[[], object]] = (
        partial(read, layout, source, selection) for selection in iterate_selections(layout)
    )
    if isinstance(layout, WholeLayout):
        checks = [partial(layout.check, source)]
    for check in checks:
        try:
            check()
        except TensorFormatError as error:
            yield finding_from_error(error, owner)


def _check_booleans(source: Source, name: str, layout: Dense) -> Iterator[Finding]:
    """Yield findings about bytes of booleans other than 0 and 1."""
    stored = replace(layout, element=Plain(np.dtype(np.uint8)))
    for selection in iterate_selections(stored):
        wrong = read(stored, source, selection) > 1
        if wrong.any():
            offset = find_offset(stored, selection.full_index(int(np.argmax(wrong))))
            message = (
                f"{np.count_nonzero(wrong)} bytes are neither 0 nor 1 and are read as True; "
                "rewrite the file if True is correct"
            )
            yield Finding(source.name, offset, f"the values of {name!r}", message, "warning")
