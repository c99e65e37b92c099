"""A file larger than any memory: 49 GB of which nothing is on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmark.case import Aim, Case, Results, Section, Table
from benchmark.files import tens_header
from benchmark.opened import tens

_LENGTHS = (2000, 1237, 1237)
_ITEM = 16
_SLAB = 26

_INTRO = """\
A TENS file with the header of a large Coulomb vertex, 2000 x 1237 x 1237 complex128 or 49 GB, whose
data are a hole, which the system reads as zeros."""


def _path(folder: Path) -> Path:
    return folder / "hole.tens"


def _write(folder: Path, _: int) -> None:
    header = tens_header(_LENGTHS, numbers=2)
    with _path(folder).open("wb") as file:
        file.write(header)
        file.truncate(len(header) + _ITEM * int(np.prod(_LENGTHS)))


def _open(folder: Path, _: None) -> None:
    assert tens(_path(folder), chunks={}).shape == _LENGTHS


def _column(folder: Path, _: None) -> float:
    return float(abs(tens(_path(folder)).isel(b=600, c=600).values.sum()))


def _slab(folder: Path, _: None) -> float:
    part = tens(_path(folder), chunks={}).isel(c=slice(600, 600 + _SLAB))
    return float(abs(part.sum(skipna=False)))


def _mapped(folder: Path, first: int, last: int) -> float:
    header = len(tens_header(_LENGTHS))
    values = np.memmap(_path(folder), np.complex128, "r", header, _LENGTHS, "F")
    part = values[:, :, first:last] if last > first else values[:, first, first]
    return float(abs(part.sum()))


def _tables(folder: Path) -> Sequence[Table]:
    return (
        Table(
            "One column",
            "Open, and add up 2000 consecutive elements.",
            (
                Case("np.memmap, column", lambda _: _mapped(folder, 600, 600), "limit"),
                Case("tensorfmt, column", partial(_column, folder), "ours"),
            ),
        ),
        Table(
            "A slab of 1 GB",
            f"`.isel` of {_SLAB} indices of the last axis and `.sum(skipna=False)`, `chunks={{}}`.",
            (
                Case(
                    "np.memmap, slab, 1 thread",
                    lambda _: _mapped(folder, 600, 600 + _SLAB),
                    "limit",
                ),
                Case("tensorfmt, slab", partial(_slab, folder), "ours"),
            ),
        ),
        Table(
            "Open alone",
            "`open_dataset` with `chunks={}`: 2,474 chunks for dask to name.",
            (
                Case("np.memmap, open", lambda _: float(_mapped(folder, 0, 0) * 0), "limit"),
                Case("tensorfmt, open", partial(_open, folder), "ours"),
            ),
        ),
    )


def _aims(results: Results) -> Sequence[Aim]:
    peak = (results["tensorfmt, slab"].pages or 0.0) * (1 << 20) / 1e6
    return (
        Aim("a slab of 1 GB of a file of 49 GB: resident memory below 400 MB", peak, 400, "MB"),
    )


SECTION = Section("hole", "A file of 49 GB", _INTRO, lambda _: 0, _write, _tables, _aims)
