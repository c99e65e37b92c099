"""Writing a Dataset to a file of any format."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from typing import Any, Literal, TypedDict, TypeVar, get_args

from dask.delayed import Delayed, delayed
from fsspec.core import OpenFile
from fsspec.implementations.local import LocalFileSystem
from xarray import DataArray, Dataset, DataTree

from xr_tensorfmt.contract import Format
from xr_tensorfmt.core.layout import NotHeldError
from xr_tensorfmt.errors import did_you_mean
from xr_tensorfmt.formats import by_name, by_suffix
from xr_tensorfmt.sources import is_remote
from xr_tensorfmt.sources.places import Place, locate
from xr_tensorfmt.sources.store_errors import redacted
from xr_tensorfmt.writing.atomic_file import target_of
from xr_tensorfmt.writing.checked_input import Encoding, Part, check_input
from xr_tensorfmt.writing.file_plan import DeferredPlans, FilePlan
from xr_tensorfmt.writing.region import write_region
from xr_tensorfmt.writing.tree import flattened
from xr_tensorfmt.writing.upload import Upload
from xr_tensorfmt.writing.write_files import write_files


def name_of(path: Any) -> str:
    """The path or URL that a user gave."""
    name = path.full_name if isinstance(path, OpenFile) else path
    name = os.fspath(name) if isinstance(name, os.PathLike) else name
    if not isinstance(name, str):
        raise TypeError(
            f"{redacted(repr(path))} is neither a path nor a URL; pass a str or a PathLike"
        )
    return name


def destination(path: Any, storage_options: Mapping[str, Any] | None, fs: Any) -> Place:
    """The place of a local file, or of an object in a store."""
    name = name_of(path)
    if fs is not None or is_remote(path):
        place = locate(path, storage_options, fs)
        return replace(place, url=place.path) if place.is_local else place
    if storage_options:
        raise ValueError(f"storage_options= is for URLs, which {name} is not; leave it out")
    return Place(name, LocalFileSystem(), os.path.abspath(os.path.expanduser(name)))


Mode = Literal["w", "x"]


class WriteOptions(TypedDict, total=False):
    """The keywords that all functions for writing share; `to_file` describes them."""

    mode: Mode
    compute: bool
    region: Mapping[Any, slice] | None
    encoding: Encoding | None
    drop: Collection[Part]
    storage_options: Mapping[str, Any] | None
    fs: Any


def _check_place(place: Place, *, replace: bool) -> None:
    """Refuse what cannot be written there, or must not be replaced."""
    if place.is_local:
        target_of(place.path, replace=replace)
    else:
        Upload(place, replace=replace).check()


def _save(
    plan: FilePlan | DeferredPlans, place: Place, *, replace: bool, compute: bool
) -> Delayed | None:
    """Write a planned file or object, and those beside it."""
    # Errors of the place come before any value is computed.
    _check_place(place, replace=replace)
    if isinstance(plan, FilePlan):
        return _save_planned(plan, place, replace=replace, compute=compute)
    if not compute:
        # dask would compute the arrays of a plan that is an argument, and gather their chunks.
        later = partial(_save, plan, place, replace=replace, compute=True)
        return delayed(later, pure=False)()  # type: ignore[no-any-return]
    error: NotHeldError | None = None
    for file_plan in plan.plans():
        try:
            return _save_planned(file_plan, place, replace=replace, compute=True)
        except NotHeldError as not_held:
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


def _allowed(format: Format, name: str, value: Any) -> Any:
    """The value of a keyword of a format; numbers and their str stand for each other."""
    if name not in format.write_options:
        own = " and ".join(sorted(format.write_options)) or "none"
        hint = did_you_mean(name, (*format.write_options, *signature(to_file).parameters))
        raise TypeError(
            f"{name!r}{hint} is not a keyword for {format.title} files; they take those of "
            f"to_file and, of their own, {own}"
        )
    allowed = format.write_options[name]
    for choice in allowed:
        if _comparable(value) == _comparable(choice):
            return choice
    if allowed:
        hint = did_you_mean(value, allowed)
        raise ValueError(f"{name}={value!r}{hint} is not one of {', '.join(map(repr, allowed))}")
    return value


def _comparable(value: Any) -> float | str:
    """A number where a value, or its str, is one; else its str."""
    try:
        return str(value) if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return str(value)


def _check_keywords(
    given: Mapping[str, Any], mode: str, region: Mapping[Any, slice] | None
) -> None:
    if not isinstance(region, Mapping | None):
        raise TypeError(f"region= must have the form {{'x': slice(0, 10)}}, not {region!r}")
    if mode not in get_args(Mode):
        raise ValueError(f"mode={mode!r} is neither 'w' (replace) nor 'x' (only if there is none)")
    if mode == "x" and region is not None:
        raise ValueError(
            "mode='x' demands that there is no file, and region= writes into one; leave one out"
        )
    if given and region is not None:
        raise ValueError(
            f"{', '.join(f'{name}=' for name in given)} is for new files, and region= writes into "
            "one that exists; leave one of them out"
        )


def to_file(
    data: Dataset | DataArray | DataTree,
    path: Any,
    format: str | None = None,
    *,
    mode: Mode = "w",
    compute: bool = True,
    region: Mapping[Any, slice] | None = None,
    encoding: Encoding | None = None,
    drop: Collection[Part] = (),
    separator: str = ".",
    storage_options: Mapping[str, Any] | None = None,
    fs: Any = None,
    **format_options: Any,
) -> Delayed | None:
    """Write a Dataset, DataArray or DataTree to a tensor file, chunk by chunk and in parallel.

    The file has another name beside `path` until it is complete and on the disk. If anything
    fails before that, what was there is unchanged.

    Parameters
    ----------
    data : Dataset, DataArray or DataTree
        What to write: in memory, lazy, or in chunks of dask, which are written one by one. Only
        coordinates that a header holds, labels of blocks, and pairs that were opened with
        ``sparse="stored"`` are gathered in memory. The data may have been opened from the very
        file that is written.
    path : str, PathLike or OpenFile
        The file, or a URL of any store that fsspec knows.
    format : str, optional
        Name of the format; by default the suffix of `path` decides.
    mode : {"w", "x"}
        Replace what is there (the default), or refuse to.
    compute : bool
        If False, nothing is written yet: the `dask.delayed.Delayed` that is returned does it.
    region : mapping of str to slice, optional
        Write into a part of a local file that exists and has the same variables. The file is
        changed in place, so that a failure leaves it changed in part.
    encoding : mapping, optional
        ``{name: {"dtype": ...}}``: the dtype that a variable is stored with. Numbers are rounded
        to it; an integer that would become another one is an error. Without it nothing is rounded.
        A name such as ``"layers.*"`` is a pattern, and ``{"dtype": ...}`` is for all variables;
        both change only those of the same kind, as floating-point ones for ``"bfloat16"``.
    drop : list of {"name", "dims", "coords", "attrs"}
        What may be left out where the format has no place for it, which is an error otherwise.
    separator : str
        Of a DataTree, what separates the parts of a variable's path in its name in the file.
    storage_options : mapping, optional
        Options of the file system of fsspec that the URL names.
    fs : AbstractFileSystem, optional
        The file system of fsspec that `path` is in.
    **format_options
        Keywords of the format; `to_tens` and the like describe them. None counts as not given.

    Returns
    -------
    Delayed or None
        What writes the file when it is computed, where ``compute=False``.

    Raises
    ------
    ValueError
        The format cannot hold something; the message says what, and what would work.
    TypeError
        A keyword is not one of the format, or a value has the wrong type.
    OSError
        The system refuses: no space, no permission, no such directory.

    See Also
    --------
    to_cc4s, to_mag, to_npy, to_pycauset, to_safetensors, to_tens, to_vespa : What each holds.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> ds = xr.Dataset({"tensor": (("a", "b"), np.eye(3))})
    >>> to_file(ds, "identity.tens")
    >>> xr.open_dataset("identity.tens", engine="tensorfmt").identical(ds)
    True
    """
    chosen = by_name(format) if format is not None else by_suffix(name_of(path))
    if not chosen.can_write:
        raise ValueError(f"{chosen.title} files can only be read; choose another format")
    given = {
        name: _allowed(chosen, name, value)
        for name, value in format_options.items()
        if value is not None
    }
    _check_keywords(given, mode, region)
    place = destination(path, storage_options, fs)
    if isinstance(data, DataTree):
        data = flattened(place.url, data, separator, drop)
    elif separator != ".":
        raise ValueError(f"separator={separator!r} is for a DataTree; leave it out")
    checked = check_input(data, place.url, chosen.title, encoding, drop)
    if region is not None:
        return write_region(checked, place, region, chosen.name, compute=compute)
    return _save(chosen.plan(checked, **given), place, replace=mode == "w", compute=compute)


_Function = TypeVar("_Function")


def with_write_options(function: _Function) -> _Function:
    """Show the keywords of a function that takes `WriteOptions` as they are those of `to_file`."""
    described: Any = function
    own, shared = signature(described), signature(to_file).parameters
    named = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    named += [shared[name] for name in WriteOptions.__annotations__]
    described.__signature__ = own.replace(parameters=named)
    return function
