"""A Coulomb vertex as YAML and elements, beside the same numbers as TENS 0.9."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import xarray as xr
import yaml
import yaml12

from benchmark.case import Aim, Case, Results, Section, Table
from benchmark.files import tens_header
from benchmark.machine import CORES
from xr_tensorfmt import to_cc4s, to_tens

_STATES = 256
_ITEM = 16
_LABELLED = 1_000_000
_OURS, _TENS, _LIMIT = "tensorfmt, cc4s", "tensorfmt, TENS 0.9", f"np.memmap, {CORES} threads"
_PROPERTIES = "tensorfmt, 18 MB of properties"

_INTRO = f"""\
A Coulomb vertex of 2 GiB, complex128 of (F, {_STATES}, {_STATES}), in the two forms that cc4s has
had: TENS 0.9, one file, until 2020; since 2022 `CoulombVertex.yaml` beside
`CoulombVertex.elements`. The elements are the same bytes. No other library for Python opens
either."""


def _vertex(folder: Path) -> Path:
    return folder / "CoulombVertex.yaml"


def _old(folder: Path) -> Path:
    return folder / "CoulombVertex.bin"


def _lengths(size: int) -> tuple[int, int, int]:
    return size // (_ITEM * _STATES**2), _STATES, _STATES


def _write(folder: Path, size: int) -> None:
    lengths = _lengths(size)
    random = np.random.default_rng(0)
    slab = lengths[0] * _STATES
    elements = _vertex(folder).with_suffix(".elements")
    with _old(folder).open("wb") as old, elements.open("wb") as new:
        old.write(tens_header(lengths, numbers=2))
        for _ in range(_STATES):
            values = random.random((slab, 2)).data
            old.write(values)
            new.write(values)
    kinds = ("AuxiliaryField", "State", "State")
    dimensions = zip(lengths, kinds, strict=True)
    header = {"version": 100, "type": "Tensor", "scalarType": "Complex64"}
    _dump(
        _vertex(folder),
        header
        | {
            "dimensions": [{"length": length, "type": kind} for length, kind in dimensions],
            "elements": {"type": "IeeeBinaryFile"},
            "unit": 1.0,
        },
    )
    _write_labelled(folder / "labelled")


def _write_labelled(folder: Path) -> None:
    """Eigenenergies whose dimension has two properties for a million of states."""
    folder.mkdir()
    momenta = [[number, number / 7, 0] for number in range(_LABELLED // 16)]
    indices = [number % len(momenta) for number in range(_LABELLED)]
    spins = [number % 2 for number in range(_LABELLED)]
    _dump(
        folder / "State.yaml",
        {
            "version": 100,
            "dimensionType": "State",
            "properties": {"CrystalMomentum": momenta, "Spin": [0, 1]},
            "propertyIndices": {"CrystalMomentum": indices, "Spin": spins},
        },
    )
    _dump(
        folder / "EigenEnergies.yaml",
        {
            "version": 100,
            "type": "Tensor",
            "scalarType": "Real64",
            "dimensions": [{"length": _LABELLED, "type": "State"}],
            "elements": {"type": "IeeeBinaryFile"},
            "unit": 1.0,
        },
    )
    np.zeros(_LABELLED).tofile(folder / "EigenEnergies.elements")


def _dump(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(yaml12.format_yaml(fields), encoding="utf-8")


def _open(path: Path, **keywords: Any) -> xr.DataArray:
    (variable,) = xr.open_dataset(path, engine="tensorfmt", **keywords).data_vars.values()
    return variable


def _sum(path: Path, _: None) -> float:
    return float(abs(_open(path, chunks={}).sum(skipna=False)))


def _window(path: Path, _: None) -> float:
    states = slice(_STATES // 4, _STATES // 4 + 8)
    last = _open(path).dims[-1]
    return float(abs(_open(path).isel({last: states}).values.sum()))


def _mapped(folder: Path) -> Any:
    flat = np.memmap(_vertex(folder).with_suffix(".elements"), np.complex128, "r")
    return flat.reshape(_STATES, -1)


def _sum_by_hand(folder: Path, _: None) -> float:
    pieces = np.array_split(_mapped(folder), 64)
    with ThreadPoolExecutor(CORES) as threads:
        return float(abs(sum(threads.map(np.sum, pieces))))


def _window_by_hand(folder: Path, _: None) -> float:
    return float(abs(np.array(_mapped(folder)[_STATES // 4 : _STATES // 4 + 8]).sum()))


def _converted(write: Any, file: Path, target: Path) -> Any:
    """Seconds that it takes to write what a file holds to another place."""

    def run(_: None) -> float:
        shutil.rmtree(target.parent, ignore_errors=True)
        target.parent.mkdir()
        start = perf_counter()
        write(file, target)
        seconds = perf_counter() - start
        shutil.rmtree(target.parent)
        return seconds

    return run


def _to_yaml(file: Path, target: Path) -> None:
    to_cc4s(_open(file, chunks={}), target)


def _to_old(file: Path, target: Path) -> None:
    to_tens(_open(file, chunks={}), target, version="0.9", drop=["name", "dims", "attrs"])


def _conversions(folder: Path) -> Iterator[Case]:
    place = folder / "converted"
    copy = _converted(shutil.copyfile, _old(folder), place / "copy.bin")
    yield Case("shutil.copyfile", copy, "limit", times_itself=True)
    run = _converted(_to_yaml, _old(folder), place / _vertex(folder).name)
    yield Case("tensorfmt, TENS 0.9 to cc4s", run, "ours", times_itself=True)
    run = _converted(_to_old, _vertex(folder), place / _old(folder).name)
    yield Case("tensorfmt, cc4s to TENS 0.9", run, "ours", times_itself=True)


def _parsed(load: Any, folder: Path, _: None) -> float:
    fields = load((folder / "labelled" / "State.yaml").read_text(encoding="utf-8"))
    return float(sum(fields["propertyIndices"]["Spin"]))


def _spins(folder: Path, _: None) -> float:
    path = folder / "labelled" / "EigenEnergies.yaml"
    return float(xr.open_dataset(path, engine="tensorfmt").State_Spin.values.sum())


def _tables(folder: Path) -> Sequence[Table]:
    new, old = _vertex(folder), _old(folder)
    safe = partial(yaml.load, Loader=yaml.CSafeLoader)
    return (
        Table(
            "Sum of a Coulomb vertex",
            "`.sum(skipna=False)` through `chunks={}`.",
            (
                Case(_LIMIT, partial(_sum_by_hand, folder), "limit"),
                Case(_OURS, partial(_sum, new), "ours"),
                Case(_TENS, partial(_sum, old), "ours"),
            ),
        ),
        Table(
            "A window of 8 states",
            "`.isel` of the last dimension, then the sum of `.values`.",
            (
                Case("np.memmap, window", partial(_window_by_hand, folder), "limit"),
                Case(f"{_OURS}, window", partial(_window, new), "ours"),
                Case(f"{_TENS}, window", partial(_window, old), "ours"),
            ),
        ),
        Table(
            "From one form to the other",
            "`open_dataset(chunks={})`, then `to_cc4s` or `to_tens`, which wait until the disk has "
            "the file; `shutil.copyfile` does not.",
            tuple(_conversions(folder)),
        ),
        Table(
            "Open a file with two properties of a million states",
            "`State.yaml` has 18 MB. The limit is to parse it with the same library.",
            (
                Case("yaml12 alone", partial(_parsed, yaml12.parse_yaml, folder), "limit"),
                Case(_PROPERTIES, partial(_spins, folder), "ours"),
                Case("PyYAML's CSafeLoader alone", partial(_parsed, safe, folder), rounds=1),
            ),
        ),
    )


def _aims(results: Results) -> Sequence[Aim]:
    ratio = results[_OURS].seconds / results[_TENS].seconds
    return (
        Aim("sum of a vertex, cc4s beside TENS 0.9: equal within 5 %, the noise", ratio, 1.05),
        Aim("open with 18 MB of properties", results[_PROPERTIES].seconds, 1.2, "s"),
    )


SECTION = Section(
    "cc4s", "cc4s", _INTRO, lambda size: 3 * size + (64 << 20), _write, _tables, _aims
)
