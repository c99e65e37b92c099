"""Checks of all labels of a file: whether they are UTF-8, and whether blocks have the same ones."""

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
"""Blocks whose labels are compared with each other in one pass; of more, each takes a share."""

# Characters by which Python keeps bytes that are not UTF-8.
_ESCAPED = re.compile("[\udc80-\udcff]")


def check(reader: HeaderReader, container: Container, most: int) -> Iterator[Finding]:
    """Check the labels of all blocks, some of which are in memory at a time."""
    labels = [each.layout for each in container.coordinates if isinstance(each.layout, Labels)]
    if labels:
        yield from report_errors(lambda: _check_labels(reader.source, labels, most))


def _check_labels(source: Source, labels: Sequence[Labels], most: int) -> Iterator[Finding]:
    wrong = (_find_invalid_utf8(source, each) for each in labels)
    yield from islice(chain.from_iterable(wrong), most)
    yield from islice(_find_repeated(source, labels), most)


def _read_batches(source: Source, labels: Sequence[Labels]) -> Iterator[tuple[int, list[Strings]]]:
    """The labels of consecutive blocks, with the number of the first block."""
    blocks = labels[0].blocks
    for entry in blocks.batches(slice(0, blocks.header.blocks, 1), LABEL_BYTES):
        assert isinstance(entry, slice), "a part of a slice is one"
        yield entry.start, [each.strings(source, entry) for each in labels]


def _find_invalid_utf8(source: Source, labels: Labels) -> Iterator[Finding]:
    """What a reader that takes UTF-8 alone says of labels."""
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
    """The blocks that have the labels of an earlier one."""
    blocks, batches = labels[0].blocks, partial(_read_batches, source, labels)
    shares = -(-blocks.header.blocks // MAX_COMPARED_LABELS)
    # Of many blocks first those that are read together, as most of a damaged file are alike.
    near = (find_repeated_blocks(partial(iter, [each])) for each in batches()) if shares > 1 else ()
    known: set[int] = set()
    for repeated in chain(chain.from_iterable(near), find_repeated_blocks(batches, shares)):
        if repeated.block not in known:
            known.add(repeated.block)
            yield repeated.create_finding(source, blocks)
