"""Checks of all labels of a file: whether they are UTF-8, and whether blocks have the same ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

import numpy as np

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.findings import Finding, finding_of
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.value_checks import MOST_OF_ONE, attempt
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.vespa.labels import Labels, Strings, repeated_labels

# Characters by which Python keeps bytes that are not UTF-8.
_ESCAPED = re.compile("[\udc80-\udcff]")


def check(reader: HeaderReader, container: Container) -> Iterator[Finding]:
    """Check the labels of all blocks."""
    labels = [each.layout for each in container.coordinates if isinstance(each.layout, Labels)]
    if labels:
        yield from attempt(lambda: _check_labels(reader.source, labels), "")


def _check_labels(source: Source, labels: Sequence[Labels]) -> Iterator[Finding]:
    table = labels[0].blocks.table
    columns = [each.strings(source, slice(0, table.count, 1)) for each in labels]
    wrong = (_not_utf8(source, *each) for each in zip(labels, columns, strict=True))
    yield from islice(chain.from_iterable(wrong), MOST_OF_ONE)
    yield from repeated_labels(source, table, columns, most=MOST_OF_ONE)


def _not_utf8(source: Source, labels: Labels, column: Strings) -> Iterator[Finding]:
    """What a reader that takes UTF-8 alone says of labels."""
    strict = replace(labels, errors="strict")
    for block, string in enumerate(column.tolist()):
        if not string.isascii() and _ESCAPED.search(string):
            try:
                strict.strings(source, np.array([block]))
            except TensorFormatError as error:
                yield finding_of(error)
