"""Writing: 2 GiB from dask to each format, beside other formats and plain calls of the system."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import xarray as xr

from benchmark import written
from benchmark.case import Aim, Case, Results, Section, Table
from benchmark.machine import CORES

_MEMORY = Path("/dev/shm")  # of the system, and nothing else is as fast
_DISK = ", disk"
_SYNCED = ", synced"
_LIMIT = f"pwrite of the same bytes, {CORES} threads"
_BITS_LIMIT = f"np.packbits and pwrite, {CORES} threads"
_BITS = "tensorfmt, PyCauset, bits"
_LABELS = ", with labels"

_INTRO = """\
A dask array of 2 GiB of float32, in chunks of whole rows of 31 MiB, is written to each format. The
chunks are there already, so that nothing but writing is measured. Each file is new: the one of the
round before is removed, and the system told to write everything out, before the clock runs.

A file of tensorfmt is on the disk when the call returns: it is synced, then renamed. The limit does
the same by hand: the space is reserved, threads write their parts with `pwrite`, the disk is told
to begin after each (`posix_fadvise`), and the file is synced. Other formats leave the values in
the memory of the system, for it to write them out later; rows that are *synced* do that
afterwards. zarr and netCDF write without compression.

All tables but the second write into a file system in memory, so that they compare programs and
not the moods of a disk. The disk of this machine stalls for seconds when it has taken some GiB:
times of that table scatter widely. In memory most of the time goes to the system, which makes pages
for the file: by hand it takes 0.85 s to reserve them and write, 0.83 s to write alone, and 0.84 s
through a mapping, so that no program can be much ahead of another."""


def _to_tensorfmt(data: Any, path: Path) -> None:
    data.tensorfmt.to_file(path)


def _to_zarr(data: xr.Dataset, path: Path) -> None:
    data.to_zarr(path, encoding={"tensor": {"compressors": None}}, consolidated=False)


def _to_netcdf(engine: Any, data: xr.Dataset, path: Path) -> None:
    data.to_netcdf(path, engine=engine)


def _sync(path: Path) -> None:
    for file in [path] if path.is_file() else path.rglob("*"):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _timed(
    folder: Path,
    suffix: str,
    write: Callable[..., None],
    *,
    synced: bool = False,
) -> Callable[[Any], float]:
    """Seconds that it takes to write a file that is not there."""
    path = folder / f"written{suffix}"

    def run(data: Any) -> float:
        folder.mkdir(exist_ok=True)
        _remove(path)
        os.sync()
        start = perf_counter()
        write(data, path)
        if synced:
            _sync(path)
        seconds = perf_counter() - start
        _remove(path if folder.parent != _MEMORY else folder)
        return seconds

    return run


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _size(folder: Path) -> int:
    return int((folder / "size").read_text())


def _in_memory(folder: Path) -> Path:
    """A folder of a file system in memory, or the one of the disk where there is none."""
    if not _MEMORY.is_dir():
        return folder
    return _MEMORY / f"benchmark-{folder.parent.name}"


def _floats(folder: Path, formats: Sequence[str], end: str) -> Iterator[Case]:
    size = _size(folder)
    place = folder if end else _in_memory(folder)
    rows = size // (4 * written.COLUMNS)
    timed = partial(_timed, place)
    by_hand = timed(".raw", lambda _, path: written.floats_by_hand(size, path))
    yield Case(_LIMIT + end, by_hand, "limit", setup=written.block, times_itself=True)
    for name in formats:
        # The first dimension of a TENS file is the fastest, so that this is the same order; Vespa
        # sorts dimensions by their names.
        dims = ("y", "x") if name == "TENS" else ("x", "y")
        setup = partial(lambda dims: written.floats(rows).transpose(*dims), dims)
        run = timed(_FORMATS[name], _to_tensorfmt)
        yield Case(f"tensorfmt, {name}{end}", run, "ours", setup=setup, times_itself=True)
    for name, (suffix, write) in _PEERS.items():
        for synced in (False, True) if end else (False,):
            run = timed(suffix, write, synced=synced)
            title = name + end + _SYNCED * synced
            yield Case(title, run, setup=partial(written.floats, rows), times_itself=True)


_FORMATS = {"MAG": ".mag", "TENS": ".tens", "PyCauset": ".pycauset", "Vespa": ".tbf"}
_PEERS: dict[str, tuple[str, Callable[..., None]]] = {
    "zarr": (".zarr", _to_zarr),
    "netcdf4": (".nc", partial(_to_netcdf, "netcdf4")),
    "h5netcdf": (".h5", partial(_to_netcdf, "h5netcdf")),
}


def _packed(folder: Path) -> Iterator[Case]:
    size = _size(folder)
    place = _in_memory(folder)
    by_hand = _timed(place, ".raw", lambda _, path: written.bits_by_hand(size, path))
    setup = partial(written.bits, size)
    yield Case(_BITS_LIMIT, by_hand, "limit", setup=setup, times_itself=True)
    run = _timed(place, ".pycauset", _to_tensorfmt)
    yield Case(_BITS, run, "ours", setup=setup, times_itself=True)


def _labelled(folder: Path) -> Iterator[Case]:
    rows = _size(folder) // 4 // (4 * written.BLOCK)
    place = _in_memory(folder)
    by_hand = _timed(place, ".raw", lambda _, path: written.labelled_by_hand(rows, path))
    yield Case(_LIMIT + _LABELS, by_hand, "limit", setup=written.block, times_itself=True)
    run = _timed(place, ".tbf", _to_tensorfmt)
    setup = partial(written.labelled, rows)
    yield Case(f"tensorfmt, Vespa{_LABELS}", run, "ours", setup=setup, times_itself=True)


def _tables(folder: Path) -> Sequence[Table]:
    return (
        Table(
            "Write 2 GiB of float32 from dask",
            "`ds.tensorfmt.to_file(path)`, `.to_zarr`, `.to_netcdf`. Vespa is big-endian.",
            tuple(_floats(folder, tuple(_FORMATS), "")),
        ),
        Table(
            "Write 2 GiB of float32 from dask to the disk",
            "The same, to the disk.",
            tuple(_floats(folder, ("MAG",), _DISK)),
            memory=False,
        ),
        Table(
            "Write 2 GiB of bool from dask as bits",
            "256 MiB in the file, packed by `np.packbits` by hand.",
            tuple(_packed(folder)),
        ),
        Table(
            "Write 10^6 blocks with labels",
            "512 MiB of float32 from dask, 128 behind each label of 16 letters. The limit knows of "
            "no labels; each must be encoded, and be unlike all others.",
            tuple(_labelled(folder)),
        ),
    )


def _write(folder: Path, size: int) -> None:
    (folder / "size").write_text(str(size))


def _aims(results: Results) -> Iterator[Aim]:
    limit = results[_LIMIT].seconds
    for name in _FORMATS:
        mine = results[f"tensorfmt, {name}"].seconds
        yield Aim(f"writing {name}: within 1.3 of the limit", mine / limit, 1.3)
    yield Aim(
        "writing bits: within 1.3 of the limit",
        results[_BITS].seconds / results[_BITS_LIMIT].seconds,
        1.3,
    )
    labels = results[f"tensorfmt, Vespa{_LABELS}"].seconds / results[_LIMIT + _LABELS].seconds
    yield Aim("writing 10^6 labels: within 1.5 of the limit", labels, 1.5)
    slowest = max(results[f"tensorfmt, {name}"].seconds for name in _FORMATS)
    fastest = min(results[name].seconds for name in _PEERS)
    text = "writing: ahead of every other format (the least lead)"
    yield Aim(text, fastest / slowest, 1, at_least=True)
    mine = results[f"tensorfmt, MAG{_DISK}"].seconds
    yield Aim(
        "writing MAG to the disk: within 1.3 of the limit",
        mine / results[_LIMIT + _DISK].seconds,
        1.3,
    )
    words = {_SYNCED: "once all is on the disk", "": "though they leave it in memory"}
    for end, when in words.items():
        fastest = min(results[name + _DISK + end].seconds for name in _PEERS)
        text = f"writing to the disk: ahead of every other format, {when}"
        yield Aim(text, fastest / mine, 1, at_least=True)


SECTION = Section(
    "write",
    "Writing",
    _INTRO,
    lambda size: size + (256 << 20),
    _write,
    _tables,
    lambda results: tuple(_aims(results)),
)
