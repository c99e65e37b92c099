"""The registry of formats: those of this package, and those that other packages offer."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from operator import itemgetter

from xr_tensorfmt.contract import Format
from xr_tensorfmt.core.container import Container, OpenOptions
from xr_tensorfmt.core.embedded_metadata import with_embedded_metadata
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError, TensorFormatWarning, did_you_mean, shorten
from xr_tensorfmt.formats.cc4s import Cc4sFormat
from xr_tensorfmt.formats.mag import MagFormat
from xr_tensorfmt.formats.npy import NpyFormat, NpzFormat
from xr_tensorfmt.formats.pycauset import PycausetFormat
from xr_tensorfmt.formats.safetensors import SafetensorsFormat
from xr_tensorfmt.formats.tens import TensFormat
from xr_tensorfmt.formats.unknown import Kind, binary_kind, other_kind
from xr_tensorfmt.formats.vespa import VespaFormat, VespaJsonFormat
from xr_tensorfmt.sources.store_errors import redacted

GROUP = "xr_tensorfmt.formats"
"""Entry points by which other packages offer formats."""

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


@cache
def _of_others() -> tuple[Format, ...]:
    """The formats of other packages; one that cannot be imported is left out with a warning."""
    found: list[Format] = []
    for entry in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            found.append(entry.load()())
        except Exception as error:  # noqa: BLE001  # whatever the import of another package raises
            warnings.warn(
                f"the format {entry.name!r} of {entry.value} cannot be loaded: {error!r}",
                TensorFormatWarning,
                stacklevel=2,
            )
    return tuple(found)


def all_formats() -> Iterator[Format]:
    """All formats: the built-in ones first, then those of other packages."""
    yield from BUILT_IN
    yield from _of_others()


def by_name(name: str) -> Format:
    """The format of a name; ValueError where there is none."""
    for choice in all_formats():
        if choice.name == name:
            return choice
    known = [choice.name for choice in all_formats()]
    hint = did_you_mean(name, known)
    raise ValueError(f"format={name!r}{hint} is not one of {', '.join(map(repr, known))}")


def by_suffix(path: str) -> Format:
    """The format in which a file of a name is written; ValueError where none has its suffix."""
    found = _of_suffix(path, all_formats())
    if found is not None and found.can_write:
        return found
    writers = [each for each in all_formats() if each.can_write]
    suffixes = [suffix for each in writers for suffix in each.suffixes]
    hint = did_you_mean(os.path.splitext(path)[1], suffixes)
    problem = f"{found.title} can only be read" if found else f"the suffix names no format{hint}"
    raise ValueError(
        f"{redacted(path)}: {problem}; pass format=, one of "
        f"{', '.join(repr(each.name) for each in writers)}, or use one of the suffixes "
        f"{', '.join(suffixes)}"
    )


def _of_suffix(path: str, candidates: Iterable[Format]) -> Format | None:
    """The format with the longest suffix that a name ends with."""
    name = os.path.basename(path.casefold())
    found = [
        (len(suffix), each)
        for each in candidates
        for suffix in each.suffixes
        if name.endswith(suffix) and name != suffix
    ]
    return max(found, key=itemgetter(0))[1] if found else None


def recognised(source: Source) -> bool:
    """Whether a file can only be of one of the formats, by its content and perhaps its name."""
    reader = HeaderReader(source)
    return any(choice.recognises(reader) for choice in all_formats())


def choose(reader: HeaderReader, name: str | None = None) -> Format:
    """The format of a name, or else that of a file by its first bytes and then its suffix."""
    if name is not None:
        return by_name(name)
    head = reader.head
    with_magic = [each for each in all_formats() if head.startswith(each.magics)]
    if len(with_magic) == 1:
        return with_magic[0]
    for each in with_magic:
        if each.recognises(reader):
            return each
    candidates = with_magic or [each for each in all_formats() if not each.magics]
    of_suffix = _of_suffix(reader.source.name, candidates)
    foreign = binary_kind(reader)
    if of_suffix is not None and (with_magic or not foreign or of_suffix.recognises(reader)):
        return of_suffix
    raise _unknown(reader, foreign or other_kind(reader))


def read(reader: HeaderReader, chosen: Format, options: OpenOptions) -> Container:
    """Read a file's header, and apply the embedded metadata."""
    if options.fill_value is not None and "fill_value" not in chosen.open_options:
        raise ValueError(
            f"fill_value={options.fill_value!r} does not fit format {chosen.name!r}, which itself "
            "says what elements are that are not stored; leave it out"
        )
    if options.apply_unit and "apply_unit" not in chosen.open_options:
        raise ValueError(
            f"apply_unit=True does not fit format {chosen.name!r}, whose files state no unit; "
            "leave it out"
        )
    container = chosen.read(reader, options)
    if container.embedded is not None:
        container = with_embedded_metadata(reader.source.name, container, options)
    _check_named_variables(container, options)
    return container


def _check_named_variables(container: Container, options: OpenOptions) -> None:
    if not isinstance(options.dims, Mapping):
        return
    names = {tensor.name: None for tensor in container.tensors}
    for name in options.dims:
        if name not in names:
            raise ValueError(
                f"dims={shorten(options.dims)} names dimensions of {shorten(repr(name))}"
                f"{did_you_mean(name, names)}, but the variables are "
                f"{shorten(', '.join(map(repr, names)))}; "
                "to rename single dimensions use ds.rename"
            )


def _unknown(reader: HeaderReader, kind: Kind) -> TensorFormatError:
    """What to say of a file of no format."""
    head = reader.head[:8]
    found = (
        f"{head!r}, the file is {kind.title}" if head else f"nothing, as the file is {kind.title}"
    )
    names = ", ".join(each.title for each in all_formats())
    expected = f"that of a format of this engine: {names}"
    way_out = kind.way_out
    if not kind.is_known:
        nameless = (f"format={each.name!r}" for each in all_formats() if not each.magics)
        way_out += f", or name a format that has no magic number: {', '.join(nameless)}"
    return reader.error("the magic number", found, expected, way_out, 0)
