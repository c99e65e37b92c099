"""Build TENS files from the specification, independently of the package."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod

import numpy as np

V0_9 = 0x9000
V1_0 = 0x10000


def pack_header(
    lengths: Sequence[int],
    *,
    version: int = V0_9,
    number_type: bytes = b"IEEE",
    size: int = 8,
    numbers: int = 1,
    flags: int = 0,
    names: str | bytes | None = None,
    tails: bytes = b"\0\0\0",
    magic: bytes = b"TENS",
) -> bytes:
    """Return the 32 fixed bytes and 8 bytes per dimension. `tails` are their bytes +5 to +7."""
    names = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN"[: len(lengths)] if names is None else names
    raw = names.encode("latin-1") if isinstance(names, str) else names
    fixed = magic + struct.pack("<I", version) + number_type
    fixed += struct.pack("<IIIII", size, numbers, len(lengths), flags, 0)
    return fixed + b"".join(
        struct.pack("<I", length) + raw[i : i + 1] + tails for i, length in enumerate(lengths)
    )


def get_number_fields(dtype: np.dtype) -> dict:
    """Return type, size and count of numbers for a numpy dtype."""
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        return {"number_type": b"IEEE", "size": dtype.itemsize // 2, "numbers": 2}
    if dtype.kind == "f":
        return {"number_type": b"IEEE", "size": dtype.itemsize}
    number_type = b"uint" if dtype.kind == "u" else b"sint"
    big = dtype.str[0] == ">"
    return {"number_type": number_type.upper() if big else number_type, "size": dtype.itemsize}


def make_values(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return numbers that the dtype represents exactly."""
    numbers = np.random.default_rng(prod(shape)).normal(0, 100, shape)
    return (numbers + 0.25j * np.sin(numbers) if "c" in dtype else np.abs(numbers)).astype(dtype)


def pack_values(values: np.ndarray) -> bytes:
    """Return the values, first index fastest."""
    return values.tobytes(order="F")


def make_0_9(values: np.ndarray, **fields: object) -> bytes:
    """Return a file as cc4s wrote it: header, then values."""
    return pack_header(values.shape, **{**get_number_fields(values.dtype), **fields}) + pack_values(
        values
    )


def pack_chunk(magic: bytes, content: bytes) -> bytes:
    """Return a variable chunk, padded with zeros to a multiple of 8."""
    padded = content + bytes(-len(content) % 8)
    return magic + struct.pack("<Q", 16 + len(padded)) + padded


def make_1_0(values: np.ndarray, *before: bytes, **fields: object) -> bytes:
    """Return a file of the specification: chunks, then DENSDATA."""
    head = pack_header(
        values.shape, **{**get_number_fields(values.dtype), "version": V1_0, **fields}
    )
    return head + b"".join(before) + pack_chunk(b"DENSDATA", pack_values(values))


def pack_symmetry(code: str, index_map: str, *, packed: bool = False) -> bytes:
    """Return a SYMMETRY chunk."""
    content = bytes([packed, len(code)]) + code.encode() + index_map.encode("latin-1")
    return pack_chunk(b"SYMMETRY", content)


def pack_pairs(indices: Sequence[int], values: np.ndarray) -> bytes:
    """Return the count and the pairs of an index-value file."""
    packed = b"".join(
        struct.pack("<Q", index) + values[number : number + 1].tobytes()
        for number, index in enumerate(indices)
    )
    return struct.pack("<Q", len(indices)) + packed


def make_index_value(
    lengths: Sequence[int],
    indices: Sequence[int],
    values: np.ndarray,
    *before: bytes,
    **fields: object,
) -> bytes:
    """Return an index-value file of version 1.0."""
    described = {**get_number_fields(values.dtype), "version": V1_0, "flags": 1, **fields}
    return pack_header(lengths, **described) + b"".join(before) + pack_pairs(indices, values)
