"""Long attributes, such as a tokenizer, which xarray would display in full in a notebook.

It displays ``html.escape(str(value))``. For a list and a dict this is their ``repr``, which is
short here. Of a string, ``str`` must stay whole, as numpy and netCDF4 copy strings by it, so that
only the escaping shortens it. All are equal to the plain values, and are copied, pickled and
encoded as JSON as these are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from reprlib import Repr
from typing import Any, SupportsIndex

LONGEST_SHOWN = 10_000
"""Characters of an attribute that are displayed in full; of a longer one only the beginning is."""

_BEGINNING = 200
_ITEMS = Repr()
_ITEMS.maxlist = _ITEMS.maxdict = 4


class LongStr(str):
    """A string of which only the beginning is displayed; ``value[:]`` is a plain one."""

    __slots__ = ()

    def __str__(self) -> str:
        """The whole string."""
        return self

    def __repr__(self) -> str:
        """The beginning, and how long it is."""
        return f"{self[:_BEGINNING]!r}... ({len(self)} characters)"

    def replace(self, old: str, new: str, /, count: SupportsIndex = -1) -> str:
        """As of a str; the first step of `html.escape` shortens it."""
        is_escaped = (old, new) == ("&", "&amp;")
        return (repr(self) if is_escaped else self[:]).replace(old, new, count)


class LongList(list[Any]):
    """A list of which only the beginning is displayed."""

    def __repr__(self) -> str:
        """The first items, and how many there are."""
        return f"{_ITEMS.repr_list(self, 2)} ({len(self)} items)"


class LongDict(dict[str, Any]):
    """A dict of which only the beginning is displayed."""

    def __repr__(self) -> str:
        """The first items, and how many there are."""
        return f"{_ITEMS.repr_dict(self, 2)} ({len(self)} items)"


def displayable(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of which none fills a notebook; their values are the same."""
    return {
        name: _LONG[type(value)](value) if type(value) in _LONG and _is_long(value) else value
        for name, value in attrs.items()
    }


_LONG: dict[type, Callable[[Any], Any]] = {str: LongStr, list: LongList, dict: LongDict}


def _is_long(value: Any) -> bool:
    """Whether a value has more characters than are displayed, without looking at all of it."""
    left, values = LONGEST_SHOWN, [value]
    while values and left >= 0:
        item = values.pop()
        left -= len(item) if isinstance(item, str | list | dict) else 1
        if left >= 0 and isinstance(item, list | dict):
            values.extend(item)
            if isinstance(item, dict):
                values.extend(item.values())
    return left < 0
