"""Check a MAG file."""

from __future__ import annotations

from collections.abc import Iterator

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.findings import Finding, Gap, check_gaps
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.formats.mag.spec import MagFile


def check(reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
    """Check the padding of a file."""
    file: MagFile = container.parsed
    gaps, stop = [*file.gaps], file.data_start
    for key, layout in sorted(file.layouts.items(), key=lambda item: item[1].offset):
        if layout.stop > layout.offset:
            field = f"the padding before the data of {key!r}"
            gaps.append(Gap(stop, layout.offset, field, file.fillers))
            stop = layout.stop
    gaps.append(Gap(stop, file.data_stop, "the padding after the last tensor", file.fillers))
    return check_gaps(reader.source, gaps, limit)
