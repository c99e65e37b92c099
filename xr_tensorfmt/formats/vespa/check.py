"""Checks of all labels of a file: whether they are UTF-8, and whether blocks have the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.core.findings import Finding, finding_of
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.value_checks import MOST_OF_ONE, attempt
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.vespa.labels import Labels, repeated_labels

_BLOCKS_AT_ONCE = 1 << 16


def check(reader: HeaderReader, container: Container) -> Iterator[Finding]:
    """Check the labels of all blocks."""
    source = reader.source
    labels = [each.layout for each in container.coordinates if isinstance(each.layout, Labels)]
    if labels:
        yield from attempt(lambda: _check_labels(source, labels), "")


def _check_labels(source: Source, labels: Sequence[Labels]) -> Iterator[Finding]:
    """Read all labels once, and keep a hash for each block."""
    count = labels[0].blocks.table.count
    hashes = np.empty(count, dtype=np.int64)
    room = MOST_OF_ONE
    for first in range(0, count, _BLOCKS_AT_ONCE):
        part = slice(first, min(first + _BLOCKS_AT_ONCE, count), 1)
        columns = [each.strings(source, part).tolist() for each in labels]
        hashes[part] = [hash(row) for row in zip(*columns, strict=True)]
        for each, column in zip(labels, columns, strict=True):
            for finding in islice(_not_utf8(source, each, column, first), room):
                room -= 1
                yield finding
    yield from islice(_repeated(source, labels, hashes), MOST_OF_ONE)


def _not_utf8(
    source: Source, labels: Labels, column: Sequence[str], first: int
) -> Iterator[Finding]:
    """What a reader that takes UTF-8 alone says of labels, those from block `first` on."""
    if _is_utf8("".join(column)):
        return
    strict = replace(labels, errors="strict")
    for block, string in enumerate(column, first):
        if not _is_utf8(string):
            try:
                strict.strings(source, np.array([block]))
            except TensorFormatError as error:
                yield finding_of(error)


def _is_utf8(string: str) -> bool:
    try:
        string.encode()
    except UnicodeEncodeError:
        return False
    return True


def _repeated(source: Source, labels: Sequence[Labels], hashes: Integers) -> Iterator[Finding]:
    """Blocks with the labels of an earlier one, among those whose hashes are equal."""
    order = np.argsort(hashes, kind="stable")
    is_equal = hashes[order[1:]] == hashes[order[:-1]]
    candidates = np.zeros(order.size, dtype=np.bool_)
    candidates[1:] |= is_equal
    candidates[:-1] |= is_equal
    known: dict[tuple[str, ...], int] = {}
    for block in np.sort(order[candidates]).tolist():
        row = tuple(each.strings(source, np.array([block]))[0] for each in labels)
        earlier = known.setdefault(row, block)
        if earlier != block:
            yield repeated_labels(source, labels[0].blocks.table, row, block, earlier)
