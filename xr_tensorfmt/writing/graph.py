"""Write blocks: dask chunks by one task each, values in memory in batches."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from errno import ESTALE
from typing import Any, Protocol, TypeVar

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
from xr_tensorfmt.core.layout import EncodedBatch
from xr_tensorfmt.datasets.dask_tasks import TaskRef
from xr_tensorfmt.writing.block_grids import BlockGrid, GriddedVariable, encode_blocks, is_chunked

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

    def check(self) -> None:
        """Raise an error if the file must not be written any longer. Each task calls this."""

    def write(self, batches: Iterator[EncodedBatch]) -> None:
        """Write bytes at their offsets."""


File = TypeVar("File", bound=WriteTarget)

MemoryBlock = tuple[Variable, BlockGrid, int]
"""A variable without dask chunks, its grid, and the index of a block."""


def write_blocks(files: Sequence[tuple[WriteTarget, Sequence[GriddedVariable]]]) -> None:
    """Write all blocks. A cluster writes only dask arrays, this process the others."""
    # Values in memory would fill the memory of the scheduler on their way to workers.
    in_memory = [
        (file, [item for item in grids if not is_chunked(item[0])]) for file, grids in files
    ]
    nbytes = sum(grid.nbytes for _, grids in in_memory for _, grid in grids)
    if nbytes <= MAX_DIRECT_BYTES:
        for file, grids in in_memory:
            for batch in _split_batches(grids):
                write_in_memory(batch, file)
    else:
        is_local = get_scheduler() in (None, dask.threaded.get, dask.local.get_sync)  # type: ignore[no-untyped-call]
        options = {} if is_local else {"scheduler": "threads"}
        plan_tasks(in_memory).compute(**options)  # type: ignore[no-untyped-call]
    chunked = [(file, [item for item in grids if is_chunked(item[0])]) for file, grids in files]
    if any(grids for _, grids in chunked):
        plan_tasks(chunked).compute()  # type: ignore[no-untyped-call]


def plan_tasks(
    files: Sequence[tuple[File | Callable[[], File], Sequence[GriddedVariable]]],
    finish: Callable[[Sequence[File]], object] | None = None,
) -> Delayed:
    """Plan tasks that begin files (of callables), write all blocks, and finish all files."""
    token = uuid.uuid4().hex
    graph: dict[Any, Any] = {}
    arrays: list[Any] = []
    tasks: list[Any] = []
    begun = [f"begin-{token}-{index}" for index in range(len(files))]
    for key, (file, grids) in zip(begun, files, strict=True):
        graph[key] = (file,) if callable(file) else file  # dask converts the tuple to a task
        in_memory = [gridded for gridded in grids if not is_chunked(gridded[0])]
        tasks += [(write_in_memory, batch, key) for batch in _split_batches(in_memory)]
        for variable, grid in grids:
            if is_chunked(variable):
                # Send a large layout to each worker once, as a separate node.
                grid_key = f"blocks-{key}-{len(arrays)}"
                graph[grid_key] = grid
                arrays.append(variable.data)
                # distributed removes the tasks of a persisted array from the graph, and would then
                # pass a plain key on as a value. A TaskRef stays a dependency.
                values = map(TaskRef, flatten(variable.data.__dask_keys__()))  # type: ignore[no-untyped-call]
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
    file.check()
    file.write(grid.encode(block, values))
    return frozenset({file.path})


def write_in_memory(batch: Sequence[MemoryBlock], file: WriteTarget) -> frozenset[str]:
    """Read lazy blocks without keeping them in the variables, and write all blocks."""
    file.check()
    # Read before, because errors of reading are not of writing.
    blocks = [(grid, block, grid.read(variable, block)) for variable, grid, block in batch]
    file.write(encode_blocks(blocks))
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
    """Group small blocks into batches of about one chunk."""
    batch: list[MemoryBlock] = []
    size = 0
    for variable, grid in grids:
        nbytes = grid.nbytes // grid.count
        for block in range(grid.count):
            if batch and size + nbytes > DEFAULT_CHUNK_BYTES:
                yield batch
                batch, size = [], 0
            batch.append((variable, grid, block))
            size += nbytes
    if batch:
        yield batch
