"""Checks of files: what is wrong, where, and what to do. Nothing is raised for a damaged file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from xr_tensorfmt import formats
from xr_tensorfmt.core.findings import Finding, finding_of
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.value_checks import attempt, check_values
from xr_tensorfmt.errors import SourceChangedError, TensorFormatError
from xr_tensorfmt.sources import find_source

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

MOST_FINDINGS = 1000
"""Limit on the findings about one file."""


def validate(
    file: Any,
    *,
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> list[Finding]:
    """Check a file as far as it can be checked: all of it is read, in pieces of some MiB.

    Parameters
    ----------
    file : str, PathLike, file object, bytes, bytearray or memoryview
        The file: a path, a URL, or its content.
    format : {"tens", "mag", "pycauset", "vespa"}, optional
        By default the content decides, and ``.tbf`` at the end of the name.
    storage_options : mapping, optional
        How to reach a URL, in the words of its file system.
    fs : AbstractFileSystem, optional
        A file system of fsspec, in which `file` is a path.

    Returns
    -------
    list of Finding
        What is wrong: header, checksums, bytes that should be zero, data that overlap or are
        cut off, values that cannot be read, labels and indices that occur twice, claims about
        symmetry that do not hold. Empty if all is well.

    Raises
    ------
    SourceChangedError
        The file changes while it is looked at.
    OSError, ValueError, TypeError
        The file cannot be read at all, or the arguments do not fit it.
    """
    source, head = find_source(file, "read", storage_options, fs)
    findings = list(islice(_findings(source, format, head), MOST_FINDINGS + 1))
    if len(findings) > MOST_FINDINGS:
        message = f"more than {MOST_FINDINGS} findings, of which these are the first"
        findings[MOST_FINDINGS:] = [Finding(source.name, None, "", message, "warning")]
    return findings


def _findings(source: Source, format: str | None, head: bytes) -> Iterator[Finding]:
    reader = HeaderReader(source, head)
    try:
        chosen = formats.choose(reader, format)
        container = formats.read(reader, chosen, chosen.check_options)
    except SourceChangedError:
        raise
    except TensorFormatError as error:
        yield finding_of(error)
        return
    findings = attempt(lambda: chosen.check(reader, container), "")
    checked = list(islice(findings, MOST_FINDINGS + 1))
    known = {(each.field, each.offset) for each in checked}
    yield from (each for each in container.findings if (each.field, each.offset) not in known)
    yield from checked
    yield from check_values(source, (*container.tensors, *container.coordinates))
