"""The tasks in graphs of dask: the one module that uses the private names of dask.

dask has no public names for the classes of its tasks. `tests/test_explain.py` and
`tests/test_write_clusters.py` fail when these change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dask.array
import dask.base
from dask._task_spec import Alias, DataNode, GraphNode, Task, TaskRef, _execute_subgraph
from dask.array.core import getter, getter_inline, getter_nofancy

__all__ = ["TaskRef", "lazy_reads"]

_GETTERS = (getter, getter_inline, getter_nofancy)


def lazy_reads(array: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
    """The selections of lazy arrays that computing a dask array would read."""
    optimised = dask.base.optimize(array)[0]  # type: ignore[no-untyped-call]
    graph = dict(optimised.__dask_graph__())
    for key, node in graph.items():
        block = key[1:] if isinstance(key, tuple) else ()
        yield from ((block, piece) for piece in _chunk_pieces(node, graph))


def _chunk_pieces(node: Any, known: Mapping[Any, Any]) -> Iterator[Any]:
    """The same for one task, and the tasks that dask has fused into it."""
    if isinstance(node, list | tuple):
        for inner_node in node:
            yield from _chunk_pieces(inner_node, known)
    elif isinstance(node, Task) and node.func in _GETTERS:
        array, index = (_value(argument, known) for argument in node.args[:2])
        yield array[index]
    elif isinstance(node, Task) and node.func is _execute_subgraph:
        inner, _, names, *values = node.args
        # Inner names often equal outer ones, so outer values are looked up first.
        outer = [_looked_up(value, known) for value in values]
        within = {**known, **inner, **dict(zip(names, outer, strict=True))}
        yield from _chunk_pieces((*inner.values(), *values), within)
    elif isinstance(node, Task):
        yield from _chunk_pieces((*node.args, *node.kwargs.values()), known)


def _looked_up(node: Any, known: Mapping[Any, Any]) -> Any:
    """The node that a reference refers to; other nodes are returned."""
    if isinstance(node, TaskRef):
        return known[node.key]
    return known[node.target] if isinstance(node, Alias) else node


def _value(node: Any, known: Mapping[Any, Any]) -> Any:
    """The value of an argument that needs no computation."""
    if isinstance(node, TaskRef | Alias):
        return _value(_looked_up(node, known), known)
    if isinstance(node, DataNode):
        return node.value
    return node({}) if isinstance(node, GraphNode) else node
