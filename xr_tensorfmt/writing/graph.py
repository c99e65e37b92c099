"""The writing of files as a graph of dask: one task for each block, and nothing is gathered."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from errno import ESTALE
from itertools import groupby
from typing import Any, TypeVar

import dask.config
from dask.array.optimization import optimize
from dask.core import flatten
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.system import CPU_COUNT
from xarray import Variable

from xr_tensorfmt.core.chunk_grid import TARGET
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.datasets.dask_tasks import TaskRef
from xr_tensorfmt.sources import open_source
from xr_tensorfmt.writing.file_plan import BlockGrid, Cut, Placed, Writable, cut_all

File = TypeVar("File", bound=Writable)


MemoryBlock = tuple[Variable, BlockGrid, int]
"""A part of a variable that is not in chunks of dask, and the block that it is."""


class Comparison(BlockGrid):
    """Blocks that are compared with the content of a file instead of being written to it."""

    def write(self, number: int, values: Any, file: Writable) -> None:
        """Compare a block with the file; ValueError where they differ."""
        self.layout.compare(open_source(file.path), *self.converted(number, values))


def compare(file: Writable, placed: Iterable[Placed]) -> None:
    """Compute variables once more, and compare them with the file; ValueError where they differ.

    A chunk alone may not show that all of its values are stored, as half of a symmetric matrix is.
    """
    cuts = [
        (variable, Comparison(each.layout, each.conversion, each.chunks, each.origin))
        for variable, each in cut_all(placed)
    ]
    # In a thread of its pool, dask would by default use more threads than there are CPUs.
    workers = dask.config.get("num_workers", None) or CPU_COUNT
    writing([(file, cuts)], len).compute(scheduler="threads", num_workers=workers)  # type: ignore[no-untyped-call]


def writing(
    files: Sequence[tuple[File | Callable[[], File], Sequence[Cut]]],
    finish: Callable[[Sequence[File]], object],
    *,
    in_order: bool = False,
) -> Delayed:
    """Plan to begin files, write all blocks of variables, and finish the files together.

    A file is one that has begun, or what begins it. Blocks can be written about in their order.
    """
    token = uuid.uuid4().hex
    graph: dict[Any, Any] = {}
    chunked: list[Any] = []
    writes: list[Any] = []
    begun = [f"begin-{token}-{number}" for number in range(len(files))]
    for key, (file, cuts) in zip(begun, files, strict=True):
        graph[key] = (file,) if callable(file) else file
        for task in _tasks(cuts, key, chunked, graph):
            writes.append((f"write-{token}", len(writes)))
            graph[writes[-1]] = task
    if in_order:
        writes = _in_turn(graph, writes, token)
    last = f"finish-{token}"
    graph[last] = (_finish, finish, begun, writes)
    # Optimised as a whole, so that what several variables need is computed once.
    arrays = HighLevelGraph.merge(*(array.dask for array in chunked))
    keys = list(flatten([array.__dask_keys__() for array in chunked]))  # type: ignore[no-untyped-call]
    graph |= dict(optimize(arrays, keys)) if chunked else {}  # type: ignore[no-untyped-call]
    return Delayed(last, HighLevelGraph({last: graph}, {last: set()}))  # type: ignore[no-untyped-call]


def _tasks(
    cuts: Iterable[Cut], begun: str, chunked: list[Any], graph: dict[Any, Any]
) -> Iterator[Any]:
    """The tasks that write variables, in their order; of all arrays a list."""
    for in_memory, group in groupby(cuts, key=lambda cut: cut[0].chunks is None):
        if in_memory:
            yield from ((write_in_memory, batch, begun) for batch in _batches(group))
            continue
        for variable, blocks in group:
            # A node of its own: a large layout goes to each worker once.
            grid = f"blocks-{begun}-{len(chunked)}"
            graph[grid] = blocks
            chunked.append(variable.data)
            for block in range(blocks.count):
                # A plain key would not be replaced by the values of an array that is persisted on
                # a cluster, since distributed takes those out of the graph first.
                source = TaskRef((variable.data.name, *blocks.index(block)))
                yield write_block, grid, block, source, begun


def _in_turn(graph: dict[Any, Any], writes: Sequence[Any], token: str) -> list[Any]:
    """Add a chain of tasks that makes dask write blocks about in the order of the files."""
    chain: list[Any] = []
    for number, key in enumerate(writes):
        graph[f"turn-{token}", number] = (frozenset.union, key, *chain)
        chain = [(f"turn-{token}", number)]
    return chain


def write_block(blocks: BlockGrid, number: int, values: Array, file: Writable) -> frozenset[str]:
    """Write a chunk of dask; returns where the file is written."""
    blocks.write(number, values, file)
    return frozenset({file.path})


def write_in_memory(batch: Sequence[MemoryBlock], file: Writable) -> frozenset[str]:
    """Write blocks one after the other; lazy ones are read as they are written."""
    for part, blocks, number in batch:
        # Indexing makes a copy of a lazy variable, since the variable keeps what it has read.
        blocks.write(number, part[...].values, file)
    return frozenset({file.path})


def _finish(
    finish: Callable[[Sequence[File]], object],
    files: Sequence[File],
    written: Sequence[frozenset[str]],
) -> None:
    """Finish files, unless some blocks were written to others."""
    if not frozenset().union(*written) <= {file.path for file in files}:
        reason = (
            "the worker that began it was lost, and with it what others had written; compute it "
            "again; what was there before is unchanged"
        )
        raise OSError(ESTALE, reason, files[-1].target)
    finish(files)


def _batches(cuts: Iterable[Cut]) -> Iterator[list[MemoryBlock]]:
    """Group small blocks, so that each task has enough to do."""
    batch: list[MemoryBlock] = []
    size = 0
    for variable, blocks in cuts:
        for number in range(blocks.count):
            part = variable[blocks.part(number)]
            if batch and size + part.nbytes > TARGET:
                yield batch
                batch, size = [], 0
            batch.append((part, blocks, number))
            size += part.nbytes
    if batch:
        yield batch
