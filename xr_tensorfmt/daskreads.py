"""What a dask graph would read of lazy arrays, found out without computing any of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dask.base
from dask._task_spec import Alias, DataNode, GraphNode, Task, TaskRef, _execute_subgraph
from dask.array.core import getter, getter_inline, getter_nofancy

_GETTERS = (getter, getter_inline, getter_nofancy)


def lazy_reads(array: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Find every piece of a lazy array that computing a dask array would read.

    Parameters
    ----------
    array : dask.array.Array
        What would be computed; the graph is taken as dask would run it.

    Yields
    ------
    block : tuple of int
        Number of the block that the reading task makes, along each axis.
    piece : object
        The lazy array, indexed as far as it would be.
    """
    optimised = dask.base.optimize(array)[0]  # type: ignore[no-untyped-call]
    graph = dict(optimised.__dask_graph__())
    for key, node in graph.items():
        block = key[1:] if isinstance(key, tuple) else ()
        yield from ((block, piece) for piece in _pieces(node, graph))


def _pieces(node: Any, known: Mapping[Any, Any]) -> Iterator[Any]:
    """Walk through a task and the tasks that dask has put into it."""
    if isinstance(node, list | tuple):
        for each in node:
            yield from _pieces(each, known)
    elif isinstance(node, Task) and node.func in _GETTERS:
        array, index = (_value(each, known) for each in node.args[:2])
        yield array[index]
    elif isinstance(node, Task) and node.func is _execute_subgraph:
        inner, _, names, *values = node.args
        # Names within are often those outside, so that they are looked up before they are bound.
        outer = [_looked_up(each, known) for each in values]
        within = {**known, **inner, **dict(zip(names, outer, strict=True))}
        yield from _pieces((*inner.values(), *values), within)
    elif isinstance(node, Task):
        yield from _pieces((*node.args, *node.kwargs.values()), known)


def _looked_up(node: Any, known: Mapping[Any, Any]) -> Any:
    """What a name stands for; everything else stands for itself."""
    if isinstance(node, TaskRef):
        return known[node.key]
    return known[node.target] if isinstance(node, Alias) else node


def _value(node: Any, known: Mapping[Any, Any]) -> Any:
    """What an argument of a task stands for, if it needs no computing."""
    if isinstance(node, TaskRef | Alias):
        return _value(_looked_up(node, known), known)
    if isinstance(node, DataNode):
        return node.value
    return node({}) if isinstance(node, GraphNode) else node
