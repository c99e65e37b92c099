"""From a Blueprint to a file: one dask graph that begins it, fills it and gives it its name."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from xr_tensorfmt.write.blocks import cut_all
from xr_tensorfmt.write.blueprint import Blueprint, Placed, Survey
from xr_tensorfmt.write.comparing import compare_written
from xr_tensorfmt.write.draft import Draft, Piece, draft_for
from xr_tensorfmt.write.tasks import itself, writing


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
