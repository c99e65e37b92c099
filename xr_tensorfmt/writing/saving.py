"""A second look at what is written, where a chunk alone cannot tell whether the file holds it.

All is written first, and then every chunk is computed once more and compared with what a reader of
the file will see. That takes the time twice, but never more than a few chunks of memory.

"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import dask.config
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.system import CPU_COUNT

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.sources import open_source
from xr_tensorfmt.writing.atomic_file import AtomicFile, Piece, atomic_file_for
from xr_tensorfmt.writing.file_plan import BlockGrid, FilePlan, FirstPass, Placed, cut_all
from xr_tensorfmt.writing.graph import itself, writing


class Comparison(BlockGrid):
    """Blocks that are compared with what is in a file, in place of being written to it."""

    def write(self, number: int, values: Array, file: Any) -> None:
        """Compare a block with the file; ValueError where the file gives back other values."""
        selection = self.selection(number)
        converted = self.conversion.apply(self.plain(values, selection.shape))
        self.layout.compare(open_source(file.path), selection, converted)


def compare_written(placed: Iterable[Placed], atomic_file: AtomicFile) -> None:
    """Compare variables with the unfinished file that they have been written to."""
    comparison = writing(cut_all(placed, Comparison), partial(itself, atomic_file), _nothing)
    # Below a thread of its own, dask would take more threads than there are processors.
    workers = dask.config.get("num_workers", None) or CPU_COUNT
    comparison.compute(scheduler="threads", num_workers=workers)  # type: ignore[no-untyped-call]


def _nothing(atomic_file: AtomicFile) -> None:
    del atomic_file


def save(
    file_plan: FilePlan | FirstPass, path: str, *, replace: bool, compute: bool
) -> Delayed | None:
    """Write a file."""
    target = os.path.abspath(os.path.expanduser(path))
    size = 0 if isinstance(file_plan, FirstPass) else file_plan.size
    # What can be refused is refused before any value is computed.
    atomic_file = atomic_file_for(target, size, replace=replace)
    if isinstance(file_plan, FirstPass):
        write = partial(save, path=target, replace=replace, compute=True)
        return after_first_pass(file_plan, write, compute=compute)
    if not compute:
        return _tasks(file_plan, atomic_file.begin_another)
    with unchanged(path, atomic_file.discard):
        # Not by a task, which could still run after another has failed, and leave its file behind.
        begun = partial(itself, atomic_file.begin())
        _tasks(file_plan, begun).compute()  # type: ignore[no-untyped-call]
    return None


@contextmanager
def unchanged(path: str, discard: Callable[[], bool]) -> Iterator[None]:
    """Say of whatever fails that a file is what it was."""
    try:
        yield
    except BaseException as error:
        if discard():
            error.add_note(f"{path} was not written; what was there before is unchanged.")
        raise


def after_first_pass(
    first_pass: FirstPass, write: Callable[[FilePlan], Delayed | None], *, compute: bool
) -> Delayed | None:
    """Look at values, and write what is planned then."""
    if compute:
        write(first_pass.look())
        return None
    name = f"save-{uuid.uuid4().hex}"
    graph = HighLevelGraph({name: {name: (_look_and_write, first_pass, write)}}, {name: set()})
    return Delayed(name, graph)  # type: ignore[no-untyped-call]


def _look_and_write(first_pass: FirstPass, write: Callable[[FilePlan], Delayed | None]) -> None:
    write(first_pass.look())


def _tasks(file_plan: FilePlan, begin: Callable[[], AtomicFile]) -> Delayed:
    finish = partial(_finish, file_plan.pieces, file_plan.compared)
    return writing(cut_all(file_plan.placed), begin, finish)


def _finish(pieces: Sequence[Piece], compared: Sequence[Placed], atomic_file: AtomicFile) -> None:
    if compared:
        compare_written(compared, atomic_file)
    atomic_file.finish(pieces)
