"""What can be wrong with the labels of a Vespa tensor: texts that are none, and repetitions."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.selection import Entry, Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.value_checks import MOST_OF_ONE, attempt
from xr_tensorfmt.errors import TensorFormatWarning, shortened
from xr_tensorfmt.formats.vespa.labels import Labels

_BLOCKS_AT_ONCE = 1 << 16


def check(reader: HeaderReader, container: Container) -> Iterator[Finding]:
    """Check the labels of all blocks."""
    source = reader.source
    labels = [each.layout for each in container.coordinates if isinstance(each.layout, Labels)]
    if labels:
        yield from attempt(lambda: _check_labels(source, labels), "the labels")


def _check_labels(source: Source, labels: Sequence[Labels]) -> Iterator[Finding]:
    """One pass, which keeps a number for each block."""
    count = labels[0].blocks.table.count
    hashes = np.empty(count, dtype=np.int64)
    undecodable = 0
    for first in range(0, count, _BLOCKS_AT_ONCE):
        part = slice(first, min(first + _BLOCKS_AT_ONCE, count), 1)
        addresses = _addresses(source, labels, part)
        hashes[part] = [hash(address) for address in addresses]
        for number, address in enumerate(addresses, first):
            wrong = next((text for text in address if not _is_utf8(text)), None)
            if wrong is not None and undecodable < MOST_OF_ONE:
                undecodable += 1
                yield _not_utf8(source, labels[0], number, wrong)
    yield from islice(_repeated(source, labels, hashes), MOST_OF_ONE)


def _addresses(source: Source, labels: Sequence[Labels], part: Entry) -> list[tuple[str, ...]]:
    selection = Selection(labels[0].shape, (part,))
    with warnings.catch_warnings():
        # Of repeated labels, which are findings here.
        warnings.simplefilter("ignore", TensorFormatWarning)
        columns: list[Array] = [each.read(source, selection) for each in labels]
    return list(zip(*(each.tolist() for each in columns), strict=True))


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _place(labels: Labels, number: int) -> int:
    return int(labels.blocks.table.places.starts(np.array([number]))[0])


def _not_utf8(source: Source, labels: Labels, number: int, text: str) -> Finding:
    raw = text.encode(errors="surrogateescape")
    return Finding(
        source.name,
        _place(labels, number),
        f"the labels of block {number}",
        f"{shortened(repr(raw), 80)}, expected UTF-8; "
        "open with errors='surrogateescape' to keep such bytes",
    )


def _repeated(source: Source, labels: Sequence[Labels], hashes: Integers) -> Iterator[Finding]:
    """Blocks with the labels of an earlier one, among those whose hashes are alike."""
    order = np.argsort(hashes, kind="stable")
    alike = hashes[order[1:]] == hashes[order[:-1]]
    among = np.zeros(order.size, dtype=np.bool_)
    among[1:] |= alike
    among[:-1] |= alike
    known: dict[tuple[str, ...], int] = {}
    for number in np.sort(order[among]).tolist():
        (address,) = _addresses(source, labels, np.array([number]))
        first = known.setdefault(address, number)
        if first != number:
            yield Finding(
                source.name,
                _place(labels[0], number),
                f"the labels of block {number}",
                f"{shortened(', '.join(map(repr, address)))}, as block {first} has; Vespa may "
                "refuse it or take the last: leave one of the blocks out",
                "warning",
            )
