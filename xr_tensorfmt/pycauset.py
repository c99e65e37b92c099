"""Functions for bit matrices of PyCauset and for causal sets.

A causal matrix has an element per pair of events: ``causal[i, j]`` is True if `i` precedes `j`.
Functions read square blocks of the packed file, so memory stays bounded, and skip blocks without
relations, such as all blocks below the diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import dask.array
import numpy as np
from dask.array.core import normalize_chunks
from numpy.typing import NDArray
from xarray import DataArray, Variable

from xr_tensorfmt.core.extents import Bytes, Integers, ceil_div
from xr_tensorfmt.core.layout import Transposed
from xr_tensorfmt.core.selection import indices_to_array, normalize_entry
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.datasets.lazy_array import drop_chunks, find_undecoded_tensor
from xr_tensorfmt.formats.pycauset.matrices import WORD_BYTES
from xr_tensorfmt.formats.pycauset.packed import Packed, Pieces

__all__ = ["count_between", "interval_sizes", "links", "popcount"]

# Packed bytes to count at a time, to stay within a processor cache.
_CACHED_BYTES = 2 << 20
# The sum of so many bits fits in a byte.
_BYTE_ROWS = 255

# Rows and columns of a block: 16 MiB of float32, enough for a fast product of matrices.
_BLOCK = 2048
_Block = NDArray[np.bool_]


def popcount(da: DataArray, dim: Hashable | Iterable[Hashable] | None = None) -> DataArray:
    """Count the elements that are True along dimensions, as ``da.sum(dim)`` does.

    Packed bits of a file are counted in bounded memory, if `da` has not been read yet.

    Parameters
    ----------
    da : DataArray
        An array of bool.
    dim : hashable or iterable of hashable, optional
        The dimensions to count along; all of them by default.

    Returns
    -------
    DataArray
        Counts of dtype int64, without attributes.

    Examples
    --------
    >>> from xr_tensorfmt import pycauset, tutorial
    >>> causal = tutorial.open_dataset("causal_set").precedes
    >>> pycauset.popcount(causal, "later")[:4].values
    array([58, 57, 54, 50])
    """
    _check_bits(da)
    summed: Any = da.dims if dim is None or dim is ... else dim
    axes = np.atleast_1d(da.get_axis_num(summed)).tolist()
    values = _count_packed(da.variable, axes)
    if values is None:
        return da.sum(summed, keep_attrs=False).astype(np.int64, copy=False)
    dims = [name for axis, name in enumerate(da.dims) if axis not in axes]
    coords = {name: coord for name, coord in da.coords.items() if set(coord.dims) <= set(dims)}
    return DataArray(values, coords, dims, da.name)


def count_between(causal: DataArray) -> DataArray:
    """Count the events between every two events: the product of the matrix with itself.

    The result is lazy. dask computes its blocks in parallel.

    Parameters
    ----------
    causal : DataArray
        A square matrix of bool. Element (i, j) is True if event i precedes event j. Tasks read
        its blocks from the file. Other arrays are loaded.

    Returns
    -------
    DataArray
        Counts of dtype int32 in dask chunks of 2048 x 2048 elements, with the dims and coordinates
        of `causal`.

    Examples
    --------
    >>> from xr_tensorfmt import pycauset, tutorial
    >>> causal = tutorial.open_dataset("causal_set").precedes
    >>> int(pycauset.count_between(causal)[0, 63])
    53
    """
    values = _CausalMatrix.from_array(causal).map_blocks(_count_between, np.int32)
    return DataArray(values, causal.coords, causal.dims, "count_between")


def links(causal: DataArray) -> DataArray:
    """Return the relations without an event between: ``causal & (count_between(causal) == 0)``.

    Parameters
    ----------
    causal : DataArray
        A square matrix of bool, as for `count_between`.

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
    values = _CausalMatrix.from_array(causal).map_blocks(_find_links, np.bool_)
    return DataArray(values, causal.coords, causal.dims, "links")


