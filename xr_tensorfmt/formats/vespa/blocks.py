"""Layouts of the cells of all blocks of a file."""

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
"""Limit on the blocks of a local file that are scanned even if their labels have one length."""

# Number of blocks to compare with the first one.
_SAMPLE_BLOCKS = 16
# Bytes of the file to read at a time.
_BATCH_BYTES = 16 << 20
# Number of blocks to read at a time, because their offsets take memory too.
_MAX_BATCH_BLOCKS = 1 << 20
# Bytes to decode at a time, to stay within a processor cache.
_DECODED_BYTES = 128 << 10
# Copying a label of this length takes no longer than copying a shorter one.
_SHORT_BYTES = 64


@dataclass(frozen=True)
class RegularOffsets:
    """Offsets of blocks whose labels are assumed to have the same lengths as in the first block.

    Every read compares the lengths of the labels in its blocks. The comparison can miss labels of
    other lengths whose differences cancel out, as the page on Vespa explains.

    Parameters
    ----------
    offset : int
        Offset of the first block.
    stride : int
        Bytes of a block.
    length_bytes : tuple of (int, int)
        Positions in a block and values of the bytes that contain the lengths of its labels.
    label_bytes : int
        Bytes of the labels of a block, with their lengths.
    """

    offset: int
    stride: int
    length_bytes: tuple[tuple[int, int], ...]
    label_bytes: int

    @classmethod
    def from_first_block(cls, source: Source, header: Header) -> RegularOffsets | None:
        """Read the labels of the first block; return None if they are long."""
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
        """Offsets of the selected blocks."""
        return self.offset + entry_indices(entry) * self.stride

    def stops(self, entry: Entry) -> Integers:
        """Ends of the selected blocks."""
        return self.starts(entry) + self.stride

    def matches(self, window: Bytes, starts: Integers) -> bool:
        """Whether blocks in a window have labels of these lengths."""
        return all(
            bool((window[starts + position] == byte).all()) for position, byte in self.length_bytes
        )

    def matches_file(self, source: Source, entry: Entry) -> bool:
        """Whether the selected blocks of a file have labels of these lengths."""
        labels = source.read(Extents.uniform(self.starts(entry), self.label_bytes))
        return self.matches(labels, np.arange(0, labels.size, self.label_bytes))


@dataclass(frozen=True, eq=False)
class ScannedOffsets:
    """Offsets of all blocks, and the end of the last one."""

    offsets: Integers

    def starts(self, entry: Entry) -> Integers:
        """Offsets of the selected blocks."""
        return self.offsets[entry]

    def stops(self, entry: Entry) -> Integers:
        """Ends of the selected blocks."""
        return self.offsets[1:][entry]


