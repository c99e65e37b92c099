"""What can be wrong with a MAG file beside what its reader refuses: gaps, and bytes at its end."""

from __future__ import annotations

from collections.abc import Iterator

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.findings import Finding, Gap, check_gaps, trailing
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.formats.mag.archive import ALIGNMENT
from xr_tensorfmt.formats.mag.document import HEADER as DOCUMENT_HEADER
from xr_tensorfmt.formats.mag.document import VERSION as DOCUMENT_VERSION
from xr_tensorfmt.formats.mag.read import read_contents
from xr_tensorfmt.formats.mag.spec import Contents, round_up

_FILLERS = (0xFF, 0)
"""magnetron fills an archive with ones; the published text says nothing of it."""


def check(reader: HeaderReader, container: Container) -> Iterator[Finding]:
    """Check a file whose header can be read."""
    del container  # the header says more than what is made of it
    contents = read_contents(reader, OpenOptions(verify=False))
    source = reader.source
    fillers: tuple[int, ...] = (0,)
    gaps: list[Gap] = []
    stop = contents.data_start
    if contents.container == "archive":
        fillers = _FILLERS
    elif contents.version == DOCUMENT_VERSION:
        gaps, stop, data_stop = _document_gaps(reader)
        yield from trailing(source, data_stop, "the data")
    between, stop = _between(contents, stop, fillers)
    gaps += between
    if contents.container == "archive":
        padded = min(round_up(stop, ALIGNMENT) if contents.tensors else stop, source.size)
        gaps.append(Gap(stop, padded, "the padding after the last tensor", fillers))
        gaps.append(Gap(padded, source.size, "the reserve at the end of the file"))
    elif contents.version == DOCUMENT_VERSION:
        gaps.append(Gap(stop, data_stop, "the padding after the last tensor"))
    yield from check_gaps(source, gaps)


def _document_gaps(reader: HeaderReader) -> tuple[list[Gap], int, int]:
    """What lies around the document, and where the data begin and end."""
    header = reader.bytes_at(0, DOCUMENT_HEADER.size, "the MAG header")
    *_, text, text_bytes, data, data_bytes = DOCUMENT_HEADER.unpack(header)
    before = Gap(DOCUMENT_HEADER.size, text, "the padding before the document")
    after = Gap(text + text_bytes, data, "the padding after the document")
    return [before, after], data, data + data_bytes


def _between(contents: Contents, position: int, fillers: tuple[int, ...]) -> tuple[list[Gap], int]:
    gaps = []
    for tensor in sorted(contents.tensors, key=lambda each: each.offset):
        if tensor.nbytes:
            what = f"the padding before the data of {tensor.key!r}"
            gaps.append(Gap(position, tensor.offset, what, fillers))
            position = tensor.stop
    return gaps, position
