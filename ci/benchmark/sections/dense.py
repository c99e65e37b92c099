"""Dense float64 tensors beside zarr, HDF5 and plain numpy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmark import byhand, opened
from benchmark.case import Aim, Case, Results, Section, Table
from benchmark.files import ROW, write_netcdf, write_tens, write_zarr
from benchmark.machine import CORES
from benchmark.opened import job

_MIB = 1 << 20
_CHUNKS = (32, 64)
_ZARR_CHUNKS = (8, 32, 64)

_INTRO = """\
Files of 2 GiB, 16384 x 16384 float64. TENS is column-major: its first index is the fast one. The
rows *row-major* read the same bytes through the layout for row-major tensors that other families
use. zarr (uncompressed, chunks of whole rows) and the contiguous netCDF4 file hold the same numbers
in the same order, in their row-major way. Sizes are those of chunks."""


def _tens(folder: Path) -> Path:
    return folder / "dense.tens"


def _write(folder: Path, size: int) -> None:
    rows = size // (8 * ROW)
    assert write_tens(_tens(folder), rows) == byhand.OFFSET
    write_netcdf(folder / "dense.nc", rows)
    for chunk in _ZARR_CHUNKS:
        write_zarr(folder / f"{chunk}.zarr", rows, chunk * _MIB)


def _reductions(folder: Path) -> Iterator[Case]:
    yield Case(
        f"numpy over the mapped file, {CORES} threads",
        partial(byhand.parallel, _tens(folder), np.sum),
        "limit",
    )
    yield Case(
        "numpy over the mapped file, 1 thread", lambda _: float(byhand.mapped(_tens(folder)).sum())
    )
    for chunk in _CHUNKS:
        keywords = {"chunks": {}, "chunk_bytes": chunk * _MIB}
        column = job(opened.sum_of, opened.tens, _tens(folder), **keywords)
        row = job(opened.sum_of, opened.row_major, _tens(folder), byhand.OFFSET, **keywords)
        yield Case(f"tensorfmt, column-major, {chunk} MiB", column, "ours")
        yield Case(f"tensorfmt, row-major, {chunk} MiB", row, "ours")
        rows = chunk * _MIB // (8 * ROW)
        floor = job(opened.sum_of, opened.minimal, _tens(folder), byhand.OFFSET, rows)
        yield Case(f"np.memmap in a minimal engine, {chunk} MiB", floor)
        for engine in ("h5netcdf", "netcdf4"):
            run = job(opened.sum_of, opened.hdf, folder / "dense.nc", engine, rows)
            yield Case(f"{engine}, {chunk} MiB", run)
    for chunk in _ZARR_CHUNKS:
        run = job(opened.sum_of, opened.zarr, folder / f"{chunk}.zarr", chunks={})
        yield Case(f"zarr, {chunk} MiB", run)
    yield Case(
        "dask.array.from_array(np.memmap), 32 MiB",
        partial(byhand.from_array, _tens(folder)),
        rounds=2,
        alone=True,
    )


def _nan_reductions(folder: Path) -> Iterator[Case]:
    limit = partial(byhand.in_pieces, _tens(folder), np.nansum)
    yield Case(f"numpy's nansum over 32 MiB pieces, {CORES} threads", limit, "limit")
    run = job(opened.nansum_of, opened.tens, _tens(folder), chunks={})
    yield Case("tensorfmt, nansum, 32 MiB", run, "ours")
    run = job(opened.nansum_of, opened.zarr, folder / "32.zarr", chunks={})
    yield Case("zarr, nansum, 32 MiB", run)
    run = job(opened.nansum_of, opened.hdf, folder / "dense.nc", "h5netcdf", byhand.SLAB)
    yield Case("h5netcdf, nansum, 32 MiB", run)


def _values(folder: Path) -> Iterator[Case]:
    touch = opened.touched
    yield Case("np.memmap, then sum", lambda _: float(byhand.mapped(_tens(folder)).sum()), "limit")
    yield Case(
        "copy of np.memmap, then sum", lambda _: float(np.array(byhand.mapped(_tens(folder))).sum())
    )
    yield Case("readinto, then sum", partial(byhand.read_into, _tens(folder)))
    yield Case("tensorfmt, then sum", job(touch, opened.tens, _tens(folder)), "ours")
    run = job(touch, opened.row_major, _tens(folder), byhand.OFFSET)
    yield Case("tensorfmt, row-major, then sum", run, "ours")
    yield Case(
        'tensorfmt, io="read", then sum', job(touch, opened.tens, _tens(folder), io="read"), "ours"
    )
    for chunk in _ZARR_CHUNKS[:2]:
        yield Case(
            f"zarr, {chunk} MiB, then sum",
            job(touch, opened.zarr, folder / f"{chunk}.zarr", chunks=None),
        )
    for engine in ("h5netcdf", "netcdf4"):
        yield Case(f"{engine}, then sum", job(touch, opened.hdf, folder / "dense.nc", engine))


def _views(folder: Path) -> Iterator[Case]:
    yield Case("np.memmap alone", lambda _: float(byhand.mapped(_tens(folder)).size * 0), "limit")
    yield Case(
        "tensorfmt, .values alone", job(opened.handed_out, opened.tens, _tens(folder)), "ours"
    )


def _slabs(folder: Path, axis: str) -> Iterator[Case]:
    start = len(byhand.mapped(_tens(folder))) // 2
    cut = slice(start, start + byhand.SLAB)
    dims = ("b", "row") if axis == "slow" else ("a", "col")
    key = cut if axis == "slow" else (slice(None), cut)

    def slab(opener: Any, dim: str, *args: Any, **keywords: Any) -> Any:
        return lambda _: float(opener(*args, **keywords).isel({dim: cut}).values.sum())

    yield Case(
        f"np.memmap, {axis} slab", lambda _: float(byhand.mapped(_tens(folder))[key].sum()), "limit"
    )
    run = slab(opened.tens, dims[0], _tens(folder))
    yield Case(f"tensorfmt, column-major, {axis} slab", run, "ours")
    run = slab(opened.row_major, dims[1], _tens(folder), byhand.OFFSET)
    yield Case(f"tensorfmt, row-major, {axis} slab", run, "ours")
    run = slab(opened.tens, dims[0], _tens(folder), io="read")
    yield Case(f'tensorfmt, io="read", {axis} slab', run, "ours")
    for chunk in _ZARR_CHUNKS[:2]:
        run = slab(opened.zarr, dims[1], folder / f"{chunk}.zarr", chunks=None)
        yield Case(f"zarr, {chunk} MiB, {axis} slab", run)
    for engine in ("h5netcdf", "netcdf4"):
        run = slab(opened.hdf, dims[1], folder / "dense.nc", engine)
        yield Case(f"{engine}, {axis} slab", run)


def _tables(folder: Path) -> Sequence[Table]:
    slab = f"`.isel` of {byhand.SLAB} indices in the middle of the {{}} axis, `.values`, then sum."
    return (
        Table(
            "Sum of the whole tensor",
            "`.sum(skipna=False)` through `chunks={}`, or `chunks=` of the size given. The minimal "
            "engine hands out slices of one mapping of the whole file and checks nothing: how much "
            "slower it is than the limit is what xarray and dask themselves cost.",
            tuple(_reductions(folder)),
        ),
        Table(
            "The same with xarray's default `skipna`",
            "`.sum()` skips NaN, which costs numpy a copy and a comparison of each chunk.",
            tuple(_nan_reductions(folder)),
        ),
        Table(
            "All values",
            "`.values` without dask, then their sum in one thread: handing out a mapped view costs "
            "nothing, so that only the sum shows what reading costs.",
            tuple(_values(folder)),
        ),
        Table("The view alone", "`.values`, of which nothing is looked at.", tuple(_views(folder))),
        Table("A slab along the slow axis", slab.format("slow"), tuple(_slabs(folder, "slow"))),
        Table(
            "A slab along the fast axis",
            slab.format("fast") + " Every row of the file has 2 KiB of it.",
            tuple(_slabs(folder, "fast")),
        ),
    )


def _aims(results: Results) -> Iterator[Aim]:
    seconds = {name: result.seconds for name, result in results.items()}
    limit = seconds[f"numpy over the mapped file, {CORES} threads"]
    peers = [
        seconds[name]
        for name in (
            *(f"zarr, {c} MiB" for c in _ZARR_CHUNKS),
            *(f"h5netcdf, {c} MiB" for c in _CHUNKS),
        )
    ]
    for chunk, bound in zip(_CHUNKS, (1.5, 1.25), strict=True):
        for shape in ("column-major", "row-major"):
            mine = seconds[f"tensorfmt, {shape}, {chunk} MiB"]
            text = f"sum through `chunks={{}}` of {chunk} MiB, {shape}: within {bound} of the limit"
            yield Aim(text, mine / limit, bound)
    mine = max(seconds[f"tensorfmt, {shape}, 32 MiB"] for shape in ("column-major", "row-major"))
    text = "the same at the default chunk size: 4 times as fast as the fastest of zarr and h5netcdf"
    yield Aim(text, min(peers) / mine, 4, at_least=True)
    text = "`.values`, then their sum: as fast as `np.memmap` (within 5 %, the noise)"
    yield Aim(text, seconds["tensorfmt, then sum"] / seconds["np.memmap, then sum"], 1.05)


SECTION = Section(
    "dense",
    "Dense tensors",
    _INTRO,
    lambda size: 5 * size,
    _write,
    _tables,
    lambda results: tuple(_aims(results)),
)
