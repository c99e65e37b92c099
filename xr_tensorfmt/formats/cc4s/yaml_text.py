"""Parse YAML from untrusted files: no aliases, no objects, no repeated keys, named limits.

Plain scalars follow the core schema of YAML 1.2: ``1E-05`` is a number, and ``yes`` is a string.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from math import isfinite
from typing import Any, ClassVar

import yaml

from xr_tensorfmt.core.fields import Fields
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.json_text import MAX_NESTED
from xr_tensorfmt.errors import TensorFormatError, shorten

MAX_BYTES = 64 << 20
"""Limit on the size of a YAML file; properties of 400,000 states take about 10 MB."""

MAX_VALUES = 1 << 20
"""Limit on commas and lines, checked before parsing. Two properties of 400,000 states fit."""

_BOM = b"\xef\xbb\xbf"

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
_STRING_TAGS = ("!", "!text", "tag:yaml.org,2002:text", "tag:yaml.org,2002:str")
_PLAIN_TAG = "plain"


# Few installations are without the loader on libyaml, which is 10 times as fast.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Builds plain values, and raises an error about anything else."""

    yaml_implicit_resolvers: ClassVar[Any] = {None: [(_PLAIN_TAG, re.compile(""))]}

    def __init__(self, path: str, text: str) -> None:
        super().__init__(text)
        self._path, self._text = path, text
        self._keys: list[str] = []
        self._levels = 0

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node. An alias is a node that occurs again."""
        if node in self.constructed_objects or node in self.recursive_objects:
            hint = "aliases can exhaust the memory; write the values out"
            raise self._error(None, "an alias", "plain values", hint)
        self._levels += 1
        if self._levels > MAX_NESTED:
            expected, hint = f"at most {MAX_NESTED} within each other", "the file is corrupt"
            raise self._error(node, "lists or mappings nested deeply", expected, hint)
        value = super().construct_object(node, deep=True)
        self._levels -= 1
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a dict. Programs take ``1`` and ``"1"`` for the same key."""
        values: dict[Any, Any] = {}
        names = set()
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(
                    key_node, "a list or mapping as a key", "a plain key", "write a str"
                )
            key = self.construct_object(key_node)
            self._keys.append(str(key))
            if key_node.value in names or key in values:
                hint = "programs disagree on which value counts; remove all but one"
                raise self._error(key_node, "this key twice", "each key once", hint)
            names.add(key_node.value)
            values[key] = self.construct_object(value_node)
            self._keys.pop()
        return values

    def construct_plain(self, node: yaml.ScalarNode) -> Any:
        """Return the value of a scalar without quotes and tag."""
        text: str = node.value
        if _INTEGER.fullmatch(text):
            number = int(text, 0 if text[1:2] in ("o", "x") else 10)
            return number if -(1 << 63) <= number < 1 << 63 else float(number)
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        return float(text) if _FLOAT.fullmatch(text) else text

    def refuse_tag(self, node: yaml.Node) -> None:
        """Raise an error about a tag."""
        hint = "tags are not supported, because they can create objects; write a plain value"
        raise self._error(node, f"the tag {node.tag}", "a value without a tag", hint)

    def _error(
        self, node: yaml.Node | None, actual: str, expected: str, hint: str
    ) -> TensorFormatError:
        """Return an error about the innermost key."""
        field = shorten(".".join(self._keys)) or "the YAML"
        offset = None if node is None else len(self._text[: node.start_mark.index].encode())
        return TensorFormatError(self._path, field, shorten(actual), expected, hint, offset)

    yaml_constructors: ClassVar[Any] = {
        _PLAIN_TAG: construct_plain,
        **dict.fromkeys(_STRING_TAGS, yaml.SafeLoader.construct_scalar),
        "tag:yaml.org,2002:map": construct_mapping,
        "tag:yaml.org,2002:seq": yaml.SafeLoader.construct_sequence,
        None: refuse_tag,
    }


