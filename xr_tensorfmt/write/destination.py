"""Where a user wants a file: on this machine, or in a store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fsspec.core import OpenFile

from xr_tensorfmt.sources import is_remote
from xr_tensorfmt.sources.locate import Place, locate


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
