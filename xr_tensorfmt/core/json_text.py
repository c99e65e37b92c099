"""JSON of files that nobody vouches for: within named limits, with errors that name the byte."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from json import JSONDecodeError, loads
from typing import Any, Self

from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.json_values import MAX_LEVELS
from xr_tensorfmt.errors import TensorFormatError, shorten

MAX_NESTED = MAX_LEVELS + 8
"""Limit on lists and objects within each other: those of attributes, and what they are in.

Pickling fails from some 500 on, and dask's names of arrays already from 100.
"""

MAX_VALUES = 4 << 20
"""Limit on the values of a document, each of which may take a hundred bytes of memory."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_MARKS = ",:[{"
_PLAIN = frozenset({str, int, float, bool, type(None)})
_TOO_DEEP = f"lists or objects that are nested deeper than {MAX_NESTED} levels"


class LimitError(ValueError):
    """JSON that is not damaged, but beyond a limit."""


def parse_json(
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


def reject_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object; ValueError if it has a key twice."""
    members = dict(pairs)
    if len(members) != len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {shorten(repr(key))} is repeated")
    return members


def check_values(text: str) -> None:
    """Refuse more values than may be kept in memory, before there are any."""
    if _marks(text) > MAX_VALUES and (found := _marks(_STRING.sub("", text))) > MAX_VALUES:
        raise LimitError(f"{found} values, more than {MAX_VALUES}")


def _marks(text: str) -> int:
    """The characters before values, also where they are within strings."""
    return sum(map(text.count, _MARKS))


def check_nested(value: Any) -> None:
    """Refuse nesting that other programs could not follow."""
    if is_too_deep(value, _children):
        raise LimitError(_TOO_DEEP)


def is_too_deep(value: Any, children: Callable[[Any], Iterable[Any]]) -> bool:
    """Whether the containers in a value are nested beyond the limit; nothing recurses."""
    level = [value]
    for _ in range(MAX_NESTED + 1):
        level = [each for parent in level for each in _containers(children, parent)]
        if not level:
            return False
    return True


def _containers(children: Callable[[Any], Iterable[Any]], value: Any) -> list[Any]:
    """What is in a value and may contain others; most lists are of numbers alone."""
    if _PLAIN.issuperset(map(type, children(value))):
        return []
    return [child for child in children(value) if type(child) not in _PLAIN]


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


@dataclass(frozen=True)
class Document:
    """A JSON object of a file, which may hold anything that Python's own writer writes.

    `repeated` are the objects in it in which a key occurs twice.
    """

    path: str
    offset: int
    content: Mapping[str, Any]
    repeated: Sequence[Mapping[str, Any]]
    title: str = "the document"

    @classmethod
    def read(
        cls, reader: HeaderReader, start: int, length: int, most: int, title: str = "the document"
    ) -> Self:
        """Read at most so many bytes, which messages call `title`; other JSON is refused."""
        if length > most:
            hint = f"{title} is damaged, or the file of another format"
            raise reader.error(title, f"{length} bytes", f"at most {most} bytes", hint, start)
        repeated: list[Mapping[str, Any]] = []

        def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            members = dict(pairs)
            if len(members) != len(pairs):
                repeated.append(members)
            return members

        raw = reader.bytes_at(start, length, "the JSON document")
        at, hint = start, f"{title} is damaged"
        try:
            string = raw.decode()
            content = parse_json(string, collect)
        except UnicodeDecodeError as error:
            at, found = start + error.start, "bytes that are not UTF-8"
        except JSONDecodeError as error:
            at = start + len(string[: error.pos].encode())
            found = f"{error.msg}: {string[error.pos : error.pos + 20]!r}"
        except LimitError as error:
            found, hint = str(error), f"{title} is damaged, or made to keep readers busy"
        except ValueError as error:
            # Python's own limit; the message of another error with this number would meet it again.
            found, hint = str(error), "for longer integers call sys.set_int_max_str_digits"
        else:
            if isinstance(content, Mapping):
                return cls(reader.source.name, start, content, repeated, title)
            found = f"a {type(content).__name__}"
        raise reader.error(title, found, "a JSON object", hint, at)

    def error(self, field: str, found: object, expected: str) -> TensorFormatError:
        """An error about a part of the document."""
        hint = f"{self.title} is damaged"
        return TensorFormatError(self.path, field, found, expected, hint, offset=self.offset)

    def member(self, name: str) -> Mapping[str, Any]:
        """An object in the document."""
        value = self.content.get(name)
        if not isinstance(value, Mapping):
            raise self.error(f"{name!r}", shorten(repr(value)), "a JSON object")
        return value

    def check_repeated(self, *objects: Mapping[str, Any]) -> tuple[Finding, ...]:
        """Refuse keys that occur twice in objects of the format, report those of metadata."""
        if not self.repeated:
            return ()
        if not {id(each) for each in objects}.isdisjoint(map(id, self.repeated)):
            raise self.error("a JSON object", "a key twice", "each key once")
        keys = shorten(", ".join(map(repr, self.repeated[0])))
        message = (
            "they hold an object with a key twice, of which the last value is taken; its keys are "
            f"{keys}"
        )
        return (Finding(self.path, self.offset, "the metadata", message, "warning"),)
