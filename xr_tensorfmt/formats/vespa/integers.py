"""Vespa's integers: one byte below 128, else four bytes, big-endian, with the first bit set."""

from __future__ import annotations

import numpy as np

from xr_tensorfmt.core.extents import Bytes, Integers, scatter_uniform
from xr_tensorfmt.core.header import Cursor

LONG_BIT = 0x80
"""The bit of the first byte that says that an integer has four bytes."""

LARGEST = (1 << 31) - 1
"""The largest integer that the format can store, as a count, a size or a length."""

_LONG_BITS = LONG_BIT << 24


def packed_size(first: int) -> int:
    """Bytes of the integer that begins with the byte `first`."""
    return 4 if first & LONG_BIT else 1


def pack(value: int) -> bytes:
    """Pack an integer in its shortest form."""
    if value < LONG_BIT:
        return bytes([value])
    return (value | _LONG_BITS).to_bytes(4, "big")


def unpack(packed: bytes | memoryview) -> int:
    """Unpack one byte or four; readers accept either form of a small integer."""
    return int.from_bytes(packed, "big") & LARGEST


def read_integer(cursor: Cursor, field: str) -> int:
    """Read the next integer of a header."""
    first = cursor.take(1, field)
    rest = packed_size(first[0]) - 1
    return unpack(first + cursor.take(rest, field) if rest else first)


def packed_sizes(values: Integers) -> Integers:
    """Bytes of each of many integers in its shortest form."""
    return np.where(values < LONG_BIT, 1, 4)


def pack_at(window: Bytes, starts: Integers, values: Integers) -> None:
    """Pack each of many integers in its shortest form at its own position."""
    is_long = values >= LONG_BIT
    window[starts[~is_long]] = values[~is_long]
    packed = (values[is_long] | _LONG_BITS).astype(">u4")
    scatter_uniform(window, starts[is_long], packed.view(np.uint8), 4)


def unpack_at(window: Bytes, starts: Integers) -> tuple[Integers, Integers]:
    """Unpack the integers at many positions; also return where each of them ends."""
    first = window.take(starts, mode="clip")
    if not first.size or first.max() < LONG_BIT:
        return first.astype(np.int64), starts + 1
    is_long = first >= LONG_BIT
    long = (first & (LONG_BIT - 1)).astype(np.int64)
    for number in range(1, 4):
        long = (long << 8) | window.take(starts + number, mode="clip")
    return np.where(is_long, long, first), starts + np.where(is_long, 4, 1)
