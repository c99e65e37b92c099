"""Many large files as one Dataset: what the graph and the opening cost, as no value is read."""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import xarray as xr
from xarray.backends import BackendArray, BackendEntrypoint
from xarray.core.indexing import LazilyIndexedArray

from benchmark.case import Aim, Case, Results, Section, Table
from benchmark.files import ROW, tens_header

_ROWS = 8192
_CHUNK_ROWS = 241
_ROUNDS = 3
_WORKERS = 2

_INTRO = f"""\
1,024 TENS files of 1 GiB each, whose data are a hole, opened by `xr.open_mfdataset` as one tensor
of 1 TiB in chunks of 31 MiB; nothing is read. With `parallel=True` the files are opened by a
LocalCluster of {_WORKERS} processes. The limit is an engine that looks at no file and has zeros in
chunks of the same shape."""


class Floor(BackendEntrypoint):
    """Looks at no file."""

    def open_dataset(self, filename_or_obj: Any, *, drop_variables: Any = None) -> xr.Dataset:
        """Zeros in chunks."""
        encoding = {"preferred_chunks": {"a": ROW, "b": _CHUNK_ROWS}}
        variable = xr.Variable(("a", "b"), LazilyIndexedArray(_Zeros()), encoding=encoding)
        return xr.Dataset({"tensor": variable})


class _Zeros(BackendArray):
    dtype = np.dtype(np.float64)
    shape = (ROW, _ROWS)

    def __getitem__(self, key: Any) -> Any:
        return np.broadcast_to(np.float64(0), self.shape)[key.tuple]


def _write(folder: Path, size: int) -> None:
    header = tens_header((ROW, _ROWS))
    for number in range(size >> 21):
        with (folder / f"{number:05}.tens").open("wb") as file:
            file.write(header)
            file.truncate(len(header) + 8 * ROW * _ROWS)


@cache
def _cluster() -> Any:
    """The scheduler of processes that open files as long as this one runs."""
    from distributed import Client, LocalCluster  # noqa: PLC0415

    cluster = LocalCluster(n_workers=_WORKERS, threads_per_worker=1, dashboard_address=None)
    client = Client(cluster, set_as_default=False)  # not for the sections that follow
    atexit.register(cluster.close)
    atexit.register(client.close)
    return client.get


def _opened(folder: Path, engine: Any, parallel: bool, scheduler: Any) -> float:
    with dask.config.set(scheduler=scheduler):
        ds = xr.open_mfdataset(
            sorted(folder.glob("*.tens")),
            engine=engine,
            combine="nested",
            concat_dim="b",
            chunks={},
            parallel=parallel,
        )
    return float(ds["tensor"].data.npartitions)


def _cases(folder: Path, parallel: bool) -> Iterator[Case]:
    label, setup = (", parallel", _cluster) if parallel else ("", lambda: None)
    for name, engine in (("xarray's floor", Floor), ("tensorfmt", "tensorfmt")):
        role: Any = "limit" if engine is Floor else "ours"
        run = partial(_opened, folder, engine, parallel)
        yield Case(f"{name}, many files{label}", run, role, setup=setup, rounds=_ROUNDS)


def _tables(folder: Path) -> Sequence[Table]:
    return (
        Table("Many files", "One after the other.", tuple(_cases(folder, False)), memory=False),
        Table(
            "Many files with `parallel=True`",
            "By the processes of the cluster, which send what they have opened.",
            tuple(_cases(folder, True)),
            memory=False,
        ),
    )


def _aims(results: Results) -> Iterator[Aim]:
    for label in ("", ", parallel"):
        mine = results[f"tensorfmt, many files{label}"].seconds
        limit = results[f"xarray's floor, many files{label}"].seconds
        yield Aim(f"opening many files{label}: within 1.3 of xarray's floor", mine / limit, 1.3)


SECTION = Section(
    "scale",
    "Many files",
    _INTRO,
    lambda _: 64 << 20,
    _write,
    _tables,
    lambda results: tuple(_aims(results)),
)
