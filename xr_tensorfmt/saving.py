"""Write Datasets to files of any format: `to_file`, on the local disk or in a store."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from errno import ESTALE
from functools import partial
from inspect import signature
from typing import Any, Literal, get_args

import dask.config
from dask.delayed import Delayed
from fsspec import AbstractFileSystem
from fsspec.core import OpenFile
from xarray import DataArray, Dataset, DataTree

from xr_tensorfmt.core.file_format import Format, OpenOptions
from xr_tensorfmt.datasets.groups import flatten_encoding, flatten_tree
from xr_tensorfmt.errors import build_keyword_error, redact, warn
from xr_tensorfmt.formats import registry
from xr_tensorfmt.formats.recognition import read_container
from xr_tensorfmt.sources import check_local, get_path, is_remote
from xr_tensorfmt.sources.locations import Location, locate
from xr_tensorfmt.sources.stores import call_fresh, read_fresh
from xr_tensorfmt.writing.atomic_file import (
    UNCHANGED,
    AtomicFile,
    build_atomic_file,
    get_temporary_path,
    identify,
    lock_set,
)
from xr_tensorfmt.writing.blocks import divide_variables, keep_values, plan_tasks, write_blocks
from xr_tensorfmt.writing.checked_input import DroppablePart, check_input
from xr_tensorfmt.writing.file_plan import FilePlan
from xr_tensorfmt.writing.region import Region, write_region
from xr_tensorfmt.writing.upload import UploadedFile

Mode = Literal["w", "w-", "x"]

MAX_REPLACED_BYTES = 100_000_000
"""Limit on the bytes of a replaced file that are searched for names of sibling files."""


def to_file(
    data: Dataset | DataArray | DataTree,
    /,
    path: Any,
    format: str | None = None,
    *,
    mode: Mode | Literal["r+", "a"] = "w",
    compute: bool = True,
    region: Region | None = None,
    encoding: Mapping[Any, Any] | None = None,
    drop: Collection[DroppablePart] = (),
    separator: str = ".",
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    **format_options: Any,
) -> Delayed | None:
    """Write a tensor file, in parallel if the data have chunks.

    ``data.tensorfmt.to_file(path)`` is the method of Datasets, DataArrays and DataTrees. A
    temporary file replaces `path` when it is complete.

    Parameters
    ----------
    data : Dataset, DataArray or DataTree
        The data, which may be opened from the file that is overwritten.
    path : str, PathLike or OpenFile
        The file, or a URL that fsspec supports.
    format : str, optional
        Name of the format. The default depends on the suffix of `path`.
    mode : {"w", "w-", "x", "r+", "a"}, default: "w"
        ``"w"`` overwrites an existing file, ``"w-"`` or ``"x"`` raises an error if it exists.
        ``"r+"`` or ``"a"`` is allowed with `region`, as in `xarray.Dataset.to_zarr`.
    compute : bool, default: True
        If False, return a `dask.delayed.Delayed` that writes the file when it is computed.
    region : mapping of str to slice or list, or "auto", optional
        Write in place to a part of an existing local file with the same variables. Slices and lists
        are positions, and ``"auto"``, for one dimension or for all, finds the labels of the data.
    encoding : mapping, optional
        ``{name: {"dtype": ...}}``: the dtype of a variable in the file, to which floating-point
        values are rounded. ``{"dtype": ...}`` applies to all variables of the same kind. Formats
        with attributes support the keys of CF, as in `xarray.Dataset.to_netcdf`. For a DataTree,
        ``{"/layers/0": {"weight": {...}}}`` or the names in the file, ``"layers.0.weight"``.
    drop : list of {"name", "dims", "coords", "attrs"}, optional
        Parts to omit if the format cannot store them. A part that is not listed raises an error.
    separator : str, default: "."
        Separator between group and variable names of a DataTree.
    storage_options : mapping, optional
        Options of the fsspec file system of a URL.
    fs : AbstractFileSystem, optional
        The fsspec file system of `path`.
    **format_options
        Keywords of the format, which its page lists. None selects the default.

    Returns
    -------
    Delayed or None
        A `Delayed` if `compute` is False.

    Raises
    ------
    ValueError, TypeError
        The format does not support the data or a keyword. The message names an alternative.
    OSError
        The file cannot be written: no space, no permission, no such directory.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import xr_tensorfmt
    >>> ds = xr.Dataset({"tensor": (("a", "b"), np.eye(3))})
    >>> xr_tensorfmt.to_file(ds, "identity.tens")
    >>> xr.open_dataset("identity.tens").identical(ds)
    True
    """
    location = locate_target(path, storage_options, fs)
    name = location.name
    if name.endswith("/") or (location.is_local and os.path.isdir(location.path)):
        raise IsADirectoryError(
            f"{name} is a directory, expected a file; append a name such as model.mag, or "
            "write a calculation with xr_tensorfmt.cc4s.to_calculation"
        )
    find = registry.find_format_for_path
    file_format = registry.find_format(format) if format else find(location.url)
    if not file_format.can_write:
        raise ValueError(f"{file_format.title} files can only be read; choose another format")
    others = [*signature(to_file).parameters][:-1]  # without format_options
    format_options = normalize_options(file_format, format_options, others)
    overwrite = is_overwriting("w" if region is not None and mode in ("r+", "a") else mode)
    _check_region(region, [*format_options, *(() if overwrite else ["mode"])])
    if isinstance(data, DataTree):
        encoding = flatten_encoding(encoding, data, separator)
        data = flatten_tree(name, data, separator, drop or ())
    elif separator != ".":
        raise ValueError(f"separator={separator!r} is only for a DataTree; omit it")
    title, file_name = file_format.title, location.file_name
    checked = check_input(data, name, title, encoding, drop, file_name)
    if region is None:
        plan = file_format.plan(checked, **format_options)
        return save(plan, location, overwrite=overwrite, compute=compute)
    options = OpenOptions(loads_labels=False)
    read = partial(read_container, file_format=file_format, options=options)
    return write_region(checked, location, region, read, compute=compute)


def normalize_options(
    file_format: Format, given: Mapping[str, Any], others: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the keywords of a format that are not None. Raise TypeError if one is unknown."""
    options, given = file_format.write_options, {k: v for k, v in given.items() if v is not None}
    for name in given.keys() - options.keys():
        known = [*options, *others]
        hint = "; pass encoding={'dtype': ...}, or --dtype" if name == "dtype" else ""
        raise build_keyword_error(name, f"for {file_format.title} files", known, hint)
    return {name: options[name].normalize(name, value) for name, value in given.items()}


