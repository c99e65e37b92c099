"""Write planned files to the local disk or to a store."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dask.delayed import Delayed, delayed
from fsspec.core import OpenFile
from fsspec.implementations.local import LocalFileSystem

from xr_tensorfmt.core.layout import UnrepresentableValueError
from xr_tensorfmt.sources import is_remote
from xr_tensorfmt.sources.locations import Location, locate
from xr_tensorfmt.sources.store_errors import redact
from xr_tensorfmt.writing.atomic_file import resolve_target
from xr_tensorfmt.writing.file_plan import DeferredPlans, FilePlan
from xr_tensorfmt.writing.upload import Upload
from xr_tensorfmt.writing.write_files import write_files

MAX_REPLACED_BYTES = 65 << 20
"""Limit on the bytes of a replaced file that are searched for names of sibling files."""


def get_name(path: Any) -> str:
    """Return the path or URL that a user gave as a str."""
    name = path.full_name if isinstance(path, OpenFile) else path
    name = os.fspath(name) if isinstance(name, os.PathLike) else name
    if not isinstance(name, str):
        raise TypeError(
            f"{redact(repr(path))} is neither a path nor a URL; pass a str or a PathLike"
        )
    return name


def locate_target(path: Any, storage_options: Mapping[str, Any] | None, fs: Any) -> Location:
    """Return the location of a local file, or of an object in a store."""
    name = get_name(path)
    if fs is not None or is_remote(path):
        location = locate(path, storage_options, fs)
        return replace(location, url=location.path) if location.is_local else location
    if storage_options:
        raise ValueError(f"storage_options= is for URLs, which {name} is not; leave it out")
    return Location(name, LocalFileSystem(), os.path.abspath(os.path.expanduser(name)))


def _check_target(location: Location, *, replace: bool) -> None:
    """Raise an error if a target cannot be written or must not be replaced."""
    if location.is_local:
        resolve_target(location.path, replace=replace)
    else:
        Upload(location, replace=replace).check()


def save(
    plan: FilePlan | DeferredPlans, location: Location, *, replace: bool, compute: bool
) -> Delayed | None:
    """Write a planned file or object, and its sibling files."""
    # Errors of the location come before any value is computed.
    _check_target(location, replace=replace)
    if isinstance(plan, FilePlan):
        return _save_planned(plan, location, replace=replace, compute=compute)
    if not compute:
        # Hide the plan from dask, which would compute its arrays in memory.
        later = partial(save, plan, location, replace=replace, compute=True)
        return delayed(later, pure=False)()  # type: ignore[no-any-return]
    error: UnrepresentableValueError | None = None
    for file_plan in plan.plans():
        try:
            return _save_planned(file_plan, location, replace=replace, compute=True)
        except UnrepresentableValueError as unrepresentable:
            error = unrepresentable
    raise error or RuntimeError(f"{location.url}: the format returned no plan; report this bug")


def _save_planned(
    plan: FilePlan, location: Location, *, replace: bool, compute: bool
) -> Delayed | None:
    files = [*_changed_siblings(plan, location, replace=replace), (plan, location)]
    orphans = [location.sibling(name) for name in _find_orphans(plan, location)]
    return write_files(files, orphans, replace=replace, compute=compute)


def _changed_siblings(
    plan: FilePlan, location: Location, *, replace: bool
) -> Iterator[tuple[FilePlan, Location]]:
    """Yield the sibling files to write. Skip existing files that `is_kept` accepts."""
    for sibling in plan.siblings:
        target = location.sibling(sibling.name)
        if sibling.is_kept is None or not sibling.is_kept(_read_small_file(target)):
            _check_target(target, replace=replace)
            yield sibling.file_plan, target


def _find_orphans(plan: FilePlan, location: Location) -> Collection[str]:
    """Return the names of sibling files that only the replaced file describes."""
    if plan.find_orphans is None:
        return ()
    try:
        content = _read_start(location)
    except OSError:  # the file is new, or must not be read
        return ()
    return plan.find_orphans(content)


def _read_start(location: Location) -> bytes:
    location = location.renew_after_fork()
    location.fs.invalidate_cache(location.path)
    return bytes(location.call(location.fs.cat_file, location.path, 0, MAX_REPLACED_BYTES))


def _read_small_file(location: Location) -> bytes:
    """Return the content of a small file or object, or nothing if it does not exist."""
    fs = location.renew_after_fork().fs
    fs.invalidate_cache(location.path)
    try:
        return bytes(fs.cat_file(location.path))
    except FileNotFoundError:
        return b""
