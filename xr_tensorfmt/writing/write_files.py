"""Write planned files to local paths and stores."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import dask.config
from dask.delayed import Delayed

from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatWarning, find_stack_level
from xr_tensorfmt.sources import open_source
from xr_tensorfmt.sources.locations import Location
from xr_tensorfmt.writing.atomic_file import build_atomic_file
from xr_tensorfmt.writing.file_plan import Compare, FilePlan, PlannedVariable
from xr_tensorfmt.writing.graph import compare_variables, plan_tasks
from xr_tensorfmt.writing.upload import UploadedFile
from xr_tensorfmt.writing.write_target import Piece, WriteTarget


@dataclass(frozen=True, eq=False)
class Content:
    """The content of a file that is written after the values."""

    name: str
    pieces: Sequence[Piece]
    compared: Sequence[PlannedVariable]
    compare: Compare | None
    describe: Callable[[Mapping[str, Source]], Sequence[Piece]] | None


def write_files(
    files: Sequence[tuple[FilePlan, Location]],
    orphans: Sequence[Location],
    *,
    replace: bool,
    compute: bool,
) -> Delayed | None:
    """Write planned files, which appear one after the other when all are complete.

    Remove the orphans after that.
    """
    targets = [_get_target(location, plan.size, replace=replace) for plan, location in files]
    grids = [plan.block_grids for plan, _ in files]
    contents = [
        Content(
            os.path.basename(location.path),
            plan.pieces,
            plan.variables if plan.compare is not None else (),
            plan.compare,
            plan.describe_siblings,
        )
        for plan, location in files
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
    contents: Sequence[Content],
    orphans: Sequence[Location],
    files: Sequence[WriteTarget],
) -> None:
    complete: dict[str, Source] = {}
    for content, file in zip(contents, files, strict=True):
        if content.compare is not None:
            compare_variables(file, content.compared, content.compare)
        described = content.describe(complete) if content.describe is not None else ()
        file.complete((*content.pieces, *described))
        complete[content.name] = open_source(file.path)
    for file in files:
        file.publish()
    _remove(orphans)


def _delete(location: Location) -> None:
    location = location.renew_after_fork()
    location.call(location.fs.rm_file, location.path)


def _remove(orphans: Sequence[Location]) -> None:
    """Remove files or objects, and warn about those that remain."""
    remaining = []
    for location in orphans:
        try:
            _delete(location)
        except FileNotFoundError:
            pass
        except OSError as error:
            remaining.append(f"{location.url} ({error.strerror or error})")
    if remaining:
        message = (
            f"{', '.join(remaining)}: no file describes these elements any longer, and they could "
            "not be removed; remove them"
        )
        warnings.warn(message, TensorFormatWarning, stacklevel=find_stack_level())
