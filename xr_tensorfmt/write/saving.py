"""From a Blueprint to a file: one dask graph that begins it, fills it and gives it its name."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from xr_tensorfmt.layouts import Mirrored
from xr_tensorfmt.write.blueprint import Blueprint, Placed, Survey
from xr_tensorfmt.write.draft import Draft, Piece, draft_for
from xr_tensorfmt.write.mirrors import check_mirrored
from xr_tensorfmt.write.tasks import writing


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
    draft = draft_for(target, size, uuid.uuid4().hex[:8], replace=replace)
    if isinstance(blueprint, Survey):
        later = partial(_save_surveyed, blueprint, target, replace)
        return later() if compute else _one_task(later)
    if not compute:
        return _tasks(blueprint, draft.begin)
    try:
        # Not by a task, which could still run after another has failed, and leave its file behind.
        begun = partial(_begun, draft.begin())
        _tasks(blueprint, begun).compute()  # type: ignore[no-untyped-call]
    except BaseException as error:
        if draft.discard():
            error.add_note(f"{path} was not written; what was there before is unchanged.")
        raise
    return None


def _save_surveyed(survey: Survey, path: str, replace: bool) -> None:
    save(survey.look(), path, replace=replace, compute=True)


def _one_task(call: Callable[[], None]) -> Delayed:
    """A task that computes by itself, on the same threads or workers."""
    name = f"save-{uuid.uuid4().hex}"
    graph = HighLevelGraph({name: {name: (call,)}}, {name: set()})
    return Delayed(name, graph)  # type: ignore[no-untyped-call]


def _tasks(blueprint: Blueprint, begin: Callable[[], Draft]) -> Delayed:
    mirrored = [each for each in blueprint.placed if isinstance(each.layout, Mirrored)]
    return writing(blueprint.placed, begin, partial(_finish, blueprint.pieces, mirrored))


def _begun(draft: Draft) -> Draft:
    return draft


def _finish(
    pieces: Sequence[Piece], mirrored: Sequence[Placed], draft: Draft, done: Sequence[Any]
) -> None:
    del done  # what must come before
    if mirrored:
        check_mirrored(mirrored, draft)
    draft.finish(pieces)
