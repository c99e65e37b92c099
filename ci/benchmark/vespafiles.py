"""Typed binary tensors of Vespa, written block by block, and the same table in zarr."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

WIDTH = 128
"""Cells of a block."""

SPARSE = "sparse cells"
NUMBERED = "numbered labels"

_ALPHABET = b"abcdefghijklmnopqrstuvwxyz" * 2
_AT_ONCE = 1 << 16


def _numbered(number: int, _: int) -> tuple[bytes, ...]:
    return (b"doc%d" % number,)


KINDS: dict[str, Callable[[int, int], tuple[bytes, ...]]] = {
    "labels of one length": lambda number, _: (b"doc%07d" % number,),
    NUMBERED: _numbered,
    "labels of random length": lambda number, more: (b"%d-" % number + _ALPHABET[: more % 38],),
    "two labels": lambda number, _: (b"item%d" % (number % 1000), b"doc%d" % number),
    SPARSE: _numbered,
}
"""For each kind of file the labels of a block, from its number and a random one."""


def path_of(folder: Path, kind: str) -> Path:
    """Where the file of a kind is."""
    return folder / f"{kind.replace(' ', '_')}.tbf"


def cell_starts(folder: Path, kind: str) -> NDArray[np.int64]:
    """Where the cells of each block begin."""
    starts: NDArray[np.int64] = np.load(path_of(folder, kind).with_suffix(".npy"))
    return starts


def write(folder: Path, kind: str, count: int) -> None:
    """Write a file with so many blocks, and where the cells of each of them begin."""
    labels_of, random = KINDS[kind], np.random.default_rng(0)
    width = 1 if kind == SPARSE else WIDTH
    names = (b"item", b"user") if len(labels_of(0, 0)) == 2 else (b"user",)
    sized = b"\0" if kind == SPARSE else b"\1" + _text(b"x") + _integer(width)
    header = b"\7\1" + bytes([len(names)]) + b"".join(map(_text, names)) + sized + _integer(count)
    sizes = [len(header)]
    with path_of(folder, kind).open("wb") as file:
        file.write(header)
        for first in range(0, count, _AT_ONCE):
            numbers = range(first, min(first + _AT_ONCE, count))
            more = random.integers(0, 1 << 20, len(numbers)).tolist()
            labels = [
                b"".join(map(_text, labels_of(*pair))) for pair in zip(numbers, more, strict=True)
            ]
            cells = random.normal(size=(len(numbers), width)).astype(">f4")
            blocks = zip(labels, cells, strict=True)
            file.write(b"".join(part for label, row in blocks for part in (label, row.tobytes())))
            sizes += [len(label) + 4 * width for label in labels]
    np.save(path_of(folder, kind).with_suffix(".npy"), np.cumsum(sizes)[1:] - 4 * width)


def write_zarr(folder: Path) -> None:
    """Write the table with numbered labels as zarr, uncompressed, the labels as texts."""
    ds = xr.open_dataset(path_of(folder, NUMBERED), engine="tensorfmt", chunks={})
    rows = {"compressors": None, "chunks": (ds.tensor.chunksizes["user"][0], WIDTH)}
    encoding: Any = {"tensor": rows, "user": {"compressors": None, "chunks": (ds.sizes["user"],)}}
    ds = ds.drop_encoding()
    ds.to_zarr(folder / "table.zarr", encoding=encoding, consolidated=False)


def _integer(value: int) -> bytes:
    return bytes([value]) if value < 128 else (value | 1 << 31).to_bytes(4, "big")


def _text(value: bytes) -> bytes:
    return _integer(len(value)) + value
