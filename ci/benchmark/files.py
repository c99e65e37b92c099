"""The files that the sections read, written block by block."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROW = 16384
"""Elements of the fast axis of a dense tensor."""

Values = NDArray[np.float64]


def tens_header(
    lengths: Sequence[int], *, numbers: int = 1, version: int = 0x9000, flags: int = 0
) -> bytes:
    """Header of a TENS file of float64 (or complex128) with dims a, b, ..."""
    fixed = struct.pack(
        "<4sI4sIIIII", b"TENS", version, b"IEEE", 8, numbers, len(lengths), flags, 0
    )
    return fixed + b"".join(
        struct.pack("<IBBH", length, ord("a") + axis, 0, 0) for axis, length in enumerate(lengths)
    )


def blocks(rows: int) -> Iterator[tuple[int, Values]]:
    """Rows of random numbers, 32 MiB at a time, each block with the number of its first row."""
    random = np.random.default_rng(0)
    for first in range(0, rows, 256):
        yield first, random.random((min(256, rows - first), ROW))


def write_tens(path: Path, rows: int) -> int:
    """Write a TENS file whose last index counts the rows; returns the offset of the data."""
    header = tens_header((ROW, rows))
    with path.open("wb") as file:
        file.write(header)
        for _, block in blocks(rows):
            file.write(block.data)
    return len(header)


def write_netcdf(path: Path, rows: int) -> None:
    """Write the same rows as a contiguous netCDF4 file."""
    import h5netcdf  # noqa: PLC0415

    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"row": rows, "col": ROW}
        variable = file.create_variable("tensor", ("row", "col"), np.float64)
        for first, block in blocks(rows):
            variable[first : first + len(block)] = block


def write_zarr(path: Path, rows: int, chunk_bytes: int) -> None:
    """Write the same rows as an uncompressed zarr array of version 3."""
    import zarr  # noqa: PLC0415

    group = zarr.create_group(path)
    array = group.create_array(
        "tensor",
        shape=(rows, ROW),
        dtype=np.float64,
        chunks=(min(rows, chunk_bytes // (8 * ROW)), ROW),
        compressors=None,
        filters=None,
        dimension_names=("row", "col"),
    )
    for first, block in blocks(rows):
        array[first : first + len(block)] = block
