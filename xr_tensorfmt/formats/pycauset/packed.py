"""Matrices of bits and triangles of numbers: rows that are cut short, padded, or both."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.contract import (
    BATCH_BYTES,
    KEEP,
    MAX_RUNS,
    MAX_WINDOW,
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

Number = TypeVar("Number", int, Integers)
Words = NDArray[np.uint64]

# Gaps that are larger than pieces by more than this are not mapped along with them.
_MOSTLY_GAPS = 16
# Bytes of packed rows that are unpacked at a time, so that they and their values stay in the cache.
_BLOCK = 512 << 10
# From so many blocks on, more than a chunk of dask has, two threads work on them.
_MANY = 32
# From so many columns for each wanted one on, the wanted ones are fetched one by one.
_FEW = 64
# From so many bytes on, one copy a row is as fast as a gather by numpy.
_LONG_ROW = 8 << 10
# Bytes of packed rows of which columns are taken at a time.
_TAKEN = 256 << 10
_EACH_BIT = (1 << np.arange(8, dtype=np.uint8))[:, np.newaxis, np.newaxis]
# Bits that are packed at a time: each value is read once, so that no cache would help.
_BITS_BATCH = 32 << 20


@dataclass(frozen=True)
class Rows:
    """The place of each row of a matrix in a file.

    An element has `bits`, and rows are padded to a multiple of `unit` bytes. Of an upper triangle,
    each row of which is one element shorter than the last, `diagonal` is the first column that row
    0 stores, 0 or 1; it is None where all columns of every row are stored.
    """

    count: int
    columns: int
    bits: int
    unit: int
    offset: int
    diagonal: int | None = None

    @property
    def stride(self) -> int:
        """Bytes from one row to the next; 0 where they differ."""
        return self.unit * -(-self.columns // self._per_unit) if self.diagonal is None else 0

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, in Python's unbounded integers."""
        if self.diagonal is None:
            return self.count * self.stride
        return self.unit * _units(self._longest, self._per_unit)

    @property
    def _longest(self) -> int:
        return max(0, self.columns - (self.diagonal or 0))

    @property
    def _per_unit(self) -> int:
        return self.unit * 8 // self.bits

    def firsts(self, rows: Integers) -> Integers:
        """First column that each row stores; it never falls from a row to the next."""
        return np.zeros_like(rows) if self.diagonal is None else rows + self.diagonal

    def starts(self, rows: Integers) -> Integers:
        """Byte of the file at which each row begins; the row after the last is one as well.

        In a triangle these are the units of all rows without those of the rows that follow.
        """
        if self.diagonal is None:
            return self.offset + rows * self.stride
        following = np.maximum(self._longest - rows, 0)
        whole = _units(self._longest, self._per_unit)
        starts: Integers = self.offset + self.unit * (whole - _units(following, self._per_unit))
        return starts

    def pieces(self, rows: Integers, first: int, stop: int) -> Pieces:
        """The bytes of the columns ``[first, stop)`` of some rows, but for rows that store none."""
        firsts = self.firsts(rows)
        kept = int(np.searchsorted(firsts, stop))
        rows, firsts = rows[:kept], firsts[:kept]
        skipped = np.maximum(first - firsts, 0) * self.bits
        begins = self.starts(rows)
        following = self.starts(rows + 1)
        if stop == self.columns:
            stops = following
        else:
            # One length for most rows of a triangle, whatever bit they begin at, so that they
            # gather at once; all rows of one stride begin at the same bit.
            spare = skipped % 8 if self.stride else 7 if self.bits < 8 else 0
            wanted = (stop - np.maximum(firsts, first)) * self.bits
            stops = np.minimum(begins + skipped // 8 + (wanted + spare + 7) // 8, following)
        return Pieces(begins + skipped // 8, stops, skipped % 8, np.maximum(firsts - first, 0))


def _units(longest: Number, per_unit: int) -> Number:
    """Units that rows of 1, 2, ... up to `longest` elements take together."""
    full, rest = longest // per_unit, longest % per_unit
    return per_unit * full * (full + 1) // 2 + rest * (full + 1)


@dataclass(frozen=True, eq=False)
class Pieces:
    """A range of bytes for each of some rows, in the order of the file, none overlapping.

    `bit` is the bit of the first byte with which the first element begins, and `lead` the number of
    wanted columns before the first stored one.
    """

    starts: Integers
    stops: Integers
    bit: Integers
    lead: Integers

    def __len__(self) -> int:
        return self.starts.size

    def __getitem__(self, part: slice) -> Pieces:
        return Pieces(self.starts[part], self.stops[part], self.bit[part], self.lead[part])

    @property
    def extents(self) -> Extents:
        """The ranges; those that touch are one."""
        return Extents.joined(self.starts, self.stops)

    def fetch(self, source: Source, most: int) -> Iterator[tuple[slice, Bytes, Integers]]:
        """Some rows at a time, of about so many bytes, in memory that has the place of each."""
        begin = 0
        while begin < len(self):
            reach = self.starts[begin] + MAX_WINDOW
            stop = max(begin + 1, int(np.searchsorted(self.stops, reach, side="right")))
            if not self.lead[begin]:
                stop = min(stop, int(np.searchsorted(self.lead, 0, side="right")))
            part = self[begin:stop]
            window, positions = part.window(source)
            step = max(1, most // int((part.stops - part.starts).max()))
            for first in range(0, len(part), step):
                some = positions[first : first + step]
                yield slice(begin + first, begin + first + some.size), window, some
            begin = stop

    def window(self, source: Source) -> tuple[Bytes, Integers]:
        """A window or a copy with the bytes of all rows, and where in it each row begins."""
        first, stop = int(self.starts[0]), int(self.stops[-1])
        lengths = self.stops - self.starts
        wanted, span = int(lengths.sum()), stop - first
        # Nearly every page is needed for some row, or rows are too large to be copied twice.
        if wanted + len(self) * PAGE >= span or wanted * _MOSTLY_GAPS >= span:
            window = source.window(first, stop)
            if window is not None:
                return window, self.starts - first
        return source.read(self.extents), np.cumsum(lengths) - lengths


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
class Packed(PartlyStored, ReorderingLayout):
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
        """Read the columns from the first wanted one to the last, row by row."""
        return Packed.read_in_order(self, source, selection, (KEEP, KEEP))

    def read_in_order(
        self, source: Source, selection: Selection, keys: Sequence[PostIndexer]
    ) -> Array:
        """Read as `read` does; `finish` applies the keys."""
        rows, columns = map(entry_indices, selection.entries)
        if not selection.size or self.rows.firsts(rows[:1])[0] > columns[-1]:
            return apply_indexers(np.zeros(selection.shape, dtype=self.dtype), keys)
        first, stop = int(columns[0]), int(columns[-1]) + 1
        if stop - first > _FEW * columns.size or stop - first == 1:
            return apply_indexers(self._read_each(source, rows, columns), keys)
        filled = self.gathered(source, rows, first, stop)
        leads = np.maximum(self.rows.firsts(rows) - first, 0)
        return self.finish(filled, columns - first, leads, keys)

    def _read_each(self, source: Source, rows: Integers, columns: Integers) -> Array:
        values = np.empty((rows.size, columns.size), dtype=self.dtype)
        step = max(1, MAX_RUNS // columns.size)
        for begin in range(0, rows.size, step):
            mesh = np.meshgrid(rows[begin : begin + step], columns, indexing="ij")
            points = (mesh[0].ravel(), mesh[1].ravel())
            picked = Packed.read_points(self, source, points)
            values[begin : begin + step] = picked.reshape(mesh[0].shape)
        return values

    def gathered(self, source: Source, rows: Integers, first: int, stop: int) -> Array:
        """Columns ``[first, stop)`` of some rows, as `fill` leaves them."""
        buffer = self.buffer(rows.size, stop - first)
        pieces = self.rows.pieces(rows, first, stop)
        for block, window, positions in pieces.fetch(source, _BLOCK):
            self.fill(buffer[block], window, positions, pieces[block])
        return buffer

    def buffer(self, rows: int, columns: int) -> Array:
        """An array of zeros for some rows and neighbouring columns, which `fill` works on."""
        return np.zeros((rows, columns), dtype=self.dtype)

    def fill(self, buffer: Array, window: Bytes, positions: Integers, pieces: Pieces) -> None:
        """Set the stored elements: of short rows of one length at once, of others one by one."""
        item = self.element.stored.itemsize
        width = buffer.shape[1]
        if not pieces.lead[-1] and width * item < _LONG_ROW:
            raw = gather_uniform(window, positions, width * item).view(self.element.stored)
            self.element.decode_into(buffer, raw.reshape(buffer.shape))
            return
        rows = zip(buffer, positions.tolist(), pieces.lead.tolist(), strict=True)
        for row, position, lead in rows:
            raw = window[position : position + (width - lead) * item].view(self.element.stored)
            self.element.decode_into(row[lead:], raw)

    def finish(
        self, filled: Array, columns: Integers, leads: Integers, keys: Sequence[PostIndexer]
    ) -> Array:
        """The values of some columns of what `fill` has filled, after a key on each axis.

        `leads` has the columns of each row that are not stored.
        """
        is_whole = columns.size == filled.shape[1]
        return apply_indexers(filled if is_whole else np.take(filled, columns, axis=1), keys)

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
class Bits(Packed):
    """Bit k of a row is bit ``k % 8`` of its byte ``k // 8``; values are bool."""

    element: Element = field(default_factory=Boolean, init=False)

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

    def finish(
        self, filled: Words, columns: Integers, leads: Integers, keys: Sequence[PostIndexer]
    ) -> Array:
        """Bring rows into order while they are packed, columns while eight rows are a byte."""
        rows, some = keys
        order, is_whole = np.arange(len(filled)), columns.size == columns[-1] + 1
        if isinstance(rows, np.ndarray):
            order, rows = rows, KEEP
        if isinstance(some, np.ndarray):
            columns, some, is_whole = columns[some], KEEP, False
        if is_whole:
            packed = (filled if rows is keys[0] else filled[order]).view(np.uint8)
            values = np.unpackbits(packed, axis=1, count=columns.size, bitorder="little")
        else:
            values = _taken(filled, order, columns, leads)
        return apply_indexers(values.view(np.bool_), (rows, some))

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


def _taken(filled: Words, rows: Integers, columns: Integers, leads: Integers) -> Array:
    """Take columns of eight rows at once, as bits of one byte, since numpy takes singly."""
    values = np.zeros((rows.size + -rows.size % 8, columns.size), dtype=np.bool_)
    count, rows = rows.size, np.pad(rows, (0, -rows.size % 8), mode="edge")
    is_ascending = bool((columns[1:] > columns[:-1]).all())
    step = max(8, _TAKEN // filled[:1].nbytes // 8 * 8)

    def take(begin: int) -> None:
        block = rows[begin : begin + step]
        # What no row of these stores need not be looked at.
        lead = int(leads[block].min()) if is_ascending else 0
        word, skipped = lead // 64, int(np.searchsorted(columns, lead)) if lead else 0
        if skipped < columns.size:
            eights = _eight_in_one(filled[block, word:])
            places = columns[skipped:] - 64 * word
            places = (places & 7) * (eights.shape[1] // 8) + (places >> 3)
            bits = eights.take(places, axis=1) & _EACH_BIT
            target = values[begin : begin + step].reshape(8, -1, columns.size)
            np.not_equal(bits, 0, out=target[..., skipped:])

    begins = range(0, count, step)
    with ThreadPoolExecutor(1 if len(begins) < _MANY else 2) as threads:
        for _ in threads.map(take, begins):
            pass  # errors are raised
    return values[:count]


def _eight_in_one(words: Words) -> Bytes:
    """Bytes of eight rows, one of each eighth: bit k is that of the kth.

    Of the bytes, those of the columns 0, 8, 16, ... come first, then those of 1, 9, 17, ...
    """
    # Squares of eight rows and columns are transposed: halves trade places, then their halves.
    for half, mask in (4, 0x0F0F0F0F0F0F0F0F), (2, 0x3333333333333333), (1, 0x5555555555555555):
        pairs = words.reshape(4 // half, 2, -1)
        lower, upper = pairs[:, 0], pairs[:, 1]
        traded = lower >> np.uint64(half)
        traded ^= upper
        traded &= np.uint64(mask)
        upper ^= traded
        traded <<= np.uint64(half)
        lower ^= traded
    eights = words.reshape(8, -1, words.shape[1]).swapaxes(0, 1)
    return np.ascontiguousarray(eights).view(np.uint8).reshape(len(words) // 8, -1)


def _windows(window: Bytes, begins: Integers, length: int) -> Bytes:
    """Pieces of one length, zeros where they reach out of the window."""
    first, stop = int(begins.min()), int(begins.max()) + length
    before, behind = max(-first, 0), max(stop - window.size, 0)
    if before or behind:
        window = np.pad(window[max(first, 0) : stop], (before, behind))
        begins = begins - first
    return gather_uniform(window, begins, length).reshape(-1, length)


def _clear(words: Words, counts: Integers) -> None:
    """Set the first bits of each row to 0."""
    last = int(counts[-1]) // 64 + 1
    bits = np.arange(min(last, words.shape[1])) * 64
    words[:, :last] &= ~low_bits(np.clip(counts[:, np.newaxis] - bits, 0, 64))


def low_bits(counts: Integers) -> Words:
    """Words whose first bits are set, from none to all 64."""
    half = (counts >> 1).astype(np.uint64)
    # A shift by 64 is undefined, so that it takes two steps.
    mask: Words = ~((np.uint64(2**64 - 1) << half) << (counts.astype(np.uint64) - half))
    return mask
