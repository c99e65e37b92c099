"""JSON of files that nobody vouches for, within named limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from json import loads
from typing import Any

from xr_tensorfmt.core.json_values import MOST_LEVELS

MOST_NESTED = MOST_LEVELS + 8
"""Limit on lists and objects within each other: those of attributes, and what they are in.

Pickling fails from some 500 on, and dask's names of arrays already from 100.
"""

MOST_VALUES = 4 << 20
"""Limit on the values of a document, each of which may take a hundred bytes of memory."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_MARKS = ",:[{"
_PLAIN = frozenset({str, int, float, bool, type(None)})
_TOO_DEEP = f"lists or objects that are nested deeper than {MOST_NESTED} levels"


class LimitError(ValueError):
    """JSON that is not damaged, but beyond a limit."""


def parsed(
    text: str, object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Parse JSON as `json.loads` does; LimitError where it is beyond a limit."""
    check_values(text)
    try:
        value = loads(text, object_pairs_hook=object_pairs_hook)
    except RecursionError:
        raise LimitError(_TOO_DEEP) from None
    check_nested(value)
    return value


def check_values(text: str) -> None:
    """Refuse more values than may be kept in memory, before there are any."""
    if _marks(text) > MOST_VALUES and (found := _marks(_STRING.sub("", text))) > MOST_VALUES:
        raise LimitError(f"{found} values, more than {MOST_VALUES}")


def _marks(text: str) -> int:
    """The characters before values, also where they are within strings."""
    return sum(map(text.count, _MARKS))


def check_nested(value: Any) -> None:
    """Refuse nesting that other programs could not follow."""
    if not is_nested_within(MOST_NESTED, value, _children):
        raise LimitError(_TOO_DEEP)


def is_nested_within(most: int, value: Any, children: Callable[[Any], Iterable[Any]]) -> bool:
    """Whether the containers in a value are nested at most so deep; nothing recurses."""
    level = [value]
    for _ in range(most + 1):
        level = [each for parent in level for each in _containers(children, parent)]
        if not level:
            return True
    return False


def _containers(children: Callable[[Any], Iterable[Any]], value: Any) -> list[Any]:
    """What is in a value and may contain others; most lists are of numbers alone."""
    if _PLAIN.issuperset(map(type, children(value))):
        return []
    return [child for child in children(value) if type(child) not in _PLAIN]


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
