"""Parsing JSON of untrusted files, with limits and errors that name the offset."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from json import JSONDecodeError, loads
from typing import Any

from xr_tensorfmt.core.fields import Fields
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.json_values import MAX_LEVELS
from xr_tensorfmt.errors import shorten

MAX_NESTED = MAX_LEVELS + 8
"""Limit on nested lists and objects. dask fails at about 100 levels."""

MAX_VALUES = 4 << 20
"""Limit on the values of a document. A value may take 100 bytes of memory."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_MARKS = ",:[{"
_TOO_DEEP = f"lists or objects that are nested deeper than {MAX_NESTED} levels"


class RefusedJSONError(ValueError):
    """JSON that exceeds a limit or repeats a key."""


def parse_json(text: str) -> Any:
    """Parse JSON as `json.loads` does. Raise ValueError if it is invalid or refused."""
    # Count the marks before values before they take memory, at first also those in strings.
    if len(text) > MAX_VALUES and sum(map(text.count, _MARKS)) > MAX_VALUES:
        count = sum(map(_STRING.sub("", text).count, _MARKS))
        if count > MAX_VALUES:
            raise RefusedJSONError(f"{count} values, more than {MAX_VALUES}")
    try:
        value = loads(text)
        # If a key is repeated, only the last one is left. Strings may have colons, too.
        if _count_members(value) != text.count(":"):
            value = loads(text, object_pairs_hook=reject_repeated)
    except RecursionError:
        raise RefusedJSONError(_TOO_DEEP) from None
    return value


def reject_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object. Raise RefusedJSONError if a key is repeated."""
    members = dict(pairs)
    if len(members) != len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise RefusedJSONError(f"the key {shorten(repr(key))} is repeated")
    return members


def _count_members(value: Any) -> int:
    """Count the members of all objects. Raise RefusedJSONError if values are nested too deep."""
    count, level = 0, [value]
    for _ in range(MAX_NESTED + 2):
        types = set(map(type, level))
        objects = [child for child in level if type(child) is dict] if dict in types else []
        lists = [child for child in level if type(child) is list] if list in types else []
        if not objects and not lists:
            return count
        count += sum(map(len, objects))
        values = chain.from_iterable(map(dict.values, objects))
        level = [*values, *chain.from_iterable(lists)]
    raise RefusedJSONError(_TOO_DEEP)


def read_json(
    reader: HeaderReader, start: int, length: int, limit: int, title: str = "the document"
) -> Fields:
    """Read a JSON object of at most `limit` bytes, with NaN and infinities as in Python."""
    if length > limit:
        hint = f"{title} is corrupt, or the file has another format"
        raise reader.error(title, f"{length} bytes", f"at most {limit} bytes", hint, start)
    raw = reader.read_field(start, length, "the JSON document")
    offset, hint = start, f"{title} is corrupt"
    try:
        string = raw.decode()
        content = parse_json(string)
    except UnicodeDecodeError as error:
        offset, actual = start + error.start, "bytes that are not UTF-8"
    except JSONDecodeError as error:
        offset = start + len(string[: error.pos].encode())
        actual = f"{error.msg}: {string[error.pos : error.pos + 20]!r}"
    except RefusedJSONError as error:
        actual, hint = str(error), f"{title} is corrupt or malicious"
    except ValueError as error:
        # Python limits the digits of integers. Do not format the integer in another message.
        actual, hint = str(error), "for longer integers call sys.set_int_max_str_digits"
    else:
        if isinstance(content, Mapping):
            return Fields(reader.source.name, content, start, hint=hint)
        actual = f"a {type(content).__name__}"
    raise reader.error(title, actual, "a JSON object", hint, offset)
