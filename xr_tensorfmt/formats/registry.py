"""Registry of built-in formats and of formats in other packages."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from xr_tensorfmt.core.file_format import CONTRACT_VERSION, Format, Option
from xr_tensorfmt.errors import TensorFormatWarning, did_you_mean, find_stack_level
from xr_tensorfmt.formats.cc4s import Cc4sFormat
from xr_tensorfmt.formats.mag import MagFormat
from xr_tensorfmt.formats.npy import NpyFormat, NpzFormat
from xr_tensorfmt.formats.pycauset import PycausetFormat
from xr_tensorfmt.formats.reading import DECLARED_OPTIONS
from xr_tensorfmt.formats.safetensors import SafetensorsFormat
from xr_tensorfmt.formats.tens import TensFormat
from xr_tensorfmt.formats.vespa import VespaFormat
from xr_tensorfmt.sources.store_errors import redact

ENTRY_POINT_GROUP = "xr_tensorfmt.formats"
"""Group of entry points for formats in other packages."""

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
    """Return the names of all formats, or only of writable formats.

    Formats of other packages are not imported, and count as writable.
    """
    built_in = [
        file_format.name for file_format in BUILT_IN if file_format.can_write or not writable
    ]
    return built_in + sorted(point.name for point in entry_points(group=ENTRY_POINT_GROUP))


@cache
def _load_plugins() -> tuple[Format, ...]:
    """Return the formats of other packages. Skip a broken one with a warning."""
    loaded: dict[str, Format] = {file_format.name: file_format for file_format in BUILT_IN}
    for entry in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        try:
            file_format = _load_plugin(entry.load(), loaded)
        except Exception as error:  # noqa: BLE001  # other packages can raise anything
            warnings.warn(
                f"the format {entry.name!r} of {entry.value} cannot be used: {error!r}; "
                "update or remove its package",
                TensorFormatWarning,
                stacklevel=find_stack_level(),
            )
        else:
            loaded[file_format.name] = file_format
    return tuple(loaded.values())[len(BUILT_IN) :]


def _load_plugin(plugin: Any, loaded: Collection[str]) -> Format:
    """Return the format of another package. Raise an error if it breaks the contract."""
    if not (isinstance(plugin, type) and issubclass(plugin, Format)):
        raise TypeError("it is not a subclass of xr_tensorfmt.contract.Format")
    version = getattr(plugin, "contract_version", None)
    if version != CONTRACT_VERSION:
        raise ValueError(f"contract_version is {version!r}, expected {CONTRACT_VERSION}")
    file_format: Format = plugin()
    suffixes = [
        suffix for suffix in file_format.suffixes if not re.fullmatch(r"\.[^/A-Z]+", suffix)
    ]
    magics = [magic for magic in file_format.magics if not (isinstance(magic, bytes) and magic)]
    for attribute, unsupported, expected in (
        ("name", file_format.name in loaded or not file_format.name, "a unique name"),
        ("title", not isinstance(file_format.title, str), "a str"),
        ("suffixes", suffixes, "a tuple of str such as '.grid', in lower case"),
        (
            "directory_patterns",
            not _is_patterns(file_format.directory_patterns),
            "a tuple of str such as '*.grid'",
        ),
        ("write_options", not _is_options(file_format.write_options), "a mapping to Option"),
        ("read_options", not _is_options(file_format.read_options), "a mapping to Option"),
        ("find_suffix", not isinstance(file_format.find_suffix("a"), str), "a method -> str"),
        ("magics", magics, "a tuple of non-empty bytes"),
        (
            "open_options",
            file_format.open_options - DECLARED_OPTIONS.keys(),
            "names of open options",
        ),
    ):
        if unsupported:
            raise ValueError(
                f"{attribute} is {getattr(file_format, attribute)!r}, expected {expected}"
            )
    return file_format


def _is_options(options: object) -> bool:
    return isinstance(options, Mapping) and all(isinstance(o, Option) for o in options.values())


def _is_patterns(patterns: object) -> bool:
    return isinstance(patterns, tuple) and all(isinstance(pattern, str) for pattern in patterns)


def load_formats() -> Iterator[Format]:
    """Yield the built-in formats, then the formats of other packages."""
    yield from BUILT_IN
    yield from _load_plugins()


def find_format(name: str) -> Format:
    """Return the format with a name. Raise ValueError if the name is unknown."""
    for file_format in load_formats():
        if file_format.name == name:
            return file_format
    names = [file_format.name for file_format in load_formats()]
    hint = did_you_mean(name, names)
    raise ValueError(f"format={name!r}{hint} is not one of {', '.join(map(repr, names))}")


def find_format_by_suffix(path: str) -> Format | None:
    """Return the format with the longest suffix that a path ends with."""
    file_format = max(load_formats(), key=lambda file_format: len(file_format.find_suffix(path)))
    return file_format if file_format.find_suffix(path) else None


def suggest_suffix(path: str, suffixes: Collection[str]) -> str:
    """Return a hint for a path whose suffix has no format, or an empty string."""
    if path.endswith((".json", ".jsonl")):
        return " (xr_tensorfmt.vespa.to_json and to_jsonl write JSON of Vespa)"
    return did_you_mean(os.path.splitext(path)[1], suffixes)


def find_format_for_path(path: str) -> Format:
    """Return the format to write by the suffix of a path. Raise ValueError if there is none."""
    file_format = find_format_by_suffix(path)
    if file_format and file_format.can_write:
        return file_format
    writable = [file_format for file_format in load_formats() if file_format.can_write]
    names = ", ".join(repr(file_format.name) for file_format in writable)
    suffixes = [suffix for file_format in writable for suffix in file_format.suffixes]
    hint = suggest_suffix(path, suffixes)
    problem = (
        f"{file_format.title} can only be read"
        if file_format
        else f"the suffix names no format{hint}"
    )
    raise ValueError(
        f"{redact(path)}: {problem}; pass format=, one of {names}, or use one of the suffixes "
        f"{', '.join(suffixes)}"
    )
