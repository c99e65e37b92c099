"""The labels of blocks, and blocks that have the labels of earlier ones."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Bytes, Extents, Integers
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.selection import Entry, Selection, entry_indices, entry_length, entry_part
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import (
    TensorFormatError,
    TensorFormatWarning,
    shortened,
    stacklevel_of_caller,
)
from xr_tensorfmt.formats.vespa.blocks import Blocks, BlockTable, Listed, Regular
from xr_tensorfmt.formats.vespa.integers import unpack_at
from xr_tensorfmt.formats.vespa.scan import LARGE_BLOCK
from xr_tensorfmt.formats.vespa.strings import NotUtf8Error, Strings, decode_strings

COMPARED_AT_OPENING = 1 << 16
"""Blocks of a local file up to which repeated labels are looked for when it is opened.

Else they are when all labels of blocks with one label each are read, as for an index.
"""

# Bytes of the file, and labels, that are read together.
_WINDOW = 16 << 20
_MOST_LABELS = 1 << 16

# By this dtype xarray knows arrays of strings, so that it need not look at every element.
_STRING_DTYPE = np.dtype(object, metadata={"element_type": str})

# A factor by which the hash of a row differs from that of the same strings in another order.
_HASH_FACTOR = 1_000_003


@dataclass(frozen=True)
class Labels(Layout):
    """The labels of all blocks for one mapped dimension."""

    blocks: Blocks
    number: int
    errors: Literal["strict", "surrogateescape"] = "strict"

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of blocks."""
        return (self.blocks.table.count,)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of arrays of Python's strings."""
        return _STRING_DTYPE

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """As many labels as there are blocks in a chunk of the cells."""
        return self.blocks.chunk_shape(target)[:1]

    def extents(self, selection: Selection) -> Extents:
        """All labels of each block, since each says where the next one is."""
        return self._extents(self.blocks.table.places, selection.entries[0])

    def _extents(self, places: Regular | Listed, entry: Entry) -> Extents:
        starts = places.starts(entry)
        if isinstance(places, Regular):
            return Extents.uniform(starts, places.label_bytes)
        return Extents(starts, places.stops(entry) - self.blocks.table.form.cell_bytes - starts)

    def read(self, source: Source, selection: Selection) -> Array:
        """Read labels, and warn of a repeated one where all are read, as they are for an index."""
        strings = self.strings(source, selection.entries[0])
        is_index = self.blocks.table.form.labels == 1 and strings.size == self.shape[0]
        if is_index and not is_compared_at_opening(source, strings.size):
            for finding in first_repeated(source, self.blocks.table, [strings]):
                message, level = finding.sentence, stacklevel_of_caller()
                warnings.warn(message, TensorFormatWarning, stacklevel=level)
        return strings

    def strings(self, source: Source, entry: Entry) -> Strings:
        """The labels of some blocks; those of one length are decoded together."""
        strings = np.empty(entry_length(entry), dtype=self.dtype)
        size = self.blocks.table.mean_bytes
        count = _MOST_LABELS if size > LARGE_BLOCK else min(_MOST_LABELS, _WINDOW // size)
        for first in range(0, strings.size, count):
            part = entry_part(entry, first, count)
            self._read_batch(strings[first : first + count], source, part)
        return strings

    @property
    def is_checked_by_format(self) -> bool:
        """The check of the format reads all labels."""
        return True

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read each label once."""
        unique, inverse = np.unique(points[0], return_inverse=True)
        picked: Array = self.strings(source, unique)[inverse]
        return picked

    def _read_batch(self, strings: Strings, source: Source, entry: Entry) -> None:
        places = self.blocks.table.places
        extents = self._extents(places, entry)
        window, starts = self._read_window(source, extents, entry)
        if isinstance(places, Regular) and not places.matches_at(window, starts):
            self.blocks.table.scan(source)
            self._read_batch(strings, source, entry)
            return
        lengths, begins = unpack_at(window, starts)
        for _ in range(self.number):
            lengths, begins = unpack_at(window, begins + lengths)
        try:
            decode_strings(strings, window, begins, lengths, self.errors)
        except NotUtf8Error as error:
            within = error.number
            raise TensorFormatError(
                source.name,
                f"label {self.number} of block {entry_indices(entry)[within]}",
                repr(error.content[:40]),
                "UTF-8",
                "open with errors='surrogateescape' to keep such bytes",
                offset=int(extents.starts[within] + begins[within] - starts[within]),
            ) from error

    def _read_window(
        self, source: Source, extents: Extents, entry: Entry
    ) -> tuple[Bytes, Integers]:
        """Bytes with the labels of some blocks, and where those of each block begin."""
        is_dense = isinstance(entry, slice) and entry.step == 1
        if not is_dense or self.blocks.table.mean_bytes > LARGE_BLOCK:
            return source.read(extents), np.cumsum(extents.lengths) - extents.lengths
        first, last = extents.bounds
        window = source.read(Extents.single(first, last))
        length = int(extents.lengths[0])
        if extents.lengths.strides[0]:
            return window, extents.starts - first
        # Labels of one length: together they fit the cache, so that each page is read once.
        return extents.gather(window, first), np.arange(0, len(extents) * length, length)


def is_compared_at_opening(source: Source, blocks: int) -> bool:
    """Whether repeated labels are looked for when a file is opened."""
    return blocks <= COMPARED_AT_OPENING and not source.distant


def repeated_labels(
    source: Source, table: BlockTable, labels: Sequence[str], block: int, earlier: int
) -> Finding:
    """The finding about a block that has the labels of an earlier one."""
    return Finding(
        source.name,
        table.start_of(block),
        labels_field(block),
        f"{shortened(', '.join(map(repr, labels)))}, which block {earlier} has too; both are kept, "
        "but Vespa may refuse the file or keep only one of them: leave one out",
        "warning",
    )


def labels_field(block: int) -> str:
    """What messages call the labels of a block."""
    return f"the labels of block {block}"


def first_repeated(
    source: Source, table: BlockTable, columns: Sequence[Strings]
) -> Iterator[Finding]:
    """The finding about the first block that has the labels of an earlier one, if any has."""
    found = repeated_block(columns)
    if found is not None:
        block, earlier = found
        row = [column[block] for column in columns]
        yield repeated_labels(source, table, row, block, earlier)


def repeated_block(columns: Sequence[Strings]) -> tuple[int, int] | None:
    """The first block all of whose labels an earlier block has too, and that earlier block."""
    if not _may_repeat(columns):
        return None
    known: dict[tuple[str, ...], int] = {}
    for block, labels in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        earlier = known.setdefault(labels, block)
        if earlier != block:
            return block, earlier
    return None


def _may_repeat(columns: Sequence[Strings]) -> bool:
    """Whether two rows of strings have the same hash."""
    mixed: Any = 0
    for strings in columns:
        # Python keeps the hashes, which an index of these strings needs anyway.
        hashes = np.fromiter(map(hash, strings.tolist()), np.int64, strings.size)
        mixed = mixed * _HASH_FACTOR ^ hashes
    mixed.sort()
    return bool((mixed[1:] == mixed[:-1]).any())
