"""Where a user wants a file: on this machine, or in a store."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, get_args

from dask.delayed import Delayed
from fsspec.core import OpenFile
from xarray import DataArray, Dataset

from xr_tensorfmt.formats.mag.write import to_mag
from xr_tensorfmt.formats.pycauset.write import to_pycauset
from xr_tensorfmt.formats.tens.write import to_tens
from xr_tensorfmt.formats.vespa.write import to_vespa
from xr_tensorfmt.sources import is_remote
from xr_tensorfmt.sources.remote import Place, locate
from xr_tensorfmt.sources.store_errors import redacted
from xr_tensorfmt.writing.checked_input import Encoding, Part, Subject, subject_of
from xr_tensorfmt.writing.file_plan import Blueprint, Survey
from xr_tensorfmt.writing.region import write_region
from xr_tensorfmt.writing.saving import save
from xr_tensorfmt.writing.upload import send


def name_of(path: Any) -> str:
    """What a user calls a file.

    Parameters
    ----------
    path : str, PathLike or OpenFile
        As the user gave it.

    Returns
    -------
    str

    Raises
    ------
    TypeError
        It names no file.
    """
    name = path.full_name if isinstance(path, OpenFile) else path
    name = os.fspath(name) if isinstance(name, os.PathLike) else name
    if not isinstance(name, str):
        raise TypeError(f"{path!r} is neither a path nor a URL; pass a text or a PathLike")
    return name


def destination(path: Any, storage_options: Mapping[str, Any] | None, fs: Any) -> str | Place:
    """Find out where a file is to be.

    Parameters
    ----------
    path : str, PathLike or OpenFile
        A path, a URL, or a path in `fs`.
    storage_options : mapping, optional
        How to reach a URL, in the words of its file system.
    fs : AbstractFileSystem, optional
        The file system.

    Returns
    -------
    str or Place
        A path of this machine, or where it is in a store.

    Raises
    ------
    TypeError, ValueError
        The arguments do not fit each other.
    """
    name = name_of(path)
    if fs is None and not is_remote(path):
        if storage_options:
            raise ValueError(f"storage_options= is for URLs, which {name} is not; leave it out")
        return name
    place = locate(path, storage_options, fs)
    return place.path if place.is_local else place


Mode = Literal["w", "x"]

Plan = Callable[[Subject], Blueprint | Survey]
"""How a format arranges a Dataset in a file."""


class SaveOptions(TypedDict, total=False):
    """Keywords of every writer; `to_file` says what they mean."""

    mode: Mode
    compute: bool
    region: Mapping[str, slice] | None
    encoding: Encoding | None
    drop: Collection[Part]
    storage_options: Mapping[str, Any] | None
    fs: Any


@dataclass(frozen=True, eq=False)
class Job:
    """The same keywords, looked over."""

    mode: Mode = "w"
    compute: bool = True
    region: Mapping[str, slice] | None = None
    encoding: Encoding | None = None
    drop: Collection[Part] = ()
    storage_options: Mapping[str, Any] | None = None
    fs: Any = None

    def __post_init__(self) -> None:
        """Refuse words that mean nothing."""
        if not isinstance(self.region, Mapping | None):
            raise TypeError(f"region={self.region!r} is not as {{'x': slice(0, 10)}}")
        if self.mode not in get_args(Mode):
            raise ValueError(
                f"mode={self.mode!r} is neither 'w' (replace) nor 'x' (only if there is none)"
            )
        if self.mode == "x" and self.region is not None:
            raise ValueError("mode='x' wants no file, and region= one to write into; leave one out")

    @classmethod
    def of(cls, writer: str, options: SaveOptions) -> Job:
        """Look over what a writer was given; TypeError if it takes no such keyword."""
        known = [each.name for each in fields(cls)]
        for name in options:
            if name not in known:
                raise TypeError(
                    f"{writer}() takes no keyword {name!r}; beside those of its own it takes "
                    f"{', '.join(known)}"
                )
        return cls(**options)

    def run(self, data: Dataset | DataArray, path: Any, format: str, plan: Plan) -> Delayed | None:
        """Write.

        Parameters
        ----------
        data : Dataset or DataArray
            What the user has.
        path : str, PathLike or OpenFile
            Where to.
        format : str
            The format's name.
        plan : callable
            How the format arranges it.

        Returns
        -------
        Delayed or None
            What writes the file when it is computed, or None if that is done.
        """
        target = destination(path, self.storage_options, self.fs)
        name = target if isinstance(target, str) else target.url
        subject = subject_of(data, name, format, self.encoding, self.drop)
        replace = self.mode == "w"
        if isinstance(target, str):
            if self.region is not None:
                return write_region(subject, self.region, format.lower(), compute=self.compute)
            return save(plan(subject), target, replace=replace, compute=self.compute)
        if self.region is not None:
            raise ValueError(
                f"{name}: a store has no way to change a part of an object; write the whole "
                "of it, without region="
            )
        return send(plan(subject), target, replace=replace, compute=self.compute)


FormatName = Literal["tens", "vespa", "pycauset", "mag"]

WRITERS: dict[str, Callable[..., Delayed | None]] = {
    "tens": to_tens,
    "vespa": to_vespa,
    "pycauset": to_pycauset,
    "mag": to_mag,
}

SUFFIXES = {
    ".tens": "tens",
    ".bin": "tens",
    ".tbf": "vespa",
    ".pycauset": "pycauset",
    ".mag": "mag",
}
"""What the names of files end in, and the format that is meant."""


def to_file(
    data: Dataset | DataArray,
    path: Any,
    format: FormatName | None = None,
    *,
    mode: Mode = "w",
    compute: bool = True,
    region: Mapping[Any, slice] | None = None,
    encoding: Encoding | None = None,
    drop: Collection[Part] = (),
    storage_options: Mapping[str, Any] | None = None,
    fs: Any = None,
    **options: Any,
) -> Delayed | None:
    """Write a Dataset or DataArray to a tensor file, chunk by chunk and in parallel.

    The file lies under another name beside `path` until it is complete and on the disk. If
    anything fails before that, what was there is unchanged.

    Parameters
    ----------
    data : Dataset or DataArray
        What to write: in memory, lazy, or in chunks of dask. Values are never gathered. It may
        have been opened from the very file that is written.
    path : str, PathLike or OpenFile
        The file, or a URL of any store that fsspec knows.
    format : {"tens", "vespa", "pycauset", "mag"}, optional
        By default the end of the name decides: ``.tens`` or ``.bin``, ``.tbf``, ``.pycauset``,
        ``.mag``.
    mode : {"w", "x"}
        Replace what is there (the default), or refuse to.
    compute : bool
        If False, only plan: a `dask.delayed.Delayed` is returned that writes when it is computed.
    region : mapping of str to slice, optional
        Write into a part of a local file that is there already and has the same variables. The
        file is changed in place, so that a failure leaves it changed in part.
    encoding : mapping, optional
        ``{name: {"dtype": ...}}``: what a variable is stored as. Numbers are rounded to it; an
        integer that would become another one is an error. Without it nothing is rounded.
    drop : list of {"name", "dims", "coords", "attrs"}
        What may be left out where the format has no place for it, which is an error otherwise.
    storage_options : mapping, optional
        How to reach a URL, in the words of its file system.
    fs : AbstractFileSystem, optional
        The file system of fsspec that `path` is in.
    **options
        Keywords of the format's own function.

    Returns
    -------
    Delayed or None
        What writes the file when it is computed, where ``compute=False``.

    Raises
    ------
    ValueError
        The format cannot hold something; the message says what, and what would work.
    OSError
        The system refuses: no space, no permission, no such folder.

    See Also
    --------
    to_tens, to_vespa, to_pycauset, to_mag : What each format holds.
    """
    name = format if format is not None else _by_suffix(name_of(path))
    if name not in WRITERS:
        raise ValueError(f"format={name!r} is not one of {', '.join(map(repr, WRITERS))}")
    common: SaveOptions = {
        "mode": mode,
        "compute": compute,
        "region": region,
        "encoding": encoding,
        "drop": drop,
        "storage_options": storage_options,
        "fs": fs,
    }
    return WRITERS[name](data, path, **common, **options)


def _by_suffix(path: str) -> str:
    suffix = os.path.splitext(path.casefold())[1]
    if suffix not in SUFFIXES:
        raise ValueError(
            f"{redacted(path)}: the end of the name tells no format; pass format=, one of "
            f"{', '.join(map(repr, WRITERS))}, or end it in one of {', '.join(SUFFIXES)}"
        )
    return SUFFIXES[suffix]
