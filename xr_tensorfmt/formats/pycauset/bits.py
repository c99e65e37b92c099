"""Layout of bit matrices."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from xr_tensorfmt.core.chunk_grid import ceil_div
from xr_tensorfmt.core.elements import Array, Boolean, Element
from xr_tensorfmt.core.extents import Bytes, Integers, gather_uniform
from xr_tensorfmt.core.layout import WHOLE
from xr_tensorfmt.core.selection import MAX_RUNS, Selection
from xr_tensorfmt.formats.pycauset.packed import Packed
from xr_tensorfmt.formats.pycauset.rows import Pieces

# Unpacked elements at a time, to stay within a processor cache.
_CACHED_BYTES = 1 << 20


@dataclass(frozen=True)
class Bits(Packed):
    """Matrix or triangle of bits. Bit k of a row is bit ``k % 8`` of its byte ``k // 8``."""

    element: Element = field(default_factory=Boolean, init=False)

    def decode(self, packed: Bytes, selection: Selection, out: Array | None = None) -> Array:
        """Unpack the columns from the first to the last one, or take single bits."""
        if self._is_sparse(selection):
            return super().decode(packed, selection)
        rows, columns = selection.index_arrays
        first, width = int(columns[0]), int(columns[-1] - columns[0]) + 1
        is_complete = columns.size == width
        if is_complete and not self.rows.is_triangle:
            raw, bit = packed.reshape(rows.size, -1), first % 8
            unpacked = np.unpackbits(raw, axis=1, count=bit + width, bitorder="little")
            return unpacked[:, bit:].view(np.bool_)
        pieces = self.find_pieces(selection)
        arrays = pieces.packed_starts, pieces.bit, pieces.lead
        values = np.zeros(selection.shape, dtype=np.uint8)
        step = max(1, _CACHED_BYTES // width)
        for begin in range(0, len(pieces), step):
            part = slice(begin, min(begin + step, len(pieces)))
            row_values = values[part]
            bits = row_values if is_complete else np.zeros((len(row_values), width), np.uint8)
            _unpack(bits, packed, *(array[part] for array in arrays))
            if not is_complete:
                bits.take(columns - first, axis=1, out=row_values, mode="clip")
        return values.view(np.bool_)

    def batch_size(self, selection: Selection, max_bytes: int) -> int:
        """Divide only single elements, because packed rows need little memory."""
        return MAX_RUNS if self._is_sparse(selection) else selection.size

    def pick(self, raw: Array, bits: Integers) -> Array:
        """Return the given bit of every byte."""
        return np.asarray((raw >> bits.astype(np.uint8)) & 1)

    def pack_row(self, row: Array) -> Bytes:
        """Encode eight elements as a byte."""
        return np.packbits(row, bitorder="little")

    def pack(self, values: Array, pieces: Pieces) -> Bytes:
        """Encode rows of a matrix together, and rows of a triangle one by one."""
        if self.rows.is_triangle:
            return super().pack(values, pieces)
        packed = np.packbits(values, axis=1, bitorder="little")
        # Padding follows the last columns.
        padding = int(pieces.stops[0] - pieces.starts[0]) - packed.shape[1]
        return (np.pad(packed, ((0, 0), (0, padding))) if padding else packed).reshape(-1)

    @property
    def write_units(self) -> tuple[int, ...]:
        """Eight columns in a matrix, all columns in a triangle."""
        return (1, WHOLE) if self.rows.is_triangle else (1, 8)


def _unpack(
    values: Bytes, packed: Bytes, starts: Integers, bits: Integers, leads: Integers
) -> None:
    """Unpack rows from their starts in the packed bytes. The first `leads` columns stay as is."""
    width = values.shape[1]
    complete = int(np.searchsorted(leads, 1))  # the leads ascend
    for bit in np.unique(bits[:complete]).tolist():
        rows = np.flatnonzero(bits[:complete] == bit)
        length = ceil_div(bit + width, 8)
        raw = gather_uniform(packed, starts[rows], length).reshape(-1, length)
        unpacked = np.unpackbits(raw, axis=1, count=bit + width, bitorder="little")
        values[rows] = unpacked[:, bit:]
    for row, start, lead in zip(
        values[complete:], starts[complete:].tolist(), leads[complete:].tolist(), strict=True
    ):
        raw = packed[start : start + ceil_div(width - lead, 8)]
        row[lead:] = np.unpackbits(raw, count=width - lead, bitorder="little")
