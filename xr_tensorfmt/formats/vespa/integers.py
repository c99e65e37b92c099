"""Integers of typed binary tensors.

Integers below 128 take one byte. Others take four big-endian bytes, and their first bit is set.
"""

from __future__ import annotations

import numpy as np

from xr_tensorfmt.core.extents import Bytes, Integers

LONG_BIT = 0x80
"""The bit of the first byte of integers with four bytes."""

MAX_INTEGER = (1 << 31) - 1
"""The largest integer of the format."""

COUNTS = range(MAX_INTEGER + 1)
"""The integers of the format."""


def pack(value: int) -> bytes:
    """Pack an integer in its shortest form."""
    if value > MAX_INTEGER:
        raise ValueError(f"{value} is more than {MAX_INTEGER}, the largest integer of Vespa")
    if value < LONG_BIT:
        return bytes([value])
    return (value | LONG_BIT << 24).to_bytes(4, "big")


def unpack(packed: bytes | memoryview) -> int:
    """Unpack one byte or four. Small integers may also take four bytes."""
    return int.from_bytes(packed, "big") & MAX_INTEGER


def unpack_many(window: Bytes, starts: Integers) -> tuple[Integers, Integers]:
    """Unpack the integers at many offsets. Return the integers and their ends."""
    first = window.take(starts, mode="clip")
    if not first.size or first.max() < LONG_BIT:
        return first.astype(np.int64), starts + 1
    is_long = first >= LONG_BIT
    long = (first & (LONG_BIT - 1)).astype(np.int64)
    for byte in range(1, 4):
        long = (long << 8) | window.take(starts + byte, mode="clip")
    return np.where(is_long, long, first), starts + np.where(is_long, 4, 1)