def _check_region(region: Any, others: Collection[str]) -> None:
    """Raise an error if a region has another type, or is combined with keywords for new files."""
    if not isinstance(region, Mapping | None) and region != "auto":
        raise TypeError(f"region= must be 'auto' or like {{'x': slice(0, 10)}}, not {region!r}")
    if region is not None and others:
        raise ValueError(
            f"region= writes to an existing file, but {', '.join(f'{name}=' for name in others)} "
            "is for new files; omit one of them"
        )


def is_overwriting(mode: str) -> bool:
    """Return whether an existing file is replaced. Raise ValueError if a mode is unknown."""
    if mode not in get_args(Mode):
        raise ValueError(f"mode={mode!r} is neither 'w' (overwrite) nor 'w-' (create a new file)")
    return mode == "w"


def locate_target(path: Any, storage_options: Mapping[str, Any] | None, fs: Any) -> Location:
    """Return the location of a local file, or of an object in a store."""
    path = get_path(path)
    if not isinstance(path, str | OpenFile):
        raise TypeError(f"{redact(repr(path))} is neither a path nor a URL")
    if fs is not None or is_remote(path):
        location = locate(path, storage_options, fs)
        return replace(location, url=location.path) if location.is_local else location
    if storage_options:
        raise ValueError(f"storage_options= is for URLs, but {path} is a local path; omit it")
    check_local(path)
    return locate(path, None, None)


