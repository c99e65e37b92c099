"""Write planned files to the local disk or to a store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dask.delayed import Delayed, delayed
from fsspec.core import OpenFile
from fsspec.implementations.local import LocalFileSystem

from xr_tensorfmt.core.layout import UnrepresentableValueError
from xr_tensorfmt.sources import is_remote
from xr_tensorfmt.sources.places import Place, locate
from xr_tensorfmt.sources.store_errors import redacted
from xr_tensorfmt.writing.atomic_file import target_of
from xr_tensorfmt.writing.file_plan import DeferredPlans, FilePlan
from xr_tensorfmt.writing.upload import Upload
from xr_tensorfmt.writing.write_files import write_files


def get_name(path: Any) -> str:
    """Return the path or URL that a user gave as a str."""
    name = path.full_name if isinstance(path, OpenFile) else path
    name = os.fspath(name) if isinstance(name, os.PathLike) else name
    if not isinstance(name, str):
        raise TypeError(
            f"{redacted(repr(path))} is neither a path nor a URL; pass a str or a PathLike"
        )
    return name


def locate_target(path: Any, storage_options: Mapping[str, Any] | None, fs: Any) -> Place:
    """Return the location of a local file, or of an object in a store."""
    name = get_name(path)
    if fs is not None or is_remote(path):
        place = locate(path, storage_options, fs)
        return replace(place, url=place.path) if place.is_local else place
    if storage_options:
        raise ValueError(f"storage_options= is for URLs, which {name} is not; leave it out")
    return Place(name, LocalFileSystem(), os.path.abspath(os.path.expanduser(name)))


def _check_place(place: Place, *, replace: bool) -> None:
    """Refuse what cannot be written there, or must not be replaced."""
    if place.is_local:
        target_of(place.path, replace=replace)
    else:
        Upload(place, replace=replace).check()


def save(
    plan: FilePlan | DeferredPlans, place: Place, *, replace: bool, compute: bool
) -> Delayed | None:
    """Write a planned file or object, and its sibling files."""
    # Errors of the place come before any value is computed.
    _check_place(place, replace=replace)
    if isinstance(plan, FilePlan):
        return _save_planned(plan, place, replace=replace, compute=compute)
    if not compute:
        # dask would compute the arrays of a plan that is an argument, and gather their chunks.
        later = partial(save, plan, place, replace=replace, compute=True)
        return delayed(later, pure=False)()  # type: ignore[no-any-return]
    error: UnrepresentableValueError | None = None
    for file_plan in plan.plans():
        try:
            return _save_planned(file_plan, place, replace=replace, compute=True)
        except UnrepresentableValueError as not_held:
            error = not_held
    raise error or RuntimeError(f"{place.url}: the format has made no plan; report this bug")


def _save_planned(plan: FilePlan, place: Place, *, replace: bool, compute: bool) -> Delayed | None:
    files = [*_changed(plan, place, replace=replace), (plan, place)]
    return write_files(files, replace=replace, compute=compute)


def _changed(plan: FilePlan, place: Place, *, replace: bool) -> Iterator[tuple[FilePlan, Place]]:
    """The files beside a planned one, without those that are there and say the same."""
    for each in plan.beside:
        where = place.beside(each.name)
        if each.is_kept is None or not each.is_kept(_content_of(where)):
            _check_place(where, replace=replace)
            yield each.file_plan, where


def _content_of(place: Place) -> bytes:
    """Return the content of a small file or object, or nothing if it does not exist."""
    fs = place.for_this_process().fs
    fs.invalidate_cache(place.path)
    try:
        return bytes(fs.cat_file(place.path))
    except FileNotFoundError:
        return b""
