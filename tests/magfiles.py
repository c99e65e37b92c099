"""Build MAG containers from the format descriptions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from struct import pack
from typing import Any

import google_crc32c
import numpy as np

FOUR = ("float32", "float16", "bool", "int32")
INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
ELEVEN = ("float32", "float16", "bool", *INTEGERS)
TWELVE = ("float32", "float16", "bfloat16", "bool", *INTEGERS)
THIRTEEN = ("float32", "float16", "bfloat16", "float8_e4m3fn", "bool", *INTEGERS)


@dataclass(frozen=True)
class Put:
    """A tensor to be stored: the dtype's name and the stored bytes, which numpy may not know."""

    dtype: str
    shape: tuple[int, ...]
    raw: bytes


def put(values: Any, dtype: str | None = None) -> Put:
    array = np.asarray(values)
    name = dtype or array.dtype.name
    return Put(name, array.shape, array.astype(array.dtype.newbyteorder("<")).tobytes())


def pad_to(data: bytes, multiple: int, filler: bytes = b"\0") -> bytes:
    return data + filler * (-len(data) % multiple)


def add_checksum(header: bytes, offset: int, start: int) -> bytes:
    """Insert the CRC-32C of the bytes from `start` on."""
    return header[:offset] + pack("<I", google_crc32c.value(header[start:])) + header[offset + 4 :]


def pack_length(text: str) -> tuple[bytes, bytes]:
    raw = text.encode()
    return pack("<I", len(raw)), raw


def pack_metadata(key: str, value: float) -> bytes:
    tag, code = (1, "q") if isinstance(value, int) else (2, "d")
    return pack(f"<I{code}", tag, value) + b"".join(pack_length(key))


def make_archive(
    tensors: Mapping[str, Put],
    metadata: Mapping[str, float] | None = None,
    *,
    version: int = 1,
    ids: tuple[str, ...] = FOUR,
    offsets: str = "absolute",
    lengths: str = "elements",
    records: str = "real",
) -> bytes:
    metadata = metadata or {}
    head = pack("<4sIIIII", b"MAG!", version, 0, len(tensors), len(metadata), 0)
    head += b"".join(pack_metadata(key, value) for key, value in metadata.items())
    size = sum(record_bytes(key, item, records) for key, item in tensors.items())
    base = -(-(len(head) + size) // 64) * 64
    position = base if offsets == "absolute" else 0
    for key, item in tensors.items():
        padded = -(-len(item.raw) // 64) * 64
        length = {"elements": prod(item.shape), "padded": padded, "bytes": len(item.raw)}[lengths]
        head += record(key, item, ids.index(item.dtype), length, position, records)
        position += padded
    head = add_checksum(head, 8, 12)
    data = b"".join(pad_to(tensor.raw, 64, b"\xff") for tensor in tensors.values())
    return pad_to(head, 64, b"\xff") + data + bytes(24) if tensors else head + bytes(8)


def record_bytes(key: str, item: Put, records: str) -> int:
    return len(record(key, item, 0, 0, 0, records))


def record(key: str, item: Put, dtype: int, length: int, offset: int, records: str) -> bytes:
    size, raw = pack_length(key)
    rank = len(item.shape)
    if records == "real":
        shape = pack(f"<{rank}q", *item.shape)
        return pack("<IQQ", dtype | rank << 8, length, offset) + shape + size + raw
    filler, aux = {"literal": (1, rank << 8), "ones": (1, 0), "zeros": (0, 0)}[records]
    slots = (*item.shape, *[filler] * (6 - rank))
    return size + raw + pack("<6qBQQI", *slots, dtype, length, offset, aux)


def make_snapshot(
    tensors: Mapping[str, Put],
    *,
    version: int = 100,
    ids: tuple[str, ...] | None = None,
    alignment: int | None = None,
    order: tuple[int, ...] | None = None,
) -> bytes:
    ids = ids or {100: TWELVE, 200: THIRTEEN}[version]
    alignment = alignment or {100: 1, 200: 16}[version]
    pool = [key.encode() for key in tensors]
    ends = np.cumsum([0, *map(len, pool)]).tolist()
    head = pack("<4sIQIIII", b"MAG!", version, 1_700_000_000, 0, 0, 0, len(tensors))
    head += b"SRP!" + pack(f"<I{len(ends)}I", len(pool), *ends) + b"".join(pool) + b"MDT!DSC!"
    data, places = b"", []
    for tensor in tensors.values():
        data = pad_to(data, alignment)
        places.append(len(data))
        data += tensor.raw
    puts = list(tensors.values())
    for number in order or range(len(puts)):
        tensor = puts[number]
        rank = len(tensor.shape)
        head += pack(
            "<BBHIQQ", rank, ids.index(tensor.dtype), 0, number, prod(tensor.shape), places[number]
        )
        head += pack(f"<{rank}Q", *tensor.shape)
    return pad_to(add_checksum(head, 16, 20) + b"BUF!", alignment) + data


def make_document(
    tensors: Mapping[str, Put],
    metadata: Mapping[str, Any] | None = None,
    *,
    big_endian: bool = False,
    change: Any = None,
) -> bytes:
    data, entries = b"", {}
    for key, item in tensors.items():
        data = pad_to(data, 4096) if item.raw else data
        entries[key] = {
            "shape": list(item.shape),
            "dtype": "boolean" if item.dtype == "bool" else item.dtype,
            "dtype_id": THIRTEEN.index(item.dtype),
            "offset": len(data),
            "nbytes": len(item.raw),
        }
        data += item.raw
    content: dict[str, Any] = {
        "manifest_ver": 1,
        "timestamp": "2026-09-01T12:00:00+00:00",
        "magnetron_ver": "0.2.2",
        "snapshot_ver": "0.3.0",
        "usr_metadata": dict(metadata or {}),
        "tensor_map": entries,
    }
    if change:
        change(content)
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    return parse_document(text, data, big_endian=big_endian)


def parse_document(
    text: bytes, data: bytes, *, big_endian: bool = False, version: int = 300
) -> bytes:
    start = -(-(44 + len(text)) // 4096) * 4096
    head = pack("<4sIIQQQQ", b"MAG!", version, big_endian, 44, len(text), start, len(data))
    return (head + text).ljust(start, b"\0") + data


def make_stream(tensors: Mapping[str, Put]) -> bytes:
    head = pack("<4sIIIII", b"MAG&", 1, 0, len(tensors), 0, 0) + b"KVDTTHDR"
    for key, item in tensors.items():
        rank = len(item.shape)
        slots = (*item.shape, *[1] * (6 - rank))
        size, raw = pack_length(key)
        head += size + pack(
            "<6qI64s", *slots, FOUR.index(item.dtype) | rank << 8, b"name\0left over"
        )
        head += raw
    return head + b"TDAT" + b"".join(tensor.raw for tensor in tensors.values())
