"""From a Blueprint to a file: one dask graph that begins it, fills it and gives it its name."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

from dask.delayed import Delayed

from xr_tensorfmt.write.blueprint import Blueprint
from xr_tensorfmt.write.draft import Draft, Piece, draft_for
from xr_tensorfmt.write.tasks import writing


def save(blueprint: Blueprint, path: str, *, replace: bool, compute: bool) -> Delayed | None:
    """Write a file.

    Parameters
    ----------
    blueprint : Blueprint
        What it will be.
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
    draft = draft_for(os.path.abspath(path), blueprint.size, uuid.uuid4().hex[:8], replace=replace)
    tasks = _tasks(blueprint, draft)
    if not compute:
        return tasks
    try:
        tasks.compute()  # type: ignore[no-untyped-call]
    except BaseException as error:
        draft.discard()
        error.add_note(f"{path} was not written; what was there before is unchanged.")
        raise
    return None


def _tasks(blueprint: Blueprint, draft: Draft) -> Delayed:
    plan = blueprint.writing or partial(writing, blueprint.placed)
    return plan(draft.begin, partial(_finish, blueprint.pieces))


def _finish(pieces: Sequence[Piece], draft: Draft, done: Sequence[Any]) -> None:
    del done  # what must come before
    draft.finish(pieces)
