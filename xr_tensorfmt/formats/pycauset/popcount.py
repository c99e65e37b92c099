"""Count the bits of a matrix from the packed bytes of its file."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import dask.array
import numpy as np
from dask.base import tokenize
from xarray import DataArray

from xr_tensorfmt.contract import (
    KEEP,
    Entry,
    Integers,
    LazyRead,
    PostIndexer,
    Source,
    Transposed,
    entry_indices,
    get_lazy_read,
)
from xr_tensorfmt.formats.pycauset.bits import LOW_BITS, Bits, unpack
from xr_tensorfmt.formats.pycauset.matrices import OnlyRow

# Elements unpacked at a time for column sums, one byte per element.
_UNPACKED = 4 << 20
_WORD_BYTES = 8
# Rows summed at a time: the sum of a column fits in a byte.
_BYTE_ROWS = 255
# Packed bytes per dask task. For column sums, a task returns a row of counts.
_TASK = 16 << 20
_COLUMNS_TASK = 64 << 20


@dataclass(frozen=True)
class BitCounts:
    """Rows and a range of columns of a bit matrix, to be counted."""

    source: Source
    bits: Bits
    rows: Integers
    first: int
    stop: int

    def count_rows(self) -> Integers:
        """Count the bits of the rows."""
        counts = np.zeros(self.rows.size, dtype=np.int64)
        if not counts.size or self.first == self.stop:
            return counts
        pieces = self.bits.rows.find_pieces(self.rows, self.first, self.stop, _WORD_BYTES)
        counted = pieces.bit + self.stop - self.first - pieces.lead
        lengths = (counted + 63) // 64
        for block, window, positions in pieces.fetch(self.source):
            begins = (positions - positions[0]) // _WORD_BYTES
            ends = begins + lengths[block]
            words = window[positions[0] :][: int(ends[-1]) * _WORD_BYTES].view("<u8")
            # Every second sum is of words between two rows, and is dropped.
            bounds = np.stack([begins, ends], axis=1).ravel()[:-1]
            # The smallest type that holds all counts is the quickest.
            narrow = np.min_scalar_type(64 * int((ends - begins).max()))
            counts[block] = np.add.reduceat(np.bitwise_count(words), bounds, dtype=narrow)[::2]
            # The first and last word may hold bits of other columns.
            before = words[begins] & LOW_BITS[pieces.bit[block]]
            after = words[ends - 1] & ~LOW_BITS[(counted[block] - 1) % 64 + 1]
            counts[block] -= np.bitwise_count(before)
            counts[block] -= np.bitwise_count(after)
        return counts

    def count_columns(self) -> Integers:
        """Count the bits of the columns."""
        counts = np.zeros(self.stop - self.first, dtype=np.int64)
        step = min(_BYTE_ROWS, max(1, _UNPACKED // max(1, counts.size)))
        for begin in range(0, self.rows.size if counts.size else 0, step):
            rows = self.rows[begin : begin + step]
            packed, shift = self.bits.read_packed(self.source, rows, self.first, self.stop)
            counts += unpack(packed, shift, counts.size).sum(axis=0, dtype=np.uint8)
        return counts


def popcount(da: DataArray, dim: Hashable | Iterable[Hashable] | None = None) -> DataArray:
    """Count the elements that are True along dimensions, as ``da.sum(dim)`` does.

    If `da` is a bit matrix or vector that has not been read yet, this counts the packed bytes of
    the file. Counts per row unpack no bits, and counts per column unpack at most 255 rows at a
    time. This applies to arrays as opened, with or without ``chunks={}``. If the array was opened
    without chunks, it may be transposed, indexed by rows, cut to a range of columns, and chunked
    later. Other arrays of bool are summed with ``da.sum(dim)``.

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

    See Also
    --------
    xr_tensorfmt.to_pycauset : Write bits.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import xr_tensorfmt
    >>> order = xr.DataArray(np.triu(np.ones((4, 4), bool), 1), dims=("row", "col"))
    >>> xr_tensorfmt.to_pycauset(order, "order.pycauset")
    >>> causal = xr.open_dataarray("order.pycauset", engine="tensorfmt")
    >>> xr_tensorfmt.popcount(causal, dim="col").values
    array([3, 2, 1, 0])
    """
    if not isinstance(da, DataArray):
        raise TypeError(f"popcount takes a DataArray, not a {type(da).__name__}")
    if da.dtype != np.bool_:
        raise TypeError(
            f"popcount takes an array of bool, not of {da.dtype}; use da.sum(dim), or compare first"
        )
    if dim is None or dim is ...:
        counted: tuple[Hashable, ...] = da.dims
    else:
        counted = (dim,) if isinstance(dim, str) or not isinstance(dim, Iterable) else tuple(dim)
    lazy_read, axes = get_lazy_read(da.variable), [da.get_axis_num(name) for name in counted]
    planned = None if lazy_read is None else _plan(lazy_read, axes)
    if planned is None:
        return da.sum(counted, keep_attrs=False).astype(np.int64, copy=False)
    counts, kept, post_indexer = planned
    count = _count_lazily if da.chunks is not None else _count
    values = count(counts, kept == 1)
    dims = [name for name in da.dims if name not in counted]
    coords = {name: coord for name, coord in da.coords.items() if set(coord.dims) <= set(dims)}
    return DataArray(values.sum() if kept is None else values[post_indexer], coords, dims, da.name)


def _plan(
    lazy_read: LazyRead, counted: list[int]
) -> tuple[BitCounts, int | None, PostIndexer] | None:
    """Return the counts to compute, the kept axis, and the key to apply to the counts."""
    view = lazy_read.layout
    axes: tuple[int, ...] = (1,) if isinstance(view, OnlyRow) else (0, 1)
    if isinstance(view, Transposed):
        axes = view.axes
    bits = view.inner if isinstance(view, OnlyRow | Transposed) else view
    if not isinstance(bits, Bits):
        return None
    picks = dict(zip(axes, lazy_read.plan.picks, strict=True))
    # The array has the axes of the layout in this order, without those that a key dropped.
    remaining = [axis for axis in axes if not isinstance(picks[axis].post_indexer, int)]
    summed = [remaining[number] for number in counted]
    kept = [axis for axis in remaining if axis not in summed]
    entries: list[Entry] = [slice(0, 1, 1), slice(0, 0, 1)]
    for axis, pick in picks.items():
        entries[axis] = pick.entry
    columns = entries[1]
    repeats = any(isinstance(picks[axis].post_indexer, np.ndarray) for axis in summed)
    if len(kept) > 1 or repeats or not isinstance(columns, slice) or columns.step != 1:
        return None
    rows = entry_indices(entries[0])
    counts = BitCounts(lazy_read.source, bits, rows, columns.start, columns.stop)
    return (counts, kept[0], picks[kept[0]].post_indexer) if kept else (counts, None, KEEP)


def _count(counts: BitCounts, by_column: bool) -> Any:
    """Count the bits of columns or rows."""
    return counts.count_columns() if by_column else counts.count_rows()


def _count_lazily(counts: BitCounts, by_column: bool) -> Any:
    """Return the counts as a dask array, with a block of rows per task."""
    rows, width, bits = counts.rows.size, counts.stop - counts.first, counts.bits
    nbytes = bits.rows.nbytes * rows * width // max(1, prod(bits.shape))
    tasks = max(1, -(-nbytes // (_COLUMNS_TASK if by_column else _TASK)))
    step = max(1, -(-rows // tasks))
    lengths = tuple(min(step, rows - begin) for begin in range(0, max(1, rows), step))
    values: Any = dask.array.map_blocks(  # type: ignore[no-untyped-call]
        partial(_count_block, counts, step, by_column),
        chunks=((1,) * len(lengths), (width,)) if by_column else (lengths,),
        name=f"popcount-{tokenize(counts, step, by_column)}",
        dtype=np.int64,
        meta=np.empty((0,) * (1 + by_column), dtype=np.int64),
    )
    return values.sum(axis=0) if by_column else values


def _count_block(
    counts: BitCounts, step: int, by_column: bool, block_id: tuple[int, ...]
) -> Integers:
    """Count the bits of one task. Column counts are a matrix with one row."""
    begin = block_id[0] * step
    values: Integers = _count(replace(counts, rows=counts.rows[begin : begin + step]), by_column)
    return values[np.newaxis] if by_column else values
