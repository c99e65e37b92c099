"""Check that labels are UTF-8 and that no two blocks have the same labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.reading import read
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.value_checks import check_readable, report_errors
from xr_tensorfmt.formats.vespa.layouts import Blocks, Labels, find_repeated_blocks
from xr_tensorfmt.formats.vespa.spec import Strings

_BATCH_LABELS = 1 << 16


def check(reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
    """Check all labels in batches."""
    blocks, source = container.tensors[0].layout, reader.source
    if isinstance(blocks, Blocks) and blocks.header.blocks:
        for dimension in range(len(blocks.header.mapped)):
            yield from islice(check_readable(source, Labels(blocks, dimension)), limit)
        repeated = islice(find_repeated_blocks(lambda: _read_batches(source, blocks)), limit)
        findings = (block.create_finding(source.name, blocks) for block in repeated)
        yield from report_errors(lambda: findings)


def _read_batches(source: Source, blocks: Blocks) -> Iterator[tuple[int, Sequence[Strings]]]:
    """Read the labels of consecutive blocks, with the index of the first block."""
    count, rank = blocks.header.blocks, len(blocks.header.mapped)
    columns = [Labels(blocks, dimension, "surrogateescape") for dimension in range(rank)]
    for first in range(0, count, _BATCH_LABELS):
        selection = Selection((count,), (range(first, min(first + _BATCH_LABELS, count)),))
        yield first, [read(column, source, selection) for column in columns]
