"""Validation of files: header, format rules and values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.errors import Finding, TensorFormatError
from xr_tensorfmt.formats.recognition import (
    choose_format,
    find_parts,
    list_files,
    open_header,
    read_container,
)
from xr_tensorfmt.sources import get_path

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

MAX_FINDINGS_PER_CHECK = 20
"""Limit on the findings of each kind if all findings are requested."""

MAX_FINDINGS = 1000
"""Limit on the findings per file."""


def validate(
    file: Any,
    *,
    all: bool = False,
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> list[Finding]:
    """Check a whole file and return its faults.

    The file is read in pieces of a few MiB, or whole tensors of text and compressed values. Most
    formats have no checksum of values, so a value changed to another valid value is not found.

    Parameters
    ----------
    file : str, PathLike, file object, bytes, bytearray or memoryview
        The file: a path, a URL, or its content. Of a directory, all tensor files are checked.
    all : bool
        Return up to 20 findings per check instead of the first.
    format, storage_options, fs
        As in `TensorFormatBackend.open_dataset`.

    Returns
    -------
    list of Finding
        Faults, or an empty list if the file is valid. After 1000 findings, the last one reports
        that there are more.

    Raises
    ------
    SourceChangedError
        The file changes during the check.
    OSError
        The file cannot be read.
    ValueError, TypeError
        An argument does not apply to the file.

    Examples
    --------
    >>> from xr_tensorfmt import tutorial, validate
    >>> validate(tutorial.get_path("snapshot"))
    []
    """
    try:
        reader = open_header(file, "read", storage_options, fs)
    except IsADirectoryError:
        options: dict[str, Any] = {"all": all, "format": format, "fs": fs}
        options["storage_options"] = storage_options
        paths = list_files(get_path(file), storage_options, fs)
        return [finding for path in paths for finding in validate(path, **options)]
    limit = MAX_FINDINGS_PER_CHECK if all else 1
    findings = list(islice(_find_faults(reader, format, limit), MAX_FINDINGS + 1))
    if len(findings) > MAX_FINDINGS:
        message = f"more than {MAX_FINDINGS} findings; only the first are listed"
        findings[MAX_FINDINGS:] = [Finding(reader.source.name, "", message, severity="warning")]
    return findings


def _find_faults(reader: HeaderReader, format: str | None, limit: int) -> Iterator[Finding]:
    try:
        file_format = choose_format(reader, format)
        container = read_container(reader, file_format, file_format.validation_options)
    except TensorFormatError as error:
        name = reader.source.file_name
        if format is not None or not find_parts([name], lambda _: reader).get(name):
            yield error.to_finding()
        return
    checked: list[Finding] = []
    try:
        checked.extend(islice(file_format.check(reader, container, limit), MAX_FINDINGS + 1))
    except TensorFormatError as error:
        checked.append(error.to_finding())
    # If the reader and the check report the same field, keep the finding of the check.
    fields = {(finding.path, finding.field, finding.offset) for finding in checked}
    for finding in container.findings:
        if (finding.path, finding.field, finding.offset) not in fields:
            yield finding
    yield from checked
    for tensor in (*container.tensors, *container.coordinates):
        yield from tensor.validate(reader.source, limit)
