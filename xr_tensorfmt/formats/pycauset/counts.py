"""Counts of packed bits, and products of causal matrices by square blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any
from uuid import uuid4

import dask.array
import numpy as np
from numpy.typing import NDArray
from xarray import DataArray, Variable

from xr_tensorfmt.core.extents import Bytes, Integers, ceil_div
from xr_tensorfmt.core.layout import Transposed
from xr_tensorfmt.core.reading import normalize_entry
from xr_tensorfmt.core.selection import indices_to_array
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.datasets.lazy_array import drop_chunks, find_undecoded_tensor
from xr_tensorfmt.formats.pycauset.packed import Packed

_WORD_BYTES = 8
# Words whose first bits are set, by the number of these bits.
_LOW_BITS = np.array([(1 << count) - 1 for count in range(65)], dtype="<u8")
# The sum of so many bits fits in a byte.
_BYTE_ROWS = 255
# Divide words into lanes of 2, 4 and 8 bits, which hold the sums of 3, 5 times 3, and 255 bits.
_LANES = ((1, 0x5555555555555555, 3), (2, 0x3333333333333333, 5), (4, 0x0F0F0F0F0F0F0F0F, 0))
_LANE_OF_BIT = (0, 4, 2, 6, 1, 5, 3, 7)
# Packed bytes to count at a time, to stay within a processor cache.
_CACHED_BYTES = 2 << 20
# Packed bytes per dask task. For column sums, a task returns a row of counts.
_TASK = 16 << 20
_COLUMNS_TASK = 64 << 20


@dataclass(frozen=True)
class BitCounts:
    """Counts of the bits in a range of columns."""

    source: Source
    bits: Packed
    first: int
    stop: int

    def count_rows(self, rows: Integers) -> Integers:
        """Count the bits of rows."""
        step = max(1, _CACHED_BYTES // max(_WORD_BYTES, (self.stop - self.first) // 8))
        batches = [rows[begin : begin + step] for begin in range(0, rows.size, step)]
        return np.concatenate([rows[:0], *map(self._count_batch, batches)])

    def _count_batch(self, rows: Integers) -> Integers:
        counts = np.zeros(rows.size, dtype=np.int64)
        pieces = self.bits.rows.find_pieces(rows, self.first, self.stop, _WORD_BYTES)
        if not len(pieces) or self.first == self.stop:
            return counts
        words = self.source.read(pieces.extents).view("<u8")
        # The selected bits of a row end at this bit, from the start of its piece.
        end_bits = pieces.bit + self.stop - self.first - pieces.lead
        begins = pieces.packed_starts // _WORD_BYTES
        ends = begins + ceil_div(end_bits, 64)
        # The first and last word may hold bits of other columns.
        words[begins] &= ~_LOW_BITS[pieces.bit]
        words[ends - 1] &= _LOW_BITS[(end_bits - 1) % 64 + 1]
        # Every second sum is of words between two rows, and is dropped.
        bounds = np.stack([begins, ends], axis=1).ravel()[:-1]
        # The smallest type that holds all counts is the quickest.
        narrow = np.min_scalar_type(64 * int((ends - begins).max()))
        words_counts = np.bitwise_count(words[: int(ends[-1])])
        counts[: len(pieces)] = np.add.reduceat(words_counts, bounds, dtype=narrow)[::2]
        return counts

    def count_columns(self, rows: Integers) -> Integers:
        """Count the bits of the columns in some rows. The result is a matrix with one row."""
        width = self.stop - self.first
        counts = np.zeros((1, width), dtype=np.int64)
        step = min(8 * _BYTE_ROWS, max(1, 8 * _TASK // max(1, width)))
        for begin in range(0, rows.size if width else 0, step):
            self._add_rows(counts[0], rows[begin : begin + step])
        return counts

    def _add_rows(self, counts: Integers, rows: Integers) -> None:
        """Add rows to the counts of their columns. Rows at the same bit of a byte are summed."""
        pieces = self.bits.rows.find_pieces(rows, self.first, self.stop)
        if not len(pieces):
            return
        packed = self.source.read(pieces.extents)
        # No row has columns before these eight, and the leads ascend.
        low = int(pieces.lead[0]) // 8 * 8 - 8
        width = counts.size - low
        targets, bits = np.divmod(pieces.lead - pieces.bit - low, 8)
        sizes = ceil_div(counts.size - pieces.lead + pieces.bit, 8)
        places = np.stack([pieces.packed_starts, targets, sizes], axis=1)
        for bit in np.unique(bits).tolist():
            chosen = np.flatnonzero(bits == bit)
            for first in range(0, chosen.size, _BYTE_ROWS):
                part = places[chosen[first : first + _BYTE_ROWS]].tolist()
                words = np.zeros((15 * ceil_div(len(part), 15), ceil_div(width + 8, 64)), "<u8")
                for row, (start, target, size) in zip(words.view(np.uint8), part, strict=False):
                    row[target : target + size] = packed[start : start + size]
                counts[low + 8 :] += _sum_bits(words)[8 - bit : width - bit]

    def build_dask_array(self, rows: Integers, *, by_column: bool) -> Any:
        """Return the counts as a dask array, with a block of rows per task."""
        width = self.stop - self.first
        nbytes = self.bits.rows.nbytes * rows.size * width // max(1, prod(self.bits.shape))
        tasks = max(1, ceil_div(nbytes, _COLUMNS_TASK if by_column else _TASK))
        block_rows = max(1, ceil_div(rows.size, tasks))
        blocks: Any = dask.array.from_array(rows, chunks=block_rows)  # type: ignore[no-untyped-call]
        if not by_column:
            return blocks.map_blocks(self.count_rows, dtype=np.int64, meta=rows[:0])
        return blocks.map_blocks(
            self.count_columns,
            chunks=((1,) * blocks.npartitions, (width,)),
            new_axis=1,
            dtype=np.int64,
            meta=rows[:0, np.newaxis],
        ).sum(axis=0)


def _sum_bits(words: NDArray[np.uint64]) -> Bytes:
    """Return the sum of each bit in up to 255 rows, a multiple of 15, as unpacked bits."""
    lanes = [words]
    for width, mask, group in _LANES:
        halves = [half for lane in lanes for half in (lane & mask, lane >> width & mask)]
        lanes = [half.reshape(-1, group or len(half), half.shape[1]).sum(axis=1) for half in halves]
    return np.stack([lanes[number].view(np.uint8)[0] for number in _LANE_OF_BIT], axis=1).ravel()


def count_bits(variable: Variable, summed_axes: Sequence[int]) -> Any:
    """Count along axes of a variable, or return None unless its bits are packed in a file."""
    lazy = find_undecoded_tensor(variable)
    if lazy is None:
        return None
    view = lazy.array.layout
    bits = view.inner if isinstance(view, Transposed) else view
    if not isinstance(bits, Packed) or not bits.has_bits:
        return None
    axes: tuple[int, ...] = (1,) if bits.is_vector else (0, 1)
    if isinstance(view, Transposed):
        axes = view.axes
    picks = dict(zip(axes, map(normalize_entry, lazy.key.tuple, view.shape), strict=True))
    # The variable has the axes of the layout in this order, without axes that a key dropped.
    remaining = [axis for axis in axes if not isinstance(picks[axis][1], int)]
    summed = [remaining[number] for number in summed_axes]
    kept = [axis for axis in remaining if axis not in summed]
    rows = indices_to_array(picks[0][0] if 0 in picks else range(1))
    columns = picks[1][0]
    repeats = any(isinstance(picks[axis][1], np.ndarray) for axis in summed)
    if len(kept) > 1 or repeats or not isinstance(columns, range) or columns.step != 1:
        return None
    counts = BitCounts(lazy.array.source, bits, columns.start, columns.stop)
    by_column = kept == [1]
    if variable.chunks is not None:
        values = counts.build_dask_array(rows, by_column=by_column)
    else:
        values = counts.count_columns(rows)[0] if by_column else counts.count_rows(rows)
    return values[picks[kept[0]][1]] if kept else values.sum()


_BLOCK = 2048
"""Rows and columns of a block: 16 MiB of float32, enough for a fast product of matrices."""

Block = NDArray[np.bool_]


def check_causal(causal: DataArray) -> None:
    """Raise an error unless an array is a square matrix of bool."""
    if not isinstance(causal, DataArray) or causal.dtype != np.bool_:
        owner = "" if isinstance(causal, DataArray) else f"{type(causal).__name__} of "
        actual = f"{owner}{getattr(causal, 'dtype', 'other values')}"
        raise TypeError(f"a causal matrix is a DataArray of bool, not {actual}")
    if causal.ndim != 2 or causal.shape[0] != causal.shape[1]:
        raise ValueError(f"a causal matrix is square, but the shape is {causal.shape}")


@dataclass(frozen=True, eq=False)
class CausalMatrix:
    """A causal matrix, divided into square blocks."""

    variable: Variable
    size: int

    @classmethod
    def from_array(cls, causal: DataArray) -> CausalMatrix:
        """Read the blocks of an array of this engine from the file, and load other arrays."""
        check_causal(causal)
        variable = drop_chunks(causal.variable)
        return cls(variable if variable.chunks is None else variable.load(), causal.shape[0])

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the blocks along either axis."""
        full, rest = divmod(self.size, _BLOCK)
        return (_BLOCK,) * full + ((rest,) if rest or not full else ())

    def read(self, row: int, column: int) -> Block:
        """Return the values of a block."""
        rows, columns = (slice(n * _BLOCK, (n + 1) * _BLOCK) for n in (row, column))
        return np.asarray(self.variable[rows, columns].values)

    def map_blocks(
        self,
        compute: Callable[..., NDArray[Any]],
        dtype: type[np.generic],
        chunks: tuple[tuple[int, ...], ...] | None = None,
    ) -> Any:
        """Compute a dask array with one chunk per block: of its shape, or of other `chunks`."""

        def run(block_info: Any) -> NDArray[Any]:
            location = block_info[None]["chunk-location"][:2]
            return compute(self, *location, self.read(*location))

        chunks = chunks or (self.lengths,) * 2
        return dask.array.map_blocks(  # type: ignore[no-untyped-call]
            run,
            chunks=chunks,
            dtype=dtype,
            meta=np.empty((0,) * len(chunks), dtype),
            name=f"{compute.__name__}-{uuid4().hex}",  # dask would read the matrix
        )


def count_between(matrix: CausalMatrix, row: int, column: int, related: Block) -> NDArray[np.int32]:
    """Multiply a row of blocks with a column of blocks, of which both contain `related`."""
    counts = np.zeros(related.shape, np.float32)  # exact, because counts are below 2**24
    for middle in range(len(matrix.lengths)):
        left = related if middle == column else matrix.read(row, middle)
        right = related if middle == row or not left.any() else matrix.read(middle, column)
        if left.any() and right.any():
            counts += left.astype(np.float32) @ right.astype(np.float32)
    return counts.astype(np.int32)


def find_links(matrix: CausalMatrix, row: int, column: int, related: Block) -> Block:
    """Return the relations of a block without an event between."""
    if related.any():
        related = related & (count_between(matrix, row, column, related) == 0)
    return related


def count_sizes(matrix: CausalMatrix, row: int, column: int, related: Block) -> NDArray[np.int64]:
    """Count the relations of a block by the number of events between."""
    sizes = np.empty(0, int)
    if related.any():
        sizes = count_between(matrix, row, column, related)[related]
    return np.bincount(sizes, minlength=matrix.size).reshape(1, 1, matrix.size)
