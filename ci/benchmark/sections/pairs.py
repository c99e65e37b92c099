"""A TENS file of index-value pairs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from benchmark.case import Aim, Case, Results, Section, Table
from benchmark.files import tens_header
from benchmark.opened import tens

_SIDE = 20_000
_EVERY = 4
_HEADER = 56
_PAIR = np.dtype([("index", "<u8"), ("value", "<f8")])
_BLOCK = 1 << 20

_INTRO = """\
A file of 10^8 pairs (1.5 GiB), sorted by index, of a 20000 x 20000 tensor of float64 (3 GiB), about
every fourth element of which is stored. The first use of a chunk looks at all pairs once, to learn
which lie where; a chunk is 32 MiB of dense values, or the pairs of 32 MiB of the file."""


def _path(folder: Path) -> Path:
    return folder / "pairs.tens"


def _write(folder: Path, size: int) -> None:
    columns = min(_SIDE, size // (8 * _SIDE) * 3 // 2)
    count = _SIDE * columns // _EVERY
    random = np.random.default_rng(0)
    with _path(folder).open("wb") as file:
        file.write(tens_header((_SIDE, columns), version=0x10000, flags=1))
        file.write(count.to_bytes(8, "little"))
        for first in range(0, count, _BLOCK):
            pairs = np.empty(min(_BLOCK, count - first), _PAIR)
            pairs["index"] = _EVERY * np.arange(first, first + pairs.size, dtype=np.uint64)
            pairs["index"] += random.integers(0, _EVERY, pairs.size, dtype=np.uint64)
            pairs["value"] = random.random(pairs.size)
            file.write(pairs.data)


def _mapped(folder: Path) -> NDArray[Any]:
    return np.memmap(_path(folder), _PAIR, "r", _HEADER)


def _scan(folder: Path, _: None) -> None:
    index = _mapped(folder)["index"]
    for first in range(0, index.size, _BLOCK):
        assert index[first : first + _BLOCK].max()


def _chunk(folder: Path) -> slice:
    columns = tens(_path(folder)).encoding["preferred_chunks"]["b"]
    start = tens(_path(folder)).sizes["b"] // 2
    return slice(start, start + columns)


def _by_hand(folder: Path, chunk: slice) -> float:
    pairs = _mapped(folder)
    bounds = np.array([chunk.start * _SIDE, chunk.stop * _SIDE], np.uint64)
    lower, upper = np.searchsorted(pairs["index"], bounds)
    values = np.zeros((chunk.stop - chunk.start) * _SIDE)
    values[pairs["index"][lower:upper] - bounds[0]] = pairs["value"][lower:upper]
    return float(values.sum())


def _passed_over(folder: Path) -> tuple[xr.DataArray, slice]:
    tensor = tens(_path(folder), cache=False)
    assert tensor[0, 0].values.ndim == 0
    return tensor, _chunk(folder)


def _dense_chunk(state: tuple[xr.DataArray, slice]) -> float:
    return float(state[0].isel(b=state[1]).values.sum())


def _first_chunk(folder: Path, chunk: slice) -> float:
    return float(tens(_path(folder)).isel(b=chunk).values.sum())


def _first_element(folder: Path, _: None) -> None:
    assert tens(_path(folder))[0, 0].values.ndim == 0


def _stored(folder: Path, names: Sequence[str], _: None) -> None:
    ds = xr.open_dataset(_path(folder), engine="tensorfmt", sparse="stored")
    start = ds.sizes["entry"] // 2
    part = ds.isel(entry=slice(start, start + ds.tensor.encoding["preferred_chunks"]["entry"]))
    for name in names:
        assert part[name].values.size


def _stored_by_hand(folder: Path, _: None) -> None:
    pairs = _mapped(folder)
    count = (32 << 20) // _PAIR.itemsize
    part = pairs[pairs.size // 2 :][:count]
    assert np.ascontiguousarray(part["value"]).size
    assert all(each.size for each in np.divmod(part["index"], np.uint64(_SIDE)))


def _tables(folder: Path) -> Sequence[Table]:
    chunk = partial(_chunk, folder)
    return (
        Table(
            "First use",
            "Open the file, then take one element: the pass over all pairs.",
            (
                Case("numpy, largest index of mapped blocks", partial(_scan, folder), "limit"),
                Case("tensorfmt, first element", partial(_first_element, folder), "ours"),
            ),
        ),
        Table(
            "One dense chunk",
            "32 MiB of values, then their sum. By hand means to know that the pairs are sorted.",
            (
                Case("numpy by hand, dense", partial(_by_hand, folder), "limit", chunk),
                Case(
                    "tensorfmt, after the pass", _dense_chunk, "ours", partial(_passed_over, folder)
                ),
                Case("tensorfmt, pass included", partial(_first_chunk, folder), "ours", chunk),
            ),
        ),
        Table(
            'One chunk of `sparse="stored"`',
            "Pairs of 32 MiB of the file: the values, and the coordinates `a` and `b`.",
            (
                Case("numpy by hand, stored", partial(_stored_by_hand, folder), "limit"),
                Case(
                    "tensorfmt, values and coordinates",
                    partial(_stored, folder, ("tensor", "a", "b")),
                    "ours",
                ),
                Case("tensorfmt, values", partial(_stored, folder, ("tensor",)), "ours"),
            ),
        ),
    )


def _aims(_: Results) -> Sequence[Aim]:
    return ()


SECTION = Section(
    "pairs",
    "Index-value pairs",
    _INTRO,
    lambda size: size,
    _write,
    _tables,
    _aims,
)