@dataclass(frozen=True, eq=False)
class Blocks(VerifiableLayout):
    """The cells of all blocks. The first axis counts blocks, the others are indexed dimensions.

    Parameters
    ----------
    header : Header
        The header of the file.
    last_stop : int
        End of the last block.
    expected_offsets : RegularOffsets or ScannedOffsets
        Offsets of the blocks, as far as they were known when the file was opened.
    """

    header: Header
    last_stop: int
    expected_offsets: RegularOffsets | ScannedOffsets
    _scanned: CachedValue[ScannedOffsets] = field(default_factory=CachedValue, repr=False)

    @classmethod
    def find(
        cls, source: Source, header: Header, on_window: WindowCallback | None = None
    ) -> Blocks:
        """Find the blocks of a file. If it has to be scanned, `scan_blocks` calls `on_window`."""
        start, count = header.stop, header.blocks
        if count and (source.high_latency or source.size - start > MAX_OPENING_SCAN_BYTES):
            regular = RegularOffsets.from_first_block(source, header)
            if regular and start + count * regular.stride == source.size:
                sample = np.unique(np.linspace(0, count - 1, _SAMPLE_BLOCKS).astype(np.int64))
                if regular.matches_file(source, sample):
                    return cls(header, source.size, regular)
        offsets = scan_blocks(source, header, on_window)
        return cls(header, int(offsets[-1]), ScannedOffsets(offsets))

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of blocks, and lengths of the indexed dimensions."""
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
        """Return the type of the cells."""
        return self.header.element

    @property
    def offsets(self) -> RegularOffsets | ScannedOffsets:
        """Offsets of the blocks: expected ones until the file has been scanned."""
        return self._scanned.value or self.expected_offsets

    @property
    def mean_bytes(self) -> int:
        """Mean size of a block."""
        count = self.header.blocks
        return -(-(self.stop - self.header.stop) // count) if count else 1

    def find_start(self, block: int) -> int:
        """Return the offset of a block."""
        return int(self.offsets.starts(np.array([block]))[0])

    def find_cells(self, entry: Entry) -> Integers:
        """Return the offsets of the cells of the selected blocks."""
        return self.offsets.stops(entry) - self.header.block_bytes

    def scan(self, source: Source) -> ScannedOffsets:
        """Scan the file once, after labels of unexpected lengths were read."""
        return self._scanned.get(lambda: self._scan(source))

    def _scan(self, source: Source) -> ScannedOffsets:
        offsets = scan_blocks(source, self.header)
        if offsets[-1] != self.stop:
            raise TensorFormatError(
                source.name,
                "the end of the last block",
                f"byte {offsets[-1]}",
                f"byte {self.stop}",
                "the length of a label is corrupt; fetch the file again",
                offset=int(offsets[-1]),
            )
        return ScannedOffsets(offsets)

    def verify_offsets(self, source: Source) -> None:
        """Scan the file if the offsets are assumed to be regular."""
        if isinstance(self.offsets, RegularOffsets):
            self.scan(source)

    def batches(self, entry: Entry, length: int) -> Iterator[Entry]:
        """Split a selection into batches, to read parts of `length` bytes of their blocks."""
        spanned = self.mean_bytes if self._reads_gaps(length) else 0
        count = max(1, _BATCH_BYTES // max(spanned, length))
        return _split_entry(entry, min(_MAX_BATCH_BLOCKS, count))

    def fetch(
        self, source: Source, pieces: Extents, entry: Entry, length: int
    ) -> tuple[Bytes, Integers]:
        """Return bytes that contain parts of blocks, and the positions of the parts in them."""
        if isinstance(entry, slice) and entry.step == 1 and self._reads_gaps(length):
            first, last = pieces.bounds
            return source.read(Extents.single(first, last)), pieces.starts - first
        return source.read(pieces), np.cumsum(pieces.lengths) - pieces.lengths

    def _reads_gaps(self, length: int) -> bool:
        """Whether parts of consecutive blocks are read together with the bytes between them."""
        return self.mean_bytes <= max(LARGE_BLOCK_BYTES, 2 * length)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return equal numbers of blocks, or parts of a block if it is larger than `target`."""
        header, block = self.header, max(self.mean_bytes, self.header.cells * self.dtype.itemsize)
        if block <= target or not header.lengths:
            return (*contiguous_chunk((header.blocks,), block, target), *header.lengths)
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def extents(self, selection: Selection) -> Extents:
        """Return a range per block, from the first to the last selected cell."""
        first, last = self._cell_range(_select_inner(selection))
        return Extents.uniform(self.find_cells(selection.entries[0]) + first, last - first)

    def _cell_range(self, inner: Selection) -> tuple[int, int]:
        """Return the positions of the first selected cell and of the end of the last in a block."""
        first, last = inner.runs().bounds
        return (
            first * self.header.element.stored.itemsize,
            last * self.header.element.stored.itemsize,
        )

    def read(self, source: Source, selection: Selection) -> Array:
        """Read and decode cells. Labels of unexpected lengths cause a scan and another read."""
        values = np.empty(selection.shape, dtype=self.dtype)
        if selection.size:
            self._read_into(values.reshape(len(values), -1), source, selection)
        return values

    def _read_into(self, rows: Array, source: Source, selection: Selection) -> None:
        """Read many blocks at a time, and decode them in smaller parts."""
        offsets, inner = self.offsets, _select_inner(selection)
        first, last = self._cell_range(inner)
        # Include the labels if their lengths must be verified.
        before = offsets.label_bytes if isinstance(offsets, RegularOffsets) else -first
        length, skipped, elements = before + last, before + first, _element_indices(inner)
        step, position, element = max(1, _DECODED_BYTES // length), 0, self.header.element
        for entry in self.batches(selection.entries[0], length):
            starts = offsets.stops(entry) - (self.header.block_bytes + before)
            extents = Extents.uniform(starts, length)
            window, starts = self.fetch(source, extents, entry, length)
            is_packed = step == 1 or window.size == starts.size * length
            for lower in range(0, starts.size, step):
                step_starts = starts[lower : lower + step]
                if isinstance(offsets, RegularOffsets) and not offsets.matches(window, step_starts):
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
        """Read single cells, in the order of the file."""
        header, stored = self.header, self.header.element.stored
        cell = np.ravel_multi_index(points[1:], header.lengths) if header.lengths else 0
        unique, inverse = np.unique(points[0] * header.cells + cell, return_inverse=True)
        number, within = np.divmod(unique, header.cells)
        offsets, read = self.offsets, np.unique(number)
        if isinstance(offsets, RegularOffsets) and not offsets.matches_file(source, read):
            self.scan(source)
        starts = self.find_cells(number) + within * stored.itemsize
        raw = source.read(Extents.uniform(starts, stored.itemsize))
        picked: Array = header.element.decode(raw.view(stored))[inverse]
        return picked

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """Encode cells without their labels, which a region does not change."""
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
    """Return the selection within a block."""
    return Selection(selection.tensor_shape[1:], selection.entries[1:])


def _element_indices(inner: Selection) -> Integers | None:
    """Return the indices of the selected cells after the first, or None if they are contiguous."""
    runs = inner.runs()
    if runs.starts.size == 1:
        return None
    starts = runs.starts - runs.starts[0]
    elements: Integers = (starts[:, np.newaxis] + np.arange(runs.length)).ravel()
    return elements


def _split_entry(entry: Entry, count: int) -> Iterator[Entry]:
    for first in range(0, entry_length(entry), count):
        yield entry_part(entry, first, count)


def copy_pieces(
    target: Bytes, positions: Integers, window: Bytes, starts: Integers, lengths: Integers
) -> None:
    """Copy parts of a window to ascending positions. Bytes after a part may be overwritten."""
    length = min(int(lengths.max(initial=0)), window.size, target.size)
    if not length:
        return
    if int(lengths.sum()) == length * lengths.size == target.size:
        target[:] = gather_uniform(window, starts, length)
        return
    # Copy most parts with one length: numpy assigns in order, so that the next part overwrites the
    # excess bytes. Much longer parts follow one by one.
    if length > _SHORT_BYTES:
        length = min(length, _SHORT_BYTES + 4 * int(lengths.mean()))
    fits = (
        (lengths <= length) & (starts <= window.size - length) & (positions <= target.size - length)
    )
    scatter_uniform(target, positions[fits], gather_uniform(window, starts[fits], length), length)
    for piece in np.flatnonzero(~fits).tolist():
        position, start, size = int(positions[piece]), int(starts[piece]), int(lengths[piece])
        target[position : position + size] = window[start : start + size]


@dataclass(frozen=True, eq=False)
class LabelledBlocks(Blocks):
    """Blocks of a new file, with the packed labels of all blocks."""

    labels: Bytes = field(kw_only=True)

    @classmethod
    def from_labels(cls, header: Header, labels: Bytes, sizes: Integers) -> LabelledBlocks:
        """Compute the offsets of blocks from their packed labels and the sizes of these."""
        offsets = np.full(sizes.size + 1, header.stop, dtype=np.int64)
        offsets[1:] += np.cumsum(sizes + header.block_bytes)
        return cls(header, int(offsets[-1]), ScannedOffsets(offsets), labels=labels)

    @property
    def write_units(self) -> tuple[int, ...]:
        """Whole blocks with their labels."""
        return (1, *(WHOLE,) * len(self.header.lengths))

    def extents(self, selection: Selection) -> Extents:
        """Return one range for consecutive whole blocks."""
        offsets, entry = self.offsets, selection.entries[0]
        return Extents.single(int(offsets.starts(entry)[0]), int(offsets.stops(entry)[-1]))

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """Encode labels and cells of consecutive whole blocks."""
        position = 0
        for entry in _split_entry(selection.entries[0], max(1, BATCH_BYTES // self.mean_bytes)):
            count = entry_length(entry)
            yield self._encode_batch(entry, values[position : position + count])
            position += count

    def _encode_batch(self, entry: Entry, values: Array) -> Encoded:
        starts = self.offsets.starts(entry)
        cells = self.find_cells(entry)
        begin, end = int(starts[0]), int(cells[-1]) + self.header.block_bytes
        joined = np.empty(end - begin, dtype=np.uint8)
        packed = starts - self.header.stop - entry_indices(entry) * self.header.block_bytes
        copy_pieces(joined, starts - begin, self.labels, packed, cells - starts)
        encoded = raw_bytes(self.header.element.encode(values))
        scatter_uniform(joined, cells - begin, encoded, self.header.block_bytes)
        return Extents.single(begin, end), joined
