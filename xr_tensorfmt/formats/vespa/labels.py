"""The labels of blocks, and blocks that have the labels of earlier ones."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import lt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Bytes, Extents, Integers, gather_uniform
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
from xr_tensorfmt.formats.vespa.blocks import Blocks, BlockTable, Listed, Regular, by_length
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
        order = Order()
        strings = self.strings(source, selection.entries[0], order)
        is_column = self.blocks.table.form.labels == 1 and strings.size == self.shape[0]
        if is_column and not order.ascends:
            for finding in repeated_labels(source, self.blocks.table, [strings], most=1):
                message, level = finding.sentence, stacklevel_of_caller()
                warnings.warn(message, TensorFormatWarning, stacklevel=level)
        return strings

    def strings(self, source: Source, entry: Entry, order: Order | None = None) -> Strings:
        """The labels of some blocks; those of one length are decoded together."""
        strings, position = np.empty(entry_length(entry), dtype=self.dtype), 0
        for part in self.blocks.table.batches(entry, LABEL_BYTES):
            count = entry_length(part)
            self._read_batch(strings[position : position + count], source, part, order or Order())
            position += count
        if strings.size == self.shape[0] and self.blocks.table.form.labels == 1:
            self.blocks.table.kept.release()
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

    def _read_batch(self, strings: Strings, source: Source, entry: Entry, order: Order) -> None:
        table, places = self.blocks.table, self.blocks.table.places
        extents = self._extents(places, entry)
        kept = table.kept.of(entry)
        window, starts = kept or table.fetch(source, extents, entry, LABEL_BYTES)
        if isinstance(places, Regular):
            # Together they fit the cache, so that each page is read once.
            size = places.label_bytes
            window = gather_uniform(window, starts, size)
            if not places.matches(window.reshape(-1, size)):
                table.scan(source)
                self._read_batch(strings, source, entry, order)
                return
            starts = np.arange(strings.size) * size
        lengths, begins = unpack_at(window, starts)
        for _ in range(self.number):
            lengths, begins = unpack_at(window, begins + lengths)
        wrong = _decode(strings, window, begins, lengths, self.errors, order)
        if wrong is not None:
            label = window[begins[wrong] :][: lengths[wrong]].tobytes()
            raise TensorFormatError(
                source.name,
                f"label {self.number} of block {entry_indices(entry)[wrong]}",
                repr(label[:40]),
                "UTF-8",
                "open with errors='surrogateescape' to keep such bytes",
                offset=int(extents.starts[wrong] + begins[wrong] - starts[wrong]),
            )


class Order:
    """Whether labels ascend, each kind of one length by itself, so that no two are equal."""

    def __init__(self) -> None:
        self.ascends = True
        self._last: dict[int, NDArray[np.bytes_]] = {}

    def add(self, rows: Bytes) -> None:
        """Take more labels of one length, one a row, in the order of the file."""
        size = rows.shape[1]
        if self.ascends:
            labels = rows.view(f"S{size}").ravel()
            joined = np.concatenate([self._last.get(size, labels[:0]), labels[:1]])
            pairs = (joined[:-1], joined[1:]), (labels[:-1], labels[1:])
            self.ascends = all(bool((before < after).all()) for before, after in pairs)
            self._last[size] = labels[-1:]


def _decode(
    strings: Strings, window: Bytes, starts: Integers, lengths: Integers, errors: str, order: Order
) -> int | None:
    """Decode strings in a window, each with a byte before it; the number of one that is wrong."""
    for numbers, part in by_length(lengths):
        # Each with the byte before it, which becomes the separator.
        size = int(lengths[numbers[0]]) + 1
        rows = gather_uniform(window, starts[part] - 1, size).reshape(-1, size)
        rows[:, 0] = 0
        order.add(rows)
        try:
            # No character of several bytes contains a zero, so that one call decodes all.
            decoded = rows.tobytes().decode("utf-8", errors).split("\0")[1:]
        except UnicodeDecodeError as error:
            return int(numbers[error.start // size])
        if len(decoded) > len(rows):
            decoded = [row[1:].tobytes().decode("utf-8", errors) for row in rows]
        # numpy takes much longer to find out what a list holds.
        strings[part] = np.fromiter(decoded, object, numbers.size)
    return None


def labels_field(block: int) -> str:
    """What messages call the labels of a block."""
    return f"the labels of block {block}"


def repeated_labels(
    source: Source, table: BlockTable, columns: Sequence[Strings], *, most: int
) -> Iterator[Finding]:
    """The findings about the first blocks that have the labels of an earlier one."""
    for block, earlier in islice(repeated_blocks(columns), most):
        yield repeated_label(source, table, block, earlier, [column[block] for column in columns])


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
    if len(columns) == 1 and _ascends(columns[0].tolist()):
        return
    hashes = row_hashes(columns)
    known: dict[tuple[str, ...], int] = {}
    for block in rows_of(hashes, repeated_values(hashes)).tolist():
        earlier = known.setdefault(tuple(column[block] for column in columns), block)
        if earlier != block:
            yield block, earlier


def _ascends(strings: list[str]) -> bool:
    return all(map(lt, strings, islice(strings, 1, None)))


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
