"""JSON of untrusted files."""

from __future__ import annotations

import json
import re

import pytest

from xr_tensorfmt.core.header import MAX_NESTED, parse_json

REPEATED = [
    '{"a": 1, "a": 2}',
    '{"a": {"b": 1, "c": 2}, "a": 3}',
    '{"a": 3, "a": {"b": 1, "c": 2}}',
    '[0, {"x": [{"a": 1, "b": 2, "a": 3}]}]',
    r'{"a": "\u003a", "a": "\u003A"}',
    r'{"a": "\u003a\u003a", "a": ":"}',
    r'{"a": "\":", "\u0061": "{:"}',
    '{"a:": ":", "a:": "::"}',
    *(f'{{"a"{space}: "12:00", "a": 2}}' for space in " \t\n\r"),
]


@pytest.mark.parametrize("text", REPEATED)
def test_repeated_keys_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"the key 'a:?' is repeated"):
        parse_json(text)
    unique = re.sub(r'"(a:?|\\u0061)"\s*:', lambda key: f'"{key.start()}":', text)
    assert parse_json(unique) == json.loads(unique)


@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
def test_nesting_is_limited(start: str, end: str) -> None:
    count = (MAX_NESTED + 1) // (2 if start.startswith("[{") else 1)
    text = start * count + "1" + end * count
    assert parse_json(text) == json.loads(text)
    with pytest.raises(ValueError, match="nested deeper"):
        parse_json(f"[[{text}]]")
