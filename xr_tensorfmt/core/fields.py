"""Values of a file by key, with errors that name the key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from xr_tensorfmt.errors import TensorFormatError, shorten

Value = TypeVar("Value")

_EXPECTED: dict[type, str] = {
    bool: "a bool",
    dict: "a mapping",
    float: "a number",
    int: "an integer",
    list: "a list",
    str: "a str",
}


@dataclass(frozen=True)
class Fields:
    """A mapping of a file, such as a JSON object. `prefix` is the full name of its key."""

    path: str
    values: Mapping[Any, Any]
    offset: int | None = None
    prefix: str = ""
    hint: str = "correct the file"

    def __contains__(self, key: object) -> bool:
        return key in self.values

    def get_path(self, key: object) -> str:
        """Return the full name of a key, such as ``metaData.energies``."""
        return f"{self.prefix}.{key}" if self.prefix else str(key)

    def error(
        self, key: object, actual: object, expected: str, hint: str = ""
    ) -> TensorFormatError:
        """Return an error about the value of a key, or about another part of the document."""
        field, hint = self.get_path(key), hint or self.hint
        return TensorFormatError(self.path, field, actual, expected, hint, offset=self.offset)

    def check(
        self, holds: bool, key: object, actual: object, expected: str, hint: str = ""
    ) -> None:
        """Raise the error about the value of a key unless a condition holds."""
        if not holds:
            raise self.error(key, actual, expected, hint)

    def get(self, key: Any, kind: type[Value], default: Value | None = None) -> Value:
        """Return a value. Raise TensorFormatError if it is missing or of another type."""
        if key not in self.values:
            if default is None:
                raise self.error(key, "no such key", _EXPECTED[kind])
            return default
        value = self.values[key]
        kinds: tuple[type, ...] = (int, float) if kind is float else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
            raise self.error(key, shorten(repr(value)), _EXPECTED[kind])
        return value  # type: ignore[return-value]

    def get_fields(self, key: Any, default: dict[Any, Any] | None = None) -> Self:
        """Return a mapping."""
        values = self.get(key, dict, default)
        return replace(self, values=values, prefix=self.get_path(key))
