"""Layout of bit matrices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.elements import Array, Boolean, Element
from xr_tensorfmt.core.extents import Bytes, Integers, gather_uniform
from xr_tensorfmt.core.layout import WHOLE
from xr_tensorfmt.core.selection import MAX_RUNS, Selection
from xr_tensorfmt.formats.pycauset.packed import Packed
from xr_tensorfmt.formats.pycauset.rows import Pieces

# Rows to take bits from at a time.
_ROWS = 64

_BIT_MASKS = np.array([[[1 << bit]] for bit in range(8)], dtype=np.uint8)

LOW_BITS = np.array([(1 << count) - 1 for count in range(65)], dtype="<u8")
"""Words whose first bits are set, by the number of these bits."""


@dataclass(frozen=True)
class Bits(Packed):
    """Matrix or triangle of bits. Bit k of a row is bit ``k % 8`` of its byte ``k // 8``."""

    element: Element = field(default_factory=Boolean, init=False)

    def decode(self, packed: Bytes, selection: Selection, out: Array | None = None) -> Array:
        """Unpack the columns from the first to the last one, or take single bits."""
        if self._is_sparse(selection):
            return super().decode(packed, selection)
        rows, columns = selection.index_arrays
        first, stop = int(columns[0]), int(columns[-1]) + 1
        packed_rows, shift = self.align_rows(packed, rows, first, stop)
        if columns.size == stop - first:
            return unpack(packed_rows, shift, columns.size)
        stored = self.rows.find_first_columns(rows) - first
        return _take(packed_rows, columns - first + shift, stored)

    def divide(self, selection: Selection, max_bytes: int) -> Iterator[Selection]:
        """Divide only single elements, because packed rows need little memory."""
        return selection.divide(MAX_RUNS if self._is_sparse(selection) else selection.size)

    def align_rows(self, packed: Bytes, rows: Integers, first: int, stop: int) -> tuple[Bytes, int]:
        """Return rows of whole words, and the number of their bit for column `first`.

        Columns that are not stored are 0. Bits after the last column are undefined.
        """
        pieces = self.rows.find_pieces(rows, first, stop)
        shift = 0 if self.rows.is_triangle else first % 8
        width = (shift + stop - first + 63) // 64 * 8
        if not self.rows.is_triangle:
            raw = packed.reshape(rows.size, -1)
            if raw.shape[1] == width:
                return raw, shift
            aligned = np.zeros((rows.size, width), dtype=np.uint8)
            aligned[:, : raw.shape[1]] = raw[:, :width]
            return aligned, shift
        aligned = np.zeros((rows.size, width), dtype=np.uint8)
        positions = pieces.packed_starts
        for part in pieces.split():
            _align(aligned[part].view("<u8"), packed, positions[part], pieces[part])
        return aligned, shift

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
        return np.pad(packed, ((0, 0), (0, padding))).reshape(-1) if padding else packed.reshape(-1)

    @property
    def write_units(self) -> tuple[int, ...]:
        """Eight columns in a matrix, all columns in a triangle."""
        return (1, WHOLE) if self.rows.is_triangle else (1, 8)


def unpack(packed: Bytes, shift: int, count: int) -> Array:
    """Return `count` columns of packed rows, from bit number `shift` on."""
    bits = np.unpackbits(packed, axis=1, count=shift + count, bitorder="little")
    return bits[:, shift:].view(np.bool_)


def _take(packed: Bytes, bits: Integers, first_stored: Integers) -> Array:
    """Return single bits of packed rows, in any order. The bits before bit `first_stored` are 0.

    numpy cannot take bits, so 8 rows are transposed and their bits are taken as a byte.
    """
    words = packed.view("<u8")
    values = np.zeros((len(packed), bits.size), dtype=np.bool_)
    is_ascending = bool((bits[1:] > bits[:-1]).all())
    for first in range(0, len(values), _ROWS):
        rows = slice(first, first + _ROWS)
        skipped = int(np.searchsorted(bits, first_stored[rows].min())) if is_ascending else 0
        if skipped < bits.size:
            skipped_words = int(bits[skipped]) // 64 if is_ascending else 0
            columns = bits[skipped:] - 64 * skipped_words
            _take_rows(words[rows, skipped_words:], columns, values[rows, skipped:])
    return values


def _take_rows(words: NDArray[np.uint64], bits: Integers, target: Array) -> None:
    """Set `target` to single bits of up to `_ROWS` rows."""
    block = np.zeros((_ROWS, words.shape[1]), dtype="<u8")
    block[: len(words)] = words
    columns = _transpose_squares(block)
    taken = columns.take((bits & 7) * (columns.shape[1] // 8) + (bits >> 3), axis=1)
    rows = (taken & _BIT_MASKS).reshape(_ROWS, bits.size)
    np.not_equal(rows[: len(target)], 0, out=target)


def _transpose_squares(words: NDArray[np.uint64]) -> Bytes:
    """Transpose squares of 8 x 8 bits, in place.

    With ``n = len(words) // 8``, square r consists of the rows r, r + n, ..., r + 7 n.

    Bit k of a byte in row r of the result comes from row ``r + k * len(words) // 8``. The bytes of
    columns 0, 8, 16, ... precede those of columns 1, 9, 17, ...
    """
    # Exchange the off-diagonal blocks of 4 x 4 bits, then of 2 x 2 bits in them, then single bits.
    for size, mask in (4, 0x0F0F0F0F0F0F0F0F), (2, 0x3333333333333333), (1, 0x5555555555555555):
        shift = np.uint64(size)
        upper, lower = words.reshape(4 // size, 2, -1).swapaxes(0, 1)
        changed = (upper >> shift ^ lower) & np.uint64(mask)
        lower ^= changed
        upper ^= changed << shift
    squares = words.reshape(8, -1, words.shape[1]).swapaxes(0, 1)
    return np.ascontiguousarray(squares).view(np.uint8).reshape(len(words) // 8, -1)


def _align(words: NDArray[np.uint64], window: Bytes, positions: Integers, pieces: Pieces) -> None:
    """Set rows of a triangle. The first selected column becomes bit 0 of the first word."""
    skipped = int(pieces.lead[0]) // 64
    words, lead = words[:, skipped:], pieces.lead - 64 * skipped
    # Begin one bit earlier, because a word cannot be shifted by all of its 64 bits.
    address = 8 * positions + pieces.bit - lead - 1
    raw = _gather_clipped(window, address >> 3, 8 * words.shape[1] + 8).view("<u8")
    shift = ((address & 7) + 1).astype(np.uint64)[:, np.newaxis]
    np.right_shift(raw[:, :-1], shift, out=words)
    words |= raw[:, 1:] << (np.uint64(64) - shift)
    # The bits before the first stored column belong to another row.
    cleared = words[:, : int(lead[-1] + 63) // 64]
    starts = 64 * np.arange(cleared.shape[1])
    cleared &= ~LOW_BITS[np.clip(lead[:, np.newaxis] - starts, 0, 64)]


def _gather_clipped(window: Bytes, starts: Integers, length: int) -> Bytes:
    """Copy ranges of one length. Bytes outside of the window are undefined."""
    if window.size < length:
        window = np.pad(window, (0, length - window.size))
    inside = np.clip(starts, 0, window.size - length)
    gathered = gather_uniform(window, inside, length).reshape(-1, length)
    for row in np.flatnonzero(inside != starts).tolist():
        start = int(starts[row])
        part = window[max(start, 0) : start + length]
        gathered[row, max(-start, 0) :][: part.size] = part
    return gathered
