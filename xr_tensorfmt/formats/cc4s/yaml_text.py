"""Parse YAML from untrusted files, and format YAML that cc4s can parse.

Plain scalars follow the core schema of YAML 1.2: ``1E-05`` is a number, and ``yes`` is a string.
cc4s cannot parse nulls and bools. MOLGW searches all lines for words such as ``length``, so one
character of these words is escaped everywhere but in the keys of cc4s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import takewhile
from math import isfinite
from typing import Any

import numpy as np
import yaml

from xr_tensorfmt.core.header import MAX_NESTED, Fields, HeaderReader
from xr_tensorfmt.errors import TensorFormatError, shorten

METADATA_KEYS = frozenset({"energies", "fermiEnergy", "halfGrid"})
"""The words of cc4s in ``metaData``."""

KEYS = METADATA_KEYS | {
    *("components", "dimensions", "elements", "length", "metaData"),
    *("nonZeroCondition", "scalarType", "type", "unit", "version"),
}
"""Words of cc4s. Some programs search all lines of a YAML file for them."""

MAX_BYTES = 64 << 20
"""Limit on the size of a YAML file; properties of 400,000 states take about 10 MB."""

MAX_VALUES = 1 << 20
"""Limit on commas and lines, checked before parsing. Two properties of 400,000 states fit."""

# Few installations are without the loader on libyaml, which is 10 times as fast.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}
# Longer integers are floats or strings. All of these can be converted to float.
_INTEGER = re.compile(r"[-+]?[0-9]{1,19}|0o[0-7]{1,22}|0x[0-9a-fA-F]{1,16}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")

# cc4s tags strings as ``!!text``.
_TAGS = {
    yaml.ScalarEvent: ("!", "!text", "tag:yaml.org,2002:text", "tag:yaml.org,2002:str"),
    yaml.SequenceStartEvent: ("tag:yaml.org,2002:seq", "!"),
    yaml.MappingStartEvent: ("tag:yaml.org,2002:map", "!"),
}


class _Builder:
    """Builds the value of a document from the events of the parser, without a tree of nodes."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        self.events = yaml.parse(text, Loader=_LOADER)
        self.keys: list[str] = []

    def build_document(self) -> Any:
        """Return the value of the only document."""
        values: list[Any] = []
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if values:
                    raise self.error(event, "a second document", "valid YAML")
                values.append(self.build(next(self.events), 1))
        return values[0] if values else None

    def build(self, event: Any, level: int) -> Any:
        """Return the value that begins with an event."""
        if isinstance(event, yaml.AliasEvent):
            raise self.error(event, "an alias", "plain values")
        if event.tag not in (None, *_TAGS[type(event)]):
            raise self.error(event, f"the tag {event.tag}", "a value without a tag")
        if level > MAX_NESTED:
            raise self.error(
                event, "values nested deeply", f"at most {MAX_NESTED} within each other"
            )
        if isinstance(event, yaml.MappingStartEvent):
            return self.build_mapping(level + 1)
        if isinstance(event, yaml.SequenceStartEvent):
            return [self.build(item, level + 1) for item in self.take_until(yaml.SequenceEndEvent)]
        is_plain = event.tag is None and event.implicit[0]
        return _parse_plain(event.value) if is_plain else event.value

    def build_mapping(self, level: int) -> dict[str, Any] | list[Any]:
        """Return a dict, or a list, which cc4s writes as a mapping with the keys 0, 1, ...."""
        values: dict[Any, Any] = {}
        names: set[str] = set()  # programs take ``1`` and ``"1"`` for the same key
        for event in self.take_until(yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent | yaml.AliasEvent):
                raise self.error(event, "a list or mapping as a key", "a plain key")
            key = self.build(event, level)
            self.keys.append(str(key))
            if key in values or not names.isdisjoint((event.value, str(key))):
                raise self.error(event, "this key twice", "each key once")
            names |= {event.value, str(key)}
            values[key] = self.build(next(self.events), level)
            self.keys.pop()
        # The keys are sorted by their digits.
        if values and {*map(type, values)} == {int} and {*values} == {*range(len(values))}:
            return [values[index] for index in range(len(values))]
        return {str(key): value for key, value in values.items()}

    def take_until(self, end: type) -> Iterator[Any]:
        """Yield events, and skip the one at the end of a list or mapping."""
        return takewhile(lambda event: not isinstance(event, end), self.events)

    def error(self, event: Any, actual: str, expected: str) -> TensorFormatError:
        """Return an error about the innermost key."""
        field = shorten(".".join(self.keys)) or "the YAML"
        offset = len(self.text[: event.start_mark.index].encode())
        hint = "correct the file"
        return TensorFormatError(self.path, field, shorten(actual), expected, hint, offset)


def _parse_plain(text: str) -> Any:
    if _INTEGER.fullmatch(text):
        number = int(text, 0 if text[1:2] in ("o", "x") else 10)
        return number if -(1 << 63) <= number < 1 << 63 else float(number)
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    return float(text) if _FLOAT.fullmatch(text) else text


def read_yaml(reader: HeaderReader) -> Fields:
    """Read and parse a file. Raises like `parse_fields`."""
    size = reader.source.size
    hint = "drop or shorten attributes and coordinates"
    field, expected = "the size of the YAML", f"at most {MAX_BYTES}"
    reader.check(size <= MAX_BYTES, field, f"{size} bytes", expected, hint, MAX_BYTES)
    return parse_fields(reader.source.name, reader.read_head(size))