def interval_sizes(causal: DataArray) -> DataArray:
    """Count the related pairs by the number of events between them.

    This histogram of `count_between` does not store the counts of all pairs.

    Parameters
    ----------
    causal : DataArray
        A square matrix of bool, as for `count_between`.

    Returns
    -------
    DataArray
        Element `n` along ``size`` is the number of pairs with `n` events between them. Pairs
        without an event between them are links.

    Examples
    --------
    >>> from xr_tensorfmt import pycauset, tutorial
    >>> causal = tutorial.open_dataset("causal_set").precedes
    >>> pycauset.interval_sizes(causal)[:4].values
    array([165, 119, 102,  67])
    """
    matrix = _CausalMatrix.from_array(causal)
    ones, size = (1,) * len(matrix.chunks[0]), matrix.variable.shape[0]
    sizes = matrix.map_blocks(_count_sizes, np.int64, (ones, ones, (size,)))
    return DataArray(sizes.sum(axis=(0, 1)), dims="size", name="interval_sizes")


def _count_packed(variable: Variable, summed_axes: Sequence[int]) -> Any:
    """Count along axes of a variable, or return None unless its bits are packed in a file."""
    lazy = find_undecoded_tensor(variable)
    view = None if lazy is None else lazy.array.layout
    bits = view.inner if isinstance(view, Transposed) else view
    if lazy is None or not isinstance(bits, Packed) or bits.item_bits > 1:
        return None
    axes = view.axes if isinstance(view, Transposed) else (0, 1)[-len(bits.shape) :]
    picks = dict(zip(axes, map(normalize_entry, lazy.key.tuple, lazy.array.shape), strict=True))
    # The variable has the axes of the layout in this order, without axes that a key dropped.
    remaining = [axis for axis in axes if not isinstance(picks[axis][1], int)]
    summed = [remaining[number] for number in summed_axes]
    kept = [axis for axis in remaining if axis not in summed]
    rows = indices_to_array(picks[0][0] if 0 in picks else range(1))
    columns = picks[1][0]
    repeats = any(isinstance(picks[axis][1], np.ndarray) for axis in summed)
    if len(kept) > 1 or repeats or not isinstance(columns, range) or columns.step != 1:
        return None
    count = _count_columns if kept == [1] else _count_rows
    values = count(lazy.array.source, bits, rows, columns)
    return values[picks[kept[0]][1]] if kept else values.sum()


