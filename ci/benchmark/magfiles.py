"""Files of many tensors, and of one large one: MAG, and what its peers need to hold the same."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LENGTHS = (1280, 1024)
"""Lengths of each of many tensors of float32, which together make 52 GB where they are 10,000."""

COLUMNS = 16384
"""Length of the fast axis of one large tensor."""

PAGE = 4096
"""Multiple of bytes at which the data of MAG begin."""

_PARTS = (
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
_DTYPE_IDS = {"float32": 0, "bfloat16": 2}
_ITEM_BYTES = {"float32": 4, "bfloat16": 2}
_BLOCK_ROWS = 512

Block = NDArray[np.float32]


def keys(count: int) -> list[str]:
    """Names such as those of a language model's weights."""
    layers = (divmod(number, len(_PARTS)) for number in range(count))
    return [f"layers.{layer}.{_PARTS[part]}.weight" for layer, part in layers]


def dims(key: str) -> tuple[str, str]:
    """The dimensions that such a tensor of two has in MAG."""
    return f"{key}_dim_0", f"{key}_dim_1"


def mag_header(shapes: Mapping[str, Sequence[int]], dtype: str) -> tuple[bytes, int]:
    """Header of a snapshot of version 300, up to the data; and the bytes of all data."""
    tensors, position = {}, 0
    for key, shape in shapes.items():
        position += -position % PAGE
        nbytes = _ITEM_BYTES[dtype] * int(np.prod(shape))
        tensors[key] = {
            "shape": list(shape),
            "dtype": dtype,
            "dtype_id": _DTYPE_IDS[dtype],
            "offset": position,
            "nbytes": nbytes,
        }
        position += nbytes
    document = {
        "manifest_ver": 1,
        "timestamp": "2026-09-01T12:00:00+00:00",
        "magnetron_ver": "0.2.2",
        "snapshot_ver": "0.3.0",
        "usr_metadata": {"model": "benchmark", "dtype": dtype},
        "tensor_map": tensors,
    }
    text = json.dumps(document, separators=(",", ":")).encode()
    first = struct.calcsize("<4sIIQQQQ")
    start = first + len(text)
    start += -start % PAGE
    header = struct.pack("<4sIIQQQQ", b"MAG!", 300, 0, first, len(text), start, position)
    return (header + text).ljust(start, b"\0"), position


def safetensors_header(shapes: Mapping[str, Sequence[int]]) -> tuple[bytes, int]:
    """Header of a safetensors file of float32, up to the data; and the bytes of all data."""
    tensors, position = {}, 0
    for key, shape in shapes.items():
        stop = position + 4 * int(np.prod(shape))
        tensors[key] = {"dtype": "F32", "shape": list(shape), "data_offsets": [position, stop]}
        position = stop
    text = json.dumps(tensors, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, position


def write_hole(path: Path, header: bytes, data_bytes: int) -> None:
    """Write a file whose data are a hole, which takes no room on the disk."""
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + data_bytes)


def write_zarr_group(path: Path, count: int) -> None:
    """Write as many arrays without data, with consolidated metadata."""
    import zarr  # noqa: PLC0415

    group = zarr.create_group(path)
    # The package takes half a minute to make 10,000, so one serves as the pattern of all.
    group.create_array("pattern", shape=LENGTHS, chunks=LENGTHS, dtype=np.float32)
    pattern = path / "pattern"
    metadata = json.loads((pattern / "zarr.json").read_text())
    for key in keys(count):
        (path / key).mkdir()
        metadata["dimension_names"] = dims(key)
        (path / key / "zarr.json").write_text(json.dumps(metadata))
    (pattern / "zarr.json").unlink()
    pattern.rmdir()
    zarr.consolidate_metadata(path)


def write_netcdf_group(path: Path, count: int) -> None:
    """Write as many variables without data."""
    import h5netcdf  # noqa: PLC0415

    with h5netcdf.File(path, "w") as file:
        for key in keys(count):
            for dim, length in zip(dims(key), LENGTHS, strict=True):
                file.dimensions[dim] = length
            file.create_variable(key, dims(key), np.float32)


def shape_of(size: int) -> tuple[int, int]:
    """Rows and columns of one tensor of float32 of so many bytes."""
    return size // (4 * COLUMNS), COLUMNS


def write_large(path: Path, header: bytes, size: int, convert: Callable[[Block], Any]) -> None:
    """Write one tensor of float32, of so many bytes, in the form that `convert` gives it."""
    with path.open("wb") as file:
        file.write(header)
        for block in _blocks(shape_of(size)[0]):
            file.write(convert(block).data)


def _blocks(rows: int) -> Iterable[Block]:
    """Small integers whose sum is small, so that float32 adds them up exactly in any order."""
    random = np.random.default_rng(0)
    for first in range(0, rows, _BLOCK_ROWS):
        block = random.integers(-8, 9, (min(_BLOCK_ROWS, rows - first), COLUMNS), dtype=np.int8)
        yield block.astype(np.float32)


def bfloat16(block: Block) -> NDArray[np.uint16]:
    """The upper halves, which hold all of such small numbers."""
    return (block.view(np.uint32) >> 16).astype("<u2")
