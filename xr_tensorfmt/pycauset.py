"""Functions for bit matrices of PyCauset and for causal sets.

A causal matrix has an element per pair of events: ``causal[i, j]`` is True if `i` precedes `j`.
Functions read square blocks of the packed file, so memory stays bounded, and skip blocks without
relations, such as all blocks below the diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from math import prod
from operator import index
from typing import Any
from uuid import uuid4

import dask.array
import numpy as np
from numpy.typing import NDArray
from xarray import DataArray, Variable

from xr_tensorfmt.core.chunk_grid import ceil_div
from xr_tensorfmt.core.extents import Bytes, Integers
from xr_tensorfmt.core.indexing import PostIndexer, normalize_entry
from xr_tensorfmt.core.selection import indices_to_array
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import Transposed
from xr_tensorfmt.datasets.lazy_array import LazyTensor, drop_chunks, find_undecoded_tensor
from xr_tensorfmt.formats.pycauset.matrices import OnlyRow
from xr_tensorfmt.formats.pycauset.packed import Bits

__all__ = ["count_between", "interval", "interval_sizes", "links", "popcount"]

_BLOCK = 2048
"""Rows and columns of a block: 16 MiB of float32, enough for a fast product of matrices."""

Block = NDArray[np.bool_]


def popcount(da: DataArray, dim: Hashable | Iterable[Hashable] | None = None) -> DataArray:
    """Count the elements that are True along dimensions, as ``da.sum(dim)`` does.

    If `da` is a bit matrix or vector that has not been read yet, this counts the packed bytes of
    the file, in bounded memory. This applies to arrays as opened, with or without ``chunks={}``. If
    the array was opened without chunks, it may be transposed, indexed by rows, cut to a range of
    columns, and chunked later. Other arrays of bool are summed with ``da.sum(dim)``.

    Parameters
    ----------
    da : DataArray
        Of dtype bool.
    dim : hashable or iterable of hashable, optional
        The dimensions to count along; all of them by default. ``dim="col"`` returns one count per
        row, and ``dim="row"`` one per column.

    Returns
    -------
    DataArray
        Counts of dtype int64, without attributes. If `da` is a dask array, the counts are one too,
        but in other chunks.

    Raises
    ------
    TypeError
        `da` is not a DataArray, or not of dtype bool.
    ValueError
        `da` has no such dimension.

    Examples
    --------
    >>> from xr_tensorfmt import pycauset, tutorial
    >>> causal = tutorial.open_dataset("causal_set").precedes
    >>> pycauset.popcount(causal, "later")[:4].values
    array([58, 57, 54, 50])
    """
    if not isinstance(da, DataArray):
        raise TypeError(
            f"popcount takes a DataArray, not a {type(da).__name__}; pass one variable, as ds[name]"
        )
    if da.dtype != np.bool_:
        raise TypeError(
            f"popcount takes an array of bool, not of {da.dtype}; use da.sum(dim), or compare first"
        )
    if dim is None or dim is ...:
        summed: tuple[Hashable, ...] = da.dims
    else:
        summed = (dim,) if isinstance(dim, str) or not isinstance(dim, Iterable) else tuple(dim)
    axes = [da.get_axis_num(name) for name in summed]
    lazy = find_undecoded_tensor(da.variable)
    plan = None if lazy is None else _plan(lazy, axes)
    if plan is None:
        return da.sum(summed, keep_attrs=False).astype(np.int64, copy=False)
    counts, rows, by_column, post_indexer = plan
    if da.chunks is not None:
        values = counts.build_dask_array(rows, by_column=by_column)
    else:
        values = counts.count_columns(rows)[0] if by_column else counts.count_rows(rows)
    values = values.sum() if post_indexer is None else values[post_indexer]
    dims = [name for name in da.dims if name not in summed]
    coords = {name: coord for name, coord in da.coords.items() if set(coord.dims) <= set(dims)}
    return DataArray(values, coords, dims, da.name)


def count_between(causal: DataArray) -> DataArray:
    """Count the events between every two events: the product of the matrix with itself.

    Parameters
    ----------
    causal : DataArray
        A square matrix of bool. If it was opened from a file, with or without chunks, each task
        reads its blocks from the file. Other arrays are loaded.

    Returns
    -------
    DataArray
        Counts of dtype int32 in dask chunks of 2048 x 2048 elements, with the dims and coordinates
        of `causal`.

    Raises
    ------
    TypeError, ValueError
        `causal` is not a square matrix of bool.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from xr_tensorfmt import pycauset
    >>> chain = np.triu(np.ones((4, 4), bool), 1)
    >>> causal = xr.DataArray(chain, dims=("row", "col"))
    >>> pycauset.count_between(causal).values
    array([[0, 0, 1, 2],
           [0, 0, 0, 1],
           [0, 0, 0, 0],
           [0, 0, 0, 0]], dtype=int32)
    """
    matrix = _Matrix.from_array(causal)
    values = _map_blocks(matrix, _count_between, (matrix.lengths,) * 2, np.int32)
    return DataArray(values, causal.coords, causal.dims, "count_between")


def links(causal: DataArray) -> DataArray:
    """Return the relations without an event between: ``causal & (count_between(causal) == 0)``.

    Parameters
    ----------
    causal : DataArray
        As for `count_between`.

    Returns
    -------
    DataArray
        A matrix of bool in dask chunks, with the dims and coordinates of `causal`.

    Examples
    --------
    >>> from xr_tensorfmt import pycauset, tutorial
    >>> causal = tutorial.open_dataset("causal_set").precedes
    >>> int(pycauset.links(causal).sum())
    165
    """
    matrix = _Matrix.from_array(causal)
    values = _map_blocks(matrix, _find_links, (matrix.lengths,) * 2, np.bool_)
    return DataArray(values, causal.coords, causal.dims, "links")


def interval_sizes(causal: DataArray) -> DataArray:
    """Count the related pairs by the number of events between them.

    Parameters
    ----------
    causal : DataArray
        As for `count_between`.

    Returns
    -------
    DataArray
        Element `n` along ``size`` is the number of pairs with `n` events between them, as int64 in
        a dask array. Element 0 is the number of links.

    Examples
    --------
    >>> from xr_tensorfmt import pycauset, tutorial
    >>> causal = tutorial.open_dataset("causal_set").precedes
    >>> pycauset.interval_sizes(causal)[:4].values
    array([165, 119, 102,  67])
    """
    matrix = _Matrix.from_array(causal)
    ones = (1,) * len(matrix.lengths)
    counts = _map_blocks(matrix, _count_sizes, (ones, ones, (matrix.size,)), np.int64)
    return DataArray(counts.sum(axis=(0, 1)), dims="size", name="interval_sizes")


def interval(causal: DataArray, first: int, last: int) -> NDArray[np.int64]:
    """Return the positions of the events between two events.

    Read one row and one column. ``causal[i] & causal[:, j]`` would pair all rows with all columns,
    because the two dimensions have different names.

    Parameters
    ----------
    causal : DataArray
        As for `count_between`.
    first, last : int
        Positions of the two events.

    Returns
    -------
    ndarray of int64
        Sorted positions, for example for ``causal.isel(row=between, col=between)``.

    Raises
    ------
    IndexError, TypeError
        A position is out of bounds, or not an int.

    Examples
    --------
    >>> from xr_tensorfmt import pycauset, tutorial
    >>> causal = tutorial.open_dataset("causal_set").precedes
    >>> pycauset.interval(causal, 6, 33)
    array([14, 16, 27])
    """
    _check_causal(causal)
    try:
        row, column = (index(np.asarray(position)[()]) for position in (first, last))
    except TypeError:
        raise TypeError(
            f"interval({first!r}, {last!r}): a position is an int; find it by a label, as in "
            f"causal.indexes[{causal.dims[0]!r}].get_loc(label)"
        ) from None
    variable = drop_chunks(causal.variable)
    return np.flatnonzero(variable[row].values & variable[:, column].values)


def _check_causal(causal: DataArray) -> None:
    if not isinstance(causal, DataArray) or causal.dtype != np.bool_:
        owner = "" if isinstance(causal, DataArray) else f"{type(causal).__name__} of "
        actual = f"{owner}{getattr(causal, 'dtype', 'other values')}"
        raise TypeError(f"a causal matrix is a DataArray of bool, not {actual}")
    if causal.ndim != 2 or causal.shape[0] != causal.shape[1]:
        raise ValueError(f"a causal matrix is square, but the shape is {causal.shape}")


@dataclass(frozen=True, eq=False)
class _Matrix:
    """A causal matrix, divided into square blocks."""

    variable: Variable
    size: int

    @classmethod
    def from_array(cls, causal: DataArray) -> _Matrix:
        _check_causal(causal)
        variable = drop_chunks(causal.variable)
        return cls(variable if variable.chunks is None else variable.load(), causal.shape[0])

    @property
    def lengths(self) -> tuple[int, ...]:
        full, rest = divmod(self.size, _BLOCK)
        return (_BLOCK,) * full + ((rest,) if rest or not full else ())

    def read(self, row: int, column: int) -> Block:
        rows, columns = (slice(n * _BLOCK, (n + 1) * _BLOCK) for n in (row, column))
        return np.asarray(self.variable[rows, columns].values)


def _count_between(matrix: _Matrix, row: int, column: int, related: Block) -> NDArray[np.int32]:
    """Multiply a row of blocks with a column of blocks, of which both contain `related`."""
    counts = np.zeros(related.shape, np.float32)  # exact, because counts are below 2**24
    for middle in range(len(matrix.lengths)):
        left = related if middle == column else matrix.read(row, middle)
        right = related if middle == row or not left.any() else matrix.read(middle, column)
        if left.any() and right.any():
            counts += left.astype(np.float32) @ right.astype(np.float32)
    return counts.astype(np.int32)


def _find_links(matrix: _Matrix, row: int, column: int, related: Block) -> Block:
    if related.any():
        related = related & (_count_between(matrix, row, column, related) == 0)
    return related


def _count_sizes(matrix: _Matrix, row: int, column: int, related: Block) -> NDArray[np.int64]:
    sizes = np.empty(0, int)
    if related.any():
        sizes = _count_between(matrix, row, column, related)[related]
    return np.bincount(sizes, minlength=matrix.size).reshape(1, 1, matrix.size)


def _map_blocks(
    matrix: _Matrix,
    compute: Callable[..., NDArray[Any]],
    chunks: tuple[tuple[int, ...], ...],
    dtype: type[np.generic],
) -> Any:
    """Compute a dask array with one chunk per block of the matrix."""

    def run(block_info: Any) -> NDArray[Any]:
        location = block_info[None]["chunk-location"][:2]
        return compute(matrix, *location, matrix.read(*location))

    return dask.array.map_blocks(  # type: ignore[no-untyped-call]
        run,
        chunks=chunks,
        dtype=dtype,
        meta=np.empty((0,) * len(chunks), dtype),
        name=f"{compute.__name__.strip('_')}-{uuid4().hex}",  # dask would read the matrix
    )


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
    bits: Bits
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


def _plan(
    lazy: LazyTensor, summed_axes: list[int]
) -> tuple[BitCounts, Integers, bool, PostIndexer | None] | None:
    """Return counts, rows, whether to count by column, and the key of the counts; None adds all."""
    view = lazy.array.layout
    axes: tuple[int, ...] = (1,) if isinstance(view, OnlyRow) else (0, 1)
    if isinstance(view, Transposed):
        axes = view.axes
    bits = view.inner if isinstance(view, OnlyRow | Transposed) else view
    if not isinstance(bits, Bits):
        return None
    picks = dict(zip(axes, map(normalize_entry, lazy.key.tuple, view.shape), strict=True))
    # The array has the axes of the layout in this order, without axes that a key dropped.
    remaining = [axis for axis in axes if not isinstance(picks[axis][1], int)]
    summed = [remaining[number] for number in summed_axes]
    kept = [axis for axis in remaining if axis not in summed]
    rows = indices_to_array(picks[0][0] if 0 in picks else range(1))
    columns = picks[1][0]
    repeats = any(isinstance(picks[axis][1], np.ndarray) for axis in summed)
    if len(kept) > 1 or repeats or not isinstance(columns, range) or columns.step != 1:
        return None
    counts = BitCounts(lazy.array.source, bits, columns.start, columns.stop)
    post_indexer = picks[kept[0]][1] if kept else None
    return counts, rows, kept == [1], post_indexer
