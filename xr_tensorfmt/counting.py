"""Counting the bits of lazy arrays: what xarray and dask have to do with it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import dask.array
import numpy as np
from dask.base import tokenize
from xarray import DataArray

from xr_tensorfmt.elements import Array
from xr_tensorfmt.keys import OuterPlan
from xr_tensorfmt.layouts import Bits, Layout, OnlyRow, Transposed
from xr_tensorfmt.layouts.bitcounts import BitCounts
from xr_tensorfmt.lazyarray import Unread, unread
from xr_tensorfmt.selection import Entry, entry_indices

# Packed bytes that a task of dask counts.
_TASK = 16 << 20
# The same for column sums, of which each task makes a whole row.
_COLUMNS_TASK = 64 << 20


def popcount(da: DataArray, dim: Hashable | Iterable[Hashable] | None = None) -> DataArray:
    """Count the elements that are True along dimensions, as ``da.sum(dim)`` does.

    Of a matrix or vector of bits that has not been read yet, the packed bytes of the file are
    counted, eight and more elements at a time: nothing is unpacked. That holds for an array as it
    was opened, with ``chunks={}`` or without; for one that was opened without chunks, and then
    transposed or cut down to ranges of its columns and any of its rows; and for such an array
    after its ``chunk``. All other arrays of bool are summed as they are, with the same result.

    Parameters
    ----------
    da : DataArray
        Of dtype bool.
    dim : hashable or iterable of hashable, optional
        The dimensions to count along; all of them by default. ``dim="col"`` gives one count a
        row, and ``dim="row"`` one a column.

    Returns
    -------
    DataArray
        Counts of dtype int64, without attributes. They are a dask array if `da` is one, in chunks
        that the file suggests, not those of `da`; they are computed at once if not.

    Raises
    ------
    TypeError
        `da` is no DataArray, or not of dtype bool.
    ValueError
        `da` has no such dimension.

    Examples
    --------
    >>> ds = xr.open_dataset("c.pycauset", engine="tensorfmt", chunks={})  # doctest: +SKIP
    >>> futures = xr_tensorfmt.popcount(ds.tensor, dim="col")  # doctest: +SKIP
    """
    if not isinstance(da, DataArray):
        raise TypeError(f"popcount takes a DataArray, not a {type(da).__name__}")
    if da.dtype != np.bool_:
        raise TypeError(
            f"popcount takes an array of bool, not of {da.dtype}; use da.sum(dim), or compare first"
        )
    counted = _counted(da, dim)
    found = unread(da.variable)
    view = None if found is None else _viewed(found, [da.get_axis_num(each) for each in counted])
    if view is None:
        return da.sum(counted, keep_attrs=False).astype(np.int64, copy=False)
    dims = [name for name in da.dims if name not in counted]
    counts = view.lazy() if da.chunks is not None else view.compute()
    coords = {name: each for name, each in da.coords.items() if set(each.dims) <= set(dims)}
    return DataArray(counts, coords, dims, da.name)


def _counted(da: DataArray, dim: Hashable | Iterable[Hashable] | None) -> tuple[Hashable, ...]:
    if dim is None or dim is ...:
        return da.dims
    names = (dim,) if isinstance(dim, str) or not isinstance(dim, Iterable) else tuple(dim)
    for name in names:
        if name not in da.dims:
            raise ValueError(f"dim={name!r} is not one of the dimensions {da.dims}")
    return names


@dataclass(frozen=True)
class _View:
    """Counts, and what the key of the array does to them.

    Parameters
    ----------
    counts : BitCounts
        What is to be counted.
    kept : int or None
        Axis of the matrix that is not counted along: 0 its rows, 1 its columns.
    then : object
        Key to apply along that axis afterwards.
    """

    counts: BitCounts
    kept: int | None
    then: Any

    def compute(self) -> Array:
        """Count now."""
        if self.kept == 1:
            return np.asarray(self.counts.by_column()[self.then])
        by_row = self.counts.by_row()
        return np.asarray(by_row[self.then] if self.kept == 0 else by_row.sum())

    def lazy(self) -> Any:
        """Count by rows in dask, a block of them a task."""
        rows = self.counts.rows.size
        task = _COLUMNS_TASK if self.kept == 1 else _TASK
        blocks = max(1, -(-self.counts.nbytes // task))
        step = max(1, -(-rows // blocks))
        tasks = _Tasks(self.counts, step, by_column=self.kept == 1)
        each: Any = dask.array.from_array(  # type: ignore[no-untyped-call]
            tasks,
            chunks=(1, -1) if tasks.by_column else step,
            name=f"popcount-{tokenize(self.counts, step, tasks.by_column)}",
            asarray=False,
            inline_array=True,
            meta=np.empty((0,) * tasks.ndim, dtype=np.int64),
        )
        if self.kept is None:
            return each.sum()
        return (each.sum(axis=0) if self.kept == 1 else each)[self.then]


class _Tasks:
    """Counts as an array that dask cuts: one a row, or a row of counts for each block of rows."""

    dtype = np.dtype(np.int64)

    def __init__(self, counts: BitCounts, step: int, *, by_column: bool) -> None:
        self.counts = counts
        self.step = step
        self.by_column = by_column
        rows = counts.rows.size
        shape = (-(-rows // step), counts.stop - counts.first)
        self.shape: tuple[int, ...] = shape if by_column else (rows,)
        self.ndim = len(self.shape)

    def __getitem__(self, key: tuple[slice, ...]) -> Array:
        if not self.by_column:
            return self.counts.part(key[0].start, key[0].stop).by_row()
        begin, end = key[0].start * self.step, key[0].stop * self.step
        return self.counts.part(begin, end).by_column()[np.newaxis]


def _viewed(found: Unread, counted: list[int]) -> _View | None:
    """Express counting along axes of the array as counting along those of the stored matrix."""
    bits, axes = _stored_bits(found.layout)
    if bits is None or not isinstance(found.plan, OuterPlan):
        return None
    picks = dict(zip(axes, found.plan.picks, strict=True))
    # What a key keeps of the axes of the layout are the axes of the array, in their order.
    remaining = [axis for axis in axes if not isinstance(picks[axis].then, int)]
    summed = [remaining[number] for number in counted]
    kept = [axis for axis in remaining if axis not in summed]
    entries: list[Entry] = [slice(0, 1, 1), slice(0, 0, 1)]
    for axis, each in picks.items():
        entries[axis] = each.entry
    columns = entries[1]
    repeats = any(isinstance(picks[axis].then, np.ndarray) for axis in summed)
    if len(kept) > 1 or repeats or not isinstance(columns, slice) or columns.step != 1:
        return None
    rows = entry_indices(entries[0])
    counts = BitCounts(found.source, bits, rows, columns.start, columns.stop)
    if not kept:
        return _View(counts, None, None)
    return _View(counts, kept[0], picks[kept[0]].then)


def _stored_bits(layout: Layout) -> tuple[Bits | None, tuple[int, ...]]:
    """The stored matrix, and the axis of it that each axis of the layout is."""
    if isinstance(layout, Transposed):
        inner, axes = _stored_bits(layout.inner)
        return inner, tuple(axes[axis] for axis in layout.axes) if inner else ()
    if isinstance(layout, OnlyRow) and isinstance(layout.inner, Bits):
        return layout.inner, (1,)
    return (layout, (0, 1)) if isinstance(layout, Bits) else (None, ())
