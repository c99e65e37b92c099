"""A store that is 20 ms away: opening, a chunk, all chunks, a column."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import xarray as xr

from benchmark.byhand import OFFSET
from benchmark.case import Aim, Case, Results, Section, Table
from benchmark.files import ROW, write_tens, write_zarr
from benchmark.slowstore import BUCKET, LATENCY, RATE, SlowStore, running

_CHUNK = 8 << 20
_ROWS = _CHUNK // (8 * ROW)
_CHUNKS = 64
_PARTS = 4
_TRIM = "MALLOC_TRIM_THRESHOLD_"
_WORKERS = {False: "a worker", True: "a worker that keeps memory"}
_IN_FLIGHT = 16

_INTRO = """\
A store on loopback that speaks S3. It answers 20 ms after each request, at 100 MB/s for each
connection. A column-major tensor of 512 MiB lies in it as a TENS file, and the same values as an
uncompressed zarr array in chunks of 8 MiB. The limit is what arithmetic allows: one round trip,
and the bytes over 16 connections. Each contender has its own default of requests at a time."""


@dataclass(frozen=True)
class _Ways:
    """How the contenders get at the store.

    Parameters
    ----------
    store : SlowStore
        The store.
    """

    store: SlowStore

    @property
    def options(self) -> dict[str, Any]:
        return {"key": "key", "secret": "secret", "endpoint_url": self.store.endpoint}

    def bucket(self, prefix: str | None = None) -> Any:
        """The bucket, or a part of it, by obstore."""
        from obstore.store import S3Store  # noqa: PLC0415

        return S3Store(
            BUCKET,
            prefix=prefix,
            endpoint=self.store.endpoint,
            access_key_id="key",
            secret_access_key="secret",
            region="us-east-1",
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )

    def tens(self, **keywords: Any) -> xr.DataArray:
        """This engine, by URL and s3fs."""
        return xr.open_dataset(
            f"s3://{BUCKET}/t.tens", engine="tensorfmt", storage_options=self.options, **keywords
        )["tensor"]

    def tens_http(self, **keywords: Any) -> xr.DataArray:
        """This engine, through fsspec's HTTP."""
        url = f"{self.store.endpoint}/{BUCKET}/t.tens"
        return xr.open_dataset(url, engine="tensorfmt", **keywords)["tensor"]

    def tens_obstore(self, **keywords: Any) -> xr.DataArray:
        """This engine, through a store of obstore."""
        return xr.open_dataset("t.tens", engine="tensorfmt", fs=self.bucket(), **keywords)["tensor"]

    def zarr_s3fs(self, **keywords: Any) -> xr.DataArray:
        """The zarr engine, through s3fs."""
        return self._zarr(f"s3://{BUCKET}/t.zarr", storage_options=self.options, **keywords)

    def zarr_obstore(self, **keywords: Any) -> xr.DataArray:
        """The zarr engine, through obstore."""
        from zarr.storage import ObjectStore  # noqa: PLC0415

        return self._zarr(ObjectStore(self.bucket("t.zarr"), read_only=True), **keywords)

    def _zarr(self, store: Any, **keywords: Any) -> xr.DataArray:
        keywords = {"chunks": None, **keywords}
        return xr.open_dataset(store, engine="zarr", consolidated=False, **keywords)["tensor"]


Opener = Callable[..., xr.DataArray]


@cache
def _ways(folder: Path) -> _Ways:
    """One store for all cases of this process."""
    stack = ExitStack()
    atexit.register(stack.close)
    return _Ways(stack.enter_context(running(folder)))


def _write(folder: Path, _: int) -> None:
    write_tens(folder / "t.tens", _CHUNKS * _ROWS)
    write_zarr(folder / "t.zarr", _CHUNKS * _ROWS, _CHUNK)


