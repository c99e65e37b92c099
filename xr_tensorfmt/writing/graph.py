"""Dask graphs that write files: one task per block, without gathering values."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from errno import ESTALE
from itertools import groupby
from typing import Any, TypeVar

import dask.local
import dask.threaded
from dask.array.optimization import optimize
from dask.base import get_scheduler
from dask.core import flatten
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from xarray import Variable

from xr_tensorfmt.core.chunk_grid import DEFAULT_CHUNK_BYTES
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.datasets.dask_tasks import TaskRef
from xr_tensorfmt.writing.block_grids import BlockGrid, GriddedVariable
from xr_tensorfmt.writing.write_target import WriteTarget

File = TypeVar("File", bound=WriteTarget)

MemoryBlock = tuple[Variable, BlockGrid, int]
"""A part of a variable without dask chunks, the grid, and the index of the block."""


def write_blocks(files: Sequence[tuple[WriteTarget, Sequence[GriddedVariable]]]) -> None:
    """Write all blocks. A cluster writes only dask arrays, threads of this process the others.

    Workers would receive values in memory through the scheduler, which is slow and fills memory.
    """
    if get_scheduler() in (None, dask.threaded.get, dask.local.get_sync):  # type: ignore[no-untyped-call]
        plan_tasks(files).compute()  # type: ignore[no-untyped-call]
        return
    for options, is_chunked in (({"scheduler": "threads"}, False), ({}, True)):
        selected = [
            (file, [gridded for gridded in grids if (gridded[0].chunks is not None) == is_chunked])
            for file, grids in files
        ]
        if any(grids for _, grids in selected):
            plan_tasks(selected).compute(**options)  # type: ignore[no-untyped-call]


def plan_tasks(
    files: Sequence[tuple[File | Callable[[], File], Sequence[GriddedVariable]]],
    finish: Callable[[Sequence[File]], object] | None = None,
) -> Delayed:
    """Plan tasks that begin files, write all blocks, and finish the files together.

    Instead of a file, pass a callable to begin the file in a task.
    """
    token = uuid.uuid4().hex
    graph: dict[Any, Any] = {}
    chunked: list[Any] = []
    writes: list[Any] = []
    begun = [f"begin-{token}-{index}" for index in range(len(files))]
    for key, (file, grids) in zip(begun, files, strict=True):
        graph[key] = (file,) if callable(file) else file  # dask converts the tuple to a task
        for task in _build_tasks(grids, key, chunked, graph):
            writes.append((f"write-{token}", len(writes)))
            graph[writes[-1]] = task
    last = f"finish-{token}"
    graph[last] = (_finish, finish, begun, writes)
    # Optimize all arrays together, to compute shared tasks once.
    arrays = HighLevelGraph.merge(*(array.dask for array in chunked))
    keys = list(flatten([array.__dask_keys__() for array in chunked]))  # type: ignore[no-untyped-call]
    graph |= dict(optimize(arrays, keys)) if chunked else {}  # type: ignore[no-untyped-call]
    return Delayed(last, HighLevelGraph({last: graph}, {last: set()}))  # type: ignore[no-untyped-call]


def _build_tasks(
    grids: Iterable[GriddedVariable],
    begun: str,
    chunked: list[Any],
    graph: dict[Any, Any],
) -> Iterator[Any]:
    """Yield the tasks that write variables, and collect their dask arrays in `chunked`."""
    for is_in_memory, group in groupby(grids, key=lambda gridded: gridded[0].chunks is None):
        if is_in_memory:
            yield from ((write_in_memory, batch, begun) for batch in _split_batches(group))
            continue
        for variable, grid in group:
            # Send a large layout to each worker once, as a separate node.
            grid_key = f"blocks-{begun}-{len(chunked)}"
            graph[grid_key] = grid
            chunked.append(variable.data)
            for block in range(grid.count):
                # distributed removes the tasks of a persisted array from the graph, and would then
                # pass a plain key on as a value. A TaskRef stays a dependency.
                values = TaskRef((variable.data.name, *grid.get_multi_index(block)))
                yield write_block, grid_key, block, values, begun


def write_block(grid: BlockGrid, block: int, values: Array, file: WriteTarget) -> frozenset[str]:
    """Write a dask chunk, and return the path of the temporary file."""
    file.check()
    grid.write(block, values, file)
    return frozenset({file.path})


def write_in_memory(batch: Sequence[MemoryBlock], file: WriteTarget) -> frozenset[str]:
    """Write blocks one by one. Lazy blocks are read when they are written."""
    file.check()
    for part, grid, block in batch:
        # Index a lazy variable, because the variable itself would cache the values.
        grid.write(block, part[...].values, file)
    return frozenset({file.path})


def _finish(
    finish: Callable[[Sequence[File]], object] | None,
    files: Sequence[File],
    written: Sequence[frozenset[str]],
) -> None:
    """Finish files, unless blocks were written to other temporary files."""
    if not frozenset().union(*written) <= {file.path for file in files}:
        reason = (
            "a worker was lost after other workers had written their blocks; compute it "
            "again; the target is unchanged"
        )
        raise OSError(ESTALE, reason, files[-1].target)
    if finish is not None:
        finish(files)


def _split_batches(grids: Iterable[GriddedVariable]) -> Iterator[list[MemoryBlock]]:
    """Group small blocks into tasks of about one chunk."""
    batch: list[MemoryBlock] = []
    size = 0
    for variable, grid in grids:
        for block in range(grid.count):
            part = variable[grid.get_slices(block)]
            if batch and size + part.nbytes > DEFAULT_CHUNK_BYTES:
                yield batch
                batch, size = [], 0
            batch.append((part, grid, block))
            size += part.nbytes
    if batch:
        yield batch
