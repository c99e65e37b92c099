"""Several passes over an array as one graph of dask, none of which keeps chunks for the next."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.array.optimization import optimize
from dask.core import flatten
from dask.delayed import Delayed
from dask.graph_manipulation import bind
from dask.highlevelgraph import HighLevelGraph
from xarray import Variable

from xr_tensorfmt.write.grid import Chunks


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
    # A name of its own spares dask a pass over all values.
    cut = variable.chunk(
        dict(zip(variable.dims, chunks, strict=True)), from_array_kwargs={"name": False}
    )
    array: da.Array = cut.data
    return array


def after(array: da.Array, parent: Any) -> da.Array:
    """The same array, whose chunks are computed anew, when something else is done.

    Parameters
    ----------
    array : dask array
        The array.
    parent : dask collection or None
        What must come before, if anything.

    Returns
    -------
    dask array
    """
    if parent is None:
        return array
    bound: da.Array = bind(array, parent)  # type: ignore[no-untyped-call]
    return bound


def each_block(array: da.Array, call: Any, dtype: Any, **keywords: Any) -> da.Array:
    """Call something with each block.

    Parameters
    ----------
    array : dask array
        The blocks.
    call : callable
        Gives an array of one element; it is given ``block_id`` too.
    dtype : dtype
        Of that element.
    **keywords
        What else it is given.

    Returns
    -------
    dask array
        An element for each block.
    """
    blocks: Any = array
    made: da.Array = blocks.map_blocks(
        call,
        dtype=dtype,
        chunks=tuple((1,) * len(lengths) for lengths in array.chunks),
        meta=np.empty((0,) * array.ndim, dtype=dtype),
        **keywords,
    )
    return made


def reduced(call: Callable[[Sequence[Any]], Any], array: da.Array) -> Delayed:
    """Call something with all blocks of an array.

    Parameters
    ----------
    call : callable
        Is given the blocks, in C order.
    array : dask array
        The blocks.

    Returns
    -------
    Delayed
        What it gives.
    """
    name = f"reduced-{uuid.uuid4().hex}"
    node: Any = {name: (call, _keys(array))}
    collections: Any = [array]
    graph = HighLevelGraph.from_collections(name, node, dependencies=collections)
    return Delayed(name, graph, layer=name)  # type: ignore[no-untyped-call]


def finished(
    call: Callable[[Any, Sequence[Any]], None], parent: Delayed, array: da.Array
) -> Delayed:
    """Call something when the last pass is done.

    Parameters
    ----------
    call : callable
        Is given what `parent` gives, and all blocks.
    parent : Delayed
        What the last pass has come after.
    array : dask array
        The last pass.

    Returns
    -------
    Delayed
        One graph, optimised as a whole, in which nothing is done twice.
    """
    keys = _keys(array)
    optimized = optimize(array.dask, [*keys, parent.key])  # type: ignore[no-untyped-call]
    name = f"finished-{uuid.uuid4().hex}"
    layers = {name: {**optimized, name: (call, parent.key, keys)}}
    return Delayed(name, HighLevelGraph(layers, {name: set()}))  # type: ignore[no-untyped-call]


def _keys(array: da.Array) -> list[Any]:
    return list(flatten(array.__dask_keys__()))  # type: ignore[no-untyped-call]