def _openers(ways: _Ways) -> Mapping[str, Opener]:
    return {
        "tensorfmt, s3fs": ways.tens,
        "tensorfmt, http": ways.tens_http,
        "tensorfmt, obstore": ways.tens_obstore,
        "zarr, s3fs": ways.zarr_s3fs,
        "zarr, obstore": ways.zarr_obstore,
    }


def _rows(opener: Opener, first: int, stop: int) -> xr.DataArray:
    """Some rows: of the row-major zarr array, or columns of the column-major tensor."""
    array = opener()
    return array.isel({array.dims[0 if array.dims[0] == "row" else 1]: slice(first, stop)})


def _open(opener: Opener, _: None) -> None:
    opener()


def _sum_of(lazy: xr.DataArray) -> float:
    # A copy, whose values are not kept for the next round.
    return float(lazy.copy().values.sum())


def _dask_sum(opener: Opener, keywords: Mapping[str, Any], client: Any) -> float:
    return float(opener(chunks={}, **keywords).sum(skipna=False).compute(scheduler=client))


@cache
def _worker(keeps_memory: bool) -> Any:
    """A client of one worker of 2 threads, which may keep the memory that it has freed."""
    from distributed import Client, LocalCluster  # noqa: PLC0415

    setting = "distributed.nanny.pre-spawn-environ"
    variables = dict(dask.config.get(setting))
    if keeps_memory:
        del variables[_TRIM]
        os.environ.pop(_TRIM, None)  # where an earlier cluster left it
    with dask.config.set({setting: variables}):
        cluster = LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None)
    client = Client(cluster, set_as_default=False)
    atexit.register(cluster.close)
    atexit.register(client.close)
    return client


def _by_hand(bucket: Any, starts: Sequence[int], length: int) -> float:
    """The sum over ranges, each a request of obstore in its own thread."""
    import obstore  # noqa: PLC0415

    def add_up(start: int) -> float:
        data = obstore.get_range(bucket, "t.tens", start=start, length=length)
        return float(np.frombuffer(data, np.float64).sum())

    with ThreadPoolExecutor(_IN_FLIGHT) as threads:
        return sum(threads.map(add_up, starts))


def _get_ranges(bucket: Any) -> float:
    import obstore  # noqa: PLC0415

    part = _CHUNK // _PARTS
    starts = [OFFSET + _CHUNK + number * part for number in range(_PARTS)]
    pieces = obstore.get_ranges(bucket, "t.tens", starts=starts, lengths=[part] * _PARTS)
    return sum(float(np.frombuffer(piece, np.float64).sum()) for piece in pieces)


def _limit(nbytes: int, connections: int, label: str) -> Case:
    seconds = LATENCY + nbytes / connections / RATE
    return Case(f"arithmetic, {label}", lambda _: seconds, "limit", times_itself=True)


def _case(name: str, label: str, run: Callable[[Any], Any], setup: Any = lambda: None) -> Case:
    role: Any = "ours" if name.startswith("tensorfmt") else "peer"
    return Case(f"{name}, {label}", run, role, setup)


def _opening(ways: _Ways) -> Iterator[Case]:
    yield _limit(0, 1, "open")
    for name, opener in _openers(ways).items():
        yield _case(name, "open", partial(_open, opener))


def _chunk(ways: _Ways) -> Iterator[Case]:
    yield _limit(_CHUNK, _PARTS, "chunk")
    for name, opener in _openers(ways).items():
        yield _case(name, "chunk", _sum_of, partial(_rows, opener, _ROWS, 2 * _ROWS))
    yield _case("obstore get_ranges of 2 MiB", "chunk", _get_ranges, ways.bucket)


def _column(ways: _Ways) -> Iterator[Case]:
    yield _limit(8 * ROW, 1, "column")
    for name, opener in _openers(ways).items():
        yield _case(name, "column", _sum_of, partial(_rows, opener, 100, 101))


