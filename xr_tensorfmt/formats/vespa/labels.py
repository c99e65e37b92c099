"""Layouts of the labels of blocks, and a search for repeated labels."""

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
"""How to decode bytes that are not UTF-8."""

LABEL_BYTES = 256
"""Estimated size of the labels of a block, to choose the number of blocks to read at a time."""

# A factor that makes the hash of a row depend on the order of its labels.
_HASH_FACTOR = 1_000_003
# Limit on repeated hashes to compare, far more than are reported.
_MAX_REPEATED_HASHES = 1 << 16


@dataclass(frozen=True, eq=False)
class Column:
    """Labels of one mapped dimension, and their sizes in bytes."""

    strings: Strings
    lengths: Integers

    @classmethod
    def empty(cls, count: int) -> Column:
        """Allocate a column."""
        return cls(np.empty(count, dtype=STRING_DTYPE), np.empty(count, dtype=np.int64))

    def fill(self, first: int, part: Column) -> None:
        """Copy labels to an index and the following ones."""
        stop = first + part.strings.size
        self.strings[first:stop], self.lengths[first:stop] = part.strings, part.lengths

    def ascends(self) -> bool:
        """Whether labels are sorted, or sorted by length and then by text, and thus unique."""
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
    """Decode one label per block from a window of the file.

    Parameters
    ----------
    source : Source
        The file, for errors.
    window : ndarray of uint8
        Bytes that contain the labels.
    starts : ndarray of int64
        Positions of the blocks in the window.
    entry : slice or ndarray
        Numbers of the blocks, for errors.
    offsets : ndarray of int64
        Offsets of the blocks, for errors.
    number : int
        Number of the mapped dimension.
    text_errors : {"strict", "surrogateescape"}
        How to decode labels that are not UTF-8.

    Returns
    -------
    Column

    Raises
    ------
    TensorFormatError
        A label is not UTF-8.
    """
    lengths, begins = unpack_many(window, starts)
    for _ in range(number):
        lengths, begins = unpack_many(window, begins + lengths)
    # Copy every label after a zero byte, to decode and split all of them at once.
    sizes = lengths + 1
    stops = np.cumsum(sizes)
    joined = np.empty(int(stops[-1]), np.uint8)
    copy_pieces(joined, stops - sizes, window, begins - 1, sizes)
    joined[stops - sizes] = 0
    content = joined.tobytes()
    try:
        decoded = content.decode("utf-8", text_errors).split("\0")[1:]
    except UnicodeDecodeError as error:
        invalid = int(np.searchsorted(stops, error.start, side="right"))
        label = window[begins[invalid] :][: lengths[invalid]].tobytes()
        raise TensorFormatError(
            source.name,
            f"label {number} of block {entry_indices(entry)[invalid]}",
            repr(label[:40]),
            "UTF-8",
            "open with text_errors='surrogateescape' to keep such bytes",
            offset=int(offsets[invalid] + begins[invalid] - starts[invalid]),
        ) from None
    if len(decoded) > lengths.size:  # a label contains a zero
        bounds = pairwise([0, *stops.tolist()])
        decoded = [content[start + 1 : stop].decode("utf-8", text_errors) for start, stop in bounds]
    # Faster than np.array, which inspects the list.
    return Column(np.fromiter(decoded, object, lengths.size), lengths)


