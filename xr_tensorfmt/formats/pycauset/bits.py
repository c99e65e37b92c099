"""Matrices of bits, least significant first, each row beginning at a byte of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.elements import Array, Boolean, Element
from xr_tensorfmt.core.extents import Bytes, Extents, Integers, gather_uniform
from xr_tensorfmt.core.layout import WHOLE, Encoded
from xr_tensorfmt.core.selection import Selection, entry_indices
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.formats.pycauset.rows import Packed, Pieces, assembled, row_batches

Words = NDArray[np.uint64]

# Bits that are packed at a time: each value is read once, so that no cache would help.
_BITS_BATCH = 32 << 20


@dataclass(frozen=True)
class Bits(Packed):
    """Bit k of a row is bit ``k % 8`` of its byte ``k // 8``; values are bool."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """bool."""
        return np.dtype(np.bool_)

    def buffer(self, rows: int, columns: int) -> Words:
        """Words of 64 columns."""
        return np.zeros((rows, -(-columns // 64)), dtype="<u8")

    def fill(self, buffer: Words, window: Bytes, positions: Integers, pieces: Pieces) -> None:
        """Shift the bits of each row so that bit 0 of its first word is the first column."""
        skipped = int(pieces.lead[0]) // 64
        words = buffer[:, skipped:]
        lead = pieces.lead - 64 * skipped
        # Bits of each row from 1 to 8 before the first wanted one, in windows of whole bytes.
        address = 8 * positions + pieces.bit - lead - 1
        length = 8 * words.shape[1] + 8
        raw = _windows(window, address >> 3, length).view("<u8")
        shift = ((address & 7) + 1).astype(np.uint64)[:, np.newaxis]
        np.right_shift(raw[:, :-1], shift, out=words)
        words |= raw[:, 1:] << (np.uint64(64) - shift)
        if lead[-1]:
            _clear(words, lead)

    def finish(self, filled: Words, columns: int) -> Array:
        """Unpack all rows at once."""
        packed = filled.view(np.uint8)
        return np.unpackbits(packed, axis=1, count=columns, bitorder="little").view(np.bool_)

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Fetch each byte once."""
        rows, columns = points
        values = np.zeros(rows.size, dtype=np.bool_)
        distance = columns - self.rows.firsts(rows)
        stored = np.flatnonzero(distance >= 0)
        if stored.size:
            distance = distance[stored]
            places = self.rows.starts(rows[stored]) + (distance >> 3)
            raw = _read_bytes(source, places)
            values[stored] = (raw >> (distance & 7).astype(np.uint8)) & 1
        return values

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """Pack rows of one stride at once, rows of a triangle one by one."""
        ends_row = entry_indices(selection.entries[1])[-1:] + 1 == self.shape[1]
        for part, pieces in row_batches(self, self.rows, selection, values, _BITS_BATCH):
            if not self.rows.stride:
                yield pieces.extents, assembled(part, pieces, _packed)
                continue
            packed = np.packbits(part, axis=1, bitorder="little")
            # Pieces are made for reading: they reach to the end of a row, or a byte too far.
            if ends_row:
                packed = _widened(packed, int(pieces.stops[0] - pieces.starts[0]))
            yield Extents.joined(pieces.starts, pieces.starts + packed.shape[1]), packed.reshape(-1)

    def stored_element(self) -> Element:
        """bool."""
        return Boolean()

    @property
    def write_units(self) -> tuple[int, ...]:
        """Eight columns, where every row begins with the same column."""
        return (1, 8) if self.rows.stride else (1, WHOLE)


def _packed(values: Array) -> Array:
    return np.packbits(values, bitorder="little")


def _widened(packed: Bytes, length: int) -> Bytes:
    """Rows with zeros at their ends."""
    if packed.shape[1] == length:
        return packed
    rows = np.zeros((len(packed), length), dtype=np.uint8)
    rows[:, : packed.shape[1]] = packed
    return rows


def _read_bytes(source: Source, places: Integers) -> Bytes:
    """Single bytes, each fetched once; those of a column come in the order of the file."""
    if (places[1:] > places[:-1]).all():
        return source.read(Extents.uniform(places, 1))
    unique, inverse = np.unique(places, return_inverse=True)
    return source.read(Extents.uniform(unique, 1))[inverse]


def _windows(window: Bytes, begins: Integers, length: int) -> Bytes:
    """Pieces of one length, zeros where they reach out of the window."""
    inside = (begins >= 0) & (begins + length <= window.size)
    if inside.all():
        return gather_uniform(window, begins, length).reshape(-1, length)
    gathered = np.zeros((begins.size, length), dtype=np.uint8)
    if inside.any():
        gathered[inside] = gather_uniform(window, begins[inside], length).reshape(-1, length)
    for row in np.flatnonzero(~inside).tolist():
        begin = int(begins[row])
        part = window[max(begin, 0) : max(begin + length, 0)]
        before = max(-begin, 0)
        gathered[row, before : before + part.size] = part
    return gathered


def _clear(words: Words, counts: Integers) -> None:
    """Set the first bits of each row to 0."""
    last = int(counts[-1]) // 64 + 1
    bits = np.arange(min(last, words.shape[1])) * 64
    cleared = np.clip(counts[:, np.newaxis] - bits, 0, 64).astype(np.uint64)
    # A shift by 64 is undefined, so that it takes two steps.
    half = cleared >> np.uint64(1)
    words[:, :last] &= (np.uint64(2**64 - 1) << half) << (cleared - half)
