"""Checks of the keywords of the engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from numbers import Integral
from typing import Any

from xr_tensorfmt.core.source import check_timeout

Keywords = Mapping[str, Any]
"""Keywords of `TensorFormatBackend.open_dataset`, which states all of them and the defaults."""


def check_keywords(keywords: Keywords) -> None:
    """Raise an error if a value has the wrong type."""
    is_strict = keywords.get("verify_unchanged", True)
    storage_options = keywords.get("storage_options")
    if not isinstance(is_strict, bool):
        raise TypeError(f"verify_unchanged={is_strict!r} must be True or False")
    check_timeout(keywords.get("timeout"))
    names, group, separator = (keywords[k] for k in ("drop_variables", "group", "separator"))
    if names is not None and (not isinstance(names, Iterable) or isinstance(names, bytes)):
        raise TypeError(f"drop_variables={names!r} must be a name or a list of names")
    if not isinstance(group, str | None):
        raise TypeError(f"group={group!r} must be a str such as 'layers.0'")
    if not isinstance(separator, str) or not separator:
        raise TypeError(f"separator={separator!r} must be a non-empty str such as '.'")
    if not isinstance(storage_options, Mapping | None):
        kind = type(storage_options).__name__
        raise TypeError(
            f"storage_options= must be a mapping such as {{'anon': True}}, not a {kind}"
        )


def find_dropped(keywords: Keywords) -> frozenset[str]:
    """Return the names of variables to drop."""
    names = keywords["drop_variables"]
    return frozenset([names] if isinstance(names, str) else names or ())


def limit_chunks(chunk_bytes: int | str) -> int:
    """Return the size of chunks in bytes, limited by dask's ``array.chunk-size``."""
    target, limit = parse_size("chunk_bytes", chunk_bytes), 128 << 20  # dask's default
    if "dask" in sys.modules or _may_be_configured():
        from dask import config  # noqa: PLC0415  # takes 70 ms, and many reads need no dask

        limit = parse_size("array.chunk-size", config.get("array.chunk-size", limit))
    return min(target, limit)


@cache
def _may_be_configured() -> bool:
    """Return whether variables or files of this process may configure dask."""
    if any(name.startswith("DASK_") for name in os.environ):
        return True
    parents = ("/etc", f"{sys.prefix}/etc", os.path.expanduser("~/.config"))
    return any(os.path.isdir(f"{parent}/dask") for parent in parents)


def parse_size(keyword: str, value: int | str) -> int:
    """Return the value of a keyword for a number of bytes."""
    if isinstance(value, bool) or not isinstance(value, Integral | str):
        raise TypeError(f"{keyword}={value!r} must be an int or a str such as '32MiB'")
    size = _parse_text(value) if isinstance(value, str) else int(value)
    if size < 1:
        raise ValueError(f"{keyword}={value!r} must be a positive number of bytes such as '32MiB'")
    return size


@cache
def _parse_text(text: str) -> int:
    from dask.utils import parse_bytes  # noqa: PLC0415  # as above

    try:
        return int(parse_bytes(text))
    except (ValueError, OverflowError):
        return 0
