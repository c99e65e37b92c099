"""Layout of the blocks of a new file, with their labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from xr_tensorfmt.contract import (
    BATCH_BYTES,
    WHOLE,
    Array,
    Bytes,
    CheckedInput,
    Encoded,
    Entry,
    Extents,
    Integers,
    Selection,
    entry_indices,
    entry_length,
    gather_uniform,
    raw_bytes,
    scatter_uniform,
    shorten,
)
from xr_tensorfmt.formats.vespa.blocks import Blocks, split_entry
from xr_tensorfmt.formats.vespa.spec import LONG_BIT, Header, Strings, pack

# Copying a label of this length takes no longer than copying a shorter one.
_SHORT_BYTES = 64


@dataclass(frozen=True, eq=False)
class LabelledBlocks(Blocks):
    """Blocks of a new file, with the packed labels of all blocks."""

    labels: Bytes

    @classmethod
    def from_labels(cls, header: Header, labels: Bytes, sizes: Integers) -> LabelledBlocks:
        """Compute the offsets of blocks from their packed labels and the sizes of these."""
        offsets = np.full(sizes.size + 1, header.stop, dtype=np.int64)
        offsets[1:] += np.cumsum(sizes + header.block_bytes)
        return cls(header, offsets, labels)

    @property
    def write_units(self) -> tuple[int, ...]:
        """Whole blocks with their labels."""
        return (1, *(WHOLE,) * len(self.header.lengths))

    def extents(self, selection: Selection) -> Extents:
        """Return one range for consecutive whole blocks."""
        entry = selection.entries[0]
        return Extents.single(int(self.offsets[entry][0]), int(self.offsets[1:][entry][-1]))

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """Encode labels and cells of consecutive whole blocks."""
        position = 0
        for entry in split_entry(selection.entries[0], max(1, BATCH_BYTES // self.mean_bytes)):
            count = entry_length(entry)
            yield self._encode_batch(entry, values[position : position + count])
            position += count

    def _encode_batch(self, entry: Entry, values: Array) -> Encoded:
        starts = self.offsets[entry]
        cells = self.find_cells(entry)
        begin, end = int(starts[0]), int(cells[-1]) + self.header.block_bytes
        joined = np.empty(end - begin, dtype=np.uint8)
        packed = starts - self.header.stop - entry_indices(entry) * self.header.block_bytes
        copy_pieces(joined, starts - begin, self.labels, packed, cells - starts)
        encoded = raw_bytes(self.header.element.encode(values))
        scatter_uniform(joined, cells - begin, encoded, self.header.block_bytes)
        return Extents.single(begin, end), joined


def pack_labels(checked: CheckedInput, columns: Mapping[str, Strings]) -> tuple[Bytes, Integers]:
    """Pack the labels of all blocks, and return their size per block."""
    packed = [_pack_column(checked, dim, labels.tolist()) for dim, labels in columns.items()]
    if len(packed) == 1:
        return packed[0]
    content = np.concatenate([column for column, _ in packed])
    sizes = np.stack([column_sizes for _, column_sizes in packed], axis=1)
    first = np.cumsum([0, *(column.size for column, _ in packed[:-1])])
    starts = first + np.cumsum(sizes, axis=0) - sizes
    labels, stops = np.empty_like(content), np.cumsum(sizes)
    copy_pieces(labels, stops - sizes.ravel(), content, starts.ravel(), sizes.ravel())
    return labels, sizes.sum(axis=1)


def _pack_column(checked: CheckedInput, dim: str, strings: list[str]) -> tuple[Bytes, Integers]:
    """Pack the labels of one dimension, and return their sizes."""
    with suppress(UnicodeEncodeError):
        # Encode all labels at once, after zero bytes that become their lengths.
        content = np.frombuffer(bytearray(1) + "\0".join(strings).encode(), dtype=np.uint8)
        zeros = np.flatnonzero(content == 0)
        if zeros.size == len(strings):
            return _insert_lengths(content, zeros)
    packed = [_pack_label(checked, dim, string) for string in strings]
    sizes = np.fromiter(map(len, packed), np.int64, len(packed))
    return np.frombuffer(b"".join(packed), dtype=np.uint8), sizes


def _insert_lengths(content: Bytes, zeros: Integers) -> tuple[Bytes, Integers]:
    """Replace the zero byte before every label by its length, which takes one byte or four."""
    lengths = np.diff(zeros, append=content.size) - 1
    is_long = lengths >= LONG_BIT
    if not is_long.any():
        content[zeros] = lengths
        return content, lengths + 1
    sizes = lengths + np.where(is_long, 4, 1)
    stops = np.cumsum(sizes)
    labels, starts = np.empty(int(stops[-1]), dtype=np.uint8), stops - sizes
    copy_pieces(labels, stops - lengths, content, zeros + 1, lengths)
    labels[starts[~is_long]] = lengths[~is_long]
    long = (lengths[is_long] | LONG_BIT << 24).astype(">u4")
    scatter_uniform(labels, starts[is_long], raw_bytes(long), 4)
    return labels, sizes


def _pack_label(checked: CheckedInput, dim: str, label: str) -> bytes:
    """Pack a label, and restore bytes from ``surrogateescape``."""
    with suppress(UnicodeEncodeError):
        content = label.encode("utf-8", "surrogateescape")
        if content.decode("utf-8", "surrogateescape") == label:
            return pack(len(content)) + content
    raise ValueError(
        f"{checked.path}: the label {shorten(repr(label))} of {dim!r} cannot be encoded as "
        "UTF-8; change it"
    )


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
