"""Write planned files to the local disk or to a store."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from errno import ESTALE
from functools import partial
from typing import Any, Literal, get_args

import dask.config
from dask.delayed import Delayed
from fsspec.core import OpenFile
from fsspec.implementations.local import LocalFileSystem

from xr_tensorfmt.errors import redact, warn
from xr_tensorfmt.sources import check_local, get_path, is_remote
from xr_tensorfmt.sources.locations import Location, locate
from xr_tensorfmt.writing.atomic_file import (
    UNCHANGED,
    AtomicFile,
    Replacement,
    build_atomic_file,
    get_temporary_path,
    identify,
    lock_set,
    publish_set,
)
from xr_tensorfmt.writing.blocks import divide_variables, keep_values, plan_tasks, write_blocks
from xr_tensorfmt.writing.file_plan import FilePlan
from xr_tensorfmt.writing.upload import ObjectReplacement, UploadedFile

Mode = Literal["w", "w-", "x"]

_LOCAL = LocalFileSystem()

MAX_REPLACED_BYTES = 65 << 20
"""Limit on the bytes of a replaced file that are searched for names of sibling files."""


def is_overwriting(mode: Mode) -> bool:
    """Return whether an existing file is replaced. Raise ValueError if a mode is unknown."""
    if mode not in get_args(Mode):
        raise ValueError(f"mode={mode!r} is neither 'w' (overwrite) nor 'w-' (create a new file)")
    return mode == "w"


def locate_target(path: Any, storage_options: Mapping[str, Any] | None, fs: Any) -> Location:
    """Return the location of a local file, or of an object in a store."""
    path = get_path(path)
    name = path.full_name if isinstance(path, OpenFile) else path
    if not isinstance(name, str):
        raise TypeError(f"{redact(repr(path))} is neither a path nor a URL")
    if fs is not None or is_remote(path):
        location = locate(path, storage_options, fs)
        return replace(location, url=location.path) if location.is_local else location
    if storage_options:
        raise ValueError(f"storage_options= is for URLs, but {name} is a local path; omit it")
    check_local(name)
    return Location(name, _LOCAL, os.path.abspath(os.path.expanduser(name)))


Part = tuple[FilePlan, Location]
"""A file of a plan, and its location."""


def save(plan: FilePlan, location: Location, *, overwrite: bool, compute: bool) -> Delayed | None:
    """Write all files, then publish them one after the other."""
    _find_orphans(plan, location)  # raises if the file must not be replaced
    parts = [(part, location.sibling(part.name)) for part in plan.siblings] + [(plan, location)]
    targets = [
        # What is kept now may be missing later.
        build_target(
            target,
            part.size,
            overwrite=overwrite or not _is_written(part, target),
            is_planned=not compute,
        )
        for part, target in parts
    ]
    variables = [part.variables if compute else keep_values(part.variables) for part, _ in parts]
    pairs = list(zip(targets, map(divide_variables, variables), strict=True))
    # Values would travel to the worker that runs the last task.
    parts = [(replace(part, variables=(), siblings=()), target) for part, target in parts]
    finish = partial(_finish, parts)
    if not compute:
        return plan_tasks(pairs, finish)
    try:
        # A task that creates a file could still run after another task has failed.
        for file in targets:
            file.create()
        write_blocks(pairs)
    except BaseException as error:
        for file in targets:
            file.discard()
        error.add_note(f"{targets[-1].target} was not written; {UNCHANGED}.")
        raise
    # Ctrl-C interrupts this thread, but not the threads of dask.
    finish(targets)
    return None


def _finish(parts: Sequence[Part], files: Sequence[AtomicFile], inodes: Sequence[int] = ()) -> None:
    """Complete and publish files, and remove orphaned sibling files."""
    plan, index = parts[-1]
    is_set = index.is_local and (len(files) > 1 or plan.find_orphans is not None)
    with ExitStack() as stack:
        for file in files:
            stack.callback(file.discard)
        _check_inodes(files, set(inodes))
        for (part, _), file in zip(parts, files, strict=True):
            file.complete(part.pieces)
        with lock_set(index.path) if is_set else nullcontext():
            orphans = _find_orphans(plan, index)
            _publish([file for part, file in zip(parts, files, strict=True) if _is_written(*part)])
            _remove([index.sibling(name) for name in orphans])


def _check_inodes(files: Sequence[AtomicFile], inodes: set[int]) -> None:
    """Raise OSError if blocks were written to other unfinished files."""
    if inodes and not inodes <= {found[1] for file in files if (found := identify(file.path))}:
        reason = (
            "some blocks are in another unfinished file, because workers do not share the "
            f"directory {os.path.dirname(files[-1].path)}, or a worker was lost after the file "
            "was complete; compute it again"
        )
        raise OSError(ESTALE, reason, files[-1].target)


def _publish(files: Sequence[AtomicFile]) -> None:
    """Let complete files appear, the last one as their index. If one fails, restore the others."""
    *others, index = files
    if not others:
        index.publish()
    elif isinstance(index, UploadedFile):
        objects = [ObjectReplacement(file) for file in others if isinstance(file, UploadedFile)]
        publish_set(ObjectReplacement(index, objects), objects)
    else:
        publish_set(Replacement(index), [Replacement(file) for file in others])


def build_target(
    location: Location, size: int, *, overwrite: bool, is_planned: bool = False
) -> AtomicFile:
    """Return the target of a location. Raise an error if it must not be written."""
    if location.is_local:
        return build_atomic_file(location.path, size, overwrite=overwrite, is_planned=is_planned)
    directory = dask.config.get("temporary-directory", None) or tempfile.gettempdir()
    file = UploadedFile(
        target=location.name,
        path=get_temporary_path(os.path.join(os.path.abspath(directory), location.file_name)),
        size=size,
        overwrite=overwrite,
        is_planned=is_planned,
        location=location.renew_after_fork(),
    )
    file.check()
    return file


def _read_existing(location: Location, stop: int = MAX_REPLACED_BYTES) -> bytes:
    """Return the first bytes of a file or object, or no bytes if it does not exist."""
    location = location.renew_after_fork()
    location.fs.invalidate_cache(location.path)
    read = partial(location.fs.cat_file, location.path, start=0, end=stop)
    try:
        return bytes(location.call(read))
    except FileNotFoundError:
        return b""


def _is_written(plan: FilePlan, location: Location) -> bool:
    """Return whether a file is new, or replaces the file in place."""
    return plan.is_kept is None or not plan.is_kept(_read_existing(location))


def _find_orphans(plan: FilePlan, location: Location) -> Collection[str]:
    """Return the names of siblings that only the file in place describes.

    Raise an error if that file, or one with another form of the data, must not be replaced.
    """
    for conflict in map(location.sibling, plan.conflicts):
        if _read_existing(conflict, 1):
            raise FileExistsError(
                f"{location.name} was not written, because {conflict.name} is another form of the "
                "same data and programs may read either; remove it first, or write elsewhere"
            )
    if plan.find_orphans is not None:
        with suppress(OSError):  # no permission to read the file
            return plan.find_orphans(_read_existing(location))
    return ()


def _remove(orphans: Sequence[Location]) -> None:
    """Remove files or objects. Warn if one of them cannot be removed."""
    for orphan in orphans:
        location = orphan.renew_after_fork()
        try:
            location.call(location.fs.rm_file, location.path)
        except FileNotFoundError:
            pass
        except OSError as error:
            message = f"{location.name} is orphaned, but not removed ({error}); remove it"
            warn(message)
