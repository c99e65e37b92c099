"""Build PyCauset files from the format description, independently of the package."""

from __future__ import annotations

import json
import struct
from typing import Any
from zlib import crc32

import numpy as np
from hypothesis import strategies as st

HEADER = 4096
TYPES = {"CAUSAL": 1, "INTEGER": 2, "TRIANGULAR": 3, "DENSE": 4, "IDENTITY": 5, "VECTOR": 6}
DTYPES = {"BIT": 1, "INT32": 2, "FLOAT64": 3, "COMPLEX_FLOAT64": 4}
NUMPY_DTYPES = {
    "INT8": "i1", "INT16": "i2", "INT32": "i4", "INT64": "i8",
    "UINT8": "u1", "UINT16": "u2", "UINT32": "u4", "UINT64": "u8",
    "FLOAT16": "f2", "FLOAT32": "f4", "FLOAT64": "f8",
    "COMPLEX_FLOAT32": "c8", "COMPLEX_FLOAT64": "c16",
}  # fmt: skip
"""By the name of the data type in a container."""

numbers_and_strings = (
    st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=9)
)

metadata_values = st.recursive(
    numbers_and_strings | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


def pack_row(row: np.ndarray, multiple: int, *, dirty: bool = False) -> bytes:
    """Return a row of bits, least significant first, padded with zeros or ones."""
    size = -(-len(row) // (8 * multiple)) * multiple
    number = sum(1 << k for k, bit in enumerate(row) if bit)
    if dirty:
        number |= ((1 << 8 * size) - 1) ^ ((1 << len(row)) - 1)
    return number.to_bytes(size, "little")


def pack_bits(values: np.ndarray, multiple: int, *, dirty: bool = False) -> bytes:
    return b"".join(pack_row(row, multiple, dirty=dirty) for row in np.atleast_2d(values))


def pack_triangle(
    values: np.ndarray, *, diagonal: bool = False, multiple: int = 8, dirty: bool = False
) -> bytes:
    """Return the upper triangle, row by row, with padding."""
    content = b""
    for number, row in enumerate(values):
        part = row[number + (not diagonal) :]
        if values.dtype == bool:
            content += pack_row(part, multiple, dirty=dirty)
        else:
            raw = part.astype(values.dtype.newbyteorder("<")).tobytes()
            content += raw + (b"\xff" if dirty else b"\0") * (-len(raw) % multiple)
    return content


def v2(
    matrix_type: str,
    dtype: str,
    rows: int,
    cols: int,
    payload: bytes,
    *,
    version: int = 2,
    documented: bool = False,
    seed: int = 0,
    scalar: float = 1.0,
    temporary: int = 0,
    transposed: int = 0,
) -> bytes:
    """Return a header with the offsets of real files, or of the specification."""
    fixed = b"PYCAUSET" + struct.pack("<3I", version, TYPES[matrix_type], DTYPES[dtype])
    fixed += b"" if documented else bytes(4)
    fixed += struct.pack("<3Q", rows, cols, seed)
    if version > 1:
        fixed += struct.pack("<d2B", scalar, temporary, transposed)
    return fixed.ljust(HEADER, b"\0") + payload


def encode(value: Any) -> bytes:
    """Return the typed encoding of a value."""
    if isinstance(value, bool):
        return struct.pack("<B?", 1, value)
    if isinstance(value, int):
        return struct.pack("<Bq", 2, value) if value < 0 else struct.pack("<BQ", 3, value)
    if isinstance(value, float):
        return struct.pack("<Bd", 4, value)
    if isinstance(value, str):
        return struct.pack("<BI", 5, len(value.encode())) + value.encode()
    if isinstance(value, bytes):
        return struct.pack("<BI", 6, len(value)) + value
    if isinstance(value, list):
        return struct.pack("<BI", 7, len(value)) + b"".join(map(encode, value))
    entries = (
        struct.pack("<H", len(key.encode())) + key.encode() + encode(item)
        for key, item in sorted(value.items())
    )
    return struct.pack("<BI", 8, len(value)) + b"".join(entries)


def block(metadata: dict[str, Any] | bytes) -> bytes:
    """Return a block of metadata."""
    content = metadata if isinstance(metadata, bytes) else encode(metadata)
    header = struct.pack("<4s3IQ2I", b"PCMB", 1, 1, 0, len(content), crc32(content), 0)
    return header + content


def pack_slot(
    generation: int, payload: int, position: int, length: int, *, offset: int = HEADER
) -> bytes:
    """Return a slot of the header, with its checksum."""
    raw = struct.pack("<7Q", generation, offset, payload, position, length, 0, 0)
    return (raw + struct.pack("<I", crc32(raw))).ljust(128, b"\0")


def make_metadata(
    matrix_type: str, data_type: str, rows: int, cols: int, **more: Any
) -> dict[str, Any]:
    """Return the keys that every container has."""
    view = {
        "is_transposed": more.pop("transposed", False),
        "is_conjugated": more.pop("conjugated", False),
        "scalar": more.pop("scalar", {"real": 1.0, "imag": 0.0}),
    }
    return {
        "rows": rows,
        "cols": cols,
        "seed": more.pop("seed", 0),
        "matrix_type": matrix_type,
        "data_type": data_type,
        "payload_uuid": "u" * 32,
        "payload_layout": {"kind": "raw_native", "params": {}},
        "view": view,
        **more,
    }


def r1(fields: dict[str, Any] | bytes, payload: bytes = b"", *, length: int | None = None) -> bytes:
    """A container as it is saved: one block of metadata, to which both slots point.

    Slots may say another length of the payload, as those of 0.5.0 do.
    """
    content = block(fields)
    offset = HEADER + len(payload) + -len(payload) % 16
    length = len(payload) if length is None else length
    slots = pack_slot(1, length, offset, len(content)) + pack_slot(0, length, offset, len(content))
    head = b"PYCAUSET" + struct.pack("<IBHB", 1, 1, 4096, 0) + slots
    return (head.ljust(HEADER, b"\0") + payload).ljust(offset, b"\0") + content


def make_updated(
    container: bytes, fields: dict[str, Any], name: str = "B", generation: int = 2
) -> bytes:
    """Return a container with updated metadata: a new block at its end, and other slots."""
    offset = len(container) + -len(container) % 16
    content = block(fields)
    payload = struct.unpack_from("<Q", container, 16 + 16)[0]
    begin = {"A": 16, "B": 144}[name]
    head = bytearray(container.ljust(offset, b"\0") + content)
    head[begin : begin + 128] = pack_slot(generation, payload, offset, len(content))
    return bytes(head)


def make_zip(fields: dict[str, Any] | bytes, payload: bytes, *more: tuple[str, bytes]) -> bytes:
    """Return a zip of uncompressed entries."""
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    parts = (("metadata.json", text), ("data.bin", payload), *more)
    return pack_archive(*(pack_entry(name, raw) for name, raw in parts))


def pack_archive(*entries: bytes) -> bytes:
    """Return a zip of local entries, with its directory."""
    content, directory = b"", b""
    for local in entries:
        lengths = struct.unpack_from("<HH", local, 26)
        # The fields of the local header, and its offset.
        directory += b"PK\1\2" + struct.pack("<H", 20) + local[4:30] + bytes(10)
        directory += struct.pack("<I", len(content)) + local[30 : 30 + sum(lengths)]
        content += local
    counts = len(entries), len(entries), len(directory), len(content), 0
    return content + directory + b"PK\5\6" + bytes(4) + struct.pack("<HHIIH", *counts)


def pack_entry(name: str, raw: bytes, *, method: int = 0, flags: int = 0) -> bytes:
    """Return a local entry of a zip."""
    sizes = (crc32(raw), len(raw), len(raw))
    return (
        struct.pack("<4s5H3I2H", b"PK\3\4", 20, flags, method, 0, 0, *sizes, len(name.encode()), 0)
        + name.encode()
        + raw
    )
