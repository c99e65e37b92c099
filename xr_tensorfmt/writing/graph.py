"""The writing of variables as a graph of dask: one node a block, none of which is ever gathered."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from errno import ESTALE
from typing import Any, TypeVar

from dask._task_spec import TaskRef
from dask.array.optimization import optimize
from dask.core import flatten
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from xarray import Variable

from xr_tensorfmt.core.chunk_grid import TARGET
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.writing.file_plan import BlockGrid, Cut, Writable

Graph = dict[Any, Any]
File = TypeVar("File", bound=Writable)


@dataclass(frozen=True, eq=False)
class MemoryBlock:
    """A block of a variable that is not in chunks of dask."""

    variable: Variable
    blocks: BlockGrid
    number: int

    @property
    def nbytes(self) -> int:
        """Bytes of its values in memory."""
        return int(self.variable.nbytes)


def writing(
    cuts: Iterable[Cut],
    begin: Callable[[], File],
    finish: Callable[[File], None],
    *,
    in_turn: bool = False,
) -> Delayed:
    """Plan to write variables into a file."""
    token = uuid.uuid4().hex
    begun = f"begin-{token}"
    graph: Graph = {begun: (begin,)}
    held: list[MemoryBlock] = []
    chunked: list[Any] = []
    places: dict[Any, int] = {}
    for number, (variable, blocks) in enumerate(cuts):
        if variable.chunks is None:
            held.extend(
                MemoryBlock(variable[blocks.part(block)], blocks, block)
                for block in range(blocks.count)
            )
            continue
        chunked.append(variable.data)
        plan = f"blocks-{token}-{number}"
        # A node of its own: what is large in it goes to each worker once.
        graph[plan] = blocks
        for block in range(blocks.count):
            key = (f"write-{token}-{number}", block)
            source = TaskRef((variable.data.name, *blocks.index(block)))
            graph[key] = (write_block, plan, block, source, begun)
            places[key] = _place(blocks, block) if in_turn else 0
    for number, batch in enumerate(_batches(held)):
        key = (f"write-{token}", number)
        graph[key] = (write_in_memory, batch, begun)
        places[key] = _place(batch[0].blocks, batch[0].number) if in_turn else 0
    done = _turns(graph, places, token) if in_turn else list(places)
    last = f"finish-{token}"
    graph[last] = (_finish, finish, begun, done)
    return _delayed(last, graph, chunked)


def itself(file: File) -> File:
    """What begins a file that has been begun already, or is not to be made."""
    return file


def _place(blocks: BlockGrid, number: int) -> int:
    bounds = blocks.bounds(number)
    return bounds[0] if bounds else 0


def _turns(graph: Graph, places: dict[Any, int], token: str) -> list[Any]:
    """Add a chain of tasks, so that dask takes the order of the file for its own."""
    before: Any = None
    for number, key in enumerate(sorted(places, key=places.__getitem__)):
        turn = (f"turn-{token}", number)
        graph[turn] = (_follow, before, key)
        before = turn
    return [before] if places else []


def _follow(
    before: frozenset[Hashable] | None, written: frozenset[Hashable]
) -> frozenset[Hashable]:
    return written | (before or frozenset())


def write_block(
    blocks: BlockGrid, number: int, values: Array, file: Writable
) -> frozenset[Hashable]:
    """Write a chunk of dask; say which file took it."""
    blocks.write(number, values, file)
    return frozenset({file.identity})


def write_in_memory(batch: Sequence[MemoryBlock], file: Writable) -> frozenset[Hashable]:
    """Write blocks one after the other; lazy ones are read as they are written."""
    for each in batch:
        # Of a lazy variable a view, as the variable itself would keep what it has read.
        each.blocks.write(each.number, each.variable[...].values, file)
    return frozenset({file.identity})


def _finish(
    finish: Callable[[File], None], file: File, written: Sequence[frozenset[Hashable]]
) -> None:
    """Finish a file, unless it has gaps."""
    if not frozenset().union(*written) <= {file.identity}:
        reason = (
            "the worker that began it was lost, and with it what others had written; compute it "
            "again; what was there before is unchanged"
        )
        raise OSError(ESTALE, reason, file.target)
    finish(file)


def _batches(held: Iterable[MemoryBlock]) -> Iterator[list[MemoryBlock]]:
    """Blocks that together are worth a task."""
    batch: list[MemoryBlock] = []
    size = 0
    for each in held:
        if batch and size + each.nbytes > TARGET:
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += each.nbytes
    if batch:
        yield batch


def _delayed(last: str, graph: Graph, chunked: Sequence[Any]) -> Delayed:
    """One graph, optimised as a whole: what several variables need is computed once."""
    arrays = HighLevelGraph.merge(*(array.dask for array in chunked))
    keys = list(flatten([array.__dask_keys__() for array in chunked]))  # type: ignore[no-untyped-call]
    optimized = optimize(arrays, keys) if chunked else {}  # type: ignore[no-untyped-call]
    layers = {last: {**graph, **dict(optimized)}}
    return Delayed(last, HighLevelGraph(layers, {last: set()}))  # type: ignore[no-untyped-call]
