"""Write planned files to local paths and stores."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import dask.config
from dask.delayed import Delayed

from xr_tensorfmt.sources.locations import Location
from xr_tensorfmt.writing.atomic_file import build_atomic_file
from xr_tensorfmt.writing.file_plan import FilePlan, PlannedVariable
from xr_tensorfmt.writing.graph import compare, plan_tasks
from xr_tensorfmt.writing.upload import UploadedFile
from xr_tensorfmt.writing.write_target import Piece, WriteTarget


def write_files(
    files: Sequence[tuple[FilePlan, Location]], *, replace: bool, compute: bool
) -> Delayed | None:
    """Write planned files, and publish them one after the other when all are complete."""
    targets = [_get_target(location, plan.size, replace=replace) for plan, location in files]
    grids = [plan.block_grids for plan, _ in files]
    contents = [(plan.pieces, plan.compared) for plan, _ in files]
    orphans = [
        location.sibling(name).path
        for plan, location in files
        if location.is_local
        for name in plan.orphans
    ]
    finish = partial(_finish, contents, orphans)
    if not compute:
        begins = [target.begin for target in targets]
        return plan_tasks(list(zip(begins, grids, strict=True)), finish)
    begun: list[WriteTarget] = []
    try:
        # A task that begins a file could still run after another task has failed.
        begun += (target.begin() for target in targets)
        tasks = plan_tasks(list(zip(begun, grids, strict=True)))
        tasks.compute()  # type: ignore[no-untyped-call]
        # Ctrl-C interrupts this thread, but not the threads of dask.
        finish(begun)
    except BaseException as error:
        discarded = [file.discard() for file in begun]
        if begun and all(discarded):
            note = f"{targets[-1].target} was not written; the target is unchanged."
            error.add_note(note)
        raise
    return None


def _get_target(location: Location, size: int, *, replace: bool) -> WriteTarget:
    if location.is_local:
        return build_atomic_file(location.path, size, replace=replace)
    directory = dask.config.get("temporary-directory", None) or tempfile.gettempdir()
    return UploadedFile(
        target=location.url,
        size=size,
        replace=replace,
        location=location,
        directory=os.path.abspath(directory),
    )


def _finish(
    contents: Sequence[tuple[Sequence[Piece], Sequence[PlannedVariable]]],
    orphans: Sequence[str],
    files: Sequence[WriteTarget],
) -> None:
    for (pieces, compared), file in zip(contents, files, strict=True):
        if compared:
            compare(file, compared)
        file.complete(pieces)
    for file in files:
        file.publish()
    for path in orphans:
        with suppress(OSError):  # best effort: the new files are complete
            os.unlink(path)
