"""The writer for a file's name."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from dask.delayed import Delayed
from xarray import DataArray, Dataset

from xr_tensorfmt.sources.storeerrors import redacted
from xr_tensorfmt.write.destination import name_of
from xr_tensorfmt.write.job import Mode, SaveOptions
from xr_tensorfmt.write.mag import to_mag
from xr_tensorfmt.write.pycauset import to_pycauset
from xr_tensorfmt.write.subject import Encoding, Part
from xr_tensorfmt.write.tens import to_tens
from xr_tensorfmt.write.vespa import to_vespa

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
