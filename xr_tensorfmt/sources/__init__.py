"""Where bytes come from."""

from __future__ import annotations

import os
import re
from typing import Any, Literal, get_args

from xr_tensorfmt.sources.base import Source
from xr_tensorfmt.sources.fileobject import FileObject
from xr_tensorfmt.sources.local import LocalFile
from xr_tensorfmt.sources.memory import Memory

__all__ = ["FileObject", "InputOutput", "LocalFile", "Memory", "Source", "is_url", "open_source"]

InputOutput = Literal["auto", "mmap", "read"]


def is_url(file: object) -> bool:
    """Whether `file` is a URL or a chain of them (``s3://...``, ``simplecache::s3://...``)."""
    return isinstance(file, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)", file) is not None


def open_source(file: Any, io: InputOutput = "auto") -> Source:
    """Find the Source for what a user passes as a file.

    Parameters
    ----------
    file : str, PathLike, bytes, bytearray, memoryview or file object
        A local path, the content itself, or a seekable binary file object.
    io : {"auto", "mmap", "read"}
        How a local file is read: by windows mapped for each read (``"auto"`` and ``"mmap"``), or
        into memory of its own (``"read"``). It means nothing for the others.

    Returns
    -------
    Source

    Raises
    ------
    OSError
        There is no such file.
    TypeError, ValueError
        `file` is none of these, or `io` none of its words.
    """
    if io not in get_args(InputOutput):
        raise ValueError(f"io={io!r} is not one of {', '.join(map(repr, get_args(InputOutput)))}")
    if isinstance(file, bytes | bytearray | memoryview):
        return Memory(file)
    if is_url(file):
        raise ValueError(
            f"{file} is a URL, which this version does not read by itself; "
            "pass fsspec.open(url).open(), or download the file"
        )
    if isinstance(file, str | os.PathLike):
        return LocalFile.at(file, mapped=io != "read")
    if hasattr(file, "read") and hasattr(file, "seek"):
        return FileObject(file)
    raise TypeError(
        f"cannot open an object of type {type(file).__name__}; pass a path, a binary file object "
        "(of fsspec.open(url) call .open() first) or bytes"
    )
