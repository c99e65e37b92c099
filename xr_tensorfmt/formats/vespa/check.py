"""Check that labels are UTF-8 and that no two blocks have the same labels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice

import numpy as np

from xr_tensorfmt.contract import (
    Container,
    Finding,
    HeaderReader,
    Source,
    TensorFormatError,
    finding_from_error,
    report_errors,
)
from xr_tensorfmt.formats.vespa.labels import LABEL_BYTES, Labels, find_repeated_blocks
from xr_tensorfmt.formats.vespa.spec import Strings

MAX_COMPARED_LABELS = 1 << 24
"""Limit on the labels to compare in one pass over the file."""

# Characters that represent bytes that are not UTF-8.
_ESCAPED = re.compile("[\udc80-\udcff]")


def check(reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
    """Check all labels in batches."""
    labels = [
        tensor.layout for tensor in container.coordinates if isinstance(tensor.layout, Labels)
    ]
    if labels:
        yield from report_errors(lambda: _check_labels(reader.source, labels, limit))


def _check_labels(source: Source, labels: Sequence[Labels], limit: int) -> Iterator[Finding]:
    invalid = (_find_invalid_utf8(source, column) for column in labels)
    yield from islice(chain.from_iterable(invalid), limit)
    yield from islice(_find_repeated(source, labels), limit)


def _read_batches(source: Source, labels: Sequence[Labels]) -> Iterator[tuple[int, list[Strings]]]:
    """Read the labels of consecutive blocks, with the number of the first block."""
    blocks = labels[0].blocks
    for entry in blocks.batches(slice(0, blocks.header.blocks, 1), LABEL_BYTES):
        assert isinstance(entry, slice), "a part of a slice is one"
        yield entry.start, [column.strings(source, entry) for column in labels]


def _find_invalid_utf8(source: Source, labels: Labels) -> Iterator[Finding]:
    """Yield the errors of a reader that accepts only UTF-8."""
    strict = replace(labels, text_errors="strict", column=None)
    for first, (column,) in _read_batches(source, [labels]):
        strings = column.tolist()
        if "".join(strings).isascii():
            continue
        for number, string in enumerate(strings):
            if not string.isascii() and _ESCAPED.search(string):
                try:
                    strict.strings(source, np.array([first + number]))
                except TensorFormatError as error:
                    yield finding_from_error(error)


def _find_repeated(source: Source, labels: Sequence[Labels]) -> Iterator[Finding]:
    """Yield warnings of repeated labels."""
    blocks, batches = labels[0].blocks, partial(_read_batches, source, labels)
    shares = -(-blocks.header.blocks // MAX_COMPARED_LABELS)
    # Compare blocks of one batch first: repeated labels are often close to each other.
    near = (
        (find_repeated_blocks(partial(iter, [batch])) for batch in batches()) if shares > 1 else ()
    )
    reported: set[int] = set()
    for repeated in chain(chain.from_iterable(near), find_repeated_blocks(batches, shares)):
        if repeated.block not in reported:
            reported.add(repeated.block)
            yield repeated.create_finding(source, blocks)
