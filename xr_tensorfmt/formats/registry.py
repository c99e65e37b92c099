"""Registry of built-in formats and of formats in other packages."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from xr_tensorfmt.core.file_format import CONTRACT_VERSION, SHARED_OPTIONS, Format
from xr_tensorfmt.errors import build_choice_error, did_you_mean, redact, warn
from xr_tensorfmt.formats.cc4s import Cc4sFormat
from xr_tensorfmt.formats.mag import MagFormat
from xr_tensorfmt.formats.npy import NpyFormat, NpzFormat
from xr_tensorfmt.formats.pycauset import PycausetFormat
from xr_tensorfmt.formats.safetensors import SafetensorsFormat
from xr_tensorfmt.formats.tens import TensFormat
from xr_tensorfmt.formats.vespa import VespaFormat

ENTRY_POINT_GROUP = "xr_tensorfmt.formats"

BUILT_IN: tuple[Format, ...] = (
    TensFormat(),
    Cc4sFormat(),
    MagFormat(),
    PycausetFormat(),
    VespaFormat(),
    SafetensorsFormat(),
    NpyFormat(),
    NpzFormat(),
)


def list_names(*, writable: bool = False) -> list[str]:
    """Return the names of all or writable formats. Those of other packages count as writable."""
    built_in = [known.name for known in BUILT_IN if known.can_write or not writable]
    return built_in + sorted(point.name for point in entry_points(group=ENTRY_POINT_GROUP))


@cache
def load_plugins() -> tuple[Format, ...]:
    """Return the formats of other packages. Skip a broken one with a warning."""
    loaded: list[Format] = []
    for entry in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        try:
            loaded.append(_load_plugin(entry.load(), (*BUILT_IN, *loaded)))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # packages can raise anything
            problem = f"the format {entry.name!r} of {entry.value} cannot be used: {error!r}"
            warn(f"{problem}; update or remove its package")
    return tuple(loaded)


def _load_plugin(plugin: Any, known: Iterable[Format]) -> Format:
    """Return the format of another package. Raise an error if it breaks the contract."""
    if not (isinstance(plugin, type) and issubclass(plugin, Format)):
        raise TypeError("it is not a subclass of xr_tensorfmt.contract.Format")
    version = getattr(plugin, "contract_version", None)
    if version != CONTRACT_VERSION:
        raise ValueError(f"contract_version is {version!r}, expected {CONTRACT_VERSION}")
    file_format: Format = plugin()
    if file_format.name in [other.name for other in known]:
        raise ValueError(f"name is {file_format.name!r}, which another format has")
    for option, declared in file_format.open_options.items():
        shared = SHARED_OPTIONS.get(option, declared)
        if declared.default != shared.default:
            raise ValueError(f"{option}= has the default {shared.default!r} in other formats")
    if b"" in file_format.magics:
        raise ValueError("magics has an empty magic number, which all files begin with")
    len(file_format.find_suffix("a"))  # raises here what it would raise at each opening
    return file_format


def load_formats() -> Iterator[Format]:
    """Yield the built-in formats, then the formats of other packages."""
    yield from BUILT_IN
    yield from load_plugins()


def find_format(name: str) -> Format:
    """Return the format with a name. Raise ValueError if the name is unknown."""
    for file_format in load_formats():
        if file_format.name == name:
            return file_format
    raise build_choice_error("format", name, list_names())


def find_format_by_suffix(path: str) -> Format | None:
    """Return the format with the longest suffix that a path ends with."""
    found = max(load_formats(), key=lambda file_format: len(file_format.find_suffix(path)))
    return found if found.find_suffix(path) else None


def find_format_for_path(path: str, stores: Mapping[str, str] = MappingProxyType({})) -> Format:
    """Return the format to write by a suffix, or raise ValueError, which also lists `stores`."""
    file_format = find_format_by_suffix(path)
    if file_format and file_format.can_write:
        return file_format
    writable = [known for known in load_formats() if known.can_write]
    names = [*(known.name for known in writable), *dict.fromkeys(stores.values())]
    suffixes = [*(suffix for known in writable for suffix in known.suffixes), *stores]
    problem = "the suffix names no format" + did_you_mean(os.path.splitext(path)[1], suffixes)
    if file_format:
        problem = f"{file_format.title} can only be read"
    elif path.endswith((".json", ".jsonl")):
        problem = "xr_tensorfmt.vespa.to_json and to_jsonl write JSON of Vespa"
    raise ValueError(
        f"{redact(path)}: {problem}; pass format= or --to, one of {', '.join(map(repr, names))}, "
        f"or use one of the suffixes {', '.join(suffixes)}"
    )
