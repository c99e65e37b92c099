"""YAML that cc4s can parse.

cc4s parses a plain scalar as a number if it begins with a digit or a sign, and stops if that fails.
It cannot parse nulls and bools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

# Words that YAML 1.1 or 1.2 takes for another value than a string are quoted.
_PLAIN = re.compile(r"(?!(?:null|true|false|yes|no|on|off|y|n)\Z)[a-z_][a-z0-9_]*\Z", re.IGNORECASE)

# Escape unprintable characters, and "&" and "*", which could look like anchors.
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile("[&*\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def format_yaml(values: Mapping[str, Any]) -> bytes:
    """Format a mapping of strings, finite numbers, lists and mappings as a YAML file."""
    return ("\n".join(_format_lines(values)) + "\n").encode()


def is_portable(value: Any) -> bool:
    """Return whether cc4s can parse a value."""
    if isinstance(value, Mapping | list):
        values = value.values() if isinstance(value, Mapping) else value
        return all(is_portable(item) for item in values)
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, int):
        return not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63
    return isinstance(value, str) and not _SURROGATE.search(value)


def _format_lines(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            name = _format_string(key)
            if isinstance(item, Mapping | list) and item:
                yield f"{name}:"
                yield from (f"  {line}" for line in _format_lines(item))
            else:
                yield f"{name}: {_format_scalar(item)}"
    elif isinstance(value, list) and value:
        for item in value:
            lines = _format_lines(item)
            yield f"- {next(lines)}"
            yield from (f"  {line}" for line in lines)
    else:
        yield _format_scalar(value)


def _format_scalar(value: Any) -> str:
    if isinstance(value, str):
        return _format_string(value)
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list):
        return "[]"
    if isinstance(value, float):
        # YAML 1.1 takes 1e-05 for a string.
        digits, letter, exponent = repr(value).partition("e")
        return f"{digits}{'' if '.' in digits else '.0'}{letter}{exponent}"
    return str(value)


def _format_string(text: str) -> str:
    if _PLAIN.match(text):
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return _ESCAPED.sub(lambda character: f"\\u{ord(character[0]):04x}", quoted)
