"""Repeated keys of YAML mappings, which parsers drop silently."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

# Items of lists and whole lists that are numbers. Files have millions of them, and none are keys.
_ITEMS = re.compile(rb"^[ \t]*+(?:-[ \t]++)++[-+.\deE]++[ \t]*+\r?\n", re.MULTILINE)
_LISTS = re.compile(rb"\[[-+.\deE,\s]*+\]")

# The loader on libyaml is 10 times as fast; few installations are without it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class DisputedSyntaxError(ValueError):
    """YAML 1.2 that programs for YAML 1.1 cannot read."""


def find_repeated_key(content: bytes) -> str | None:
    """Return the path of the first repeated key, such as ``metaData.halfGrid``.

    Quotes make no difference, since programs take ``1`` and ``"1"`` for the same key. Raise
    DisputedSyntaxError if the content is not YAML 1.1.
    """
    try:
        return next(_find_repeated_keys(_LISTS.sub(b"[]", _ITEMS.sub(b"", content))), None)
    except yaml.YAMLError:
        pass  # removed items may have left a part of a scalar behind
    try:
        return next(_find_repeated_keys(content), None)
    except yaml.YAMLError as error:
        raise DisputedSyntaxError(" ".join(str(error).split())) from error


def _find_repeated_keys(content: bytes) -> Iterator[str]:
    # Keys of the open collections (None for lists), and the keys whose values come next.
    keys: list[set[str] | None] = [None]
    pending: list[str | None] = [None]
    for event in yaml.parse(content, Loader=_LOADER):
        if isinstance(event, yaml.CollectionEndEvent):
            keys.pop()
            pending.pop()
            _complete(keys, pending)
        elif isinstance(event, yaml.CollectionStartEvent):
            keys.append(set() if isinstance(event, yaml.MappingStartEvent) else None)
            pending.append(None)
        elif isinstance(event, yaml.ScalarEvent):
            seen = keys[-1]
            if seen is None or pending[-1] is not None:
                pending[-1] = None
                continue
            pending[-1] = event.value
            if event.value in seen:
                yield ".".join(key for key in pending if key is not None)
            seen.add(event.value)
        elif isinstance(event, yaml.AliasEvent):
            _complete(keys, pending)


def _complete(keys: list[set[str] | None], pending: list[str | None]) -> None:
    """Note that a value of the innermost collection is complete, or a key that is no scalar."""
    in_mapping = keys[-1] is not None
    pending[-1] = "?" if in_mapping and pending[-1] is None else None
