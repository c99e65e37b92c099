"""Where the blocks of a file are, and their cells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xr_tensorfmt.contract import (
    BATCH_BYTES,
    WHOLE,
    Array,
    Bytes,
    CachedValue,
    Element,
    Encoded,
    Entry,
    Extents,
    Integers,
    Selection,
    Source,
    TensorFormatError,
    VerifiableLayout,
    contiguous_chunk,
    entry_indices,
    entry_length,
    entry_part,
    gather_uniform,
    raw_bytes,
    scatter_uniform,
)
from xr_tensorfmt.formats.vespa.scan import (
    LABEL_WINDOW_BYTES,
    LARGE_BLOCK_BYTES,
    WindowCallback,
    scan_blocks,
)
from xr_tensorfmt.formats.vespa.spec import Header, packed_size, unpack

MAX_OPENING_SCAN_BYTES = 8 << 20
"""Bytes of blocks up to which all blocks of a local file are scanned when it is opened."""

# Blocks that are looked at before it is presumed that all have labels of the same lengths.
_SAMPLE_BLOCKS = 16
# Bytes of the file that are read together.
_BATCH_WINDOW_BYTES = 16 << 20
# Blocks that are read together, as their places take memory as well.
_MAX_BATCH_BLOCKS = 1 << 20
# Bytes that are gathered and then decoded, while they are in the cache.
_DECODED_BYTES = 128 << 10
# Bytes of a label that takes no longer to copy than a shorter one.
_SHORT_BYTES = 64


@dataclass(frozen=True)
class RegularOffsets:
    """Blocks whose labels presumably have the same lengths in all of them; every read checks it.

    `length_bytes` are the positions in a block, and the values, of the bytes of these lengths;
    `label_bytes` is how many bytes come before the cells.
    """

    offset: int
    stride: int
    length_bytes: tuple[tuple[int, int], ...]
    label_bytes: int

    @classmethod
    def from_first_block(cls, source: Source, header: Header) -> RegularOffsets | None:
        """What the places are if all blocks are like the first one, and its labels are not long."""
        offset = header.stop
        window = source.read(Extents.single(offset, min(offset + LABEL_WINDOW_BYTES, source.size)))
        length_bytes: list[tuple[int, int]] = []
        position = 0
        for _ in range(len(header.mapped)):
            if position >= window.size:
                return None
            packed = window[position : position + packed_size(int(window[position]))].tobytes()
            length_bytes += enumerate(packed, position)
            position += len(packed) + unpack(packed)
        return cls(offset, position + header.block_bytes, tuple(length_bytes), position)

    def starts(self, entry: Entry) -> Integers:
        """Where some blocks begin."""
        return self.offset + entry_indices(entry) * self.stride

    def stops(self, entry: Entry) -> Integers:
        """Where some blocks end."""
        return self.starts(entry) + self.stride

    def matches(self, window: Bytes, starts: Integers) -> bool:
        """Whether blocks that begin somewhere in a window have labels of these lengths."""
        return all(bool((window[starts + at] == byte).all()) for at, byte in self.length_bytes)

    def matches_file(self, source: Source, entry: Entry) -> bool:
        """Whether some blocks of the file have labels of these lengths."""
        labels = source.read(Extents.uniform(self.starts(entry), self.label_bytes))
        return self.matches(labels, np.arange(0, labels.size, self.label_bytes))


@dataclass(frozen=True, eq=False)
class ScannedOffsets:
    """Blocks that were found by a scan: where each begins, and where the last one ends."""

    offsets: Integers

    def starts(self, entry: Entry) -> Integers:
        """Where some blocks begin."""
        return self.offsets[entry]

    def stops(self, entry: Entry) -> Integers:
        """Where some blocks end, which is where the next ones begin."""
        return self.offsets[1:][entry]


@dataclass(frozen=True, eq=False)
class Blocks(VerifiableLayout):
    """The cells of all blocks: the first axis counts blocks, the others are those of a block.

    `last_stop` is the end of the last block. `expected` has the offsets of blocks as they were
    known when the file was opened.
    """

    header: Header
    last_stop: int
    expected_offsets: RegularOffsets | ScannedOffsets
    _scanned: CachedValue[ScannedOffsets] = field(default_factory=CachedValue, repr=False)

    @classmethod
    def find(
        cls, source: Source, header: Header, on_window: WindowCallback | None = None
    ) -> Blocks:
        """Find the blocks of a file. A scan calls `on_window`, as `scan_blocks` does."""
        start, count = header.stop, header.blocks
        if count and (source.high_latency or source.size - start > MAX_OPENING_SCAN_BYTES):
            regular = RegularOffsets.from_first_block(source, header)
            sample = np.unique(np.linspace(0, count - 1, _SAMPLE_BLOCKS).astype(np.int64))
            fits = regular and start + count * regular.stride == source.size
            if regular and fits and regular.matches_file(source, sample):
                return cls(header, source.size, regular)
        offsets = scan_blocks(source, header, on_window)
        return cls(header, int(offsets[-1]), ScannedOffsets(offsets))

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of blocks, and the lengths of the indexed dimensions."""
        return (self.header.blocks, *self.header.lengths)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.stored_element().dtype

    @property
    def stop(self) -> int:
        """Byte after the last block."""
        return self.last_stop

    def stored_element(self) -> Element:
        """The cell."""
        return self.header.element

    @property
    def offsets(self) -> RegularOffsets | ScannedOffsets:
        """What was expected at opening, until a scan has found all blocks."""
        return self._scanned.value or self.expected_offsets

    @property
    def mean_bytes(self) -> int:
        """Bytes of a block on average."""
        count = self.header.blocks
        return -(-(self.stop - self.header.stop) // count) if count else 1

    def find_start(self, block: int) -> int:
        """Where one block begins."""
        return int(self.offsets.starts(np.array([block]))[0])

    def find_cells(self, entry: Entry) -> Integers:
        """Where the cells of some blocks begin."""
        return self.offsets.stops(entry) - self.header.block_bytes

    def scan(self, source: Source) -> ScannedOffsets:
        """Find all blocks, as a read has found labels of other lengths than expected."""
        return self._scanned.get(lambda: self._scan(source))

    def _scan(self, source: Source) -> ScannedOffsets:
        offsets = scan_blocks(source, self.header)
        if offsets[-1] != self.stop:
            raise TensorFormatError(
                source.name,
                "the end of the last block",
                f"byte {offsets[-1]}",
                f"byte {self.stop}",
                "the length of a label is damaged; fetch the file again",
                offset=int(offsets[-1]),
            )
        return ScannedOffsets(offsets)

    def verify_offsets(self, source: Source) -> None:
        """Scan the file if the offsets are assumed to be regular."""
        if isinstance(self.offsets, RegularOffsets):
            self.scan(source)

    def batches(self, entry: Entry, length: int) -> Iterator[Entry]:
        """Blocks whose pieces of about a length are fetched together."""
        spanned = self.mean_bytes if self._reads_gaps(length) else 0
        return _batches(
            entry, min(_MAX_BATCH_BLOCKS, max(1, _BATCH_WINDOW_BYTES // max(spanned, length)))
        )

    def fetch(
        self, source: Source, pieces: Extents, entry: Entry, length: int
    ) -> tuple[Bytes, Integers]:
        """Bytes with the pieces of a batch of blocks, and where each of these begins in them."""
        if isinstance(entry, slice) and entry.step == 1 and self._reads_gaps(length):
            first, last = pieces.bounds
            return source.read(Extents.single(first, last)), pieces.starts - first
        return source.read(pieces), np.cumsum(pieces.lengths) - pieces.lengths

    def _reads_gaps(self, length: int) -> bool:
        """Whether pieces of consecutive blocks are read together with what is between them."""
        return self.mean_bytes <= max(LARGE_BLOCK_BYTES, 2 * length)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Equal counts of blocks; parts of one where it is larger than a chunk may be."""
        header, block = self.header, max(self.mean_bytes, self.header.cells * self.dtype.itemsize)
        if block <= target or not header.lengths:
            return (*contiguous_chunk((header.blocks,), block, target), *header.lengths)
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def extents(self, selection: Selection) -> Extents:
        """One range for each block, from the first selected cell to the last."""
        first, last = self._cell_range(_select_inner(selection))
        return Extents.uniform(self.find_cells(selection.entries[0]) + first, last - first)

    def _cell_range(self, inner: Selection) -> tuple[int, int]:
        """Bytes of a block's cells from the first selected one to the last."""
        first, last = inner.runs().bounds
        return (
            first * self.header.element.stored.itemsize,
            last * self.header.element.stored.itemsize,
        )

    def read(self, source: Source, selection: Selection) -> Array:
        """Read and decode; labels of unexpected lengths cause a scan, and another read."""
        values = np.empty(selection.shape, dtype=self.dtype)
        if selection.size:
            self._read_into(values.reshape(len(values), -1), source, selection)
        return values

    def _read_into(self, rows: Array, source: Source, selection: Selection) -> None:
        """Read pieces of many blocks together, and decode some of them at a time."""
        places, inner = self.offsets, _select_inner(selection)
        first, last = self._cell_range(inner)
        # Where the lengths of labels have to be checked, pieces begin with them.
        before = places.label_bytes if isinstance(places, RegularOffsets) else -first
        length, skipped, elements = before + last, before + first, _element_indices(inner)
        step, position, element = max(1, _DECODED_BYTES // length), 0, self.header.element
        for entry in self.batches(selection.entries[0], length):
            starts = places.stops(entry) - (self.header.block_bytes + before)
            extents = Extents.uniform(starts, length)
            window, starts = self.fetch(source, extents, entry, length)
            is_packed = step == 1 or window.size == starts.size * length
            for lower in range(0, starts.size, step):
                step_starts = starts[lower : lower + step]
                if isinstance(places, RegularOffsets) and not places.matches(window, step_starts):
                    self.scan(source)
                    self._read_into(rows, source, selection)
                    return
                pieces = window[int(step_starts[0]) :][: step * length]
                if not is_packed:
                    pieces = gather_uniform(window, step_starts, length)
                pieces = pieces.reshape(-1, length)
                target = rows[position : position + len(pieces)]
                cells = pieces[:, skipped:].view(element.stored)
                element.decode_into(target, cells if elements is None else cells[:, elements])
                position += len(pieces)

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Fetch the cells of the points, in the order of the file."""
        header, stored = self.header, self.header.element.stored
        cell = np.ravel_multi_index(points[1:], header.lengths) if header.lengths else 0
        unique, inverse = np.unique(points[0] * header.cells + cell, return_inverse=True)
        number, within = np.divmod(unique, header.cells)
        places = self.offsets
        if isinstance(places, RegularOffsets) and not places.matches_file(
            source, np.unique(number)
        ):
            self.scan(source)
        starts = self.find_cells(number) + within * stored.itemsize
        raw = source.read(Extents.uniform(starts, stored.itemsize))
        picked: Array = header.element.decode(raw.view(stored))[inverse]
        return picked

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """The cells alone, as the labels stay as they are."""
        if not selection.size:
            return
        inner, item = _select_inner(selection), self.header.element.stored.itemsize
        offsets = self.find_cells(selection.entries[0])
        runs, count = inner.runs(), max(1, BATCH_BYTES // (inner.size * item))
        for first in range(0, offsets.size, count):
            starts = offsets[first : first + count, np.newaxis] + runs.starts * item
            cells = raw_bytes(self.header.element.encode(values[first : first + count]))
            yield Extents.uniform(starts.ravel(), runs.length * item), cells


def _select_inner(selection: Selection) -> Selection:
    """What is selected of each block."""
    return Selection(selection.extent[1:], selection.entries[1:])


def _element_indices(inner: Selection) -> Integers | None:
    """Numbers of the selected cells of a block, the first of them 0; None where they are a run."""
    runs = inner.runs()
    if runs.starts.size == 1:
        return None
    starts = runs.starts - runs.starts[0]
    elements: Integers = (starts[:, np.newaxis] + np.arange(runs.length)).ravel()
    return elements


def _batches(entry: Entry, count: int) -> Iterator[Entry]:
    for first in range(0, entry_length(entry), count):
        yield entry_part(entry, first, count)


def copy_pieces(
    target: Bytes, places: Integers, window: Bytes, starts: Integers, lengths: Integers
) -> None:
    """Copy pieces of a window to ascending places; what is after a piece may be overwritten."""
    length = min(int(lengths.max(initial=0)), window.size, target.size)
    if not length:
        return
    if int(lengths.sum()) == length * lengths.size == target.size:  # All are equally long.
        target[:] = gather_uniform(window, starts, length)
        return
    # Most are copied in one length: numpy assigns in order, so that each piece overwrites what has
    # been copied beyond the one before it. Those that are much longer follow singly.
    if length > _SHORT_BYTES:
        length = min(length, _SHORT_BYTES + 4 * int(lengths.mean()))
    fits = (lengths <= length) & (starts <= window.size - length) & (places <= target.size - length)
    scatter_uniform(target, places[fits], gather_uniform(window, starts[fits], length), length)
    for piece in np.flatnonzero(~fits).tolist():
        place, start, size = int(places[piece]), int(starts[piece]), int(lengths[piece])
        target[place : place + size] = window[start : start + size]


@dataclass(frozen=True, eq=False)
class LabelledBlocks(Blocks):
    """Blocks of a file that is written; `labels` are the packed labels of all blocks."""

    labels: Bytes = field(kw_only=True)

    @classmethod
    def from_labels(cls, header: Header, labels: Bytes, sizes: Integers) -> LabelledBlocks:
        """Arrange blocks after a header, from their labels and how many bytes each has of these."""
        offsets = np.full(sizes.size + 1, header.stop, dtype=np.int64)
        offsets[1:] += np.cumsum(sizes + header.block_bytes)
        return cls(header, int(offsets[-1]), ScannedOffsets(offsets), labels=labels)

    @property
    def write_units(self) -> tuple[int, ...]:
        """Whole blocks, each with its labels."""
        return (1, *(WHOLE,) * len(self.header.lengths))

    def extents(self, selection: Selection) -> Extents:
        """Consecutive whole blocks are one range."""
        places, entry = self.offsets, selection.entries[0]
        return Extents.single(int(places.starts(entry)[0]), int(places.stops(entry)[-1]))

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """Labels and cells of consecutive whole blocks, many at a time."""
        position = 0
        for entry in _batches(selection.entries[0], max(1, BATCH_BYTES // self.mean_bytes)):
            count = entry_length(entry)
            yield self._encode_batch(entry, values[position : position + count])
            position += count

    def _encode_batch(self, entry: Entry, values: Array) -> Encoded:
        starts = self.offsets.starts(entry)
        cells = self.find_cells(entry)
        begin, end = int(starts[0]), int(cells[-1]) + self.header.block_bytes
        joined = np.empty(end - begin, dtype=np.uint8)
        places = starts - self.header.stop - entry_indices(entry) * self.header.block_bytes
        copy_pieces(joined, starts - begin, self.labels, places, cells - starts)
        encoded = raw_bytes(self.header.element.encode(values))
        scatter_uniform(joined, cells - begin, encoded, self.header.block_bytes)
        return Extents.single(begin, end), joined
