"""The labels of blocks, and blocks that have the labels of earlier ones."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Extents, Integers
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.selection import Entry, Selection, entry_indices, entry_length
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import (
    TensorFormatError,
    TensorFormatWarning,
    shorten,
    stacklevel_of_caller,
)
from xr_tensorfmt.formats.vespa.blocks import Blocks, BlockTable, Listed, Regular, copy_pieces
from xr_tensorfmt.formats.vespa.spec import unpack_at

Strings = NDArray[Any]
"""A one-dimensional array of Python's strings."""

LABEL_BYTES = 256
"""What the labels of a block probably take; so many of them are read together."""

# By this dtype xarray knows arrays of strings, so that it need not look at every element.
_STRING_DTYPE = np.dtype(object, metadata={"element_type": str})

# A factor by which the hash of a row differs from that of the same strings in another order.
_HASH_FACTOR = 1_000_003


@dataclass(frozen=True)
class Labels(Layout):
    """The labels of all blocks for one mapped dimension."""

    stored_as = "as labels between blocks"

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
        strings, lengths = self._read(source, selection.entries[0])
        is_column = self.blocks.table.form.labels == 1 and strings.size == self.shape[0]
        if is_column and not ascend(strings, lengths):
            for block, earlier in islice(repeated_blocks([strings]), 1):
                finding = repeated_label(
                    source, self.blocks.table, block, earlier, [strings[block]]
                )
                message, level = finding.sentence, stacklevel_of_caller()
                warnings.warn(message, TensorFormatWarning, stacklevel=level)
        return strings

    def strings(self, source: Source, entry: Entry) -> Strings:
        """The labels of some blocks."""
        return self._read(source, entry)[0]

    def _read(self, source: Source, entry: Entry) -> tuple[Strings, Integers]:
        """The labels of some blocks, and how many bytes each of them has."""
        count = entry_length(entry)
        strings, lengths = np.empty(count, dtype=self.dtype), np.empty(count, dtype=np.int64)
        position = 0
        for part in self.blocks.table.batches(entry, LABEL_BYTES):
            stop = position + entry_length(part)
            strings[position:stop], lengths[position:stop] = self._read_batch(source, part)
            position = stop
        if count == self.shape[0] and self.blocks.table.form.labels == 1:
            self.blocks.table.kept.release()
        return strings, lengths

    @property
    def is_checked_by_format(self) -> bool:
        """The check of the format reads all labels."""
        return True

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read each label once."""
        unique, inverse = np.unique(points[0], return_inverse=True)
        picked: Array = self.strings(source, unique)[inverse]
        return picked

    def _read_batch(self, source: Source, entry: Entry) -> tuple[Strings, Integers]:
        table, places = self.blocks.table, self.blocks.table.places
        extents = self._extents(places, entry)
        window, starts = table.kept.of(entry) or table.fetch(source, extents, entry, LABEL_BYTES)
        if isinstance(places, Regular) and not places.matches(window, starts):
            table.scan(source)
            return self._read_batch(source, entry)
        lengths, begins = unpack_at(window, starts)
        for _ in range(self.number):
            lengths, begins = unpack_at(window, begins + lengths)
        # Each with the byte before it, which becomes a zero: one call decodes all, one splits them.
        sizes = lengths + 1
        stops = np.cumsum(sizes)
        joined = np.empty(int(stops[-1]), np.uint8)
        copy_pieces(joined, stops - sizes, window, begins - 1, sizes)
        joined[stops - sizes] = 0
        content = joined.tobytes()
        try:
            decoded = content.decode("utf-8", self.errors).split("\0")[1:]
        except UnicodeDecodeError as error:
            wrong = int(np.searchsorted(stops, error.start, side="right"))
            label = window[begins[wrong] :][: lengths[wrong]].tobytes()
            raise TensorFormatError(
                source.name,
                f"label {self.number} of block {entry_indices(entry)[wrong]}",
                repr(label[:40]),
                "UTF-8",
                "open with errors='surrogateescape' to keep such bytes",
                offset=int(extents.starts[wrong] + begins[wrong] - starts[wrong]),
            ) from None
        if len(decoded) > lengths.size:  # Some contain a zero.
            edges = pairwise([0, *stops.tolist()])
            decoded = [content[a + 1 : b].decode("utf-8", self.errors) for a, b in edges]
        # numpy takes much longer to find out what a list holds.
        return np.fromiter(decoded, object, lengths.size), lengths


def ascend(strings: Strings, lengths: Integers) -> bool:
    """Whether strings ascend, or of each length those that are next to each other: all differ."""
    is_less = strings[:-1] < strings[1:]
    growth = np.diff(lengths)
    return bool(is_less.all() or ((growth >= 0) & (is_less | (growth > 0))).all())


def labels_field(block: int) -> str:
    """What messages call the labels of a block."""
    return f"the labels of block {block}"


def repeated_label(
    source: Source, table: BlockTable, block: int, earlier: int, labels: Sequence[str]
) -> Finding:
    """The finding about a block that has the labels of an earlier one."""
    return Finding(
        source.name,
        table.start_of(block),
        labels_field(block),
        f"{shorten(', '.join(map(repr, labels)))}, which block {earlier} has too; both are kept, "
        "but Vespa may refuse the file or keep only one of them: leave one out",
        "warning",
    )


def repeated_blocks(columns: Sequence[Strings]) -> Iterator[tuple[int, int]]:
    """Each block all of whose labels an earlier block has too, and that earlier block."""
    if len(columns) == 1 and (columns[0][:-1] < columns[0][1:]).all():
        return
    hashes = row_hashes(columns)
    known: dict[tuple[str, ...], int] = {}
    for block in rows_of(hashes, repeated_values(hashes)).tolist():
        earlier = known.setdefault(tuple(column[block] for column in columns), block)
        if earlier != block:
            yield block, earlier


def row_hashes(columns: Sequence[Strings]) -> Integers:
    """A hash of each row of strings; rows with the same one are nearly always the same."""
    mixed: Any = 0
    for strings in columns:
        # Python keeps the hashes, which an index of these strings needs anyway.
        hashes = np.fromiter(map(hash, strings.tolist()), np.int64, strings.size)
        mixed = mixed * _HASH_FACTOR ^ hashes
    return np.asarray(mixed)


def repeated_values(values: Integers) -> Integers:
    """The values that occur more than once, ascending."""
    ordered = np.sort(values)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])


def rows_of(values: Integers, wanted: Integers) -> Integers:
    """Where the values are that are among ascending others."""
    if not wanted.size:
        return np.empty(0, np.int64)
    nearest = np.minimum(np.searchsorted(wanted, values), wanted.size - 1)
    return np.flatnonzero(wanted[nearest] == values)
