"""Layout of bit matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from xr_tensorfmt.contract import (
    KEEP,
    WHOLE,
    Array,
    Boolean,
    Bytes,
    Element,
    Integers,
    PostIndexer,
    ReorderingLayout,
    Selection,
    Source,
    apply_indexers,
    entry_indices,
    gather_uniform,
)
from xr_tensorfmt.formats.pycauset.packed import Packed
from xr_tensorfmt.formats.pycauset.rows import Pieces

# Ranges with more columns than this are unpacked row by row, others bit by bit.
_LONG_ROW = 1024
# Elements that are taken from packed rows at a time.
_TAKEN = 1 << 20


@dataclass(frozen=True)
class Bits(Packed, ReorderingLayout):
    """Matrix or triangle of bits. Bit k of a row is bit ``k % 8`` of its byte ``k // 8``."""

    element: Element = field(default_factory=Boolean, init=False)

    def read(self, source: Source, selection: Selection) -> Array:
        """Read the bytes of the columns from the first to the last one, then unpack them."""
        return self.read_in_order(source, selection, (KEEP, KEEP))

    def read_in_order(
        self, source: Source, selection: Selection, keys: Sequence[PostIndexer]
    ) -> Array:
        """Reorder rows while they are packed."""
        rows, columns = map(entry_indices, selection.entries)
        values = self._read_sparse(source, rows, columns)
        if values is not None:
            return apply_indexers(values, keys)
        row_key, column_key = keys
        first, stop = int(columns[0]), int(columns[-1]) + 1
        is_range = stop - first == columns.size and not isinstance(column_key, np.ndarray)
        is_long = columns.size > _LONG_ROW and not self.rows.stride
        if is_range and is_long and not isinstance(row_key, np.ndarray):
            return apply_indexers(super().read(source, selection), keys)
        packed, columns = self._read_packed(source, rows, first, stop), columns - first
        if isinstance(row_key, np.ndarray):
            packed, row_key = packed[row_key], KEEP
        if isinstance(column_key, np.ndarray):
            columns, column_key = columns[column_key], KEEP
        return apply_indexers(packed.unpack(columns), (row_key, column_key))

    def _read_packed(self, source: Source, rows: Integers, first: int, stop: int) -> PackedRows:
        """Read the bytes of the columns ``[first, stop)``."""
        firsts = self.rows.find_first_columns(rows)
        leads, shifts = np.maximum(firsts - first, 0), (first - firsts) % 8
        raw = np.zeros((rows.size, (stop - first + 14) // 8), dtype=np.uint8)
        pieces, begins = self.rows.find_pieces(rows, first, stop), (leads + shifts) // 8
        lengths = pieces.stops - pieces.starts
        lengths = np.minimum(lengths, raw.shape[1] - begins[: lengths.size])
        for block, window, positions in pieces.fetch(source):
            length = int(lengths[block.start])
            if not leads[block.stop - 1] and (lengths[block] == length).all():
                raw[block, :length] = gather_uniform(window, positions, length).reshape(-1, length)
                continue
            bounds = zip(
                begins[block].tolist(), positions.tolist(), lengths[block].tolist(), strict=True
            )
            for row, (begin, position, length) in zip(raw[block], bounds, strict=True):
                row[begin : begin + length] = window[position : position + length]
        return PackedRows(raw, shifts, leads)

    def _fill(self, values: Array, window: Bytes, positions: Integers, pieces: Pieces) -> None:
        """Set the stored elements of rows."""
        bounds = zip(positions.tolist(), pieces.bit.tolist(), pieces.lead.tolist(), strict=True)
        for row, (position, bit, lead) in zip(values, bounds, strict=True):
            _unpack_row(row[lead:], window[position:], bit)

    def pick(self, raw: Array, bits: Integers) -> Array:
        """Shift the bytes."""
        picked: Array = (raw >> bits.astype(np.uint8)) & 1
        return picked

    def pack_row(self, row: Array) -> Bytes:
        """Encode eight elements as a byte."""
        return np.packbits(row, bitorder="little")

    def pack(self, values: Array, pieces: Pieces) -> Bytes:
        """Encode rows of a matrix together, and rows of a triangle one by one."""
        if not self.rows.stride:
            return super().pack(values, pieces)
        packed = np.packbits(values, axis=1, bitorder="little")
        # The last columns are followed by padding.
        padding = int(pieces.stops[0] - pieces.starts[0]) - packed.shape[1]
        return np.pad(packed, ((0, 0), (0, padding))).reshape(-1) if padding else packed.reshape(-1)

    @property
    def write_units(self) -> tuple[int, ...]:
        """Eight columns in a matrix, all columns in a triangle."""
        return (1, 8) if self.rows.stride else (1, WHOLE)


@dataclass(frozen=True, eq=False)
class PackedRows:
    """Rows of bits: column k of a row is bit ``shift + k``, and columns before `lead` are 0."""

    raw: Bytes
    shifts: Integers
    leads: Integers

    def __getitem__(self, order: Integers) -> PackedRows:
        return PackedRows(self.raw[order], self.shifts[order], self.leads[order])

    def unpack(self, columns: Integers) -> Array:
        """Return the values of columns, in any order."""
        count = columns.size
        if int(columns[0]) == 0 and (np.diff(columns) == 1).all():
            if not self.leads.any() and (self.shifts == self.shifts[0]).all():
                shift = int(self.shifts[0])
                bits = np.unpackbits(self.raw, axis=1, count=shift + count, bitorder="little")
                return bits[:, shift:].view(np.bool_)
            if count > _LONG_ROW:
                return self._unpack_rows(count)
        return self._take(columns)

    def _unpack_rows(self, count: int) -> Array:
        """Return the first columns of rows with different first columns."""
        values = np.zeros((len(self.raw), count), dtype=np.bool_)
        bounds = zip(self.shifts.tolist(), self.leads.tolist(), strict=True)
        for row, raw, (shift, lead) in zip(values, self.raw, bounds, strict=True):
            if lead < count:
                _unpack_row(row[lead:], raw[(shift + lead) // 8 :], (shift + lead) % 8)
        return values

    def _take(self, columns: Integers) -> Array:
        """Return columns without unpacking the others."""
        values = np.zeros((len(self.raw), columns.size), dtype=np.bool_)
        step = max(1, _TAKEN // columns.size)
        is_ascending = bool((np.diff(columns) > 0).all())
        for begin in range(0, len(values), step):
            shifts = self.shifts[begin : begin + step]
            lead = self.leads[begin : begin + step].min()
            skipped = int(np.searchsorted(columns, lead)) if is_ascending else 0
            for shift in np.unique(shifts).tolist():
                rows = begin + np.flatnonzero(shifts == shift)
                bits = columns[skipped:] + shift
                taken = self.raw[rows].take(bits >> 3, axis=1)
                taken &= (1 << (bits & 7)).astype(np.uint8)
                values[rows, skipped:] = taken != 0
        return values


def _unpack_row(values: Array, raw: Bytes, bit: int) -> None:
    """Set values from bits. The first one is bit number `bit` of the first byte."""
    stop = bit + values.size
    values[:] = np.unpackbits(raw[: (stop + 7) // 8], count=stop, bitorder="little")[bit:]
