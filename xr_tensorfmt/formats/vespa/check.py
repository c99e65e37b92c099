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
from xr_tensorfmt.core.views import get_stored_layout
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.vespa.labels import BATCH_LABELS, Labels, find_repeated_blocks
from xr_tensorfmt.formats.vespa.spec import Strings

# Characters that represent bytes that are not UTF-8.
_ESCAPED = re.compile("[\udc80-\udcff]")


def check(reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
    """Check all labels in batches."""
    labels = [
        layout
        for tensor in container.coordinates
        if isinstance(layout := get_stored_layout(tensor.layout), Labels)
    ]
    if labels and labels[0].shape[0]:
        yield from report_errors(lambda: _check_labels(reader.source, labels, limit))


def _check_labels(source: Source, labels: Sequence[Labels], limit: int) -> Iterator[Finding]:
    invalid = (_find_invalid_utf8(source, column) for column in labels)
    yield from islice(chain.from_iterable(invalid), limit)
    for repeated in islice(find_repeated_blocks(lambda: _read_batches(source, labels)), limit):
        yield repeated.create_finding(source.name, labels[0].blocks)


def _read_batches(source: Source, labels: Sequence[Labels]) -> Iterator[tuple[int, list[Strings]]]:
    """Read the labels of consecutive blocks, with the index of the first block."""
    count = labels[0].shape[0]
    for first in range(0, count, BATCH_LABELS):
        blocks = range(first, min(first + BATCH_LABELS, count))
        yield first, [_read(source, column, blocks) for column in labels]


def _read(source: Source, labels: Labels, blocks: range) -> Strings:
    return read(labels, source, Selection(labels.shape, (blocks,)))


def _find_invalid_utf8(source: Source, labels: Labels) -> Iterator[Finding]:
    """Yield the errors of a reader that accepts only UTF-8."""
    strict = replace(labels, text_errors="strict", loaded=None)
    for first, (column,) in _read_batches(source, [labels]):
        for block, string in enumerate(column.tolist(), first):
            if not string.isascii() and _ESCAPED.search(string):
                try:
                    _read(source, strict, range(block, block + 1))
                except TensorFormatError as error:
                    yield finding_from_error(error)
