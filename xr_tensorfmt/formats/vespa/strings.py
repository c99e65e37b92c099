"""Many UTF-8 strings at once, without a step in Python for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.extents import Bytes, Extents, Integers, gather_uniform, scatter_uniform
from xr_tensorfmt.formats.vespa.integers import pack_at, packed_sizes

Strings = NDArray[Any]
"""A one-dimensional array of Python's strings."""

_SEPARATOR = "\0"
# Bytes of strings that are decoded at a time, while they are in the cache.
_CACHED = 1 << 20


class NotUtf8Error(ValueError):
    """The bytes of a string are not UTF-8."""

    def __init__(self, number: int, content: bytes) -> None:
        super().__init__(number, content)
        self.number = number
        self.content = content


class NotEncodableError(ValueError):
    """A string has no bytes from which it would be read again."""


@dataclass(frozen=True, eq=False)
class ByteStrings:
    """Strings of bytes one after the other."""

    content: Bytes
    lengths: Integers

    @property
    def starts(self) -> Integers:
        """Where each of them begins in the content."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def packed_sizes(self) -> Integers:
        """Bytes of each string with its length before it."""
        return self.lengths + packed_sizes(self.lengths)

    def pack_at(self, target: Bytes, starts: Integers) -> None:
        """Write each string, with its length before it, to its own position."""
        pack_at(target, starts, self.lengths)
        places, own = starts + packed_sizes(self.lengths), self.starts
        for numbers, part in by_length(self.lengths):
            length = int(self.lengths[numbers[0]])
            if length:
                pieces = gather_uniform(self.content, own[part], length)
                scatter_uniform(target, places[part], pieces, length)


def pack_together(columns: list[ByteStrings]) -> ByteStrings:
    """Join strings row by row, each with its length before it."""
    sizes = [column.packed_sizes for column in columns]
    lengths: Integers = np.add.reduce(sizes, axis=0)
    packed = ByteStrings(np.empty(int(lengths.sum()), dtype=np.uint8), lengths)
    starts = packed.starts
    for column, size in zip(columns, sizes, strict=True):
        column.pack_at(packed.content, starts)
        starts = starts + size
    return packed


def encode_strings(strings: Strings) -> ByteStrings:
    """Encode strings as UTF-8, and bytes that were kept by ``surrogateescape`` as they were."""
    separate = strings.tolist()
    joined = "".join(separate)
    if joined.isascii():
        content, lengths = joined.encode(), map(len, separate)
    else:
        encoded = list(map(_encoded, separate))
        content, lengths = b"".join(encoded), map(len, encoded)
    return ByteStrings(
        np.frombuffer(content, dtype=np.uint8), np.fromiter(lengths, np.int64, strings.size)
    )


def _encoded(string: str) -> bytes:
    try:
        content = string.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise NotEncodableError(string) from error
    if content.decode("utf-8", "surrogateescape") != string:
        raise NotEncodableError(string)
    return content


def decode_strings(
    strings: Strings, window: Bytes, starts: Integers, lengths: Integers, errors: str
) -> None:
    """Decode strings that are anywhere in a window, each with at least one byte before it."""
    for numbers, part in by_length(lengths):
        # Each with the byte before it, which becomes the separator.
        pieces = Extents.uniform(starts[part] - 1, int(lengths[numbers[0]]) + 1)
        rows = pieces.gather(window, 0).reshape(numbers.size, -1)
        # numpy takes much longer to find out what a list holds.
        strings[part] = np.fromiter(_decoded(rows, numbers, errors), object, numbers.size)


def _decoded(rows: Bytes, numbers: Integers, errors: str) -> list[str]:
    """Decode strings of one length, one a row after a byte that does not matter."""
    rows[:, 0] = 0
    try:
        # No character of several bytes contains a zero, so that one call decodes all.
        strings = rows.tobytes().decode("utf-8", errors).split(_SEPARATOR)[1:]
    except UnicodeDecodeError as error:
        row = error.start // rows.shape[1]
        raise NotUtf8Error(int(numbers[row]), rows[row, 1:].tobytes()) from error
    if len(strings) == len(rows):
        return strings
    return [row[1:].tobytes().decode("utf-8", errors) for row in rows]


def by_length(lengths: Integers) -> Iterator[tuple[Integers, Integers | slice]]:
    """Numbers of strings of one length, not too many at a time, also as a slice where they are."""
    order, cuts = np.arange(lengths.size), [0, lengths.size]
    is_uniform = bool((lengths == lengths[:1]).all())
    if not is_uniform:
        # numpy sorts numbers of 16 bits several times faster.
        short = lengths.astype(np.uint16) if lengths.max() < 1 << 16 else lengths
        order = np.argsort(short, kind="stable")
        cuts[1:1] = (np.flatnonzero(np.diff(lengths[order])) + 1).tolist()
    for lower, upper in pairwise(cuts):
        step = max(1, _CACHED // (int(lengths[order[lower]]) + 1)) if upper > lower else 1
        for first in range(lower, upper, step):
            part = slice(first, min(first + step, upper))
            yield order[part], part if is_uniform else order[part]