def parse_yaml(path: str, content: bytes) -> Any:
    """Return the values of a document. Raise TensorFormatError if it is not safe YAML."""
    hint = "the file is corrupt"
    try:
        text = content.decode()
        count = sum(map(text.count, ",\n\r\x85\u2028\u2029"))
        if count > MAX_VALUES:
            actual, expected = f"{count} lines and commas", f"at most {MAX_VALUES}"
            hint = "values belong in the file of elements"
            raise TensorFormatError(path, "the YAML", actual, expected, hint)
        return _Loader(path, text).get_single_data()
    except UnicodeDecodeError as error:
        raise TensorFormatError(
            path, "the YAML", str(error), "YAML in UTF-8", hint, offset=error.start
        ) from error
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        position = mark.index if mark else getattr(error, "position", 0)
        message = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        offset = len(text[:position].encode())
        raise TensorFormatError(path, "the YAML", message, "valid YAML", hint, offset) from error


def read_yaml(reader: HeaderReader) -> Fields:
    """Read and parse a file. Raises like `parse_fields`, and for a file that is too long."""
    path, size = reader.source.name, reader.source.size
    _check_length(path, size)
    return parse_fields(path, reader.read_head(size))


def parse_fields(path: str, content: bytes) -> Fields:
    """Parse a file. Raise TensorFormatError if it is not a safe mapping in YAML."""
    content = content.removeprefix(_BOM)
    _check_length(path, len(content))
    document = Fields(path, {"the file": parse_yaml(path, content)})
    return Fields(path, document.get("the file", dict))


def get_number(fields: Fields, key: str) -> float:
    """Return a finite number."""
    value = float(fields.get(key, float))
    if not isfinite(value):
        raise fields.error(key, value, "a finite number")
    return value


def get_string(fields: Fields, key: str) -> str:
    """Return a string. Programs write some without quotes, such as 1 and true."""
    value = fields.values.get(key)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else fields.get(key, str)


def get_choice(fields: Fields, key: str, allowed: Mapping[str, Any] | tuple[str, ...]) -> str:
    """Return one of the allowed strings."""
    value = get_string(fields, key)
    if value not in allowed:
        raise fields.error(key, repr(value), " or ".join(allowed), "cc4s supports no other value")
    return value


def get_list(fields: Fields, key: Any) -> list[Any]:
    """Return a list. cc4s writes lists as mappings with the keys 0, 1, ...."""
    value = fields.values.get(key)
    if not isinstance(value, dict):
        return fields.get(key, list)
    if not _is_numbered(value):
        keys = shorten(", ".join(map(str, islice(value, 100))))
        raise fields.error(key, f"the keys {keys}", "0, 1, 2, ...")
    return [value[index] for index in range(len(value))]


def get_mappings(fields: Fields, key: str) -> list[Fields]:
    """Return a list of mappings."""
    items = Fields(fields.path, dict(enumerate(get_list(fields, key))), prefix=fields.get_path(key))
    return [items.get_fields(index) for index in items.values]


def get_plain(fields: Fields, key: str) -> dict[str, Any]:
    """Return a mapping of strings to plain values."""
    return {str(name): _to_plain(value) for name, value in fields.get(key, dict).items()}


def _is_numbered(value: Mapping[Any, Any]) -> bool:
    """Return whether the keys are 0, 1, ... cc4s writes lists so, sorted by the digits."""
    return set(map(type, value)) <= {int} and sorted(value) == [*range(len(value))]


def _to_plain(value: Any) -> Any:
    """Convert keys to strings, and mappings with the keys 0, 1, ... to lists."""
    if isinstance(value, list):
        return [_to_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value and _is_numbered(value):
        return [_to_plain(value[index]) for index in range(len(value))]
    return {str(name): _to_plain(item) for name, item in value.items()}


def _check_length(path: str, size: int) -> None:
    if size > MAX_BYTES:
        hint = "values belong in the file of elements; drop or shorten attributes and coordinates"
        field, actual, expected = "the size of the YAML", f"{size} bytes", f"at most {MAX_BYTES}"
        raise TensorFormatError(path, field, actual, expected, hint, offset=MAX_BYTES)
