"""The keywords of the engine, checked once for all ways to open a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from xr_tensorfmt.core.chunk_grid import TARGET
from xr_tensorfmt.core.container import OpenOptions
from xr_tensorfmt.datasets.groups import prefix
from xr_tensorfmt.errors import did_you_mean
from xr_tensorfmt.sources import DEFAULT_TIMEOUT, InputOutput, checked_timeout


@dataclass(frozen=True)
class Request(OpenOptions):
    """The keywords of `TensorFormatBackend.open_dataset`, where they are documented."""

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
    io: InputOutput = "auto"
    chunk_bytes: int | str = TARGET

    def __post_init__(self) -> None:
        """Refuse values of types that would be misinterpreted."""
        super().__post_init__()
        for keyword in ("verify", "apply_unit"):
            if not isinstance(getattr(self, keyword), bool):
                raise TypeError(f"{keyword}={getattr(self, keyword)!r} must be True or False")
        checked_timeout(self.timeout)
        names = self.drop_variables
        is_iterable = names is None or isinstance(names, Iterable)
        if isinstance(names, bytes) or not is_iterable:
            raise TypeError(f"drop_variables={names!r} must be a name or a list of names")
        if self.group is not None and not isinstance(self.group, str):
            raise TypeError(f"group={self.group!r} must be a str such as 'layers.0'")
        if not isinstance(self.separator, str) or not self.separator:
            raise TypeError(f"separator={self.separator!r} must be a non-empty str such as '.'")
        if self.storage_options is not None and not isinstance(self.storage_options, Mapping):
            raise TypeError(
                "storage_options= must be a mapping such as {'anon': True}, not a "
                f"{type(self.storage_options).__name__}"
            )

    @property
    def options(self) -> OpenOptions:
        """The same for the formats, in which variables have their full names."""
        start, dims = prefix(self.group, self.separator), self.dims
        if not (start and isinstance(dims, Mapping)):
            return self
        return replace(self, dims={f"{start}{name}": names for name, names in dims.items()})

    @property
    def dropped(self) -> frozenset[str]:
        """Names of the variables to leave out."""
        names = self.drop_variables
        return frozenset([names] if isinstance(names, str) else names or ())


_KEYWORDS = dict.fromkeys(field.name for field in fields(Request))


def request_of(**keywords: Any) -> Request:
    """The keywords of the engine; TypeError where there is no such keyword."""
    for name in keywords:
        if name not in _KEYWORDS:
            raise TypeError(
                f"{name!r}{did_you_mean(name, _KEYWORDS)} is not a keyword of the engine "
                f"'tensorfmt', which are {', '.join(_KEYWORDS)}"
            )
    return Request(**keywords)
