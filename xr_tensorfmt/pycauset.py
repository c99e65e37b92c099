"""Functions for bit matrices of PyCauset and for causal sets.

A causal matrix has an element per pair of events: ``causal[i, j]`` is True if `i` precedes `j`.
Functions read square blocks of the packed file, so memory stays bounded, and skip blocks without
relations, such as all blocks below the diagonal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any
from uuid import uuid4

import dask.array
import numpy as np
from numpy.typing import NDArray
from xarray import DataArray, Variable

from xr_tensorfmt.datasets.lazy_array import drop_chunks
from xr_tensorfmt.formats.pycauset.popcount import popcount

__all__ = ["count_between", "interval", "interval_sizes", "links", "popcount"]

_BLOCK = 2048
"""Rows and columns of a block: 16 MiB of float32, enough for a fast product of matrices."""

Block = NDArray[np.bool_]


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
