"""YAML that cc4s can parse.

cc4s parses a plain scalar as a number if it begins with a digit or a sign, and stops if that fails.
It cannot parse nulls and bools. MOLGW searches all lines for words such as ``length``, so one
character of these words is escaped everywhere but in the keys of cc4s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from math import isfinite
from typing import Any

from xr_tensorfmt.core.json_values import DTYPE_TAG, array_from_json
from xr_tensorfmt.formats.cc4s.spec import KEYS, METADATA_KEYS

# Words that YAML 1.1 or 1.2 takes for another value than a string are quoted.
_PLAIN = re.compile(r"(?!(?:null|true|false|yes|no|on|off|y|n)\Z)[a-z_][a-z0-9_]*\Z", re.IGNORECASE)

# Escape unprintable characters, "&" and "*", which could look like anchors, and words of cc4s.
_SURROGATE = re.compile("[\ud800-\udfff]")
_WORD_STARTS = "|".join(f"{word[0]}(?={word[1:]})" for word in sorted(KEYS))
_ESCAPED = re.compile(f"[&*\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]|{_WORD_STARTS}")


def format_yaml(values: Mapping[str, Any]) -> bytes:
    """Format a mapping of strings, finite numbers, lists and mappings as a YAML file."""
    return ("\n".join(_format_lines(values, KEYS)) + "\n").encode()


def simplify(value: Any) -> Any:
    """Convert the arrays of JSON to lists if they are real, and bools to the 1 and 0 of cc4s."""
    if isinstance(value, list):
        return [simplify(item) for item in value]
    if not isinstance(value, Mapping):
        return int(value) if isinstance(value, bool) else value
    if set(value) != {DTYPE_TAG}:
        return {key: simplify(item) for key, item in value.items()}
    array = array_from_json(value[DTYPE_TAG])
    return simplify(array.tolist()) if array.dtype.kind in "biuf" else None


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


def _format_lines(value: Any, plain_keys: Collection[str]) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            name = key if key in plain_keys else _format_string(key)
            if isinstance(item, Mapping | list) and item:
                yield f"{name}:"
                inner = _choose_plain_keys(key, plain_keys)
                yield from (f"  {line}" for line in _format_lines(item, inner))
            else:
                yield f"{name}: {_format_scalar(item)}"
    elif isinstance(value, list) and value:
        for item in value:
            lines = _format_lines(item, plain_keys)
            yield f"- {next(lines)}"
            yield from (f"  {line}" for line in lines)
    else:
        yield _format_scalar(value)


def _choose_plain_keys(key: str, plain_keys: Collection[str]) -> Collection[str]:
    """Return the words of cc4s that are keys in a mapping."""
    if plain_keys is KEYS:
        return METADATA_KEYS if key == "metaData" else KEYS
    return ()


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
    if _PLAIN.match(text) and not _ESCAPED.search(text):
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return _ESCAPED.sub(lambda character: f"\\u{ord(character[0]):04x}", quoted)
