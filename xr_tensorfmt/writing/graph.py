"""Write blocks: dask chunks by one task each, values in memory in batches."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from errno import ESTALE
from itertools import chain
from typing import Any, Protocol, TypeVar

import dask.local
import dask.threaded
from dask.array.optimization import optimize
from dask.base import get_scheduler
from dask.core import flatten
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from xr_tensorfmt.core.chunk_grid import DEFAULT_CHUNK_BYTES
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.layout import EncodedBatch
from xr_tensorfmt.datasets.dask_tasks import TaskRef
from xr_tensorfmt.writing.block_grids import BlockGrid, Blocks

MAX_DIRECT_BYTES = 4 * DEFAULT_CHUNK_BYTES
"""A scheduler takes longer than one thread to write fewer bytes."""


class WriteTarget(Protocol):
    """A file that several threads or processes write in any order."""

    @property
    def target(self) -> str:
        """Path or URL of the complete file."""

    @property
    def path(self) -> str:
        """Path of the unfinished file."""

    def write(self, batches: Iterator[EncodedBatch]) -> None:
        """Write bytes at their offsets. Raise an error if the file was replaced."""


File = TypeVar("File", bound=WriteTarget)


def write_blocks(files: Sequence[tuple[WriteTarget, Sequence[Blocks]]]) -> None:
    """Write all blocks. A cluster writes only dask arrays, this process the others."""
    # Values in memory would fill the memory of the scheduler on their way to workers.
    in_memory = [(file, [item for item in all_ if not item.is_chunked]) for file, all_ in files]
    nbytes = sum(item.nbytes for _, items in in_memory for item in items)
    if nbytes <= MAX_DIRECT_BYTES:
        for file, items in in_memory:
            for batch in _split_batches(items):
                write_in_memory(batch, file)
    else:
        is_local = get_scheduler() in (None, dask.threaded.get, dask.local.get_sync)  # type: ignore[no-untyped-call]
        options = {} if is_local else {"scheduler": "threads"}
        plan_tasks(in_memory).compute(**options)  # type: ignore[no-untyped-call]
    chunked = [(file, [item for item in all_ if item.is_chunked]) for file, all_ in files]
    if any(items for _, items in chunked):
        plan_tasks(chunked).compute()  # type: ignore[no-untyped-call]


def plan_tasks(
    files: Sequence[tuple[File | Callable[[], File], Sequence[Blocks]]],
    finish: Callable[[Sequence[File]], object] | None = None,
) -> Delayed:
    """Plan tasks that begin files (of callables), write all blocks, and finish all files."""
    token = uuid.uuid4().hex
    graph: dict[Any, Any] = {}
    arrays: list[Any] = []
    tasks: list[Any] = []
    begun = [f"begin-{token}-{index}" for index in range(len(files))]
    for key, (file, items) in zip(begun, files, strict=True):
        graph[key] = (file,) if callable(file) else file  # dask converts the tuple to a task
        tasks += [(write_in_memory, batch, key) for batch in _split_batches(items)]
        for grid in items:
            if isinstance(grid, BlockGrid) and grid.is_chunked:
                # Send a large layout to each worker once, as a separate node.
                grid_key = f"blocks-{key}-{len(arrays)}"
                graph[grid_key] = replace(grid, variable=None)
                arrays.append(grid.variable.data)
                # distributed removes the tasks of a persisted array from the graph, and would then
                # pass a plain key on as a value. A TaskRef stays a dependency.
                values = map(TaskRef, flatten(arrays[-1].__dask_keys__()))  # type: ignore[no-untyped-call]
                tasks += [(write_block, grid_key, *item, key) for item in enumerate(values)]
    writes = {(f"write-{token}", number): task for number, task in enumerate(tasks)}
    last = f"finish-{token}"
    graph |= writes | {last: (_finish, finish, begun, list(writes))}
    graph |= _optimize(arrays)
    return Delayed(last, HighLevelGraph({last: graph}, {last: set()}))  # type: ignore[no-untyped-call]


def _optimize(arrays: Sequence[Any]) -> dict[Any, Any]:
    """Return the tasks of dask arrays, optimized together to compute shared tasks once."""
    graph: dict[Any, Any] = {}
    for array in arrays:
        if len(array.dask.layers) == 1:  # values in memory, for which dask takes quadratic time
            graph |= array.dask
    if computed := [array for array in arrays if len(array.dask.layers) > 1]:
        merged = HighLevelGraph.merge(*(array.dask for array in computed))
        keys = list(flatten([array.__dask_keys__() for array in computed]))  # type: ignore[no-untyped-call]
        graph |= optimize(merged, keys)  # type: ignore[no-untyped-call]
    return graph


def write_block(grid: BlockGrid, block: int, values: Array, file: WriteTarget) -> frozenset[str]:
    """Write a dask chunk, and return the path of the temporary file."""
    file.write(grid.encode(block, values))
    return frozenset({file.path})


def write_in_memory(batch: Sequence[tuple[Blocks, int]], file: WriteTarget) -> frozenset[str]:
    """Read lazy blocks without keeping them in the variables, and write all blocks."""
    # Read before, because errors of reading are not of writing.
    values = [blocks.read(block) for blocks, block in batch]
    pairs: Any = zip(batch, values, strict=True)
    file.write(chain.from_iterable(blocks.encode(block, v) for (blocks, block), v in pairs))
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


def _split_batches(items: Iterable[Blocks]) -> Iterator[list[tuple[Blocks, int]]]:
    """Group small blocks of values in memory into batches of about one chunk."""
    batch: list[tuple[Blocks, int]] = []
    size = 0
    for blocks in items:
        nbytes = blocks.nbytes // blocks.count
        for block in range(0 if blocks.is_chunked else blocks.count):
            if batch and size + nbytes > DEFAULT_CHUNK_BYTES:
                yield batch
                batch, size = [], 0
            batch.append((blocks, block))
            size += nbytes
    if batch:
        yield batch
