"""Writing planned files through unfinished ones on the local disk.

Where a chunk alone does not show whether the layout stores all of its values, as the halves of a
symmetric matrix, the whole file is written first. Then every chunk is computed once more and
compared with what a reader sees. That takes twice the time, but only a few chunks of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import dask.config
from dask.delayed import Delayed
from dask.system import CPU_COUNT

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.sources import open_source
from xr_tensorfmt.writing.atomic_file import AtomicFile, Piece
from xr_tensorfmt.writing.file_plan import BlockGrid, FilePlan, Placed, cut_all
from xr_tensorfmt.writing.graph import FileTask, itself, writing


class Comparison(BlockGrid):
    """Blocks that are compared with the content of a file instead of being written to it."""

    def write(self, number: int, values: Array, file: Any) -> None:
        """Compare a block with the file; ValueError where they differ."""
        selection = self.selection(number)
        converted = self.conversion.apply(self.plain(values, selection.shape))
        self.layout.compare(open_source(file.path), selection, converted)


def compare_written(placed: Iterable[Placed], atomic_file: AtomicFile) -> None:
    """Compare variables with the unfinished file that they have been written to."""
    task = FileTask(partial(itself, atomic_file), cut_all(placed, Comparison))
    comparison = writing([task], _nothing)
    # In a thread of its pool, dask would by default use more threads than there are processors.
    workers = dask.config.get("num_workers", None) or CPU_COUNT
    comparison.compute(scheduler="threads", num_workers=workers)  # type: ignore[no-untyped-call]


def _nothing(atomic_files: Sequence[AtomicFile]) -> None:
    del atomic_files


def save_planned(files: Sequence[tuple[FilePlan, AtomicFile]], *, compute: bool) -> Delayed | None:
    """Write planned files through unfinished ones; the last one appears when all are complete."""
    atomic_files = [atomic_file for _, atomic_file in files]
    finish = partial(_finish, [(each.pieces, each.compared) for each, _ in files])
    cuts = [cut_all(each.placed) for each, _ in files]
    if not compute:
        begins = [atomic_file.begin_another for atomic_file in atomic_files]
        return writing(list(map(FileTask, begins, cuts)), finish)

    def discard() -> bool:
        discarded = [atomic_file.discard() for atomic_file in atomic_files]
        return all(discarded)

    with unchanged(atomic_files[-1].target, discard):
        # A task could still run after another one has failed, and leave its file behind.
        begun = [partial(itself, atomic_file.begin()) for atomic_file in atomic_files]
        writing(list(map(FileTask, begun, cuts)), finish).compute()  # type: ignore[no-untyped-call]
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


def _finish(
    contents: Sequence[tuple[Sequence[Piece], Sequence[Placed]]],
    atomic_files: Sequence[AtomicFile],
) -> None:
    for (pieces, compared), atomic_file in zip(contents, atomic_files, strict=True):
        if compared:
            compare_written(compared, atomic_file)
        atomic_file.complete(pieces)
    for atomic_file in atomic_files:
        atomic_file.publish()