@dataclass(frozen=True)
class Labels(Layout):
    """Labels of all blocks for one mapped dimension.

    Parameters
    ----------
    blocks : Blocks
        The cells.
    number : int
        Number of the mapped dimension.
    text_errors : {"strict", "surrogateescape"}
        How to decode labels that are not UTF-8.
    column : Column, optional
        All labels, if they are in memory.
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
        """dtype of Python strings."""
        return STRING_DTYPE

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return the number of blocks in a chunk of cells."""
        return self.blocks.chunk_shape(target)[:1]

    def extents(self, selection: Selection) -> Extents:
        """Return the labels of all dimensions, because their lengths vary."""
        return self._extents(self.blocks.offsets, selection.entries[0])

    def _extents(self, offsets: RegularOffsets | ScannedOffsets, entry: Entry) -> Extents:
        starts = offsets.starts(entry)
        if isinstance(offsets, RegularOffsets):
            return Extents.uniform(starts, offsets.label_bytes)
        return Extents(starts, offsets.stops(entry) - self.blocks.header.block_bytes - starts)

    def read(self, source: Source, selection: Selection) -> Array:
        """Read labels. If all labels of an index are read, warn of a repeated one."""
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
        """Read the labels of the selected blocks, without a warning."""
        return self._read(source, entry).strings

    def _read(self, source: Source, entry: Entry) -> Column:
        if self.column is not None:
            return Column(self.column.strings[entry], self.column.lengths[entry])
        column, position = Column.empty(entry_length(entry)), 0
        for part in self.blocks.batches(entry, LABEL_BYTES):
            column.fill(position, self._read_batch(source, part))
            position += entry_length(part)
        return column

    layout_to_validate = None

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read labels by their block numbers."""
        unique, inverse = np.unique(points[0], return_inverse=True)
        picked: Array = self.strings(source, unique)[inverse]
        return picked

    def _read_batch(self, source: Source, entry: Entry) -> Column:
        offsets = self.blocks.offsets
        extents = self._extents(offsets, entry)
        window, starts = self.blocks.fetch(source, extents, entry, LABEL_BYTES)
        if isinstance(offsets, RegularOffsets) and not offsets.matches(window, starts):
            self.blocks.scan(source)
            return self._read_batch(source, entry)
        return decode_labels(
            source, window, starts, entry, extents.starts, self.number, self.text_errors
        )


@dataclass(frozen=True)
class RepeatedBlock:
    """A block with the labels of an earlier block."""

    block: int
    earlier: int
    labels: tuple[str, ...]

    def create_finding(self, source: Source, blocks: Blocks) -> Finding:
        """Create a warning."""
        return Finding(
            source.name,
            blocks.find_start(self.block),
            f"the labels of block {self.block}",
            f"{shorten(', '.join(map(repr, self.labels)))}, which block {self.earlier} has too; "
            "both are kept, but Vespa may refuse the file or keep only one; remove one",
            "warning",
        )


Batches = Callable[[], Iterable[tuple[int, Sequence[Strings]]]]
"""Yields the number of the first block, and one column of labels per mapped dimension."""


def find_repeated_blocks(batches: Batches, shares: int = 1) -> Iterator[RepeatedBlock]:
    """Find blocks that have all labels of an earlier block.

    Every share reads all labels, and compares a part of their hashes to save memory.
    """
    for share in range(shares):
        hashes = (_hash_rows(columns) for _, columns in batches())
        parts = [part if shares == 1 else part[part % shares == share] for part in hashes]
        ordered = np.sort(np.concatenate(parts or [np.empty(0, np.int64)]))
        repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])[:_MAX_REPEATED_HASHES]
        first_blocks: dict[tuple[str, ...], int] = {}
        for first, columns in batches() if repeated.size else ():
            for row in np.flatnonzero(np.isin(_hash_rows(columns), repeated)).tolist():
                labels = tuple(column[row] for column in columns)
                earlier = first_blocks.setdefault(labels, first + row)
                if earlier != first + row:
                    yield RepeatedBlock(first + row, earlier, labels)


def _hash_rows(columns: Sequence[Strings]) -> Integers:
    """Hash rows of labels. Different rows rarely have the same hash."""
    mixed: Any = 0
    for strings in columns:
        # Python caches the hashes of strings, which an index needs anyway.
        hashes = np.fromiter(map(hash, strings.tolist()), np.int64, strings.size)
        mixed = mixed * _HASH_FACTOR ^ hashes
    return np.asarray(mixed)
