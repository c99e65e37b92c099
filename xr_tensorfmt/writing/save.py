"""Write planned files to the local disk or to a store."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

import dask.config
from dask.delayed import Delayed, delayed
from fsspec.core import OpenFile
from fsspec.implementations.local import LocalFileSystem

from xr_tensorfmt.core.layout import UnrepresentableValueError
from xr_tensorfmt.errors import TensorFormatWarning, find_stack_level, redact
from xr_tensorfmt.sources import ARCHIVES, get_path, is_remote
from xr_tensorfmt.sources.locations import Location, locate
from xr_tensorfmt.writing.atomic_file import UNCHANGED, AtomicFile, build_atomic_file, publish
from xr_tensorfmt.writing.block_grids import divide_variables
from xr_tensorfmt.writing.file_plan import FilePlan, Piece
from xr_tensorfmt.writing.graph import plan_tasks, write_blocks
from xr_tensorfmt.writing.upload import Upload, UploadedFile

Mode = Literal["w", "w-", "x"]

_LOCAL = LocalFileSystem()

MAX_REPLACED_BYTES = 65 << 20
"""Limit on the bytes of a replaced file that are searched for names of sibling files."""


def get_name(path: Any) -> str:
    """Return the path or URL that a user gave as a str."""
    name = path.full_name if isinstance(path, OpenFile) else path
    name = get_path(name)
    if not isinstance(name, str):
        raise TypeError(
            f"{redact(repr(path))} is neither a path nor a URL; pass a str or a PathLike"
        )
    if name.startswith(tuple(f"{protocol}://" for protocol in ARCHIVES)):
        raise ValueError(
            f"{redact(name)}: files cannot be written into an archive; write a local file, and add "
            "it to the archive"
        )
    return name


def is_overwriting(mode: Mode) -> bool:
    """Return whether an existing file is replaced. Raise ValueError if a mode is unknown."""
    if mode not in get_args(Mode):
        raise ValueError(f"mode={mode!r} is neither 'w' (overwrite) nor 'w-' (create a new file)")
    return mode == "w"


def locate_target(path: Any, storage_options: Mapping[str, Any] | None, fs: Any) -> Location:
    """Return the location of a local file, or of an object in a store."""
    name = get_name(path)
    if fs is not None or is_remote(get_path(path)):
        location = locate(get_path(path), storage_options, fs)
        return replace(location, url=location.path) if location.is_local else location
    if storage_options:
        raise ValueError(
            f"storage_options= applies only to URLs, but {name} is a local path; omit it"
        )
    return Location(name, _LOCAL, os.path.abspath(os.path.expanduser(name)))


def save(
    plan: FilePlan | Sequence[FilePlan], location: Location, *, overwrite: bool, compute: bool
) -> Delayed | None:
    """Write the first of the plans whose layouts can represent all values."""
    plans = [plan] if isinstance(plan, FilePlan) else plan
    if len(plans) > 1:
        # Errors of the location come before any value is computed.
        build_target(location, 0, overwrite=overwrite)
        if not compute:
            # Hide the plan from dask, which would compute its arrays in memory.
            later = partial(save, plan, location, overwrite=overwrite, compute=True)
            return delayed(later, pure=False)()  # type: ignore[no-any-return]
    for file_plan in plans[:-1]:
        with suppress(UnrepresentableValueError):
            return _save_planned(file_plan, location, overwrite=overwrite, compute=True)
    return _save_planned(plans[-1], location, overwrite=overwrite, compute=compute)


def _save_planned(
    plan: FilePlan, location: Location, *, overwrite: bool, compute: bool
) -> Delayed | None:
    """Write all files, then publish them one after the other and remove orphaned siblings."""
    siblings = [(sibling, location.sibling(sibling.name)) for sibling in plan.siblings]
    files = [
        (sibling.file_plan, target)
        for sibling, target in siblings
        if sibling.is_kept is None or not sibling.is_kept(_read_existing(target))
    ]
    files.append((plan, location))
    targets = [build_target(target, plan.size, overwrite=overwrite) for plan, target in files]
    _find_orphans(plan.find_orphans, location)  # raises if the file must not be replaced
    _check_conflicts(plan, location)
    grids = [divide_variables(plan.variables) for plan, _ in files]
    # Pass no plan to a task, because dask would compute its arrays.
    finish = partial(_finish, [plan.pieces for plan, _ in files], plan.find_orphans, location)
    if not compute:
        begins = [target.begin for target in targets]
        return plan_tasks(list(zip(begins, grids, strict=True)), finish)
    begun: list[AtomicFile] = []
    try:
        # A task that begins a file could still run after another task has failed.
        begun += (target.begin() for target in targets)
        write_blocks(list(zip(begun, grids, strict=True)))
        # Ctrl-C interrupts this thread, but not the threads of dask.
        finish(begun)
    except BaseException as error:
        discarded = [file.discard() for file in begun]
        if begun and all(discarded):
            error.add_note(f"{targets[-1].target} was not written; {UNCHANGED}.")
        raise
    return None


def _check_conflicts(plan: FilePlan, location: Location) -> None:
    """Raise FileExistsError if a sibling has another form of the data."""
    for conflict in (location.sibling(name) for name in plan.conflicts):
        if _read_existing(conflict):
            raise FileExistsError(
                f"{location.name} was not written, because {conflict.name} is another form of the "
                "same data and programs may read either; remove it first, or write elsewhere"
            )


def _read_existing(location: Location) -> bytes:
    """Return the first bytes of a file or object, or no bytes if it does not exist."""
    location = location.renew_after_fork()
    location.fs.invalidate_cache(location.path)
    read = partial(location.fs.cat_file, location.path, start=0, end=MAX_REPLACED_BYTES)
    try:
        return bytes(location.call(read))
    except FileNotFoundError:
        return b""


def build_target(location: Location, size: int, *, overwrite: bool) -> AtomicFile:
    """Return the target of a location. Raise an error if it must not be written."""
    if location.is_local:
        return build_atomic_file(location.path, size, overwrite=overwrite)
    Upload(location, overwrite=overwrite).check()
    directory = dask.config.get("temporary-directory", None) or tempfile.gettempdir()
    return UploadedFile(
        target=location.name,
        size=size,
        overwrite=overwrite,
        location=location,
        base=os.path.join(os.path.abspath(directory), location.file_name),
    )


def _finish(
    pieces: Sequence[Sequence[Piece]],
    find_orphans: Callable[[bytes], Collection[str]] | None,
    location: Location,
    files: Sequence[AtomicFile],
) -> None:
    """Complete and publish files, and remove orphaned sibling files."""
    try:
        for header, file in zip(pieces, files, strict=True):
            file.complete(header)
        with files[-1].lock():
            orphans = _find_orphans(find_orphans, location)
            publish(files)
            _remove([location.sibling(name) for name in orphans])
    except BaseException:
        for file in files:
            file.discard()
        raise


def _find_orphans(
    find_orphans: Callable[[bytes], Collection[str]] | None, location: Location
) -> Collection[str]:
    """Return the names of sibling files that only the file in place describes."""
    if find_orphans is not None:
        with suppress(OSError):  # no permission to read the file
            return find_orphans(_read_existing(location))
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
            reason = f"({error.strerror or error}): no file describes its elements any longer"
            message = f"{location.name} {reason}; remove it"
            warnings.warn(message, TensorFormatWarning, stacklevel=find_stack_level())
