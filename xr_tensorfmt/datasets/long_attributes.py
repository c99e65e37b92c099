"""Long attributes, such as a tokenizer, which xarray would display in full in a notebook.

It displays ``str(value)`` of each. For a list and a dict this is their ``repr``, which is short
here; they are equal to the plain values, and are copied, pickled and encoded as JSON as these are.
A long string stays a plain str, as h5py takes no subclass. Where a file has one, xarray's HTML of
attributes is made from the beginnings of long strings from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from reprlib import Repr
from typing import Any

from xarray.core import formatting_html

LONGEST_SHOWN = 10_000
"""Characters of an attribute that are displayed in full; of a longer one only the beginning is."""

_BEGINNING = 200
_ITEMS = Repr()
_ITEMS.maxlist = _ITEMS.maxdict = 4


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
    long = {name: value for name, value in attrs.items() if _is_long(value)}
    if any(isinstance(value, str) for value in long.values()):
        _shorten_in_html()
    return {**attrs, **{name: _LONG[type(value)](value) for name, value in long.items()}}


_LONG: dict[type, Callable[[Any], Any]] = {str: str, list: LongList, dict: LongDict}


def _is_long(value: Any) -> bool:
    """Whether a value has more characters than are displayed, without looking at all of it."""
    if type(value) not in _LONG:
        return False
    left, values = LONGEST_SHOWN, [value]
    while values and left >= 0:
        item = values.pop()
        left -= len(item) if isinstance(item, str | list | dict) else 1
        if left >= 0 and isinstance(item, list | dict):
            values.extend(item)
            if isinstance(item, dict):
                values.extend(item.values())
    return left < 0


@cache
def _shorten_in_html() -> None:
    """Let xarray display the beginnings of long strings; once, and where it has these names."""
    summarize = getattr(formatting_html, "summarize_attrs", None)
    section = getattr(formatting_html, "attr_section", None)
    if summarize is not None and section is not None:
        shortened = partial(_summarize_shortened, summarize)
        formatting_html.summarize_attrs = shortened
        formatting_html.attr_section = partial(section, details_func=shortened)


def _summarize_shortened(summarize: Callable[[Any], str], attrs: Mapping[Any, Any]) -> str:
    return summarize({name: _shortened(value) for name, value in attrs.items()})


def _shortened(value: Any) -> Any:
    """The beginning of a long string, and how long it is; anything else as it is."""
    if not isinstance(value, str) or len(value) <= LONGEST_SHOWN:
        return value
    return f"{value[:_BEGINNING]!r}... ({len(value)} characters)"
