"""Writing a planned file to the local disk.

Where a chunk alone does not show whether the layout stores all of its values, as the halves of a
symmetric matrix, the whole file is written first. Then every chunk is computed once more and
compared with what a reader sees. That takes twice the time, but only a few chunks of memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import dask.config
from dask.delayed import Delayed, delayed
from dask.system import CPU_COUNT

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.sources import open_source
from xr_tensorfmt.writing.atomic_file import AtomicFile, Piece, atomic_file_for
from xr_tensorfmt.writing.file_plan import BlockGrid, FilePlan, FirstPass, Placed, cut_all
from xr_tensorfmt.writing.graph import itself, writing


class Comparison(BlockGrid):
    """Blocks that are compared with the content of a file instead of being written to it."""

    def write(self, number: int, values: Array, file: Any) -> None:
        """Compare a block with the file; ValueError where they differ."""
        selection = self.selection(number)
        converted = self.conversion.apply(self.plain(values, selection.shape))
        self.layout.compare(open_source(file.path), selection, converted)


def compare_written(placed: Iterable[Placed], atomic_file: AtomicFile) -> None:
    """Compare variables with the unfinished file that they have been written to."""
    comparison = writing(cut_all(placed, Comparison), partial(itself, atomic_file), _nothing)
    # In a thread of its pool, dask would by default use more threads than there are processors.
    workers = dask.config.get("num_workers", None) or CPU_COUNT
    comparison.compute(scheduler="threads", num_workers=workers)  # type: ignore[no-untyped-call]


def _nothing(atomic_file: AtomicFile) -> None:
    del atomic_file


def save(
    file_plan: FilePlan | FirstPass, path: str, *, replace: bool, compute: bool
) -> Delayed | None:
    """Write a local file."""
    target = os.path.abspath(os.path.expanduser(path))
    size = 0 if isinstance(file_plan, FirstPass) else file_plan.size
    # Errors of the path come before any value is computed.
    atomic_file = atomic_file_for(target, size, replace=replace)
    if isinstance(file_plan, FirstPass):
        write = partial(save, path=target, replace=replace, compute=True)
        return after_first_pass(file_plan, write, compute=compute)
    return save_planned(file_plan, atomic_file, compute=compute)


def save_planned(file_plan: FilePlan, atomic_file: AtomicFile, *, compute: bool) -> Delayed | None:
    """Write a planned file through an unfinished one."""
    finish = partial(_finish, file_plan.pieces, file_plan.compared)
    cuts = cut_all(file_plan.placed)
    if not compute:
        return writing(cuts, atomic_file.begin_another, finish)
    with unchanged(atomic_file.target, atomic_file.discard):
        # A task could still run after another one has failed, and leave its file behind.
        begun = partial(itself, atomic_file.begin())
        writing(cuts, begun, finish).compute()  # type: ignore[no-untyped-call]
    return None


@contextmanager
def unchanged(path: str, discard: Callable[[], bool]) -> Iterator[None]:
    """Discard what was begun when anything fails, and note on the error that it was."""
    try:
        yield
    except BaseException as error:
        if discard():
            error.add_note(f"{path} was not written; what was there before is unchanged.")
        raise


def after_first_pass(
    first_pass: FirstPass, write: Callable[[FilePlan], Delayed | None], *, compute: bool
) -> Delayed | None:
    """Plan a file by a first pass over its values, and write it."""
    if compute:
        write(first_pass.look())
        return None
    # Without traversing, as dask would compute the arrays inside.
    later = delayed(_look_and_write, pure=False, traverse=False)
    return later(first_pass, write)  # type: ignore[no-any-return]


def _look_and_write(first_pass: FirstPass, write: Callable[[FilePlan], Delayed | None]) -> None:
    write(first_pass.look())


def _finish(pieces: Sequence[Piece], compared: Sequence[Placed], atomic_file: AtomicFile) -> None:
    if compared:
        compare_written(compared, atomic_file)
    atomic_file.finish(pieces)