def parse_fields(path: str, content: bytes) -> Fields:
    """Parse a file. Raise TensorFormatError if it is not a safe mapping in YAML."""
    offset: int | None = None
    try:
        text = content.removeprefix(b"\xef\xbb\xbf").decode()
        count = sum(map(text.count, ",\n\r\x85\u2028\u2029"))
        if count <= MAX_VALUES:
            document = Fields(path, {"the file": _Builder(path, text).build_document()})
            return Fields(path, document.get("the file", dict))
        actual, expected = f"{count} lines and commas", f"at most {MAX_VALUES}"
    except UnicodeDecodeError as error:
        actual, expected, offset = str(error), "YAML in UTF-8", error.start
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        position = mark.index if mark else getattr(error, "position", 0)
        message = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        actual, expected, offset = message, "valid YAML", len(text[:position].encode())
    raise TensorFormatError(path, "the YAML", actual, expected, "the file is corrupt", offset)


def get_number(fields: Fields, key: str) -> float:
    """Return a finite number."""
    value = float(fields.get(key, float))
    fields.check(isfinite(value), key, value, "a finite number")
    return value


def get_string(fields: Fields, key: str) -> str:
    """Return a string. Programs write some without quotes, such as 1 and true."""
    value = fields.values.get(key)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else fields.get(key, str)


def get_choice(fields: Fields, key: str, allowed: Collection[str]) -> str:
    """Return one of the allowed strings."""
    value, hint = get_string(fields, key), "cc4s supports no other value"
    fields.check(value in allowed, key, repr(value), " or ".join(allowed), hint)
    return value


def get_list(fields: Fields, key: str) -> list[Any]:
    """Return a list. cc4s writes an empty one as an empty mapping."""
    value = fields.values.get(key)
    if value == {}:
        return []
    if isinstance(value, dict):
        raise fields.error(key, f"the keys {shorten(', '.join(value))}", "0, 1, 2, ...")
    return fields.get(key, list)


def get_mappings(fields: Fields, key: str) -> list[Fields]:
    """Return a list of mappings."""
    items = Fields(fields.path, dict(enumerate(get_list(fields, key))), prefix=fields.get_path(key))
    return [items.get_fields(index) for index in items.values]


# Words that YAML 1.1 or 1.2 takes for another value than a string are quoted.
_PLAIN = re.compile(r"(?!(?:null|true|false|yes|no|on|off|y|n)\Z)[a-z_][a-z0-9_]*\Z", re.IGNORECASE)

# Escape unprintable characters, "&" and "*", which could look like anchors, and words of cc4s.
_WORD_STARTS = "|".join(f"{word[0]}(?={word[1:]})" for word in sorted(KEYS))
_ESCAPED = re.compile(f"[&*\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]|{_WORD_STARTS}")


def simplify(value: Any) -> Any:
    """Convert arrays of real numbers to lists, and bools to the 1 and 0 of cc4s."""
    if isinstance(value, np.ndarray | np.generic) and not isinstance(value, str):
        is_real = value.dtype.kind in "biuf" and value.dtype.itemsize <= 8
        return simplify(value.tolist()) if is_real else None
    if isinstance(value, list | tuple):
        return [simplify(item) for item in value]
    if isinstance(value, Mapping):
        return {key: simplify(item) for key, item in value.items()}
    return next((kind(value) for kind in (int, float, str) if isinstance(value, kind)), value)


def is_portable(value: Any) -> bool:
    """Return whether cc4s can parse a value."""
    if isinstance(value, dict | list):
        return all(map(is_portable, value.values() if isinstance(value, dict) else value))
    if type(value) is int:
        return -(1 << 63) <= value < 1 << 63
    is_finite = type(value) is float and isfinite(value)
    return is_finite or (type(value) is str and not re.search("[\ud800-\udfff]", value))


def format_yaml(values: Mapping[str, Any]) -> bytes:
    """Format a mapping of strings, finite numbers, lists and mappings as a YAML file."""
    return ("\n".join(_format_lines(values, KEYS)) + "\n").encode()


def _format_lines(value: Any, plain_keys: Collection[str]) -> Iterator[str]:
    if isinstance(value, list) and value:
        for item in value:
            lines = _format_lines(item, plain_keys)
            yield f"- {next(lines)}"
            yield from (f"  {line}" for line in lines)
        return
    if not isinstance(value, Mapping) or not value:
        yield _format_scalar(value)
        return
    for key, item in value.items():
        name = key if key in plain_keys else _format_scalar(key)
        inner = METADATA_KEYS if key == "metaData" else plain_keys
        lines = _format_lines(item, inner if plain_keys is KEYS else ())
        is_nested = isinstance(item, Mapping | list) and item
        yield f"{name}:" if is_nested else f"{name}: {next(lines)}"
        yield from (f"  {line}" for line in lines)


def _format_scalar(value: Any) -> str:
    """Format a scalar, or an empty mapping or list."""
    if isinstance(value, float):
        # YAML 1.1 takes 1e-05 for a string.
        digits, letter, exponent = repr(value).partition("e")
        return f"{digits}{'' if '.' in digits else '.0'}{letter}{exponent}"
    if not isinstance(value, str):
        return str(value)
    if _PLAIN.match(value) and not _ESCAPED.search(value):
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return _ESCAPED.sub(lambda character: f"\\u{ord(character[0]):04x}", quoted)
