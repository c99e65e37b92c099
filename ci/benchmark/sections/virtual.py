"""Virtual Zarr: a sum through references beside the engine and a zarr store, and what they take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from benchmark import byhand, opened
from benchmark.case import Aim, Case, Results, Section, Table
from benchmark.files import ROW, write_tens, write_zarr
from benchmark.machine import CORES
from benchmark.opened import job

_CHUNK = 32 << 20

_INTRO = """\
A column-major TENS file of 2 GiB, opened by the engine, by references of Kerchunk and by Icechunk,
both of which were made from it and refer to it, in chunks of about 32 MiB; and the same numbers in
a zarr store without compression."""


def _write(folder: Path, size: int) -> None:
    from xr_tensorfmt.virtual import to_kerchunk  # noqa: PLC0415

    rows = size // (8 * ROW)
    write_tens(folder / "t.tens", rows)
    write_zarr(folder / "t.zarr", rows, _CHUNK)
    virtual = _virtual(folder)
    to_kerchunk(virtual, folder / "t.json")
    session = _repository(folder, "create").writable_session("main")
    virtual.vz.to_icechunk(session.store)
    session.commit("references")


def _virtual(folder: Path) -> xr.Dataset:
    from obspec_utils.registry import ObjectStoreRegistry  # noqa: PLC0415
    from obstore.store import LocalStore  # noqa: PLC0415
    from virtualizarr import open_virtual_dataset  # noqa: PLC0415

    from xr_tensorfmt.virtual import TensorFormatParser  # noqa: PLC0415

    registry = ObjectStoreRegistry({"file://": LocalStore()})
    parser = TensorFormatParser(chunk_bytes=_CHUNK)
    return open_virtual_dataset(str(folder / "t.tens"), registry, parser)


def _repository(folder: Path, method: str) -> Any:
    import icechunk  # noqa: PLC0415

    prefix = f"file://{folder}/"
    config = icechunk.RepositoryConfig.default()
    files = icechunk.local_filesystem_store(str(folder))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, files))
    access = getattr(icechunk.credentials, "LocalFileSystemAccess", None)  # Icechunk 2
    granted: Any = {prefix: access}
    if access is None:
        granted = icechunk.containers_credentials({prefix: None})
    icechunk.set_logs_filter("error")  # it prints that a local repository is for one writer
    storage = icechunk.local_filesystem_storage(str(folder / "repository"))
    return getattr(icechunk.Repository, method)(storage, config, granted)


def _by_kerchunk(folder: Path) -> xr.DataArray:
    options = {"consolidated": False, "storage_options": {"fo": str(folder / "t.json")}}
    ds = xr.open_dataset("reference://", engine="zarr", chunks={}, backend_kwargs=options)
    return ds["tensor"]


def _by_icechunk(folder: Path) -> xr.DataArray:
    store = _repository(folder, "open").readonly_session("main").store
    return xr.open_zarr(store, consolidated=False, chunks={})["tensor"]


def _openers(folder: Path) -> dict[str, Callable[[], xr.DataArray]]:
    return {
        "tensorfmt": partial(opened.tens, folder / "t.tens", chunks={}, chunk_bytes=_CHUNK),
        "Kerchunk": partial(_by_kerchunk, folder),
        "Icechunk": partial(_by_icechunk, folder),
        "zarr": partial(opened.zarr, folder / "t.zarr", chunks={}),
    }


def _case(name: str, label: str, run: Callable[[Any], Any]) -> Case:
    return Case(f"{name}, {label}", run, "ours" if name == "tensorfmt" else "peer")


def _sums(folder: Path) -> Iterator[Case]:
    limit = f"numpy over the mapped file, {CORES} threads"
    yield Case(limit, partial(byhand.parallel, folder / "t.tens", np.sum), "limit")
    for name, opener in _openers(folder).items():
        yield _case(name, "sum", job(opened.sum_of, opener))


def _opens(folder: Path) -> Iterator[Case]:
    def header(_: None) -> None:
        with open(folder / "t.tens", "rb") as file:
            file.read(byhand.OFFSET)

    def no_values(make: Callable[[], Any], _: None) -> None:
        make()

    yield Case("the header by hand", header, "limit")
    for name, opener in _openers(folder).items():
        yield _case(name, "open", partial(no_values, opener))
    parsing = partial(no_values, partial(_virtual, folder))
    yield Case("VirtualiZarr with our parser", parsing, "ours")


def _tables(folder: Path) -> Sequence[Table]:
    return (
        Table("Sum through references", "`.sum(skipna=False)`.", tuple(_sums(folder))),
        Table("Open references", "`chunks={}`; no value is read.", tuple(_opens(folder)), False),
    )


def _aims(results: Results) -> Iterator[Aim]:
    others = [results[f"{name}, sum"].seconds for name in ("Kerchunk", "Icechunk")]
    text = "a sum: faster than through references (the least lead)"
    yield Aim(text, min(others) / results["tensorfmt, sum"].seconds, 1, at_least=True)


SECTION = Section(
    "virtual",
    "Virtual Zarr",
    _INTRO,
    lambda size: 2 * size + (64 << 20),
    _write,
    _tables,
    lambda results: tuple(_aims(results)),
)
