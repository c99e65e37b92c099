"""Matrices of bits and triangles of numbers: rows that are cut short, padded, or both."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xr_tensorfmt.contract import (
    BATCH_BYTES,
    KEEP,
    MAX_RUNS,
    PAGE,
    WHOLE,
    Array,
    Boolean,
    Bytes,
    Element,
    Encoded,
    Extents,
    Integers,
    PostIndexer,
    ReorderingLayout,
    Selection,
    Source,
    UnrepresentableValueError,
    WritableLayout,
    apply_indexers,
    contiguous_chunk,
    entry_indices,
    gather_uniform,
    raw_bytes,
)
from xr_tensorfmt.formats.pycauset.rows import Pieces, Rows

# From so many bytes of a row for each selected element on, elements are fetched one by one.
_SPARSE_BYTES = 512
# From so many columns on, a call of numpy for each row is as fast as taking single bits.
_LONG_ROW = 1024
# Elements that are taken from packed rows at a time.
_TAKEN = 1 << 20
# Bits that are packed at a time: each value is read once, so that no cache would help.
_BITS_BATCH = 32 << 20


class PartlyStored(WritableLayout):
    """A layout that stores some elements only; those at other places are implied."""

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Whole rows, by what they take in memory."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    @abstractmethod
    def check_implied(self, selection: Selection, values: Array) -> None:
        """Refuse values that would be lost: not stored, and other than what is implied."""

    def refuse_first(self, wrong: Array, implied: str, selection: Selection, values: Array) -> None:
        """Raise an error about the first wrong value, if there is one."""
        if wrong.any():
            position = int(wrong.argmax())
            place, name = selection.full_index(position), "DENSE_FLOAT"
            if self.dtype.kind in "iu":
                name = "INTEGER"
            elif len(place) == 1:
                name = "VECTOR"
            raise UnrepresentableValueError(
                f"the element at {place[0] if len(place) == 1 else place} is "
                f"{values.flat[position]}, where {implied}; write the whole of it with "
                f"matrix_type={name!r} to keep it"
            )


@dataclass(frozen=True)
class Packed(PartlyStored):
    """A matrix of rows that are cut short, padded, or both; it is zero where nothing is stored."""

    rows: Rows
    element: Element

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows.count, self.rows.columns

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.element.dtype

    def stored_element(self) -> Element:
        """The element."""
        return self.element

    def extents(self, selection: Selection) -> Extents:
        """A range for each row; whole rows are one range."""
        rows, columns = map(entry_indices, selection.entries)
        return self.rows.pieces(rows, int(columns[0]), int(columns[-1]) + 1).extents

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Whole rows, by what they take in memory; whole pages of the file where rows allow it."""
        count, columns = self.shape
        most = target // (columns * self.dtype.itemsize) if count and columns else 0
        if not most:
            return super().chunk_shape(target)
        stored = self.rows.stride or PAGE
        return *contiguous_chunk((count,), stored, most * stored), columns

    def read(self, source: Source, selection: Selection) -> Array:
        """Read the columns from the first to the last one, row by row."""
        rows, columns = map(entry_indices, selection.entries)
        values = self._read_sparse(source, rows, columns)
        if values is not None:
            return values
        first, stop = int(columns[0]), int(columns[-1]) + 1
        values = np.zeros((rows.size, stop - first), dtype=self.dtype)
        pieces = self.rows.pieces(rows, first, stop)
        for block, window, positions in pieces.fetch(source):
            self._fill(values[block], window, positions, pieces[block])
        return values if columns.size == stop - first else values.take(columns - first, axis=1)

    def _fill(self, values: Array, window: Bytes, positions: Integers, pieces: Pieces) -> None:
        """Set the stored elements of rows."""
        leads, stored, width = pieces.lead, self.element.stored, values.shape[1]
        if not leads[-1]:
            raw = gather_uniform(window, positions, width * stored.itemsize).view(stored)
            self.element.decode_into(values, raw.reshape(values.shape))
            return
        for row, position, lead in zip(values, positions.tolist(), leads.tolist(), strict=True):
            stop = position + (width - lead) * stored.itemsize
            self.element.decode_into(row[lead:], window[position:stop].view(stored))

    def _read_sparse(self, source: Source, rows: Integers, columns: Integers) -> Array | None:
        """Read elements that are far apart, or not stored; None if the selection has others."""
        shape = rows.size, columns.size
        if 0 in shape or self.rows.firsts(rows[:1])[0] > columns[-1]:
            return np.zeros(shape, dtype=self.dtype)
        span = int(columns[-1] - columns[0]) + 1
        if span > 1 and span * self.rows.bits <= 8 * _SPARSE_BYTES * columns.size:
            return None
        values = np.empty(shape, dtype=self.dtype)
        step = max(1, MAX_RUNS // columns.size)
        for begin in range(0, rows.size, step):
            mesh = np.meshgrid(rows[begin : begin + step], columns, indexing="ij")
            picked = Packed.read_points(self, source, (mesh[0].ravel(), mesh[1].ravel()))
            values[begin : begin + step] = picked.reshape(mesh[0].shape)
        return values

    def pick(self, raw: Array, bits: Integers) -> Array:
        """The values of single stored elements, which begin at these bits of their bytes."""
        return self.element.decode(raw)

    def packed_row(self, row: Array) -> Bytes:
        """The bytes of the elements of a row that are stored."""
        return raw_bytes(self.element.encode(row))

    def pack(self, values: Array, pieces: Pieces) -> Bytes:
        """The bytes of some rows, one after the other, each padded with zeros."""
        lengths = pieces.stops - pieces.starts
        places = (np.cumsum(lengths) - lengths).tolist()
        filled = np.zeros(int(lengths.sum()), dtype=np.uint8)
        for row, place, lead in zip(values, places, pieces.lead.tolist(), strict=True):
            stored = self.packed_row(row[lead:])
            filled[place : place + stored.size] = stored
        return filled

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Fetch each stored element once, in the order of the file."""
        rows, columns = points
        values = np.zeros(rows.size, dtype=self.dtype)
        distance = columns - self.rows.firsts(rows)
        stored = np.flatnonzero(distance >= 0)
        if stored.size:
            bits = distance[stored] * self.rows.bits
            places = self.rows.starts(rows[stored]) + (bits >> 3)
            dtype, inverse = self.element.stored, None
            if not (places[1:] > places[:-1]).all():  # as those of a column are
                places, inverse = np.unique(places, return_inverse=True)
            raw = source.read(Extents.uniform(places, dtype.itemsize)).view(dtype)
            values[stored] = self.pick(raw if inverse is None else raw[inverse], bits & 7)
        return values

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """Some rows at a time, those of a triangle one by one."""
        most = _BITS_BATCH if self.rows.bits == 1 else BATCH_BYTES // values.itemsize
        indices, columns = map(entry_indices, selection.entries)
        step = max(1, most // max(1, columns.size))
        for begin in range(0, indices.size if columns.size else 0, step):
            part, some = values[begin : begin + step], indices[begin : begin + step]
            entries = (slice(int(some[0]), int(some[-1]) + 1, 1), selection.entries[1])
            self.check_implied(Selection(selection.extent, entries), part)
            pieces = self.rows.pieces(some, int(columns[0]), int(columns[-1]) + 1)
            if len(pieces):
                yield pieces.extents, self.pack(part[: len(pieces)], pieces)

    def check_implied(self, selection: Selection, values: Array) -> None:
        """There are zeros below a triangle."""
        if self.rows.stride:
            return
        rows, columns = map(entry_indices, selection.entries)
        cuts = np.clip(self.rows.firsts(rows) - columns[0], 0, columns.size)
        # Columns that no row stores need no mask.
        block, corner = slice(0, int(cuts[0])), slice(int(cuts[0]), int(cuts[-1]))
        below = np.arange(corner.start, corner.stop) < cuts[:, np.newaxis]
        if values[:, block].any() or np.logical_and(values[:, corner], below).any():
            wrong = values.astype(np.bool_) & (np.arange(columns.size) < cuts[:, np.newaxis])
            implied = f"{'a strict' if self.rows.diagonal else 'an'} upper triangle has 0"
            self.refuse_first(wrong, implied, selection, values)


@dataclass(frozen=True)
class Bits(Packed, ReorderingLayout):
    """Bit k of a row is bit ``k % 8`` of its byte ``k // 8``; values are bool."""

    element: Element = field(default_factory=Boolean, init=False)

    def read(self, source: Source, selection: Selection) -> Array:
        """Read the bytes of all columns from the first to the last one, then unpack them."""
        return self.read_in_order(source, selection, (KEEP, KEEP))

    def read_in_order(
        self, source: Source, selection: Selection, keys: Sequence[PostIndexer]
    ) -> Array:
        """Bring rows into order while they are packed."""
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
        """Read the bytes of the columns ``[first, stop)`` of some rows."""
        firsts = self.rows.firsts(rows)
        leads, shifts = np.maximum(firsts - first, 0), (first - firsts) % 8
        raw = np.zeros((rows.size, (stop - first + 14) // 8), dtype=np.uint8)
        pieces, begins = self.rows.pieces(rows, first, stop), (leads + shifts) // 8
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
        """Shift each byte."""
        picked: Array = (raw >> bits.astype(np.uint8)) & 1
        return picked

    def packed_row(self, row: Array) -> Bytes:
        """Eight elements a byte."""
        return np.packbits(row, bitorder="little")

    def pack(self, values: Array, pieces: Pieces) -> Bytes:
        """Rows of one stride at once, rows of a triangle one by one."""
        if not self.rows.stride:
            return super().pack(values, pieces)
        packed = np.packbits(values, axis=1, bitorder="little")
        # What reaches to the end of a row is padded.
        padding = int(pieces.stops[0] - pieces.starts[0]) - packed.shape[1]
        return np.pad(packed, ((0, 0), (0, padding))).reshape(-1) if padding else packed.reshape(-1)

    @property
    def write_units(self) -> tuple[int, ...]:
        """Eight columns, where every row begins with the same column."""
        return (1, 8) if self.rows.stride else (1, WHOLE)


@dataclass(frozen=True, eq=False)
class PackedRows:
    """Rows of bits; bit ``shift + k`` of a row is column k, and columns before `lead` are 0."""

    raw: Bytes
    shifts: Integers
    leads: Integers

    def __getitem__(self, order: Integers) -> PackedRows:
        return PackedRows(self.raw[order], self.shifts[order], self.leads[order])

    def unpack(self, columns: Integers) -> Array:
        """Return the values of some columns, in any order."""
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
        """Return the first columns of rows that begin in different ones."""
        values = np.zeros((len(self.raw), count), dtype=np.bool_)
        bounds = zip(self.shifts.tolist(), self.leads.tolist(), strict=True)
        for row, raw, (shift, lead) in zip(values, self.raw, bounds, strict=True):
            if lead < count:
                _unpack_row(row[lead:], raw[(shift + lead) // 8 :], (shift + lead) % 8)
        return values

    def _take(self, columns: Integers) -> Array:
        """Take columns without unpacking the others."""
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
    """Set values from the bits that begin at one of the first byte."""
    stop = bit + values.size
    values[:] = np.unpackbits(raw[: (stop + 7) // 8], count=stop, bitorder="little")[bit:]