def _read_batches(
    source: Source, bits: Packed, rows: Integers, columns: range
) -> Iterator[tuple[int, Bytes, Pieces]]:
    """Yield batches of rows: the position of the first one, the packed words, and their pieces."""
    step = max(1, 8 * _CACHED_BYTES // max(1, len(columns)))
    for first in range(0, rows.size if columns else 0, step):
        batch = rows[first : first + step]
        extents, pieces = bits.find_pieces(batch, columns.start, columns.stop, WORD_BYTES)
        if len(pieces):
            yield first, source.read(extents), pieces


def _count_rows(source: Source, bits: Packed, rows: Integers, columns: range) -> Integers:
    counts, all_bits = np.zeros(rows.size, dtype=np.int64), np.uint64(2**64 - 1)
    for first, packed, pieces in _read_batches(source, bits, rows, columns):
        positions, skipped, leads = pieces.T
        words, stops = packed.view("<u8"), skipped + len(columns) - leads
        begins = positions // WORD_BYTES
        ends = begins + ceil_div(stops, 64)
        # The first and last word may hold bits of other columns.
        words[begins] &= all_bits << skipped.astype(np.uint64)
        words[ends - 1] &= all_bits >> (-stops % 64).astype(np.uint64)
        # Every second sum is of the words between two rows.
        bounds = np.stack([begins, ends], axis=1).ravel()[:-1]
        sums = np.add.reduceat(np.bitwise_count(words[: ends[-1]]), bounds, dtype=np.int64)
        counts[first : first + len(pieces)] = sums[::2]
    return counts


def _count_columns(source: Source, bits: Packed, rows: Integers, columns: range) -> Integers:
    counts, part = np.zeros(len(columns), np.int64), np.zeros(len(columns), np.uint8)
    for first, packed, pieces in _read_batches(source, bits, rows, columns):
        for number, (start, skipped, lead) in enumerate(pieces.tolist(), first):
            stop = skipped + len(columns) - lead
            stored = packed[start : start + ceil_div(stop, 8)]
            part[lead:] += np.unpackbits(stored, count=stop, bitorder="little")[skipped:]
            if number % _BYTE_ROWS == _BYTE_ROWS - 1:
                counts += part
                part[:] = 0
    return counts + part


def _check_bits(da: DataArray) -> None:
    """Raise TypeError unless an array is a DataArray of bool."""
    if not isinstance(da, DataArray) or da.dtype != np.bool_:
        actual = type(da).__name__ + (f" of {da.dtype}" if hasattr(da, "dtype") else "")
        raise TypeError(f"expected a DataArray of bool, such as ds[name], not {actual}")


@dataclass(frozen=True, eq=False)
class _CausalMatrix:
    """A causal matrix, divided into square blocks. A triangle has no blocks below the diagonal."""

    variable: Variable
    is_triangle: bool

    @classmethod
    def from_array(cls, causal: DataArray) -> _CausalMatrix:
        """Read the blocks of an array of this engine from the file, and load other arrays."""
        _check_bits(causal)
        if causal.ndim != 2 or causal.shape[0] != causal.shape[1]:
            raise ValueError(f"a causal matrix is square, but the shape is {causal.shape}")
        lazy = find_undecoded_tensor(causal.variable)
        if lazy is None:
            return cls(causal.variable.compute(), is_triangle=False)
        layout, keys = lazy.array.layout, zip(lazy.key.tuple, lazy.array.shape, strict=True)
        is_whole = all(isinstance(key, slice) and key.indices(n) == (0, n, 1) for key, n in keys)
        is_triangle = is_whole and isinstance(layout, Packed) and layout.is_triangle
        return cls(drop_chunks(causal.variable), is_triangle)

    @property
    def chunks(self) -> Any:
        """Lengths of the blocks along both axes."""
        return normalize_chunks(_BLOCK, self.variable.shape)  # type: ignore[no-untyped-call]

    def read(self, row: int, column: int) -> _Block:
        """Return the values of a block. Counting the bits finds blocks without relations faster."""
        rows, columns = (slice(n * _BLOCK, (n + 1) * _BLOCK) for n in (row, column))
        part = self.variable[rows, columns]
        is_empty = _count_packed(part, (0, 1)) == 0
        return np.zeros(part.shape, np.bool_) if is_empty else np.asarray(part.values)

    def map_blocks(
        self, compute: Callable[..., NDArray[Any]], dtype: type[np.generic], chunks: Any = None
    ) -> Any:
        """Compute a dask array with one chunk per block: of its shape, or of other `chunks`."""

        def run(block_info: Any) -> NDArray[Any]:
            location = block_info[None]["chunk-location"][:2]
            return compute(self, *location, self.read(*location))

        chunks = chunks or self.chunks
        return dask.array.map_blocks(  # type: ignore[no-untyped-call]
            run,
            chunks=chunks,
            dtype=dtype,
            meta=np.empty((0,) * len(chunks), dtype),
            name=f"{compute.__name__}-{uuid4().hex}",  # dask would read the matrix
        )


def _count_between(
    matrix: _CausalMatrix, row: int, column: int, related: _Block
) -> NDArray[np.int32]:
    """Multiply a row of blocks with a column of blocks, of which both contain `related`."""
    counts = np.zeros(related.shape, np.float32)  # exact, because counts are below 2**24
    stops = (row, column + 1) if matrix.is_triangle else (0, len(matrix.chunks[0]))
    for middle in range(*stops):
        left = related if middle == column else matrix.read(row, middle)
        right = related if middle == row else matrix.read(middle, column)
        inner = left.any(axis=0) & right.any(axis=1)
        if inner.any():
            counts += left[:, inner].astype(np.float32) @ right[inner].astype(np.float32)
    return counts.astype(np.int32)


def _find_links(matrix: _CausalMatrix, row: int, column: int, related: _Block) -> _Block:
    if related.any():
        related = related & (_count_between(matrix, row, column, related) == 0)
    return related


def _count_sizes(
    matrix: _CausalMatrix, row: int, column: int, related: _Block
) -> NDArray[np.int64]:
    counts = _count_between(matrix, row, column, related) if related.any() else related
    size = matrix.variable.shape[0]
    sizes = np.bincount(counts[related], minlength=size)
    if sizes.size > size:
        raise ValueError("an event precedes itself; set the diagonal of the causal matrix to False")
    return sizes.reshape(1, 1, size)
