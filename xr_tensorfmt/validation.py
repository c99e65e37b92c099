"""Validation of files: header, format rules and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
        Faults, or an empty list if the file is valid.

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
        options: dict[str, Any] = {"storage_options": storage_options, "fs": fs}
        paths = list_files(get_path(file), **options)
        options |= {"all": all, "format": format}
        return [finding for path in paths for finding in validate(path, **options)]
    try:
        file_format = choose_format(reader, format)
        container = read_container(reader, file_format, file_format.validation_options)
    except TensorFormatError as error:
        name = reader.source.file_name
        is_part = format is None and find_parts([name], lambda _: reader).get(name)
        return [] if is_part else [error.to_finding()]
    limit = MAX_FINDINGS_PER_CHECK if all else 1
    checked: list[Finding] = []
    try:
        checked.extend(file_format.check(reader, container, limit))
    except TensorFormatError as error:
        checked.append(error.to_finding())
    # If the reader and the check report the same field, keep the finding of the check.
    fields = {(finding.path, finding.field, finding.offset) for finding in checked}
    findings = [x for x in container.findings if (x.path, x.field, x.offset) not in fields]
    tensors = (*container.tensors, *container.coordinates)
    values = (finding for x in tensors for finding in x.validate(reader.source, limit))
    return [*findings, *checked, *values]
