"""What can be wrong with a MAG file that its reader accepts: padding, and bytes at the end."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from xr_tensorfmt.core.findings import Finding, Gap, check_gaps, trailing
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.formats.mag.archive import FILLER
from xr_tensorfmt.formats.mag.read import read_contents
from xr_tensorfmt.formats.mag.spec import ARCHIVE_ALIGNMENT, Contents, round_up


def check(reader: HeaderReader, most: int) -> Iterator[Finding]:
    """Check a file whose header can be read."""
    contents = read_contents(reader, OpenOptions(verify=False))
    yield from trailing(reader.source, contents.data_stop, "the data")
    yield from check_gaps(reader.source, _gaps(contents), most)


def _gaps(contents: Contents) -> Iterator[Gap]:
    """All padding of a file."""
    yield from contents.gaps
    is_archive = contents.container == "archive"
    # magnetron fills the padding of an archive, but not the reserve behind it.
    fillers = (*FILLER, 0) if is_archive else (0,)
    stop, padded = contents.data_start, contents.data_stop
    for tensor in sorted(contents.tensors, key=attrgetter("offset")):
        if tensor.nbytes:
            field = f"the padding before the data of {tensor.key!r}"
            yield Gap(stop, tensor.offset, field, fillers)
            stop = tensor.stop
    if is_archive:
        padded = min(round_up(stop, ARCHIVE_ALIGNMENT) if contents.tensors else stop, padded)
    yield Gap(stop, padded, "the padding after the last tensor", fillers)
    yield Gap(padded, contents.data_stop, "the reserve at the end of the file")
