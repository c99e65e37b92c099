"""Fields of headers: at offsets, consecutive, or in JSON; limits on their values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from json import JSONDecodeError, loads
from math import prod
from struct import Struct
from typing import Any, Self, TypeVar

from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError, shorten

Value = TypeVar("Value")

_INCOMPLETE = "the file is incomplete; fetch it again"

CORRUPT = "the file is corrupt, or a newer version wrote it; fetch it again"
"""The default hint of an error about a header."""

UNFINISHED_MARK = b"The files of this index are being replaced, or a writer failed."
"""First bytes of an object in the place of the index of several objects."""


class HeaderReader:
    """Reads header fields of a file. It keeps a known `head`, and the bytes that it read last."""

    def __init__(self, source: Source, head: bytes = b"") -> None:
        self.source = source
        self._head = head
        self._start, self._last = 0, b""

    def read_field(self, offset: int, length: int, field: str) -> bytes:
        """Return exactly `length` bytes, or raise TensorFormatError if the file ends before."""
        stop = offset + length
        if stop > self.source.size:
            actual = f"truncated by the end of the file at byte {self.source.size}"
            raise self.error(field, actual, f"{length} bytes", _INCOMPLETE, offset)
        for start, kept in ((0, self._head), (self._start, self._last)):
            if not length or start <= offset < stop <= start + len(kept):
                return kept[offset - start : stop - start]
        if offset < self._start <= len(self._head) and stop <= self._start + len(self._last):
            return self._head[offset : self._start] + self._last[: stop - self._start]
        end = min(self.source.size, max(stop, offset + self.source.read_ahead))
        self._start, self._last = offset, self.source.read_bytes(offset, end)
        return self._last[:length]

    def read_bytes(self, start: int, stop: int) -> bytes:
        """Return a range of the file, from the cache if possible. Threads may call it at once."""
        in_head = stop <= len(self._head)
        return self._head[start:stop] if in_head else self.source.read_bytes(start, stop)

    @property
    def head(self) -> bytes:
        """The first 64 bytes, or all bytes of a shorter file."""
        return self.read_head(64)

    def read_head(self, length: int) -> bytes:
        """Return the first bytes of the file, fewer if it is shorter."""
        return self.read_field(0, min(length, self.source.size), "the header")

    def read_unsigned(self, offset: int, length: int, field: str) -> int:
        """Return a little-endian unsigned integer. Raises like `read_field`."""
        return int.from_bytes(self.read_field(offset, length, field), "little")

    def has_fortran_records(self, offset: int = 0) -> bool:
        """Return whether records of Fortran follow to the end: size, content, size again."""
        for marker in map(Struct, ("<i", "<q", ">i", ">q")):
            cursor = Cursor(self, offset)
            with suppress(TensorFormatError):  # the file ends before
                for number in range(100):
                    # gfortran divides long records; a negative size says that a part follows.
                    size = abs(cursor.unpack(marker, "a record")[0])
                    cursor.offset += size
                    if not size or abs(cursor.unpack(marker, "a record")[0]) != size:
                        break
                    if cursor.offset == self.source.size or number == 99:
                        return True
        return False

    def check_complete(self, stop: int) -> None:
        """Raise TensorFormatError if the file is shorter than `stop` bytes."""
        size = self.source.size
        self.check(size >= stop, "the file", f"{size} bytes", f"{stop} bytes", _INCOMPLETE, size)

    def error(
        self, field: str, actual: object, expected: str, hint: str = "", offset: int | None = None
    ) -> TensorFormatError:
        """Create an error about a field of this file, with `CORRUPT` as the default hint."""
        path = self.source.name
        return TensorFormatError(path, field, actual, expected, hint or CORRUPT, offset)

    def check(
        self,
        holds: bool,
        field: str,
        actual: object,
        expected: str,
        hint: str = "",
        offset: int | None = None,
    ) -> None:
        """Raise the error about a field unless a condition holds."""
        if not holds:
            raise self.error(field, actual, expected, hint, offset)


@dataclass
class Cursor:
    """Reads consecutive header fields, from `offset` on. The last field was at `last`."""

    reader: HeaderReader
    offset: int
    last: int = field(default=0, init=False)

    def take(self, length: int, field: str) -> bytes:
        """Return the next bytes. Raises like `HeaderReader.read_field`."""
        taken = self.reader.read_field(self.offset, length, field)
        self.last, self.offset = self.offset, self.offset + length
        return taken

    def take_text(self, length: int, field: str) -> str:
        """Return the next bytes as text. Raises like `HeaderReader.read_field`."""
        raw = self.take(length, field)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            actual, offset = repr(raw[error.start : error.end]), self.last + error.start
            raise self.reader.error(field, actual, "UTF-8", offset=offset) from None

    def unpack(self, record: Struct, field: str) -> tuple[Any, ...]:
        """Return the next fields of fixed size. Raises like `HeaderReader.read_field`."""
        return record.unpack(self.take(record.size, field))

    def expect(self, marker: bytes) -> None:
        """Read the marker of a section, or raise TensorFormatError if the file has other bytes."""
        field = f"the marker {marker.decode()}"
        actual = self.take(len(marker), field)
        self.check(actual == marker, field, repr(actual), repr(marker))

    def check(
        self, holds: bool, field: str, actual: object, expected: str, hint: str = "", skip: int = 0
    ) -> None:
        """Raise the error about the last field, after `skip` bytes, unless a condition holds."""
        self.reader.check(holds, field, actual, expected, hint, self.last + skip)


_TITLES: dict[type, str] = {dict: "a mapping", float: "a number", int: "an integer"}


@dataclass(frozen=True)
class Fields:
    """A mapping of a file, such as a JSON object. `prefix` is the full name of its key."""

    path: str
    values: Mapping[Any, Any]
    offset: int | None = None
    prefix: str = ""
    hint: str = "correct the file"

    def __contains__(self, key: object) -> bool:
        return key in self.values

    def get_path(self, key: object) -> str:
        """Return the full name of a key, such as ``metaData.energies``."""
        return f"{self.prefix}.{key}" if self.prefix else str(key)

    def error(
        self, key: object, actual: object, expected: str, hint: str = ""
    ) -> TensorFormatError:
        """Return an error about the value of a key, or about another part of the document."""
        field, hint = self.get_path(key), hint or self.hint
        return TensorFormatError(self.path, field, actual, expected, hint, offset=self.offset)

    def check(
        self, holds: bool, key: object, actual: object, expected: str, hint: str = ""
    ) -> None:
        """Raise the error about the value of a key unless a condition holds."""
        if not holds:
            raise self.error(key, actual, expected, hint)

    def get(self, key: Any, kind: type[Value], default: Value | None = None) -> Value:
        """Return a value. Raise TensorFormatError if it is missing or of another type."""
        expected = _TITLES.get(kind, f"a {kind.__name__}")
        if key not in self.values:
            if default is None:
                raise self.error(key, "no such key", expected)
            return default
        value = self.values[key]
        kinds: tuple[type, ...] = (int, float) if kind is float else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
            raise self.error(key, shorten(repr(value)), expected)
        return value  # type: ignore[return-value]

    def get_fields(self, key: Any, default: dict[Any, Any] | None = None) -> Self:
        """Return a mapping."""
        values = self.get(key, dict, default)
        return replace(self, values=values, prefix=self.get_path(key))


MAX_NESTED = 40
"""Limit on nested lists and objects: those in attributes, and some around them."""

MAX_VALUES = 4 << 20
"""Limit on the values of a document. A value may take 100 bytes of memory."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_MARKS = ",:[{"
# The quotation mark of a key, or whitespace, precedes each colon between a key and its value.
_COLONS = ('":', " :", "\t:", "\n:", "\r:")


def parse_json(text: str) -> Any:
    """Parse JSON as `json.loads`. Raise ValueError if it is invalid, repeats a key or is huge."""
    # Count the marks before values before they take memory, at first also those in strings.
    if len(text) > MAX_VALUES and sum(map(text.count, _MARKS)) > MAX_VALUES:
        count = sum(map(_STRING.sub("", text).count, _MARKS))
        if count > MAX_VALUES:
            raise ValueError(f"{count} values, more than {MAX_VALUES}")
    too_deep = ValueError(f"lists or objects that are nested deeper than {MAX_NESTED} levels")
    try:
        value = loads(text)
    except RecursionError:
        raise too_deep from None
    level: list[Any] = [[value]]
    keys = 0
    for _ in range(MAX_NESTED + 2):
        nested = (item.values() if type(item) is dict else item for item in level)
        level = [x for x in chain.from_iterable(nested) if type(x) is dict or type(x) is list]
        keys += sum(len(x) for x in level if type(x) is dict)
        if not level:
            break
    else:
        raise too_deep
    if keys == text.count(":") or keys == sum(map(text.count, _COLONS)):
        return value
    del value  # a key is repeated, or a string contains such a colon
    return loads(text, object_pairs_hook=reject_repeated)


def reject_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object, or raise ValueError if a key is repeated."""
    members = dict(pairs)
    if len(members) != len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {shorten(repr(key))} is repeated")
    return members


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
        text = raw.decode()
        content = parse_json(text)
    except UnicodeDecodeError as error:
        offset, actual = start + error.start, "bytes that are not UTF-8"
    except JSONDecodeError as error:
        offset = start + len(text[: error.pos].encode())
        actual = f"{error.msg}: {text[error.pos : error.pos + 20]!r}"
    except ValueError as error:  # of Python, too, which limits the digits of integers
        actual = str(error)
    else:
        if isinstance(content, Mapping):
            return Fields(reader.source.name, content, start, hint=hint)
        actual = f"a {type(content).__name__}"
    raise reader.error(title, actual, "a JSON object", hint, offset)


MAX_DIMENSIONS = 31
"""Limit on the rank of a tensor, because numpy broadcasts up to 32 arrays."""

MAX_TENSOR_BYTES = 1 << 62
"""Limit on the size of a tensor, because numpy counts bytes in 63 bits."""

MAX_ITEM_BYTES = 16
"""Size of the largest element in memory, a complex128."""


def check_size(
    path: str, lengths: Sequence[int], item: int, offset: int, tensor: object = "the tensor"
) -> None:
    """Raise TensorFormatError if numpy does not support a shape, which is at `offset`."""
    if len(lengths) > MAX_DIMENSIONS:
        field, actual = f"the rank of {tensor}", str(len(lengths))
        expected = f"at most {MAX_DIMENSIONS} dimensions"
    elif not is_addressable(lengths, item):
        actual = f"{item} bytes for each element of shape {tuple(lengths)}"
        field = f"the size of {tensor}"
        expected = f"at most {MAX_TENSOR_BYTES} bytes"
    else:
        return
    raise TensorFormatError(path, field, actual, expected, CORRUPT, offset)


def is_addressable(lengths: Sequence[int], item: int) -> bool:
    """Return whether numpy supports a shape."""
    # numpy also multiplies the other lengths if one is 0.
    return prod(max(length, 1) for length in lengths) * item <= MAX_TENSOR_BYTES
