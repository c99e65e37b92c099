"""Checks of files: what is wrong, where, and what to do. Nothing is raised for a damaged file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from xr_tensorfmt import formats
from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.findings import Finding, finding_of, finding_of_warning
from xr_tensorfmt.core.format import OpenOptions
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.value_checks import attempt, check_values
from xr_tensorfmt.errors import SourceChangedError, TensorFormatError
from xr_tensorfmt.formats.mag.check import check_mag
from xr_tensorfmt.formats.pycauset import check as pycauset
from xr_tensorfmt.formats.pycauset.check import COVERED as COVERED_SLOTS
from xr_tensorfmt.formats.tens.check import check_tens
from xr_tensorfmt.formats.tens.spec import MAGIC as TENS_MAGIC
from xr_tensorfmt.formats.vespa import check as vespa
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
    container: Container | None = None
    known: list[str] = []
    for verify in (True, False):
        try:
            container = _parsed(source, format, head, verify=verify)
            break
        except SourceChangedError:
            raise
        except TensorFormatError as error:
            if str(error) not in known:
                yield finding_of(error)
            known.append(str(error))
    if container is None:
        return
    name = _format_of(container)
    covered = COVERED_SLOTS if name == "pycauset" else vespa.COVERED
    for warning in container.warnings:
        if warning not in known and not any(words in warning for words in covered):
            yield finding_of_warning(source.name, warning)
    yield from attempt(lambda: _deep(source, name, container), "")
    yield from check_values(source, (*container.tensors, *container.coordinates))


def _parsed(source: Source, format: str | None, head: bytes, *, verify: bool) -> Container:
    # Of a Vespa tensor the blocks as they are; of a sparse one in TENS all elements, however many.
    is_tens = HeaderReader(source, head).first_bytes(len(TENS_MAGIC)) == TENS_MAGIC
    options = OpenOptions(
        sparse="dense" if is_tens else "auto", verify=verify, errors="surrogateescape"
    )
    return formats.parse(source, options, format, head)


def _format_of(container: Container) -> str:
    encodings = [container.encoding, *(each.encoding for each in container.tensors)]
    facts = next(each["tensorfmt"] for each in encodings if "tensorfmt" in each)
    return str(facts["format"])


def _deep(source: Source, name: str, container: Container) -> Iterator[Finding]:
    """What is to be said of the parts of the file that hold no values."""
    if name == "mag":
        yield from check_mag(HeaderReader(source))
    elif name == "tens":
        yield from check_tens(source, container)
    elif name == "vespa":
        yield from vespa.check_vespa(source, container)
    else:
        yield from pycauset.check_pycauset(source, container)
