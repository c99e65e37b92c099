"""Check a MAG file."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.findings import Finding, Gap, check_gaps
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.formats.mag.spec import MagFile


def check(reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
    """Check the padding of a file."""
    file: MagFile = container.parsed
    gaps, stop = [*file.gaps], file.data_start
    for tensor in sorted(file.tensors, key=attrgetter("offset")):
        if tensor.nbytes:
            field = f"the padding before the data of {tensor.key!r}"
            gaps.append(Gap(stop, tensor.offset, field, file.fillers))
            stop = tensor.stop
    gaps.append(Gap(stop, file.data_stop, "the padding after the last tensor", file.fillers))
    return check_gaps(reader.source, gaps, limit)
