"""Tasks in dask graphs. Only this module uses private names of dask.

dask has no public names for the classes of its tasks. Tests notice if the names disappear.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import dask.base
from dask._task_spec import Alias, DataNode, GraphNode, Task, TaskRef
from dask.array.core import getter, getter_inline, getter_nofancy
from dask.core import flatten, get_dependencies

__all__ = ["TaskRef", "find_lazy_reads", "find_values"]

_GETTERS = (getter, getter_inline, getter_nofancy)


def find_lazy_reads(array: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yield the chunk index and the lazy selection of every read of a dask array."""
    optimised = dask.base.optimize(array)[0]  # type: ignore[no-untyped-call]
    graph = dict(optimised.__dask_graph__())
    keys = flatten(optimised.__dask_keys__())  # type: ignore[no-untyped-call]
    needed = _find_needed_keys(graph, keys)
    for key, node in graph.items():
        if key in needed:
            chunk = key[1:] if isinstance(key, tuple) else ()
            yield from ((chunk, selection) for selection in _find_selections(node, graph))


def find_values(array: Any) -> Iterator[Any]:
    """Yield the values in the graph of a dask array, such as persisted chunks."""
    for node in dict(array.__dask_graph__()).values():
        yield node.value if isinstance(node, DataNode) else node


def _find_needed_keys(graph: Mapping[Any, Any], keys: Iterable[Any]) -> set[Any]:
    """Return the keys of tasks that are needed. `cull` of dask needs the tasks of all keys."""
    needed: set[Any] = set()
    remaining = list(keys)
    while remaining:
        key = remaining.pop()
        if key in graph and key not in needed:
            needed.add(key)
            remaining += get_dependencies(graph, key)
    return needed


def _find_selections(node: Any, graph: Mapping[Any, Any]) -> Iterator[Any]:
    """Yield the lazy selections of a task and of the tasks that dask fused into it."""
    # Writers import this module too, and do not need this function.
    from dask._task_spec import _execute_subgraph  # noqa: PLC0415

    if isinstance(node, list | tuple):
        for inner_node in node:
            yield from _find_selections(inner_node, graph)
    elif isinstance(node, Task) and node.func in _GETTERS:
        array, index = (_get_value(argument, graph) for argument in node.args[:2])
        yield array[index]
    elif isinstance(node, Task) and node.func is _execute_subgraph:
        # The order of dask 2025.4 to 2026: the tasks, the key of the result, names, their values.
        inner, _, names, *values = node.args
        # Look up outer values first, because inner names often equal outer ones.
        outer = [_dereference(value, graph) for value in values]
        subgraph = {**graph, **inner, **dict(zip(names, outer, strict=True))}
        yield from _find_selections((*inner.values(), *values), subgraph)
    elif isinstance(node, Task):
        yield from _find_selections((*node.args, *node.kwargs.values()), graph)


def _dereference(node: Any, graph: Mapping[Any, Any]) -> Any:
    """Return the target of a reference, or the node itself."""
    if isinstance(node, TaskRef):
        return graph[node.key]
    return graph[node.target] if isinstance(node, Alias) else node


def _get_value(node: Any, graph: Mapping[Any, Any]) -> Any:
    """Return the value of an argument that needs no computation."""
    if isinstance(node, TaskRef | Alias):
        return _get_value(_dereference(node, graph), graph)
    if isinstance(node, DataNode):
        return node.value
    return node({}) if isinstance(node, GraphNode) else node
