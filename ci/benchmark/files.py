"""Files of several sections, and what the sections do with them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from zlib import crc32

import dask.array as da
import numpy as np
import xarray as xr
from dask.system import CPU_COUNT
from numpy.typing import NDArray

ROW = 16384
"""Elements of the fast axis of a dense tensor."""

CAUSET_OFFSET = 4096


def build_dense(rows: int, dtype: Any = np.float64) -> xr.Dataset:
    """Return random numbers with a slow dimension ``b`` and a fast dimension ``a``."""
    random = da.random.default_rng(0)  # type: ignore[attr-defined]
    values = random.random((rows, ROW), dtype=dtype, chunks=(256, ROW))
    return xr.Dataset({"tensor": (("b", "a"), values)})


def write_dense(path: Path, rows: int) -> None:
    """Write the numbers as a TENS file and as an uncompressed zarr store in chunks of 8 MiB."""
    ds = build_dense(rows)
    ds.transpose("a", "b").tensorfmt.to_file(path.with_suffix(".tens"))
    encoding = {"tensor": {"compressors": None, "chunks": (min(rows, 64), ROW)}}
    ds.to_zarr(path.with_suffix(".zarr"), encoding=encoding)


def open_tensor(location: Any, engine: str, **options: Any) -> xr.DataArray:
    """Open the variable ``tensor``, with dask only if `chunks` is given."""
    options = {"chunks": None, **options}
    return xr.open_dataset(location, engine=engine, **options)["tensor"]


def add_in_threads(
    add: Callable[[Any], Any], parts: Iterable[Any], threads: int = CPU_COUNT
) -> float:
    """Return the sum of what `add` returns for all parts."""
    with ThreadPoolExecutor(threads) as pool:
        return float(sum(pool.map(add, parts)))


def map_end(path: Path, dtype: str, *shape: int) -> NDArray[Any]:
    """Map an array at the end of a file."""
    size = np.dtype(dtype).itemsize * int(np.prod(shape))
    return np.memmap(path, dtype, "r", path.stat().st_size - size, shape)


def get_triangle_bytes(order: int) -> int:
    """Return the bytes of a strict upper triangle of bits with rows padded to 64 bits."""
    full, rest = divmod(order - 1, 64)
    return 8 * (64 * full * (full + 1) // 2 + rest * (full + 1))


def write_causal_matrix(path: Path, order: int) -> None:
    """Write a PyCauset container with a causal matrix of random bits."""
    size = get_triangle_bytes(order)
    metadata = _build_causet_metadata(order)
    metadata_start = CAUSET_OFFSET + size + -size % 16
    pointers = struct.pack("<7Q", 1, CAUSET_OFFSET, size, metadata_start, len(metadata), 0, 0)
    slot = (pointers + struct.pack("<I", crc32(pointers))).ljust(128, b"\0")
    head = b"PYCAUSET" + struct.pack("<IBHB", 1, 1, CAUSET_OFFSET, 0) + slot + slot
    random = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(head.ljust(CAUSET_OFFSET, b"\0"))
        for first in range(0, size, 1 << 24):
            words = min(1 << 24, size - first) // 8
            file.write(random.integers(0, 1 << 64, words, np.uint64).data)
        file.write(bytes(-size % 16) + metadata)


def _build_causet_metadata(order: int) -> bytes:
    texts = {"data_type": "BIT", "matrix_type": "CAUSAL", "payload_uuid": "0" * 32}
    entries = {key: struct.pack("<BI", 5, len(text)) + text.encode() for key, text in texts.items()}
    entries |= {key: struct.pack("<BQ", 3, order) for key in ("rows", "cols")}
    content = struct.pack("<BI", 8, len(entries))
    for key in sorted(entries):
        content += struct.pack("<H", len(key)) + key.encode() + entries[key]
    header = struct.pack("<4s3IQ2I", b"PCMB", 1, 1, 0, len(content), crc32(content), 0)
    return header + content
