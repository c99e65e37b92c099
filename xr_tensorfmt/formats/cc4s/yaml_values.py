"""Values of a YAML document: no aliases, no objects, no repeated keys.

Plain scalars follow the core schema of YAML 1.2: ``1E-05`` is a number, and ``yes`` is a string.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from xr_tensorfmt.contract import MAX_NESTED, TensorFormatError, shorten

MAX_VALUES = 2 << 20
"""Limit on keys and values. Two properties of 400,000 states fit."""

# Few installations are without the loader on libyaml, which is 10 times as fast.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}
_INTEGER = re.compile(r"[-+]?[0-9]{1,19}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")

# cc4s tags strings as ``!!text``.
_STRING_TAGS = {"!", "!text", "tag:yaml.org,2002:text", "tag:yaml.org,2002:str"}

_NO_KEY = object()


def parse_yaml(path: str, content: bytes) -> Any:
    """Return the values of a document. Raise TensorFormatError if it is not safe YAML."""
    hint = "the file is corrupt"
    try:
        text = content.decode()
        builder = _Builder(path, text)
        for event in yaml.parse(text, Loader=_LOADER):
            builder.add_event(event)
    except UnicodeDecodeError as error:
        raise TensorFormatError(
            path, "the YAML", str(error), "YAML in UTF-8", hint, offset=error.start
        ) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        position = mark.index if mark else getattr(error, "position", 0)
        message = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        offset = len(text[:position].encode())
        raise TensorFormatError(path, "the YAML", message, "valid YAML", hint, offset) from error
    return builder.document


class _Builder:
    """Builds lists and dicts from the events of the parser."""

    def __init__(self, path: str, text: str) -> None:
        self._path, self._text = path, text
        self._count = 0
        # The open lists and dicts, the texts of their keys, and the keys whose values come next.
        self._values: list[Any] = [[]]
        self._names: list[set[str]] = [set()]
        self._keys: list[Any] = [None]

    @property
    def document(self) -> Any:
        """The first document, or None if there is none."""
        documents = self._values[0]
        return documents[0] if documents else None

    def add_event(self, event: yaml.Event) -> None:
        """Add a scalar, or begin or end a list or a dict."""
        if isinstance(event, yaml.ScalarEvent):
            self._add_scalar(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            del self._names[-1], self._keys[-1]
            self._add_value(self._values.pop())
        elif isinstance(event, yaml.CollectionStartEvent):
            self._begin(event)
        elif isinstance(event, yaml.AliasEvent):
            hint = "aliases can exhaust the memory; write the values out"
            raise self._error(event, f"the alias *{event.anchor}", "plain values", hint)
        elif isinstance(event, yaml.DocumentStartEvent) and self._values[0]:
            raise self._error(event, "a second document", "one document", "remove it")

    def _add_scalar(self, event: yaml.ScalarEvent) -> None:
        self._count_value(event)
        value = self._resolve(event)
        if isinstance(self._values[-1], dict) and self._keys[-1] is _NO_KEY:
            self._add_key(event, value)
        else:
            self._add_value(value)

    def _add_key(self, event: yaml.ScalarEvent, key: Any) -> None:
        """Add a key. Programs take ``1`` and ``"1"`` for the same key."""
        self._keys[-1] = key
        if event.value in self._names[-1] or key in self._values[-1]:
            hint = "programs disagree on which value counts; remove all but one"
            raise self._error(event, "this key twice", "each key once", hint)
        self._names[-1].add(event.value)

    def _add_value(self, value: Any) -> None:
        values = self._values[-1]
        if isinstance(values, list):
            values.append(value)
        else:
            values[self._keys[-1]] = value
            self._keys[-1] = _NO_KEY

    def _begin(self, event: yaml.CollectionStartEvent) -> None:
        if self._keys[-1] is _NO_KEY:
            raise self._error(event, "a list or mapping as a key", "a plain key", "write a str")
        if len(self._values) > MAX_NESTED:
            expected = f"at most {MAX_NESTED} within each other"
            hint = "the file is corrupt"
            raise self._error(event, "lists or mappings nested deeply", expected, hint)
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        self._check_tag(event)
        self._count_value(event)
        self._values.append({} if is_mapping else [])
        self._names.append(set())
        self._keys.append(_NO_KEY if is_mapping else None)

    def _count_value(self, event: yaml.NodeEvent) -> None:
        self._count += 1
        if self._count > MAX_VALUES:
            hint = "values belong in the file of elements"
            raise self._error(event, "more values", f"at most {MAX_VALUES} in the YAML", hint)

    def _resolve(self, event: yaml.ScalarEvent) -> Any:
        """Return the value of a scalar."""
        text: str = event.value
        if not event.implicit[0]:  # quoted or tagged
            self._check_tag(event)
            return text
        if _INTEGER.fullmatch(text):
            number = int(text)
            return number if -(1 << 63) <= number < 1 << 63 else float(text)
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if _FLOAT.fullmatch(text):
            return float(text)
        return int(text, 0) if _BASED.fullmatch(text) else text

    def _check_tag(self, event: yaml.NodeEvent) -> None:
        """Raise an error about a tag, unless it marks a string."""
        if event.tag is not None and event.tag not in _STRING_TAGS:
            hint = "tags are not supported, because they can create objects; write a plain value"
            raise self._error(event, f"the tag {event.tag}", "a value without a tag", hint)

    def _error(
        self, event: yaml.NodeEvent, actual: str, expected: str, hint: str
    ) -> TensorFormatError:
        """Return an error about the innermost key."""
        keys = [str(key) for key in self._keys[1:] if key is not None and key is not _NO_KEY]
        field = shorten(".".join(keys)) or "the YAML"
        offset = len(self._text[: event.start_mark.index].encode())
        return TensorFormatError(self._path, field, shorten(actual), expected, hint, offset=offset)
