"""Check that labels are UTF-8 and that no two blocks have the same labels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.findings import Finding, finding_from_error
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.reading import read
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.value_checks import report_errors
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.vespa.blocks import Blocks
from xr_tensorfmt.formats.vespa.labels import Labels, find_repeated_blocks
from xr_tensorfmt.formats.vespa.spec import Strings

_BATCH_LABELS = 1 << 16
# Characters that represent bytes that are not UTF-8.
_ESCAPED = re.compile("[\udc80-\udcff]")


def check(reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
    """Check all labels in batches."""
    cells = container.tensors[0].layout
    if isinstance(cells, Blocks) and cells.header.blocks:
        dimensions = range(len(cells.header.mapped))
        labels = [Labels(cells, dimension, "surrogateescape") for dimension in dimensions]
        yield from report_errors(lambda: _check_labels(reader.source, labels, limit))


def _check_labels(source: Source, labels: Sequence[Labels], limit: int) -> Iterator[Finding]:
    invalid = (_find_invalid_utf8(source, column) for column in labels)
    yield from islice(chain.from_iterable(invalid), limit)
    for repeated in islice(find_repeated_blocks(lambda: _read_batches(source, labels)), limit):
        yield repeated.create_finding(source.name, labels[0].blocks)


def _read_batches(source: Source, labels: Sequence[Labels]) -> Iterator[tuple[int, list[Strings]]]:
    """Read the labels of consecutive blocks, with the index of the first block."""
    count = labels[0].shape[0]
    for first in range(0, count, _BATCH_LABELS):
        blocks = range(first, min(first + _BATCH_LABELS, count))
        yield first, [read(column, source, Selection((count,), (blocks,))) for column in labels]


def _find_invalid_utf8(source: Source, labels: Labels) -> Iterator[Finding]:
    """Yield the errors of a reader that accepts only UTF-8."""
    strict = replace(labels, text_errors="strict")
    for first, (column,) in _read_batches(source, [labels]):
        for block, string in enumerate(column.tolist(), first):
            if not string.isascii() and _ESCAPED.search(string):
                try:
                    read(strict, source, Selection(labels.shape, (range(block, block + 1),)))
                except TensorFormatError as error:
                    yield finding_from_error(error)
