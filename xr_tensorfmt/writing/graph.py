"""The writing of variables as a graph of dask: one task for each block, and nothing is gathered."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from errno import ESTALE
from typing import Any, Generic, TypeVar

from dask.array.optimization import optimize
from dask.core import flatten
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from xarray import Variable

from xr_tensorfmt.core.chunk_grid import TARGET
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.datasets.dask_tasks import TaskRef
from xr_tensorfmt.writing.file_plan import BlockGrid, Cut, Writable

Graph = dict[Any, Any]
File = TypeVar("File", bound=Writable)


@dataclass(frozen=True, eq=False)
class MemoryBlock:
    """A block of a variable that is not in chunks of dask."""

    variable: Variable
    blocks: BlockGrid
    number: int


@dataclass(frozen=True, eq=False)
class FileTask(Generic[File]):
    """A file that is written: how it begins, and the variables in it."""

    begin: Callable[[], File]
    cuts: Sequence[Cut] = ()


def writing(
    files: Sequence[FileTask[File]],
    finish: Callable[[Sequence[File]], None],
    *,
    in_turn: bool = False,
) -> Delayed:
    """Plan to begin files, write all blocks of variables, and finish the files together.

    With `in_turn`, the blocks are written about in the order of the files.
    """
    token = uuid.uuid4().hex
    graph: Graph = {}
    chunked: list[Any] = []
    offsets: dict[Any, tuple[int, int]] = {}
    begun = [f"begin-{token}-{number}" for number in range(len(files))]
    for number, file in enumerate(files):
        graph[begun[number]] = (file.begin,)
        for key, task, block in _tasks(file.cuts, begun[number], f"{token}-{number}", chunked):
            graph[key] = task
            if block is not None:
                offsets[key] = (number, _offset(*block) if in_turn else 0)
    done = _turns(graph, offsets, token) if in_turn else list(offsets)
    last = f"finish-{token}"
    graph[last] = (_finish, finish, begun, done)
    return _delayed(last, graph, chunked)


def _tasks(
    cuts: Iterable[Cut], begun: str, token: str, chunked: list[Any]
) -> Iterator[tuple[Any, Any, tuple[BlockGrid, int] | None]]:
    """Keys and tasks of a graph, and the first block that a task writes; of all arrays a list."""
    in_memory: list[MemoryBlock] = []
    for number, (variable, blocks) in enumerate(cuts):
        if variable.chunks is None:
            in_memory.extend(
                MemoryBlock(variable[blocks.part(block)], blocks, block)
                for block in range(blocks.count)
            )
            continue
        chunked.append(variable.data)
        grid = f"blocks-{token}-{number}"
        # A node of its own: a large layout goes to each worker once.
        yield grid, blocks, None
        for block in range(blocks.count):
            key = (f"write-{token}-{number}", block)
            # A plain key would not be replaced by the values of an array that is persisted on a
            # cluster, since distributed takes those out of the graph first.
            source = TaskRef((variable.data.name, *blocks.index(block)))
            yield key, (write_block, grid, block, source, begun), (blocks, block)
    for number, batch in enumerate(_batches(in_memory)):
        task = (write_in_memory, batch, begun)
        yield (f"write-{token}", number), task, (batch[0].blocks, batch[0].number)


def itself(file: File) -> File:
    """Return a file: what begins one that exists already."""
    return file


def _offset(blocks: BlockGrid, number: int) -> int:
    bounds = blocks.bounds(number)
    return bounds[0] if bounds else 0


def _turns(graph: Graph, offsets: dict[Any, tuple[int, int]], token: str) -> list[Any]:
    """Add a chain of tasks that makes dask compute blocks about in the order of the files."""
    before: Any = None
    for number, key in enumerate(sorted(offsets, key=offsets.__getitem__)):
        turn = (f"turn-{token}", number)
        graph[turn] = (_follow, before, key)
        before = turn
    return [before] if offsets else []


def _follow(
    before: frozenset[Hashable] | None, written: frozenset[Hashable]
) -> frozenset[Hashable]:
    return written | (before or frozenset())


def write_block(
    blocks: BlockGrid, number: int, values: Array, file: Writable
) -> frozenset[Hashable]:
    """Write a chunk of dask; returns the identity of the file."""
    blocks.write(number, values, file)
    return frozenset({file.identity})


def write_in_memory(batch: Sequence[MemoryBlock], file: Writable) -> frozenset[Hashable]:
    """Write blocks one after the other; lazy ones are read as they are written."""
    for each in batch:
        # Indexing makes a copy of a lazy variable, since the variable keeps what it has read.
        each.blocks.write(each.number, each.variable[...].values, file)
    return frozenset({file.identity})


def _finish(
    finish: Callable[[Sequence[File]], None],
    files: Sequence[File],
    written: Sequence[frozenset[Hashable]],
) -> None:
    """Finish files, unless some blocks were written to others."""
    if not frozenset().union(*written) <= {file.identity for file in files}:
        reason = (
            "the worker that began it was lost, and with it what others had written; compute it "
            "again; what was there before is unchanged"
        )
        raise OSError(ESTALE, reason, files[-1].target)
    finish(files)


def _batches(blocks: Iterable[MemoryBlock]) -> Iterator[list[MemoryBlock]]:
    """Group small blocks, so that each task has enough to do."""
    batch: list[MemoryBlock] = []
    size = 0
    for block in blocks:
        if batch and size + block.variable.nbytes > TARGET:
            yield batch
            batch, size = [], 0
        batch.append(block)
        size += block.variable.nbytes
    if batch:
        yield batch


def _delayed(last: str, graph: Graph, chunked: Sequence[Any]) -> Delayed:
    """One graph, optimised as a whole, so that what several variables need is computed once."""
    arrays = HighLevelGraph.merge(*(array.dask for array in chunked))
    keys = list(flatten([array.__dask_keys__() for array in chunked]))  # type: ignore[no-untyped-call]
    optimized = optimize(arrays, keys) if chunked else {}  # type: ignore[no-untyped-call]
    layers = {last: {**graph, **dict(optimized)}}
    return Delayed(last, HighLevelGraph(layers, {last: set()}))  # type: ignore[no-untyped-call]
