"""A look at all values of a variable, block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
from xarray import Variable

from xr_tensorfmt.elements import Array
from xr_tensorfmt.lazyarray import held
from xr_tensorfmt.write.grid import Chunks


class Uncopied:
    """An array as dask slices it without a copy of its own, which it makes of numpy's.

    Parameters
    ----------
    values : ndarray
        The array; one value, repeated in all of it, takes no memory.
    """

    def __init__(self, values: Array) -> None:
        self._values = values
        self.shape = values.shape
        self.ndim = values.ndim
        self.dtype = values.dtype

    def __getitem__(self, key: Any) -> Array:
        """A view of a part."""
        part: Array = self._values[key]
        return part


def as_dask(variable: Variable, chunks: Chunks) -> da.Array:
    """A variable as an array of dask; what is lazy is read by chunks.

    Parameters
    ----------
    variable : Variable
        In chunks, in memory, or lazy.
    chunks : tuple of tuple of int
        The chunks to be.

    Returns
    -------
    dask array
    """
    values = held(variable)
    if isinstance(values, np.ndarray):
        uncopied: da.Array = da.from_array(Uncopied(values), chunks, name=False)  # type: ignore[no-untyped-call]
        return uncopied
    # A name of its own spares dask a pass over all values.
    cut = variable.chunk(
        dict(zip(variable.dims, chunks, strict=True)), from_array_kwargs={"name": False}
    )
    array: da.Array = cut.data
    return array


def each_block(
    call: Callable[..., Any], dtype: Any, array: da.Array, *others: da.Array, **keywords: Any
) -> da.Array:
    """Call something with each block of an array.

    Parameters
    ----------
    call : callable
        Is given a block, those of the other arrays at the same place, and ``block_id``; it gives
        an array of one element.
    dtype : dtype
        Of that element.
    array : dask array
        The array.
    *others : dask array
        Cut like it.
    **keywords
        What else `call` is given.

    Returns
    -------
    dask array
        An element for each block.
    """
    blocks: Any = da
    made: da.Array = blocks.map_blocks(
        call,
        array,
        *others,
        dtype=dtype,
        chunks=tuple((1,) * len(lengths) for lengths in array.chunks),
        meta=np.empty((0,) * array.ndim, dtype=dtype),
        **keywords,
    )
    return made