def save(plan: FilePlan, location: Location, *, overwrite: bool, compute: bool) -> Delayed | None:
    """Write all files, then publish them one after the other."""
    replaced = _list_replaced(plan, location)  # raises if the file must not be replaced
    if plan.rename and overwrite:
        names = [part.name for part in plan.siblings if part.name not in replaced]
        # A store cannot restore previous objects, so those of the replaced index are kept, too.
        others = [*map(location.sibling, names), *(() if location.is_local else (location,))]
        plan = plan.rename() if any(read_fresh(other, start=0, end=1) for other in others) else plan
    parts = [(part, location.sibling(part.name)) for part in plan.siblings] + [(plan, location)]
    targets = [build_target(target, part.size, overwrite=overwrite) for part, target in parts]
    targets = [replace(file, is_planned=not compute) for file in targets]
    variables = [part.variables if compute else keep_values(part.variables) for part, _ in parts]
    pairs = list(zip(targets, map(divide_variables, variables), strict=True))
    # Values would travel to the worker that runs the last task.
    parts = [
        (replace(part, variables=(), siblings=(), rename=None), target) for part, target in parts
    ]
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


def _finish(
    parts: Sequence[tuple[FilePlan, Location]],
    files: Sequence[AtomicFile],
    inodes: Sequence[int] = (),
) -> None:
    """Complete and publish files, and remove orphaned sibling files."""
    plan, index = parts[-1]
    is_set = index.is_local and (len(files) > 1 or plan.list_replaced is not None)
    with ExitStack() as stack:
        for file in files:
            stack.callback(file.discard)
        for (part, _), file in zip(parts, files, strict=True):
            file.complete(part.pieces)
        # `complete` may have created a file.
        found = {identity[1] for file in files if (identity := identify(file.path))}
        if inodes and not found.issuperset(inodes):
            reason = (
                "some blocks are in another unfinished file, because workers do not share the "
                f"directory {os.path.dirname(files[-1].path)}, a worker was lost after the file "
                "was complete, or it was computed twice at the same time; compute it again"
            )
            raise OSError(ESTALE, reason, files[-1].target)
        with lock_set(index.path) if is_set else nullcontext():
            replaced = _list_replaced(plan, index)
            files[-1].publish(files[:-1])
            # Some file systems do not distinguish upper and lower case.
            written = {part.name.casefold() for part, _ in parts}
            _remove([index.sibling(name) for name in replaced if name.casefold() not in written])


def build_target(location: Location, size: int, *, overwrite: bool) -> AtomicFile:
    """Return the target of a location. Raise an error if it must not be written."""
    if location.is_local:
        return build_atomic_file(location.path, size, overwrite=overwrite)
    directory = dask.config.get("temporary-directory", None) or tempfile.gettempdir()
    file = UploadedFile(
        target=location.name,
        path=get_temporary_path(os.path.join(os.path.abspath(directory), location.file_name)),
        size=size,
        overwrite=overwrite,
        location=location.renew_after_fork(),
    )
    file.check()
    return file


def _list_replaced(plan: FilePlan, location: Location) -> Collection[str]:
    """Return the siblings of the existing file. Raise an error if it must not be replaced."""
    for conflict in map(location.sibling, plan.conflicts):
        if read_fresh(conflict, start=0, end=1):
            raise FileExistsError(
                f"{location.name} was not written, because {conflict.name} is another form of the "
                "same data, or lists files of the same names; remove it first, or write elsewhere"
            )
    if plan.list_replaced is None:
        return ()
    try:
        existing = read_fresh(location, start=0, end=MAX_REPLACED_BYTES) or b""
    except PermissionError as error:
        warn(f"{location.name} cannot be read ({error}); files that only it lists may remain")
        return ()
    return plan.list_replaced(existing)


def _remove(orphans: Sequence[Location]) -> None:
    """Remove files or objects. Warn if one of them cannot be removed, and leave the others."""
    for number, orphan in enumerate(orphans):
        try:
            with suppress(FileNotFoundError):
                call_fresh(orphan, "rm_file")
        except OSError as error:
            names = ", ".join(location.name for location in orphans[number:])
            warn(f"orphaned files are not removed ({error}); remove {names}")
            return
