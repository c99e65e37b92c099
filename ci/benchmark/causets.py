"""PyCauset containers of any size, written block by block."""

from __future__ import annotations

import struct
from pathlib import Path
from zlib import crc32

import numpy as np

HEADER = 4096
_BLOCK = 1 << 24


def payload_bytes(order: int, bits: int) -> int:
    """Bytes of a strict upper triangle whose rows are padded to 8 bytes."""
    per_word = 64 // bits
    full, rest = divmod(order - 1, per_word)
    return 8 * (per_word * full * (full + 1) // 2 + rest * (full + 1))


def write_container(path: Path, order: int, matrix_type: str, data_type: str) -> None:
    """Write a strict upper triangle of random bits, or of random numbers."""
    size = payload_bytes(order, 1 if data_type == "BIT" else 64)
    metadata = _block(order, matrix_type, data_type)
    pointers = struct.pack("<7Q", 1, HEADER, size, HEADER + size + -size % 16, len(metadata), 0, 0)
    slot = (pointers + struct.pack("<I", crc32(pointers))).ljust(128, b"\0")
    head = b"PYCAUSET" + struct.pack("<IBHB", 1, 1, HEADER, 0) + slot + slot
    random = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(head.ljust(HEADER, b"\0"))
        for first in range(0, size, _BLOCK):
            count = min(_BLOCK, size - first) // 8
            if data_type == "BIT":
                file.write(random.integers(0, 1 << 64, count, np.uint64).data)
            else:
                file.write(random.random(count).data)
        file.write(bytes(-size % 16) + metadata)


def _block(order: int, matrix_type: str, data_type: str) -> bytes:
    """The metadata: what every reader needs, in the order of the keys."""
    texts = {"data_type": data_type, "matrix_type": matrix_type, "payload_uuid": "0" * 32}
    entries = {key: struct.pack("<BI", 5, len(text)) + text.encode() for key, text in texts.items()}
    entries |= {key: struct.pack("<BQ", 3, order) for key in ("rows", "cols")}
    content = struct.pack("<BI", 8, len(entries))
    for key in sorted(entries):
        content += struct.pack("<H", len(key)) + key.encode() + entries[key]
    header = struct.pack("<4s3IQ2I", b"PCMB", 1, 1, 0, len(content), crc32(content), 0)
    return header + content