def _all_chunks(ways: _Ways) -> Iterator[Case]:
    yield _limit(_CHUNKS * _CHUNK, _IN_FLIGHT, "all")
    for name, opener in _openers(ways).items():
        keywords = {"chunk_bytes": _CHUNK} if name.startswith("tensorfmt") else {}
        yield _case(name, "all", partial(_dask_sum, opener, keywords))
    for name, opener in _openers(ways).items():
        if name.startswith("tensorfmt"):
            yield _case(f"{name}, chunks of 31 MiB", "all", partial(_dask_sum, opener, {}))
    for keeps_memory, where in _WORKERS.items():
        for name in ("tensorfmt, s3fs", "tensorfmt, obstore"):
            run = partial(_dask_sum, _openers(ways)[name], {})
            yield _case(f"{name}, {where}", "all", run, partial(_worker, keeps_memory))
    starts = [OFFSET + number * _CHUNK for number in range(_CHUNKS)]

    def by_hand(bucket: Any) -> float:
        return _by_hand(bucket, starts, _CHUNK)

    yield _case("obstore get_range, 16 threads", "all", by_hand, ways.bucket)


_ALL_NOTE = f"""\
`open_dataset` with `chunks={{}}` and `sum`, 2 threads; *a worker* is one process of a LocalCluster,
in chunks of 31 MiB. One that *keeps memory* is started without dask's `{_TRIM}`."""

_TABLES: tuple[tuple[str, str, Callable[[_Ways], Iterator[Case]]], ...] = (
    ("Open from a store", "`open_dataset`.", _opening),
    ("One chunk of 8 MiB", "Its values, opened before.", _chunk),
    ("A column", "One column of the column-major tensor: 128 KiB in one piece.", _column),
    (
        "64 chunks through dask",
        _ALL_NOTE,
        _all_chunks,
    ),
)


@cache
def _tables(folder: Path) -> Sequence[Table]:
    ways = _ways(folder)
    tables = []
    for title, note, make in _TABLES:
        cases = tuple(make(ways))
        tables.append(Table(title, f"{note} {_moved(ways, cases)}", cases, memory=False))
    return tables


def _moved(ways: _Ways, cases: Sequence[Case]) -> str:
    """Requests and MiB of each case: its second run, when connections and clients are there."""
    counts = []
    for case in cases:
        if not case.times_itself:
            state = case.setup()
            case.run(state)
            ways.store.log()
            case.run(state)
            requests, moved = ways.store.log()
            name = case.name.rpartition(", ")[0]
            counts.append(f"{name} {requests} and {moved / (1 << 20):.1f}")
    return f"Requests and MiB: {'; '.join(counts)}."


def _aims(results: Results) -> Sequence[Aim]:
    ours = "tensorfmt, s3fs, {}"
    trips = results[ours.format("open")].seconds / LATENCY
    aims = [Aim("open: round trips", trips, 1.5, "trips")]
    for label in ("open", "chunk", "column", "all"):
        for peer in ("zarr, s3fs", "zarr, obstore"):
            ratio = results[ours.format(label)].seconds / results[f"{peer}, {label}"].seconds
            aims.append(Aim(f"{label}: at most the time of {peer}", ratio, 1.0))
    by_hand = results["obstore get_range, 16 threads, all"].seconds
    for name, limit in (("s3fs", 1.6), ("http", 1.6), ("obstore", 1.5)):
        seconds = results[f"tensorfmt, {name}, chunks of 31 MiB, all"].seconds
        text = f"512 MiB by {name}: within {limit} of obstore by hand, 16 threads"
        aims.append(Aim(text, seconds / by_hand, limit))
    for where in _WORKERS.values():
        seconds = results[f"tensorfmt, obstore, {where}, all"].seconds
        text = f"the same by {where}, obstore: within 1.5"
        aims.append(Aim(text, seconds / by_hand, 1.5))
    return aims


SECTION = Section(
    "remote", "Object storage", _INTRO, lambda _: 2 * _CHUNKS * _CHUNK, _write, _tables, _aims
)
