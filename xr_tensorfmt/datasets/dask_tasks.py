"""Values in dask graphs, and references to tasks. Only this module uses private names of dask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask
from dask._task_spec import TaskRef

__all__ = ["TaskRef", "find_values"]


def find_values(array: Any) -> Iterator[Any]:
    """Yield the values in the tasks of a dask array, such as persisted chunks and lazy arrays."""
    graph = dask.optimize(array)[0].dask  # type: ignore[attr-defined,no-untyped-call]
    for node in dict(graph).values():
        yield from _find_values(node)


def _find_values(node: Any) -> Iterator[Any]:
    if isinstance(node, list | tuple):
        for item in node:
            yield from _find_values(item)
    elif isinstance(node, dict):
        yield from _find_values(list(node.values()))
    elif hasattr(node, "func") and hasattr(node, "args"):  # a task
        yield from _find_values([*node.args, *node.kwargs.values()])
    else:
        yield getattr(node, "value", node)
