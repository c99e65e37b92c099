"""Parse YAML from untrusted files: no anchors, no objects, named limits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from math import isfinite
from typing import Any

from yaml12 import Yaml, parse_yaml

from xr_tensorfmt.contract import MAX_NESTED, HeaderReader, TensorFormatError, is_too_deep, shorten
from xr_tensorfmt.formats.cc4s.unique_keys import DisputedSyntaxError, find_repeated_key

MAX_BYTES = 64 << 20
"""Limit on the size of a YAML file; properties of 400,000 states take about 10 MB."""

MAX_SEPARATORS = 2 << 20
"""Limit on separators of values. A comma counts twice and a colon three times.

The parser needs up to 200 bytes of memory per separator. Two properties of 400,000 states fit.
"""

_BOM = b"\xef\xbb\xbf"
_MARKS = b",:?-[]{}\r\n"

# Aliases copy the value of an anchor, so a few lines could fill the memory.
_ANCHOR = re.compile(rb"(?:^|[\s\[{,:?-])&[^\s,\[\]{}]", re.MULTILINE)
_ALIAS = re.compile(rb"(?:^|[\s\[{,:?-])\*[^\s,\[\]{}]", re.MULTILINE)

# Deeply nested blocks are indented deeply. The parser would exhaust the stack.
_INDENTED = re.compile(rb"^(?:[ \t]|[-?:](?=[ \t])){200}[ \t]*+\S", re.MULTILINE)
_TO_BLANKS = bytes.maketrans(b"\t-?:", b"    ")

# Tags of cc4s for strings.
_STRING_TAGS = {"!text", "tag:yaml.org,2002:text"}


@dataclass(frozen=True)
class Fields:
    """A mapping in a YAML file, with its path for errors."""

    path: str
    values: Mapping[Any, Any]
    prefix: str = ""

    @classmethod
    def read(cls, reader: HeaderReader) -> Fields:
        """Read and parse a file. Raises like `parse`, and for a file that is too long."""
        path, size = reader.source.name, reader.source.size
        _check_length(path, size)
        return cls.parse(path, reader.read_head(size))

    @classmethod
    def parse(cls, path: str, content: bytes) -> Fields:
        """Parse a file. Raise TensorFormatError if it is not a safe mapping in YAML."""
        content = content.removeprefix(_BOM)
        check_safe(path, content)
        try:
            values = parse_yaml(content.decode())
        except ValueError as error:  # also of the decoding
            raise TensorFormatError(
                path, "the YAML", str(error), "YAML 1.2 in UTF-8", "the file is corrupt", offset=0
            ) from error
        if is_too_deep(values, _get_children):
            raise _build_nesting_error(path, 0)
        _check_keys(path, content)
        return cls(path, cls(path, {"the file": values}).mapping("the file").values)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def get_path(self, key: object) -> str:
        """Return the full path of a key, such as ``metaData.energies``."""
        return f"{self.prefix}.{key}" if self.prefix else str(key)

    def error(self, key: object, actual: object, expected: str, hint: str) -> TensorFormatError:
        """Return an error about the value of a key."""
        return TensorFormatError(self.path, self.get_path(key), actual, expected, hint)

    def _read_typed(self, key: Any, kinds: type | tuple[type, ...], expected: str) -> Any:
        if key not in self.values:
            raise self.error(key, "no such key", expected, "add it")
        value = self.values[key]
        if isinstance(value, Yaml) and value.tag in _STRING_TAGS:
            value = value.value
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise self.error(key, shorten(repr(value)), expected, "correct the file")
        return value

    def integer(self, key: Any) -> int:
        """Return an integer."""
        value: int = self._read_typed(key, int, "an integer")
        return value

    def number(self, key: Any) -> float:
        """Return a finite number."""
        value = float(self._read_typed(key, (int, float), "a number"))
        if not isfinite(value):
            raise self.error(key, value, "a finite number", "correct the file")
        return value

    def string(self, key: Any) -> str:
        """Return a string. Programs write some without quotes, such as 1 and true."""
        value = self.values.get(key)
        if isinstance(value, bool):
            return str(value).lower()
        return str(self._read_typed(key, (str, int, float), "a str"))

    def choice(self, key: str, allowed: Mapping[str, Any] | tuple[str, ...]) -> str:
        """Return one of the allowed strings."""
        value = self.string(key)
        if value not in allowed:
            raise self.error(key, repr(value), " or ".join(allowed), "cc4s supports no other value")
        return value

    def mapping(self, key: Any) -> Fields:
        """Return a mapping."""
        values = self._read_typed(key, dict, "a mapping")
        return Fields(self.path, values, "" if key == "the file" else self.get_path(key))

    def sequence(self, key: Any) -> list[Any]:
        """Return a list. cc4s writes lists as mappings with the keys 0, 1, ...."""
        value = self._read_typed(key, (list, dict), "a list")
        if isinstance(value, list):
            return value
        in_order = range(len(value))
        if set(map(type, value)) - {int} or sorted(value) != list(in_order):
            keys = shorten(", ".join(map(str, islice(value, 100))))
            raise self.error(key, f"the keys {keys}", "0, 1, 2, ...", "correct the file")
        return [value[position] for position in in_order]

    def mappings(self, key: Any) -> list[Fields]:
        """Return a list of mappings."""
        items = Fields(self.path, dict(enumerate(self.sequence(key))), self.get_path(key))
        return [items.mapping(position) for position in items.values]

    def plain(self, key: Any) -> dict[str, Any]:
        """Return a mapping of strings to plain values."""
        values = self._read_typed(key, dict, "a mapping")
        return {
            str(self._to_plain(name, key)): self._to_plain(item, key)
            for name, item in values.items()
        }

    def _to_plain(self, value: Any, key: Any) -> Any:
        if isinstance(value, Yaml):
            if value.tag in _STRING_TAGS:
                return value.value
            hint = "tags are not supported, because they can create objects; write a plain value"
            raise self.error(key, shorten(repr(value)), "a value without a tag", hint)
        if isinstance(value, dict):
            if value and set(map(type, value)) == {int} and sorted(value) == [*range(len(value))]:
                # cc4s writes lists as mappings, sorted by the digits of the keys.
                return [self._to_plain(value[position], key) for position in range(len(value))]
            return {
                str(self._to_plain(name, key)): self._to_plain(item, key)
                for name, item in value.items()
            }
        return [self._to_plain(item, key) for item in value] if isinstance(value, list) else value


def check_safe(path: str, content: bytes) -> None:
    """Raise TensorFormatError for YAML that could fill memory or stack, or contains a NUL."""
    _check_length(path, len(content))
    may_have = b"&" in content and b"*" in content and _ALIAS.search(content)
    anchor = _ANCHOR.search(content) if may_have else None
    if anchor is not None:
        raise TensorFormatError(
            path,
            "the YAML",
            "an anchor (&), for aliases",
            "plain values",
            "aliases can exhaust the memory; write the values out",
            offset=content.index(b"&", anchor.start()),
        )
    has_blanks = 200 * b" " in content.translate(_TO_BLANKS)
    indented = _INDENTED.search(content) if has_blanks else None
    if indented is not None:
        raise _build_nesting_error(path, indented.start())
    if b"\0" in content:
        hint = "the file is corrupt; fetch it again"
        raise TensorFormatError(
            path, "the YAML", "a NUL", "printable characters", hint, offset=content.index(b"\0")
        )
    # A value on a separate line has two separators: "-" and the end of the line.
    marks = len(content) - len(content.translate(None, _MARKS))
    marks += content.count(b",") + 2 * content.count(b":")
    if marks > MAX_SEPARATORS:
        hint = "values belong in the file of elements"
        expected = f"at most {MAX_SEPARATORS} of any of {_MARKS.decode()!r}"
        raise TensorFormatError(path, "the YAML", f"{marks} separators", expected, hint, offset=0)


def _check_keys(path: str, content: bytes) -> None:
    """Raise TensorFormatError for repeated keys, since programs disagree on the value."""
    try:
        repeated = find_repeated_key(content)
    except DisputedSyntaxError as error:
        hint = "write it in a simpler form, which all programs read"
        expected = "YAML 1.1 and 1.2 at once"
        raise TensorFormatError(path, "the YAML", str(error), expected, hint, offset=0) from error
    if repeated is not None:
        hint = "programs disagree on which value counts; remove all but one"
        raise TensorFormatError(path, repeated, "this key twice", "each key once", hint)


def _check_length(path: str, size: int) -> None:
    if size > MAX_BYTES:
        hint = "values belong in the file of elements; drop or shorten attributes and coordinates"
        field, actual, expected = "the size of the YAML", f"{size} bytes", f"at most {MAX_BYTES}"
        raise TensorFormatError(path, field, actual, expected, hint, offset=MAX_BYTES)


def _get_children(value: Any) -> Iterable[Any]:
    """Return the keys and values in a value. Keys can be lists."""
    if isinstance(value, Yaml):
        return (value.value,)
    if isinstance(value, dict):
        return chain(value, value.values())
    return value if isinstance(value, list) else ()


def _build_nesting_error(path: str, offset: int) -> TensorFormatError:
    hint = "the file is corrupt"
    expected = f"at most {MAX_NESTED} within each other, indented by less than 200 characters"
    return TensorFormatError(
        path, "the YAML", "lists or mappings nested deeply", expected, hint, offset=offset
    )
