"""Vespa's typed binary tensors: a table of labelled embeddings, and sparse cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from benchmark import opened
from benchmark.case import Aim, Case, Results, Section, Table
from benchmark.machine import CORES
from benchmark.vespafiles import (
    KINDS,
    NUMBERED,
    SPARSE,
    WIDTH,
    cell_starts,
    path_of,
    write,
    write_zarr,
)

_BLOCKS = 10**6
_FULL = 2 << 30
_PIECE = 1 << 16
_LABEL = "doc77777"

_INTRO = """\
Tables of 10^6 blocks of 128 float32, about 500 MiB each, whose labels are of one length
(`doc0000017`), numbered (`doc17`), or of random length (2 to 45 bytes); one with two labels a
block; and 10^7 labelled cells without blocks. The limits know where every block is, which is what
opening has to find out. The same table in zarr has chunks of the same shape, uncompressed, and a
coordinate of texts."""

_OPEN_AIMS = {
    "labels of one length": 1.0,
    NUMBERED: 1.0,
    "labels of random length": 1.5,
}


def _write(folder: Path, size: int) -> None:
    count = max(_BLOCKS * size // _FULL, 100_000)
    for kind in KINDS:
        write(folder, kind, 10 * count if kind == SPARSE else count)
    write_zarr(folder)


def _open(folder: Path, kind: str, **keywords: Any) -> xr.DataArray:
    return xr.open_dataset(path_of(folder, kind), engine="tensorfmt", **keywords)["tensor"]


def _opened(folder: Path, kind: str, keywords: dict[str, Any], _: None) -> None:
    assert _open(folder, kind, **keywords).size


def _bytes(folder: Path, kind: str) -> NDArray[np.uint8]:
    return np.memmap(path_of(folder, kind), np.uint8, "r")


def _touch(folder: Path, kind: str, starts: NDArray[np.int64]) -> None:
    assert _bytes(folder, kind)[starts - 1].size


def _loop(folder: Path, kind: str, starts: NDArray[np.int64]) -> None:
    """Step from label to label, as the format says; all are short."""
    content, labels = _bytes(folder, kind).data, range(len(KINDS[kind](0, 0)))
    cell_bytes = 4 if kind == SPARSE else 4 * WIDTH
    position = int(starts[0]) + cell_bytes
    found = []
    for _ in range(starts.size - 1):
        for _ in labels:
            position += 1 + content[position]
        found.append(position)
        position += cell_bytes
    assert np.array(found)[-1] == starts[-1]


def _gathered(content: NDArray[np.uint8], starts: NDArray[np.int64], kind: str) -> NDArray[Any]:
    size = 4 if kind == SPARSE else 4 * WIDTH
    pieces: NDArray[Any] = np.ndarray(
        (content.size - size + 1,), np.dtype((np.void, size)), content, strides=(1,)
    )
    return pieces[starts].view(">f4").astype(np.float32).reshape(starts.size, -1)


def _load_by_hand(folder: Path, kind: str, starts: NDArray[np.int64]) -> float:
    return float(_gathered(_bytes(folder, kind), starts, kind)[-1].sum())


def _mean_by_hand(folder: Path, kind: str, starts: NDArray[np.int64]) -> None:
    content, rows = _bytes(folder, kind), _PIECE if kind != SPARSE else _PIECE * WIDTH
    pieces = [starts[first : first + rows] for first in range(0, starts.size, rows)]
    with ThreadPoolExecutor(CORES) as threads:
        assert sum(threads.map(lambda piece: float(_gathered(content, piece, kind).sum()), pieces))


def _load(array: xr.DataArray) -> float:
    return float(array.values[-1].sum())


def _mean(array: xr.DataArray) -> None:
    assert np.isfinite(array.mean(skipna=False).values)


def _sel(array: xr.DataArray) -> float:
    return float(array.sel(user=_LABEL).values.sum())


def _sel_by_hand(folder: Path, starts: NDArray[np.int64]) -> float:
    number = int(_LABEL.removeprefix("doc"))
    start = int(starts[number])
    content = np.memmap(path_of(folder, NUMBERED), ">f4", "r", start, (WIDTH,))
    return float(content.astype(np.float32).sum())


def _first_sel(folder: Path, _: None) -> float:
    return _sel(_open(folder, NUMBERED))


def _zarr(folder: Path, **keywords: Any) -> xr.DataArray:
    return opened.zarr(folder / "table.zarr", chunks=keywords.pop("chunks", None), **keywords)


def _zarr_opened(folder: Path, _: None) -> None:
    assert _zarr(folder).size


def _openings(folder: Path, kind: str) -> Iterator[Case]:
    known = partial(cell_starts, folder, kind)
    yield Case(f"numpy, a byte a block, {kind}", partial(_touch, folder, kind), "limit", known)
    if kind != "two labels":
        yield Case(f"tensorfmt, {kind}", partial(_opened, folder, kind, {}), "ours")
    lazy = {"create_default_indexes": False}
    yield Case(f"tensorfmt, no index, {kind}", partial(_opened, folder, kind, lazy), "ours")
    yield Case(f"a loop in Python, {kind}", partial(_loop, folder, kind), "peer", known)
    if kind == NUMBERED:
        yield Case("zarr, with its index", partial(_zarr_opened, folder))


def _loads(folder: Path, kind: str) -> Iterator[Case]:
    known = partial(cell_starts, folder, kind)
    lazy = {"create_default_indexes": False, "cache": False}
    ours = partial(_open, folder, kind, **lazy)
    yield Case(f"numpy, load, {kind}", partial(_load_by_hand, folder, kind), "limit", known)
    yield Case(f"tensorfmt, load, {kind}", _load, "ours", ours)
    if kind == NUMBERED:
        yield Case("zarr, load", _load, "peer", partial(_zarr, folder, **lazy))


def _means(folder: Path, kind: str) -> Iterator[Case]:
    known = partial(cell_starts, folder, kind)
    lazy = {"create_default_indexes": False, "chunks": {}}
    ours = partial(_open, folder, kind, **lazy)
    yield Case(f"numpy, mean, {kind}", partial(_mean_by_hand, folder, kind), "limit", known)
    yield Case(f"tensorfmt, mean, {kind}", _mean, "ours", ours)
    if kind == NUMBERED:
        yield Case("zarr, mean", _mean, "peer", partial(_zarr, folder, **lazy))


def _selections(folder: Path) -> Iterator[Case]:
    known = partial(cell_starts, folder, NUMBERED)
    yield Case("numpy, sel", partial(_sel_by_hand, folder), "limit", known)
    ours = partial(_open, folder, NUMBERED, cache=False)
    yield Case("tensorfmt, sel", _sel, "ours", ours)
    yield Case("zarr, sel", _sel, "peer", partial(_zarr, folder, cache=False))
    yield Case("tensorfmt, open and sel", partial(_first_sel, folder), "ours")


def _tables(folder: Path) -> Sequence[Table]:
    opening = "`open_dataset`, with an index of the labels and without."
    mean = "The mean of all cells of an open table; `chunks={}`, `skipna=False`, all cores."
    load = "All cells of an open table into memory, in the byte order of the machine, on one core."
    return (
        *(Table(f"Open: {k}", opening, tuple(_openings(folder, k))) for k in KINDS),
        Table(
            "One label",
            "`.sel(user=...)` of an open table.",
            tuple(_selections(folder)),
            memory=False,
        ),
        *(Table(f"Load: {k}", load, tuple(_loads(folder, k))) for k in KINDS),
        *(Table(f"Mean: {k}", mean, tuple(_means(folder, k)), memory=False) for k in KINDS),
    )


def _aims(results: Results) -> Sequence[Aim]:
    aims = [
        Aim(
            f"Open, {kind} (the bound is for 10^6 blocks)",
            results[f"tensorfmt, {kind}"].seconds,
            most,
            "s",
        )
        for kind, most in _OPEN_AIMS.items()
    ]
    for kind in _OPEN_AIMS:
        scan = results[f"tensorfmt, no index, {kind}"].seconds
        text = f"Open with an index, {kind}: within 4 of the scan alone"
        aims.append(Aim(text, results[f"tensorfmt, {kind}"].seconds / scan, 4))
    for kind in KINDS:
        ours, limit = results[f"tensorfmt, load, {kind}"], results[f"numpy, load, {kind}"]
        aims.append(Aim(f"Load, {kind}", ours.seconds / limit.seconds, 1.3))
    own = results["tensorfmt, no index, labels of random length"].own
    if own is not None:
        most = 100 * _BLOCKS / (1 << 20)
        aims.append(
            Aim("Memory to open, beyond labels (the bound is for 10^6 blocks)", own, most, "MiB")
        )
    return aims


SECTION = Section(
    "vespa",
    "Labelled blocks (Vespa)",
    _INTRO,
    lambda size: 3 * size // 2,
    _write,
    _tables,
    _aims,
)
