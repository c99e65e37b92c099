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

from xr_tensorfmt.core.chunk_grid import DEFAULT_CHUNK_BYTES
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.datasets.dask_tasks import TaskRef
from xr_tensorfmt.sources import open_source
from xr_tensorfmt.writing.block_grids import BlockGrid, GriddedVariable, build_block_grids
from xr_tensorfmt.writing.file_plan import PlannedVariable
from xr_tensorfmt.writing.write_target import WriteTarget

File = TypeVar("File", bound=WriteTarget)

Use = Callable[[BlockGrid, int, Any, WriteTarget], None]
"""Writes a block of some number to a file, or compares the block with the file."""

MemoryBlock = tuple[Variable, BlockGrid, int]
"""A part of a variable that is not in chunks of dask, and the block that it is."""


def compare(file: WriteTarget, variables: Iterable[PlannedVariable]) -> None:
    """Compute variables once more, and compare them with the file; ValueError where they differ.

    A chunk alone may not show that all of its values are stored, as half of a symmetric matrix is.
    """
    # In a thread of its pool, dask would by default use more threads than there are CPUs.
    workers = dask.config.get("num_workers", None) or CPU_COUNT
    tasks = plan_tasks([(file, build_block_grids(variables))], use=compare_block)
    tasks.compute(scheduler="threads", num_workers=workers)  # type: ignore[no-untyped-call]


def compare_block(blocks: BlockGrid, number: int, values: Any, file: WriteTarget) -> None:
    """Compare a block with the file; ValueError if they differ."""
    blocks.layout.compare(open_source(file.path), *blocks.convert(number, values))


def plan_tasks(
    files: Sequence[tuple[File | Callable[[], File], Sequence[GriddedVariable]]],
    finish: Callable[[Sequence[File]], object] | None = None,
    *,
    use: Use = BlockGrid.write,
) -> Delayed:
    """Plan to begin files, write all blocks of variables, and finish the files together.

    A file has begun, or is a callable that begins it.
    """
    token = uuid.uuid4().hex
    graph: dict[Any, Any] = {}
    chunked: list[Any] = []
    writes: list[Any] = []
    begun = [f"begin-{token}-{number}" for number in range(len(files))]
    for key, (file, grids) in zip(begun, files, strict=True):
        graph[key] = (file,) if callable(file) else file
        for task in _tasks(grids, key, use, chunked, graph):
            writes.append((f"write-{token}", len(writes)))
            graph[writes[-1]] = task
    last = f"finish-{token}"
    graph[last] = (_finish, finish, begun, writes)
    # Optimised as a whole, so that what several variables need is computed once.
    arrays = HighLevelGraph.merge(*(array.dask for array in chunked))
    keys = list(flatten([array.__dask_keys__() for array in chunked]))  # type: ignore[no-untyped-call]
    graph |= dict(optimize(arrays, keys)) if chunked else {}  # type: ignore[no-untyped-call]
    return Delayed(last, HighLevelGraph({last: graph}, {last: set()}))  # type: ignore[no-untyped-call]


def _tasks(
    grids: Iterable[GriddedVariable],
    begun: str,
    use: Use,
    chunked: list[Any],
    graph: dict[Any, Any],
) -> Iterator[Any]:
    """Yield the tasks that write variables, in their order, and add their arrays to a list."""
    for in_memory, group in groupby(grids, key=lambda grid: grid[0].chunks is None):
        if in_memory:
            yield from ((write_in_memory, use, batch, begun) for batch in _batches(group))
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
                yield write_block, use, grid, block, source, begun


def write_block(
    use: Use, blocks: BlockGrid, number: int, values: Array, file: WriteTarget
) -> frozenset[str]:
    """Write a chunk of dask, and return the path of the unfinished file."""
    use(blocks, number, values, file)
    return frozenset({file.path})


def write_in_memory(use: Use, batch: Sequence[MemoryBlock], file: WriteTarget) -> frozenset[str]:
    """Write blocks one after the other; lazy ones are read as they are written."""
    for part, blocks, number in batch:
        # Indexing makes a copy of a lazy variable, since the variable keeps what it has read.
        use(blocks, number, part[...].values, file)
    return frozenset({file.path})


def _finish(
    finish: Callable[[Sequence[File]], object] | None,
    files: Sequence[File],
    written: Sequence[frozenset[str]],
) -> None:
    """Finish files, unless some blocks were written to others."""
    if not frozenset().union(*written) <= {file.path for file in files}:
        reason = (
            "the worker that began it was lost, and with it what others had written; compute it "
            "again; the target is unchanged"
        )
        raise OSError(ESTALE, reason, files[-1].target)
    if finish is not None:
        finish(files)


def _batches(grids: Iterable[GriddedVariable]) -> Iterator[list[MemoryBlock]]:
    """Group small blocks, so that each task has enough to do."""
    batch: list[MemoryBlock] = []
    size = 0
    for variable, blocks in grids:
        for number in range(blocks.count):
            part = variable[blocks.part(number)]
            if batch and size + part.nbytes > DEFAULT_CHUNK_BYTES:
                yield batch
                batch, size = [], 0
            batch.append((part, blocks, number))
            size += part.nbytes
    if batch:
        yield batch
