"""What can be wrong with a MAG file that its reader accepts: padding, and bytes at the end."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from xr_tensorfmt.core.findings import Finding, Gap, check_gaps, trailing
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.formats.mag.archive import FILLER
from xr_tensorfmt.formats.mag.read import read_contents
from xr_tensorfmt.formats.mag.spec import Contents


def check(reader: HeaderReader, most: int) -> Iterator[Finding]:
    """Check a file whose header can be read."""
    contents = read_contents(reader, OpenOptions(verify=False))
    yield from trailing(reader.source, contents.data_stop, "the data")
    yield from check_gaps(reader.source, _gaps(contents), most)


def _gaps(contents: Contents) -> Iterator[Gap]:
    """All padding of a file."""
    yield from contents.gaps
    # magnetron fills the padding of an archive, but not the reserve behind it.
    fillers = (*FILLER, 0) if contents.container == "archive" else (0,)
    stop = contents.data_start
    for tensor in sorted(contents.tensors, key=attrgetter("offset")):
        if tensor.nbytes:
            field = f"the padding before the data of {tensor.key!r}"
            yield Gap(stop, tensor.offset, field, fillers)
            stop = tensor.stop
    yield Gap(stop, contents.data_stop, "the padding after the last tensor", fillers)
