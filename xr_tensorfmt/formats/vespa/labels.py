"""The labels of blocks, and blocks that have the labels of earlier ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from xr_tensorfmt.contract import (
    Array,
    Bytes,
    Entry,
    Extents,
    Finding,
    Integers,
    Layout,
    Selection,
    Source,
    TensorFormatError,
    TensorFormatWarning,
    entry_indices,
    entry_length,
    find_stack_level,
    shorten,
)
from xr_tensorfmt.formats.vespa.blocks import Blocks, RegularOffsets, ScannedOffsets, copy_pieces
from xr_tensorfmt.formats.vespa.spec import STRING_DTYPE, Strings, unpack_many

TextErrors = Literal["strict", "surrogateescape"]
"""What becomes of bytes that are not UTF-8."""

LABEL_BYTES = 256
"""What the labels of a block probably take; so many of them are read together."""

# A factor by which the hash of a row differs from that of the same strings in another order.
_HASH_FACTOR = 1_000_003
# Labels that occur twice and are looked up, of which far fewer are reported.
_MAX_REPEATED_HASHES = 1 << 16


@dataclass(frozen=True, eq=False)
class Column:
    """The labels of some blocks for one mapped dimension, and how many bytes each of them has."""

    strings: Strings
    lengths: Integers

    @classmethod
    def empty(cls, count: int) -> Column:
        """A column that is to be filled."""
        return cls(np.empty(count, dtype=STRING_DTYPE), np.empty(count, dtype=np.int64))

    def fill(self, first: int, part: Column) -> None:
        """Set the labels from a number on."""
        stop = first + part.strings.size
        self.strings[first:stop], self.lengths[first:stop] = part.strings, part.lengths

    def ascends(self) -> bool:
        """Whether labels ascend, or of each length those next to each other: then all differ."""
        is_less = self.strings[:-1] < self.strings[1:]
        growth = np.diff(self.lengths)
        return bool(is_less.all() or ((growth >= 0) & (is_less | (growth > 0))).all())


def decode_labels(
    source: Source,
    window: Bytes,
    starts: Integers,
    entry: Entry,
    offsets: Integers,
    number: int,
    text_errors: TextErrors,
) -> Column:
    """Label `number` of each of some blocks, from a window of the file in which these begin.

    TextErrors name a block by its number in `entry`, and the byte by the offset of the block.
    """
    lengths, begins = unpack_many(window, starts)
    for _ in range(number):
        lengths, begins = unpack_many(window, begins + lengths)
    # Each with the byte before it, which becomes a zero: one call decodes all, one splits them.
    sizes = lengths + 1
    stops = np.cumsum(sizes)
    joined = np.empty(int(stops[-1]), np.uint8)
    copy_pieces(joined, stops - sizes, window, begins - 1, sizes)
    joined[stops - sizes] = 0
    content = joined.tobytes()
    try:
        decoded = content.decode("utf-8", text_errors).split("\0")[1:]
    except UnicodeDecodeError as error:
        wrong = int(np.searchsorted(stops, error.start, side="right"))
        label = window[begins[wrong] :][: lengths[wrong]].tobytes()
        raise TensorFormatError(
            source.name,
            f"label {number} of block {entry_indices(entry)[wrong]}",
            repr(label[:40]),
            "UTF-8",
            "open with text_errors='surrogateescape' to keep such bytes",
            offset=int(offsets[wrong] + begins[wrong] - starts[wrong]),
        ) from None
    if len(decoded) > lengths.size:  # Some contain a zero.
        edges = pairwise([0, *stops.tolist()])
        decoded = [content[a + 1 : b].decode("utf-8", text_errors) for a, b in edges]
    # numpy takes much longer to find out what a list holds.
    return Column(np.fromiter(decoded, object, lengths.size), lengths)


@dataclass(frozen=True)
class Labels(Layout):
    """The labels of all blocks for one mapped dimension.

    `known` are all of them, where they have been read already.
    """

    blocks: Blocks
    number: int
    text_errors: TextErrors = "strict"
    column: Column | None = field(default=None, compare=False, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of blocks."""
        return (self.blocks.header.blocks,)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of arrays of Python's strings."""
        return STRING_DTYPE

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """As many labels as there are blocks in a chunk of the cells."""
        return self.blocks.chunk_shape(target)[:1]

    def extents(self, selection: Selection) -> Extents:
        """All labels of each block, since each says where the next one is."""
        return self._extents(self.blocks.offsets, selection.entries[0])

    def _extents(self, places: RegularOffsets | ScannedOffsets, entry: Entry) -> Extents:
        starts = places.starts(entry)
        if isinstance(places, RegularOffsets):
            return Extents.uniform(starts, places.label_bytes)
        return Extents(starts, places.stops(entry) - self.blocks.header.block_bytes - starts)

    def read(self, source: Source, selection: Selection) -> Array:
        """Read labels, and warn of a repeated one where all are read, as they are for an index."""
        column = self._read(source, selection.entries[0])
        strings = column.strings
        is_whole = len(self.blocks.header.mapped) == 1 and strings.size == self.shape[0]
        if is_whole and not column.ascends():
            repeated = next(find_repeated_blocks(lambda: [(0, [strings])]), None)
            if repeated is not None:
                message = repeated.create_finding(source, self.blocks).sentence
                warnings.warn(message, TensorFormatWarning, stacklevel=find_stack_level())
        return strings

    def strings(self, source: Source, entry: Entry) -> Strings:
        """The labels of some blocks."""
        return self._read(source, entry).strings

    def _read(self, source: Source, entry: Entry) -> Column:
        if self.column is not None:
            return Column(self.column.strings[entry], self.column.lengths[entry])
        column, position = Column.empty(entry_length(entry)), 0
        for part in self.blocks.batches(entry, LABEL_BYTES):
            column.fill(position, self._read_batch(source, part))
            position += entry_length(part)
        return column

    unchecked = None  # the check of the format reads all labels

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read each label once."""
        unique, inverse = np.unique(points[0], return_inverse=True)
        picked: Array = self.strings(source, unique)[inverse]
        return picked

    def _read_batch(self, source: Source, entry: Entry) -> Column:
        places = self.blocks.offsets
        extents = self._extents(places, entry)
        window, starts = self.blocks.fetch(source, extents, entry, LABEL_BYTES)
        if isinstance(places, RegularOffsets) and not places.matches(window, starts):
            self.blocks.scan(source)
            return self._read_batch(source, entry)
        return decode_labels(
            source, window, starts, entry, extents.starts, self.number, self.text_errors
        )


@dataclass(frozen=True)
class RepeatedBlock:
    """A block that has the labels of an earlier one."""

    block: int
    earlier: int
    labels: tuple[str, ...]

    def create_finding(self, source: Source, blocks: Blocks) -> Finding:
        """What to say of it."""
        return Finding(
            source.name,
            blocks.find_start(self.block),
            f"the labels of block {self.block}",
            f"{shorten(', '.join(map(repr, self.labels)))}, which block {self.earlier} has too; "
            "both are kept, but Vespa may refuse the file or keep only one of them: leave one out",
            "warning",
        )


Batches = Callable[[], Iterable[tuple[int, Sequence[Strings]]]]
"""Gives the number of a block, and the labels of it and the following ones by mapped dimension."""


def find_repeated_blocks(batches: Batches, shares: int = 1) -> Iterator[RepeatedBlock]:
    """Find the blocks all of whose labels an earlier block has too.

    All labels are read for each share of their hashes, so that these need less memory.
    """
    for share in range(shares):
        hashes = (_hash_rows(columns) for _, columns in batches())
        of_share = [each if shares == 1 else each[each % shares == share] for each in hashes]
        ordered = np.sort(np.concatenate(of_share or [np.empty(0, np.int64)]))
        repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])[:_MAX_REPEATED_HASHES]
        known: dict[tuple[str, ...], int] = {}
        for first, columns in batches() if repeated.size else ():
            for row in np.flatnonzero(np.isin(_hash_rows(columns), repeated)).tolist():
                labels = tuple(column[row] for column in columns)
                earlier = known.setdefault(labels, first + row)
                if earlier != first + row:
                    yield RepeatedBlock(first + row, earlier, labels)


def _hash_rows(columns: Sequence[Strings]) -> Integers:
    """A hash of each row of labels; rows with the same one are nearly always the same."""
    mixed: Any = 0
    for strings in columns:
        # Python keeps the hashes, which an index of these strings needs anyway.
        hashes = np.fromiter(map(hash, strings.tolist()), np.int64, strings.size)
        mixed = mixed * _HASH_FACTOR ^ hashes
    return np.asarray(mixed)
