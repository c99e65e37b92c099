"""Parse YAML from untrusted files: no anchors, no objects, named limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from typing import Any

from xr_tensorfmt.contract import HeaderReader, TensorFormatError, shorten
from xr_tensorfmt.formats.cc4s.yaml_values import parse_yaml

MAX_BYTES = 64 << 20
"""Limit on the size of a YAML file; properties of 400,000 states take about 10 MB."""

_BOM = b"\xef\xbb\xbf"


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
        _check_length(path, len(content))
        values = parse_yaml(path, content)
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
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise self.error(key, shorten(repr(value)), expected, "correct the file")
        return value

    def integer(self, key: Any) -> int:
        """Return an integer."""
        return int(self._read_typed(key, int, "an integer"))

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
        if not _is_numbered(value):
            keys = shorten(", ".join(map(str, islice(value, 100))))
            raise self.error(key, f"the keys {keys}", "0, 1, 2, ...", "correct the file")
        return [value[index] for index in range(len(value))]

    def mappings(self, key: Any) -> list[Fields]:
        """Return a list of mappings."""
        items = Fields(self.path, dict(enumerate(self.sequence(key))), self.get_path(key))
        return [items.mapping(index) for index in items.values]

    def plain(self, key: Any) -> dict[str, Any]:
        """Return a mapping of strings to plain values."""
        values = self._read_typed(key, dict, "a mapping")
        return {str(name): _to_plain(value) for name, value in values.items()}


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
