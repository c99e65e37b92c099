"""The writing of variables as a graph of dask: one node a block, none of which is ever gathered."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dask.array.optimization import optimize
from dask.core import flatten
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from xarray import Variable

from xr_tensorfmt.chunks import TARGET
from xr_tensorfmt.elements import Array
from xr_tensorfmt.write.blocks import Blocks, Writable, cut
from xr_tensorfmt.write.blueprint import Placed

Graph = dict[Any, Any]
File = TypeVar("File", bound=Writable)


@dataclass(frozen=True, eq=False)
class HeldBlock:
    """A block of a variable that is not in chunks of dask.

    Parameters
    ----------
    variable : Variable
        Its values, in memory or lazy.
    blocks : Blocks
        Where the whole variable goes.
    number : int
        The block.
    """

    variable: Variable
    blocks: Blocks
    number: int

    @property
    def nbytes(self) -> int:
        """Bytes of its values in memory."""
        return int(self.variable.nbytes)


def writing(
    placed: Iterable[Placed],
    begin: Callable[[], File],
    finish: Callable[[File, Sequence[Any]], Any],
) -> Delayed:
    """Plan to write variables into a file.

    Parameters
    ----------
    placed : iterable of Placed
        The variables.
    begin : callable
        Makes the file, before all else.
    finish : callable
        Is given the file, after all else.

    Returns
    -------
    Delayed
        What writes them when it is computed, and gives what `finish` does.
    """
    begun = f"begin-{uuid.uuid4().hex}"
    file = Delayed(begun, {begun: (begin,)})  # type: ignore[no-untyped-call]
    return each_block((cut(each) for each in placed if each.variable.size), file, finish)


def each_block(
    cuts: Iterable[tuple[Variable, Blocks]],
    file: Delayed,
    finish: Callable[[Any, Sequence[Any]], Any],
) -> Delayed:
    """Plan to do with each block of variables what `Blocks.write` does.

    Parameters
    ----------
    cuts : iterable of (Variable, Blocks)
        The variables, and how each is cut.
    file : Delayed
        Gives the file, before all else.
    finish : callable
        Is given the file, after all else.

    Returns
    -------
    Delayed
        What does it when it is computed, and gives what `finish` does.
    """
    token, begun = uuid.uuid4().hex, file.key
    graph: Graph = {}
    held: list[HeldBlock] = []
    chunked: list[Any] = []
    done: list[Any] = []
    for number, (variable, blocks) in enumerate(cuts):
        if variable.chunks is None:
            held.extend(
                HeldBlock(variable[blocks.part(block)], blocks, block)
                for block in range(blocks.count)
            )
            continue
        chunked.append(variable.data)
        plan = f"blocks-{token}-{number}"
        # A node of its own: what is large in it goes to each worker once.
        graph[plan] = blocks
        for block in range(blocks.count):
            key = (f"write-{token}-{number}", block)
            source = (variable.data.name, *blocks.index(block))
            graph[key] = (write_block, plan, block, source, begun)
            done.append(key)
    for number, batch in enumerate(_batches(held)):
        key = (f"write-{token}", number)
        graph[key] = (write_held, batch, begun)
        done.append(key)
    last = f"finish-{token}"
    graph[last] = (finish, begun, done)
    return _delayed(last, graph, chunked, file)


def write_block(blocks: Blocks, number: int, values: Array, file: Writable) -> None:
    """Write a chunk of dask."""
    blocks.write(number, values, file)


def write_held(batch: Sequence[HeldBlock], file: Writable) -> None:
    """Write blocks one after the other; lazy ones are read as they are written."""
    for each in batch:
        # Of a lazy variable a view, as the variable itself would keep what it has read.
        each.blocks.write(each.number, each.variable[...].values, file)


def _batches(held: Iterable[HeldBlock]) -> Iterator[list[HeldBlock]]:
    """Blocks that together are worth a task."""
    batch: list[HeldBlock] = []
    size = 0
    for each in held:
        if batch and size + each.nbytes > TARGET:
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += each.nbytes
    if batch:
        yield batch


def _delayed(last: str, graph: Graph, chunked: Sequence[Any], file: Delayed) -> Delayed:
    """One graph, optimised as a whole: what several variables need is computed once."""
    arrays = HighLevelGraph.merge(file.dask, *(array.dask for array in chunked))
    keys = list(flatten([array.__dask_keys__() for array in chunked]))  # type: ignore[no-untyped-call]
    optimized = optimize(arrays, [file.key, *keys]) if chunked else file.dask  # type: ignore[no-untyped-call]
    layers = {last: {**graph, **dict(optimized)}}
    return Delayed(last, HighLevelGraph(layers, {last: set()}))  # type: ignore[no-untyped-call]
