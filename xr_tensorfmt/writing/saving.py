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
from xr_tensorfmt.writing.atomic_file import Draft, Piece, draft_for
from xr_tensorfmt.writing.file_plan import BlockGrid, Blueprint, Placed, Survey, cut_all
from xr_tensorfmt.writing.graph import itself, writing


class Comparison(BlockGrid):
    """Blocks that are compared with what is in a file, in place of being written to it."""

    def write(self, number: int, values: Array, file: Any) -> None:
        """Compare a block with the file; ValueError where the file gives back other values."""
        selection = self.selection(number)
        converted = self.conversion.apply(self.plain(values, selection.shape))
        self.layout.compare(open_source(file.path), selection, converted)


def compare_written(placed: Iterable[Placed], draft: Draft) -> None:
    """Compare variables with the unfinished file that they have been written to.

    This is a computation of its own, within the last task of the writing: as a part of the same
    one, chunks would be kept from the first time on, all of them.
    """
    comparison = writing(cut_all(placed, Comparison), partial(itself, draft), _nothing)
    # Below a thread of its own, dask would take more threads than there are processors.
    workers = dask.config.get("num_workers", None) or CPU_COUNT
    comparison.compute(scheduler="threads", num_workers=workers)  # type: ignore[no-untyped-call]


def _nothing(draft: Draft) -> None:
    del draft


def save(
    blueprint: Blueprint | Survey, path: str, *, replace: bool, compute: bool
) -> Delayed | None:
    """Write a file.

    Parameters
    ----------
    blueprint : Blueprint or Survey
        What it will be, or what tells that.
    path : str
        Where.
    replace : bool
        Whether it may take the place of a file.
    compute : bool
        Whether to do it now.

    Returns
    -------
    Delayed or None
        What writes the file when it is computed, or None if that is done.

    Raises
    ------
    OSError
        The system refuses; what was there before is unchanged.
    """
    target = os.path.abspath(os.path.expanduser(path))
    size = 0 if isinstance(blueprint, Survey) else blueprint.size
    # What can be refused is refused before any value is computed.
    draft = draft_for(target, size, replace=replace)
    if isinstance(blueprint, Survey):
        write = partial(save, path=target, replace=replace, compute=True)
        return after_survey(blueprint, write, compute=compute)
    if not compute:
        return _tasks(blueprint, draft.begin_another)
    with unchanged(path, draft.discard):
        # Not by a task, which could still run after another has failed, and leave its file behind.
        begun = partial(itself, draft.begin())
        _tasks(blueprint, begun).compute()  # type: ignore[no-untyped-call]
    return None


@contextmanager
def unchanged(path: str, discard: Callable[[], bool]) -> Iterator[None]:
    """Say of whatever fails that a file is what it was.

    Parameters
    ----------
    path : str
        The file.
    discard : callable
        Removes what was begun; says whether there was still something.

    Yields
    ------
    None
        While the file is written.
    """
    try:
        yield
    except BaseException as error:
        if discard():
            error.add_note(f"{path} was not written; what was there before is unchanged.")
        raise


def after_survey(
    survey: Survey, write: Callable[[Blueprint], Delayed | None], *, compute: bool
) -> Delayed | None:
    """Look at values, and write what is planned then.

    Parameters
    ----------
    survey : Survey
        What is to be known of the values.
    write : callable
        Writes the file that is planned.
    compute : bool
        Whether to do it now.

    Returns
    -------
    Delayed or None
        A task that does it, on the same threads or workers, or None if that is done.
    """
    if compute:
        write(survey.look())
        return None
    name = f"save-{uuid.uuid4().hex}"
    graph = HighLevelGraph({name: {name: (_look_and_write, survey, write)}}, {name: set()})
    return Delayed(name, graph)  # type: ignore[no-untyped-call]


def _look_and_write(survey: Survey, write: Callable[[Blueprint], Delayed | None]) -> None:
    write(survey.look())


def _tasks(blueprint: Blueprint, begin: Callable[[], Draft]) -> Delayed:
    finish = partial(_finish, blueprint.pieces, blueprint.compared)
    return writing(cut_all(blueprint.placed), begin, finish)


def _finish(pieces: Sequence[Piece], compared: Sequence[Placed], draft: Draft) -> None:
    if compared:
        compare_written(compared, draft)
    draft.finish(pieces)
