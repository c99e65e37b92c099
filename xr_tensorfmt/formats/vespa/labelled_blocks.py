"""Layout of the blocks of a new file, with their labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Bytes, Extents, Integers, scatter_uniform
from xr_tensorfmt.core.layout import BATCH_BYTES, WHOLE, EncodedBatch, view_as_bytes
from xr_tensorfmt.core.selection import Indices, Selection, take_rows
from xr_tensorfmt.errors import shorten
from xr_tensorfmt.formats.vespa.blocks import Blocks
from xr_tensorfmt.formats.vespa.spec import LONG_BIT, Strings, VespaHeader, pack_string
from xr_tensorfmt.writing.checked_input import CheckedInput


@dataclass(frozen=True, eq=False)
class LabelledBlocks(Blocks):
    """Blocks of a new file, with the packed labels of all blocks."""

    labels: Bytes

    @classmethod
    def from_labels(cls, header: VespaHeader, labels: Bytes, sizes: Integers) -> LabelledBlocks:
        """Compute the offsets of blocks from their packed labels and the sizes of the labels."""
        offsets = np.full(sizes.size + 1, header.stop, dtype=np.int64)
        offsets[1:] += np.cumsum(sizes + header.block_bytes)
        return cls(header, offsets, labels)

    @property
    def write_units(self) -> tuple[int, ...]:
        """Whole blocks with their labels."""
        return (1, *(WHOLE,) * len(self.header.lengths))

    def locate(self, selection: Selection) -> Extents:
        """Return one range for consecutive whole blocks."""
        blocks = selection.indices[0]
        return Extents.single(int(self.offsets[blocks[0]]), int(self.offsets[blocks[-1] + 1]))

    def encode(self, selection: Selection, values: Array) -> Iterator[EncodedBatch]:
        """Encode labels and cells of consecutive whole blocks."""
        blocks, step = selection.indices[0], max(1, BATCH_BYTES // self.mean_bytes)
        for first in range(0, len(blocks), step):
            batch = slice(first, first + step)
            yield self._encode_batch(blocks[batch], values[batch])

    def _encode_batch(self, blocks: Indices, values: Array) -> EncodedBatch:
        starts = take_rows(self.offsets, blocks)
        cells = self.find_cells(blocks)
        start, stop = int(starts[0]), int(cells[-1]) + self.header.block_bytes
        joined = np.empty(stop - start, dtype=np.uint8)
        sizes = cells - starts
        # The packed labels of consecutive blocks are contiguous.
        first = start - self.header.stop - int(blocks[0]) * self.header.block_bytes
        labels = self.labels[first : first + int(sizes.sum())]
        shifts = starts - start - (np.cumsum(sizes) - sizes)
        joined[np.arange(labels.size) + np.repeat(shifts, sizes)] = labels
        encoded = view_as_bytes(self.header.element.encode(values))
        scatter_uniform(joined, cells - start, encoded, self.header.block_bytes)
        return Extents.single(start, stop), joined


def pack_labels(checked: CheckedInput, columns: Mapping[str, Strings]) -> tuple[Bytes, Integers]:
    """Pack the labels of all blocks, and return their size per block."""
    strings = np.stack(list(columns.values()), axis=1).ravel().tolist()
    labels, sizes = _pack_short(strings) or _pack_any(checked, strings)
    return labels, sizes.reshape(-1, len(columns)).sum(axis=1)


def _pack_short(strings: list[str]) -> tuple[Bytes, Integers] | None:
    """Pack labels of up to 127 bytes at once, or return None if there are others."""
    with suppress(UnicodeEncodeError):
        # Encode all labels after zero bytes that become their lengths.
        content = np.frombuffer(bytearray(1) + "\0".join(strings).encode(), dtype=np.uint8)
        zeros = np.flatnonzero(content == 0)
        lengths = np.diff(zeros, append=content.size) - 1
        if zeros.size == len(strings) and lengths.max() < LONG_BIT:
            content[zeros] = lengths
            return content, lengths + 1
    return None


def _pack_any(checked: CheckedInput, strings: list[str]) -> tuple[Bytes, Integers]:
    """Pack labels one by one."""
    packed: list[bytes] = []
    try:
        packed.extend(map(pack_string, strings))
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{checked.path}: the label {shorten(repr(error.object))} cannot be encoded as UTF-8; "
            "change it"
        ) from None
    sizes = np.fromiter(map(len, packed), np.int64, len(packed))
    return np.frombuffer(b"".join(packed), dtype=np.uint8), sizes
