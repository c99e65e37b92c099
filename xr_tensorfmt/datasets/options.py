"""The keywords of the engine: names, types, defaults and checks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

from xr_tensorfmt.core.extents import DEFAULT_CHUNK_BYTES
from xr_tensorfmt.core.locks import cached_property
from xr_tensorfmt.core.open_options import DEFAULT_TIMEOUT, OpenOptions, check_timeout

if TYPE_CHECKING:
    from xr_tensorfmt.core.source import InputOutput


@dataclass(frozen=True)
class EngineKeywords(OpenOptions):
    """The keywords of `TensorFormatBackend.open_dataset`."""

    mask_and_scale: bool | Mapping[str, bool] = True
    decode_times: Any = True
    concat_characters: bool | Mapping[str, bool] = True
    decode_coords: bool | Literal["coordinates", "all"] = True
    drop_variables: str | Iterable[str] | None = None
    use_cftime: bool | Mapping[str, bool] | None = None
    decode_timedelta: Any = None
    format: str | None = None
    group: str | None = None
    separator: str = "."
    storage_options: Mapping[str, Any] | None = None
    fs: Any = None
    timeout: float | None = DEFAULT_TIMEOUT
    verify_unchanged: bool = True
    io: InputOutput = "auto"
    chunk_bytes: int | str = DEFAULT_CHUNK_BYTES

    def __post_init__(self) -> None:
        """Raise an error if a value has the wrong type."""
        super().__post_init__()
        for keyword in ("verify", "apply_unit", "decode_floats", "verify_unchanged"):
            if not isinstance(getattr(self, keyword), bool):
                raise TypeError(f"{keyword}={getattr(self, keyword)!r} must be True or False")
        check_timeout(self.timeout)
        names = self.drop_variables
        is_list = isinstance(names, Iterable) and not isinstance(names, bytes)
        if names is not None and not is_list:
            raise TypeError(f"drop_variables={names!r} must be a name or a list of names")
        if not isinstance(self.group, str | None):
            raise TypeError(f"group={self.group!r} must be a str such as 'layers.0'")
        if not isinstance(self.separator, str) or not self.separator:
            raise TypeError(f"separator={self.separator!r} must be a non-empty str such as '.'")
        if self.storage_options is not None and not isinstance(self.storage_options, Mapping):
            raise TypeError(
                "storage_options= must be a mapping such as {'anon': True}, not a "
                f"{type(self.storage_options).__name__}"
            )

    def for_formats(self) -> OpenOptions:
        """Return the options with the prefix of the group before the names in `dims`."""
        if not isinstance(self.dims, Mapping):
            return self
        from xr_tensorfmt.datasets.groups import get_prefix  # noqa: PLC0415  # slow to import

        prefix = get_prefix(self.group, self.separator)
        return replace(self, dims={f"{prefix}{name}": dims for name, dims in self.dims.items()})

    @cached_property
    def dropped(self) -> frozenset[str]:
        """Names of variables to drop."""
        names = self.drop_variables
        return frozenset([names] if isinstance(names, str) else names or ())

    @cached_property
    def chunk_target(self) -> int:
        """Size of chunks in bytes, limited by dask's ``array.chunk-size``."""
        target, limit = parse_size("chunk_bytes", self.chunk_bytes), 128 << 20  # dask's default
        if "dask" in sys.modules or _may_be_configured():
            from dask import config  # noqa: PLC0415  # takes 70 ms, and many reads need no dask

            limit = parse_size("array.chunk-size", config.get("array.chunk-size", limit))
        return min(target, limit)


def parse_keywords(**keywords: Any) -> EngineKeywords:
    """Separate the keywords of the engine from those of a format."""
    names = keywords.keys() & {field.name for field in fields(EngineKeywords)}
    own = {name: keywords.pop(name) for name in names}
    return EngineKeywords(**own, format_options=keywords)


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
