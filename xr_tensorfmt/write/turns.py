"""Tasks that dask does about in the order of the file."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph


def in_turn(arrays: Sequence[da.Array], places: Sequence[int]) -> Delayed:
    """Wait for all chunks of some arrays, in an order that dask takes for its own.

    Tasks on which one task depends are done in any order. So each chunk has a task that does
    nothing but follow the one of the chunk before: what the longest chain waits for goes first.
    No chunk itself waits for another, so that all threads are busy.

    Parameters
    ----------
    arrays : sequence of dask array
        The chunks.
    places : sequence of int
        For each chunk, array by array, what it is sorted by.

    Returns
    -------
    Delayed
        None, once all are done.
    """
    keys = [(each.name, *number) for each in arrays for number in np.ndindex(each.numblocks)]
    turns = [keys[number] for number in np.argsort(places, kind="stable")]
    name = f"turn-{uuid.uuid4().hex}"
    graph: dict[Any, Any] = {(name, -1): None}
    for number, key in enumerate(turns):
        graph[name, number] = (_follow, (name, number - 1), key)
    dependencies: Any = arrays
    layers = HighLevelGraph.from_collections(name, graph, dependencies)
    return Delayed((name, len(turns) - 1), layers, layer=name)  # type: ignore[no-untyped-call]


def _follow(before: None, done: Any) -> None:
    del before, done
