"""The description of a file as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from xr_tensorfmt.cli.words import printable
from xr_tensorfmt.datasets.explanation import size_in_words
from xr_tensorfmt.errors import shortened

_TITLES = {"tens": "TENS", "mag": "MAG", "pycauset": "PyCauset", "vespa": "Vespa"}
_MOST_CHARACTERS = 72


def text_of(document: Mapping[str, Any]) -> str:
    """What `describe` found, for a terminal."""
    title = [_TITLES[document["format"]], document["container"], document["version"]]
    words = " ".join(str(each) for each in title if each is not None)
    noted = ", with a note by xr_tensorfmt" if document["note"] else ""
    lines = [f"{document['path']}: {words}, {size_in_words(document['size'])}{noted}"]
    dims = _dims(document)
    lines += [f"Dimensions: {dims}"] if dims else []
    for heading, content in (
        ("Coordinates", _variables(document["coordinates"])),
        ("Variables", _variables(document["variables"])),
        ("Attributes", _attributes(document["attrs"], "  ")),
        ("Other files", (f"  {each}" for each in document["files"])),
        ("Warnings", (f"  {each}" for each in document["warnings"])),
    ):
        block = list(content)
        lines += [f"{heading}:", *block] if block else []
    return "\n".join(map(printable, lines))


def _dims(document: Mapping[str, Any]) -> str:
    """Without those that are called after their variables, and are its own."""
    variables = document["variables"]
    found = (
        f"{dim}: {length}"
        for dim, length in document["dims"].items()
        if dim.rpartition("_dim_")[0] not in variables
    )
    return ", ".join(found)


def _variables(variables: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A line for each, in columns, and below it its attributes."""
    rows = [_cells(name, facts) for name, facts in variables.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, facts in zip(rows, variables.values(), strict=True):
        yield "  " + "  ".join(map(str.ljust, row, widths)).rstrip()
        yield from _attributes(facts["attrs"], "      ")


def _cells(name: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    stored = facts["stored"].removeprefix(f"{facts['dtype']}, ")
    stored = "" if stored == facts["dtype"] else f" ({stored})"
    return (
        shortened(name, _MOST_CHARACTERS),
        _shape(name, facts),
        facts["dtype"] + stored,
        size_in_words(facts["size"]),
        _place(facts),
        _chunks(facts),
    )


def _shape(name: str, facts: Mapping[str, Any]) -> str:
    """Lengths with the names of the dimensions, but for names that only repeat the variable's."""
    each = (
        str(length) if dim.startswith(f"{name}_dim_") else f"{dim}: {length}"
        for dim, length in zip(facts["dims"], facts["shape"], strict=True)
    )
    return f"({', '.join(each)})"


def _place(facts: Mapping[str, Any]) -> str:
    if facts["offset"] is None:
        return ""
    return f"at byte {facts['offset']}{', on a page' if facts['on_page'] else ''}"


def _chunks(facts: Mapping[str, Any]) -> str:
    if facts["chunks"] < 2:
        return ""
    return f"{facts['chunks']} chunks of {' x '.join(map(str, facts['chunk']))}"


def _attributes(attrs: Mapping[str, Any], indent: str) -> Iterable[str]:
    for name, value in attrs.items():
        yield f"{indent}{shortened(name, 40)}: {shortened(_one_line(value), _MOST_CHARACTERS)}"


def _one_line(value: Any) -> str:
    return " ".join(str(value).split())
