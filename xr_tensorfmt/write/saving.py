"""From a Blueprint to a file: one dask graph that begins it, fills it and gives it its name."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import dask.array as da
from dask.base import optimize
from dask.delayed import Delayed, delayed

from xr_tensorfmt.write.blocks import written
from xr_tensorfmt.write.blueprint import Blueprint
from xr_tensorfmt.write.draft import Draft, Piece, draft_for


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
    computed(tasks, path, draft.discard)
    return None


def computed(tasks: Delayed, path: str, discard: Callable[[], None]) -> None:
    """Write now.

    Parameters
    ----------
    tasks : Delayed
        What writes.
    path : str
        The file, for errors.
    discard : callable
        What removes an unfinished one.
    """
    try:
        tasks.compute()  # type: ignore[no-untyped-call]
    except BaseException as error:
        discard()
        error.add_note(f"{path} was not written; what was there before is unchanged.")
        raise


def _tasks(blueprint: Blueprint, draft: Draft) -> Delayed:
    begun = delayed(_begin, pure=False)(draft)
    arrays = [written(each, begun) for each in blueprint.placed]
    tasks: Delayed = delayed(_finish, pure=False)(begun, blueprint.pieces, together(arrays))
    return tasks


def together(arrays: Iterable[da.Array | None]) -> tuple[da.Array, ...]:
    """Optimise the tasks of several arrays at once, so that what they share is done once."""
    return tuple(optimize(*(each for each in arrays if each is not None)))  # type: ignore[no-untyped-call]


def _begin(draft: Draft) -> Draft:
    return draft.begin()


def _finish(draft: Draft, pieces: Sequence[Piece], done: Any) -> None:
    del done  # what must come before
    draft.finish(pieces)
