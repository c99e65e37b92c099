"""The check of a file as a whole: its header, what its format prescribes, and its values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from xr_tensorfmt import formats
from xr_tensorfmt.core.findings import Finding, finding_from_error
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.value_checks import MAX_FINDINGS_PER_CHECK, check_values, report_errors
from xr_tensorfmt.errors import SourceChangedError, TensorFormatError
from xr_tensorfmt.sources import find_source

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

MAX_FINDINGS = 1000
"""Limit on the number of findings about one file."""


def validate(
    file: Any,
    *,
    all: bool = False,
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> list[Finding]:
    """Check a file as thoroughly as its format allows.

    The whole file is read, in pieces of some MiB, so that it may be larger than memory. What is
    wrong with it is returned, not raised. Of findings of a kind, such as values of one variable
    that cannot be read, the first one ends the search for more.

    Parameters
    ----------
    file : str, PathLike, file object, bytes, bytearray or memoryview
        The file: a path, a URL, or its content.
    all : bool
        Look for more findings of a kind, up to 20.
    format : str, optional
        Name of a registered format. By default the content decides, or else the suffix of the
        file, for a format whose files begin with no magic number.
    storage_options : mapping, optional
        Options of the file system of a URL, such as ``{"anon": True}``.
    fs : AbstractFileSystem, optional
        A file system of fsspec, or a store of obstore, in which `file` is a path.

    Returns
    -------
    list of Finding
        What is wrong: header, checksums, bytes that should be zero, data that overlap or are
        cut off, values that cannot be read, labels and indices that occur twice, properties
        that the file states of its values and that do not hold. Empty if nothing is; a thousand
        findings at most, and a last one which says that there are more.

    Raises
    ------
    SourceChangedError
        The file changes while it is checked.
    OSError
        The file cannot be read at all.
    ValueError, TypeError
        An argument does not fit the file.

    See Also
    --------
    Finding : What is known of each.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import xr_tensorfmt
    >>> ds = xr.Dataset({"weight": ("x", np.ones(5, "float32"))})
    >>> xr_tensorfmt.to_mag(ds, "model.mag")
    >>> xr_tensorfmt.validate("model.mag")
    []
    """
    source, head = find_source(file, "read", storage_options, fs)
    findings = list(
        islice(
            _findings(source, format, head, MAX_FINDINGS_PER_CHECK if all else 1), MAX_FINDINGS + 1
        )
    )
    if len(findings) > MAX_FINDINGS:
        message = f"more than {MAX_FINDINGS} findings, of which these are the first"
        findings[MAX_FINDINGS:] = [Finding(source.name, None, "", message, "warning")]
    return findings


def _findings(source: Source, format: str | None, head: bytes, most: int) -> Iterator[Finding]:
    reader = HeaderReader(source, head)
    try:
        chosen = formats.choose(reader, format)
        container = formats.read(reader, chosen, chosen.check_options)
    except SourceChangedError:
        raise
    except TensorFormatError as error:
        yield finding_from_error(error)
        return
    checks = report_errors(lambda: chosen.check(reader, container, most))
    yield from _merged(container.findings, list(islice(checks, MAX_FINDINGS + 1)))
    yield from check_values(source, (*container.tensors, *container.coordinates), most)


def _merged(by_reader: Iterable[Finding], by_check: Sequence[Finding]) -> Iterator[Finding]:
    """The findings of both; of two about the same place that of the check, which knows more."""
    checked = {(finding.path, finding.field, finding.offset) for finding in by_check}
    for finding in by_reader:
        if (finding.path, finding.field, finding.offset) not in checked:
            yield finding
    yield from by_check
