"""Functions for bit matrices of PyCauset and for causal sets.

A causal matrix has an element per pair of events: ``causal[i, j]`` is True if `i` precedes `j`.
Functions read square blocks of the packed file, so memory stays bounded, and skip blocks without
relations, such as all blocks below the diagonal.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from operator import index

import numpy as np
from numpy.typing import NDArray
from xarray import DataArray

from xr_tensorfmt.datasets.lazy_array import drop_chunks
from xr_tensorfmt.formats.pycauset import counts
from xr_tensorfmt.formats.pycauset.counts import CausalMatrix, count_bits

__all__ = ["count_between", "interval", "interval_sizes", "links", "popcount"]


def popcount(da: DataArray, dim: Hashable | Iterable[Hashable] | None = None) -> DataArray:
    """Count the elements that are True along dimensions, as ``da.sum(dim)`` does.

    This counts the packed bytes of the file, in bounded memory, if `da` has not been read yet.

    Parameters
    ----------
    da : DataArray
        Of dtype bool.
    dim : hashable or iterable of hashable, optional
        The dimensions to count along; all of them by default.

    Returns
    -------
    DataArray
        Counts of dtype int64, without attributes, in dask chunks if `da` has chunks.

    Raises
    ------
    TypeError, ValueError
        `da` is not a DataArray of dtype bool, or has no such dimension.

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
    values = count_bits(da.variable, [da.get_axis_num(name) for name in summed])
    if values is None:
        return da.sum(summed, keep_attrs=False).astype(np.int64, copy=False)
    dims = [name for name in da.dims if name not in summed]
    coords = {name: coord for name, coord in da.coords.items() if set(coord.dims) <= set(dims)}
    return DataArray(values, coords, dims, da.name)


def count_between(causal: DataArray) -> DataArray:
    """Count the events between every two events: the product of the matrix with itself.

    Parameters
    ----------
    causal : DataArray
        A square matrix of bool. Tasks read its blocks from the file. Other arrays are loaded.

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
    values = CausalMatrix.from_array(causal).map_blocks(counts.count_between, np.int32)
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
    values = CausalMatrix.from_array(causal).map_blocks(counts.find_links, np.bool_)
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
        Element `n` along ``size`` is the number of pairs with `n` events between them.

    Examples
    --------
    >>> from xr_tensorfmt import pycauset, tutorial
    >>> causal = tutorial.open_dataset("causal_set").precedes
    >>> pycauset.interval_sizes(causal)[:4].values
    array([165, 119, 102,  67])
    """
    matrix = CausalMatrix.from_array(causal)
    ones = (1,) * len(matrix.lengths)
    sizes = matrix.map_blocks(counts.count_sizes, np.int64, (ones, ones, (matrix.size,)))
    return DataArray(sizes.sum(axis=(0, 1)), dims="size", name="interval_sizes")


def interval(causal: DataArray, first: int, last: int) -> NDArray[np.int64]:
    """Return the positions of the events between two events.

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
    counts.check_causal(causal)
    try:
        row, column = (index(np.asarray(position)[()]) for position in (first, last))
    except TypeError:
        raise TypeError(
            f"interval({first!r}, {last!r}): a position is an int; find it by a label, as in "
            f"causal.indexes[{causal.dims[0]!r}].get_loc(label)"
        ) from None
    variable = drop_chunks(causal.variable)
    return np.flatnonzero(variable[row].values & variable[:, column].values)
