"""Registry of built-in formats and of formats in other packages."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any

from xr_tensorfmt.contract import CONTRACT_VERSION, Format, Match
from xr_tensorfmt.core.container import Container, OpenOptions
from xr_tensorfmt.core.embedded_metadata import apply_embedded_metadata
from xr_tensorfmt.core.findings import Finding, finding_from_error
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.open_options import find_names
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import (
    TensorFormatError,
    TensorFormatWarning,
    did_you_mean,
    find_stack_level,
    shorten,
)
from xr_tensorfmt.formats.cc4s import Cc4sFormat
from xr_tensorfmt.formats.mag import MagFormat
from xr_tensorfmt.formats.npy import NpyFormat, NpzFormat
from xr_tensorfmt.formats.pycauset import PycausetFormat
from xr_tensorfmt.formats.safetensors import SafetensorsFormat
from xr_tensorfmt.formats.tens import TensFormat
from xr_tensorfmt.formats.unknown import ForeignFormat, find_by_magic, find_without_magic
from xr_tensorfmt.formats.vespa import VespaFormat, VespaJsonFormat
from xr_tensorfmt.sources import DEFAULT_TIMEOUT, InputOutput, find_source
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
    VespaJsonFormat(),
)


def list_names(*, writable: bool = False) -> list[str]:
    """Return the names of all formats, or omit those that are only read.

    Other packages are not imported, so their formats count as writable.
    """
    built_in = [choice.name for choice in BUILT_IN if choice.can_write or not writable]
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
        ("magics", magics, "a tuple of non-empty bytes"),
        (
            "open_options",
            file_format.open_options - _DECLARED_OPTIONS.keys(),
            "names of open options",
        ),
    ):
        if unsupported:
            raise ValueError(
                f"{attribute} is {getattr(file_format, attribute)!r}, expected {expected}"
            )
    return file_format


def all_formats() -> Iterator[Format]:
    """Yield the built-in formats, then the formats of other packages."""
    yield from BUILT_IN
    yield from _load_plugins()


def find_file_attrs(attrs: Mapping[Any, Any]) -> set[str]:
    """Return the names of attributes that a reader of any format has set."""
    return {name for file_format in all_formats() for name in file_format.find_file_attrs(attrs)}


def find_format(name: str) -> Format:
    """Return the format with a name. Raise ValueError if the name is unknown."""
    for file_format in all_formats():
        if file_format.name == name:
            return file_format
    names = [file_format.name for file_format in all_formats()]
    hint = did_you_mean(name, names)
    raise ValueError(f"format={name!r}{hint} is not one of {', '.join(map(repr, names))}")


def find_format_by_suffix(path: str) -> Format | None:
    """Return the format with the longest suffix that a path ends with."""
    file_format = max(all_formats(), key=lambda file_format: len(file_format.suffix_of(path)))
    return file_format if file_format.suffix_of(path) else None


def find_format_for_path(path: str) -> Format:
    """Return the format to write by the suffix of a path. Raise ValueError if there is none."""
    file_format = find_format_by_suffix(path)
    if file_format and file_format.can_write:
        return file_format
    writable = [file_format for file_format in all_formats() if file_format.can_write]
    names = ", ".join(repr(file_format.name) for file_format in writable)
    suffixes = [suffix for file_format in writable for suffix in file_format.suffixes]
    hint = did_you_mean(os.path.splitext(path)[1], suffixes)
    problem = (
        f"{file_format.title} can only be read"
        if file_format
        else f"the suffix names no format{hint}"
    )
    raise ValueError(
        f"{redact(path)}: {problem}; pass format=, one of {names}, or use one of the suffixes "
        f"{', '.join(suffixes)}"
    )


def is_recognised(source: Source) -> bool:
    """Return whether a file certainly has one of the formats."""
    return _find_best_match(HeaderReader(source))[1] is Match.CERTAIN


def open_header(
    file: Any,
    io: InputOutput = "auto",
    storage_options: Mapping[str, Any] | None = None,
    fs: Any = None,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> HeaderReader:
    """Open a file, or the index of a directory, and return a reader of its header."""
    try:
        return HeaderReader(*find_source(file, io, storage_options, fs, timeout))
    except IsADirectoryError:
        index = _find_index(file, storage_options, fs)
        if index is None:
            raise
    return HeaderReader(*find_source(index, io, storage_options, fs, timeout))


def _find_index(file: Any, storage_options: Mapping[str, Any] | None, fs: Any) -> str | None:
    """Return the path or URL of the only index in a directory."""
    from xr_tensorfmt.sources.locations import locate_for_reading  # noqa: PLC0415

    directory = os.fspath(file) if isinstance(file, os.PathLike) else file
    if not isinstance(directory, str):
        return None
    location = locate_for_reading(directory, storage_options, fs, DEFAULT_TIMEOUT)
    paths = location.call(partial(location.fs.ls, location.path, detail=False))
    suffixes = tuple(
        file_format.index_suffix for file_format in all_formats() if file_format.index_suffix
    )
    names = [os.path.basename(path) for path in paths if path.casefold().endswith(suffixes)]
    if len(names) > 1:
        raise IsADirectoryError(
            f"{redact(directory)} is a directory with several models: "
            f"{shorten(', '.join(sorted(names)))}; pass the path of one of these files"
        )
    return f"{directory.rstrip('/')}/{names[0]}" if names else None


def choose_format(reader: HeaderReader, name: str | None = None) -> Format:
    """Return the named format. Without a name, return the format that matches a file best."""
    if name is not None:
        return find_format(name)
    file_format, match = _find_best_match(reader)
    has_magic = reader.head.startswith(file_format.magics)
    foreign = None if match is Match.CERTAIN or has_magic else find_by_magic(reader)
    if match is Match.NONE or foreign:
        raise _build_unknown_error(reader, foreign or find_without_magic(reader))
    return file_format


def _find_best_match(reader: HeaderReader) -> tuple[Format, Match]:
    """Return the format that matches a file best. If equal, the longest suffix decides."""
    path = reader.source.name
    matches = [(file_format, _match(file_format, reader)) for file_format in all_formats()]
    return max(matches, key=lambda pair: (pair[1], len(pair[0].suffix_of(path))))


def _match(file_format: Format, reader: HeaderReader) -> Match:
    """Compare a file with a format. A format of another package never breaks an open."""
    if file_format in BUILT_IN:
        return file_format.match(reader)
    try:
        return Match(file_format.match(reader))
    except (OSError, TensorFormatError):
        return Match.NONE
    except Exception as error:  # noqa: BLE001  # other packages can raise anything
        warnings.warn(
            f"the format {file_format.name!r} cannot be compared with {reader.source.name}: "
            f"{error!r}; update or remove its package",
            TensorFormatWarning,
            stacklevel=find_stack_level(),
        )
        return Match.NONE


_DECLARED_OPTIONS = {
    "name": "contains variable names; use ds.rename",
    "sparse": "stores all elements; omit it",
    "fill_value": "defines the value of elements that are not stored; omit it",
    "text_errors": "has no labels that need it; omit it",
    "verify": "has no data to verify; omit it",
    "apply_unit": "has no unit; omit it",
}
"""Options that a format must declare, with the reason and the hint of the error otherwise."""


def read(reader: HeaderReader, file_format: Format, options: OpenOptions) -> Container:
    """Read the header of a file, and apply the embedded metadata."""
    _check_options(file_format, options)
    container = _check_ends(file_format.read(reader, options), options)
    if container.embedded is not None:
        container = apply_embedded_metadata(reader.source.name, container, options)
    container = file_format.finish(container, options)
    _check_named_variables(container, options)
    return container


def _check_ends(container: Container, options: OpenOptions) -> Container:
    """Report trailing bytes. Raise an error if `verify` is True."""
    findings: list[Finding] = []
    for end in container.ends:
        error = end.error
        if error is not None and end.severity == "error" and options.verify:
            raise error
        if error is not None:
            findings.append(replace(finding_from_error(error), severity=end.severity))
    if not findings:
        return container
    return replace(container, findings=(*container.findings, *findings))


def _check_options(file_format: Format, options: OpenOptions) -> None:
    """Raise ValueError if an option does not apply to a format."""
    for keyword, reason in _DECLARED_OPTIONS.items():
        value = getattr(options, keyword)
        if keyword not in file_format.open_options and value != getattr(OpenOptions, keyword):
            raise ValueError(
                f"{keyword}={value!r} does not fit format {file_format.name!r}, which {reason}"
            )


def _check_named_variables(container: Container, options: OpenOptions) -> None:
    if not isinstance(options.dims, Mapping):
        return
    ranks = {tensor.name: len(tensor.dims) for tensor in container.tensors}
    for name, dims in options.dims.items():
        is_used = any(
            find_names({name: dims}, variable, rank) is not None for variable, rank in ranks.items()
        )
        if not is_used:
            raise ValueError(
                f"dims={shorten(options.dims)} names dimensions of {shorten(repr(name))}"
                f"{did_you_mean(name, ranks)}, but the variables are "
                f"{shorten(', '.join(map(repr, ranks)))}; "
                "to rename single dimensions use ds.rename"
            )


def _build_unknown_error(reader: HeaderReader, foreign: ForeignFormat | None) -> TensorFormatError:
    """Build the error about an unsupported format."""
    if foreign is None:
        without_magic = (
            f"format={file_format.name!r}"
            for file_format in all_formats()
            if not file_format.magics
        )
        hint = (
            "leave out engine= to try other engines, read bare values with numpy.memmap(path, "
            "dtype, 'r', shape=...), or name a format that has no magic number: "
            f"{', '.join(without_magic)}"
        )
        foreign = ForeignFormat("of no known format", hint)
    head = reader.head[:8]
    actual = f"{head!r}, the file" if head else "no bytes, the file"
    names = ", ".join(file_format.title for file_format in all_formats())
    expected = f"a file of one of the formats {names}"
    return reader.error(
        "the magic number", f"{actual} is {foreign.title}", expected, foreign.hint, 0
    )
