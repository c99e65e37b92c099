"""MAG: files of many tensors, opened; and one large tensor, loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from xarray.backends import BackendArray, BackendEntrypoint
from xarray.core.indexing import LazilyIndexedArray

from benchmark import magfiles
from benchmark.case import Aim, Case, Results, Role, Section, Table
from benchmark.machine import CORES

_COUNTS = (1, 1_000, 10_000)
_ROUNDS = {1: 51, 1_000: 15, 10_000: 7}
_ROUNDS_DASK = {1: 51, 1_000: 7, 10_000: 3}
# HDF5 takes seconds for 1,000 variables, and minutes for 10,000.
_MAX_IN_HDF = 1_000
_OPEN_AIMS = {1: 1.5, 1_000: 1.2, 10_000: 1.2}
_OPEN_AIMS_DASK = {1: 1.5, 1_000: 1.2, 10_000: 1.0}
_ENGINES = ("zarr, consolidated", "zarr", "netcdf4", "h5netcdf")
_SLOW = {("zarr", 10_000): 3, ("h5netcdf", 1_000): 1}

_KEY = "embed_tokens.weight"
_PIECE_ROWS = (32 << 20) // (4 * magfiles.COLUMNS)

_INTRO = """\
Files of 1, 1,000 and 10,000 tensors, 1280 x 1024 float32 each and named as the weights of a
language model, are opened and not read: their data, 52 GB of 10,000 tensors, are a hole, and the
peak memory is what header and Dataset take. The limit is xarray's own floor: a Dataset with the
same variables and dimensions by an engine that looks at no file. safetensors makes no Dataset; its
row reads the keys, shapes and dtypes. The zarr group has as many arrays, the netCDF4 file as many
variables.

Then one tensor of 2 GiB of float32 is loaded, which the file holds as float32 or as bfloat16."""


class _Nothing(BackendArray):
    dtype = np.dtype(np.float32)
    shape = magfiles.LENGTHS

    def __getitem__(self, key: Any) -> Any:
        raise NotImplementedError


class _Floor(BackendEntrypoint):
    def open_dataset(
        self, filename_or_obj: Any, *, drop_variables: Any = None, count: int = 1
    ) -> xr.Dataset:
        return xr.Dataset(
            {
                key: xr.Variable(dims, LazilyIndexedArray(_Nothing()))
                for key, dims in _named(count).items()
            }
        )


@cache
def _named(count: int) -> dict[str, tuple[str, str]]:
    return {key: magfiles.dims(key) for key in magfiles.keys(count)}


def _write(folder: Path, size: int) -> None:
    for count in _COUNTS:
        shapes = dict.fromkeys(magfiles.keys(count), magfiles.LENGTHS)
        stem = folder / str(count)
        magfiles.write_hole(stem.with_suffix(".mag"), *magfiles.mag_header(shapes, "float32"))
        magfiles.write_hole(stem.with_suffix(".safetensors"), *magfiles.safetensors_header(shapes))
        magfiles.write_zarr_group(stem.with_suffix(".zarr"), count)
        if count <= _MAX_IN_HDF:
            magfiles.write_netcdf_group(stem.with_suffix(".nc"), count)
    shape = {_KEY: magfiles.shape_of(size)}
    for dtype, convert in {"float32": np.asarray, "bfloat16": magfiles.bfloat16}.items():
        header, _ = magfiles.mag_header(shape, dtype)
        magfiles.write_large(folder / f"{dtype}.mag", header, size, convert)
    header, _ = magfiles.safetensors_header(shape)
    magfiles.write_large(folder / "float32.safetensors", header, size, np.asarray)


def _openings(folder: Path, count: int, dask: bool) -> Iterator[Case]:
    stem = folder / str(count)
    chunks: Any = {} if dask else None

    def case(name: str, run: Callable[[], Any], role: Role = "peer") -> Case:
        rounds = _SLOW.get((name, count), (_ROUNDS_DASK if dask else _ROUNDS)[count])
        return Case(_name(name, count, dask), lambda _: run(), role, rounds=rounds)

    def engine(suffix: str, engine: Any, **keywords: Any) -> Callable[[], None]:
        path = stem.with_suffix(suffix)
        return lambda: xr.open_dataset(path, engine=engine, chunks=chunks, **keywords).close()

    yield case("xarray's floor", engine(".mag", _Floor, count=count), "limit")
    yield case("tensorfmt", engine(".mag", "tensorfmt"), "ours")
    if not dask:
        yield case("safetensors, keys", partial(_safetensors_keys, stem))
    yield case("zarr, consolidated", engine(".zarr", "zarr"))
    yield case("zarr", engine(".zarr", "zarr", consolidated=False))
    if count <= _MAX_IN_HDF:
        yield case("netcdf4", engine(".nc", "netcdf4"))
        yield case("h5netcdf", engine(".nc", "h5netcdf"))


def _name(contender: str, count: int, dask: bool) -> str:
    return f"{contender}, {count:,}{', dask' if dask else ''}"


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count:,} tensors"


def _dask(dask: bool) -> str:
    return " with `chunks={}`" if dask else ""


def _safetensors_keys(stem: Path) -> None:
    from safetensors import safe_open  # noqa: PLC0415

    with safe_open(stem.with_suffix(".safetensors"), "numpy") as file:
        for key in file.keys():  # noqa: SIM118
            tensor = file.get_slice(key)
            assert tensor.get_shape()
            assert tensor.get_dtype()


def _mapped(folder: Path, dtype: str) -> NDArray[Any]:
    path = folder / f"{dtype}.mag"
    stored = np.dtype("<u2" if dtype == "bfloat16" else "<f4")
    # The header of a file with one tensor is one page.
    return np.memmap(path, stored, "r", magfiles.PAGE).reshape(-1, magfiles.COLUMNS)


def _float32(raw: NDArray[Any]) -> NDArray[np.float32]:
    values = np.empty(raw.shape, np.uint32)
    np.left_shift(raw, np.uint32(16), out=values, dtype=np.uint32)
    return values.view(np.float32)


def _in_pieces(folder: Path, _: None) -> float:
    whole = _mapped(folder, "bfloat16")
    pieces = [whole[first : first + _PIECE_ROWS] for first in range(0, len(whole), _PIECE_ROWS)]
    with ThreadPoolExecutor(CORES) as threads:
        return float(sum(threads.map(lambda piece: float(_float32(piece).sum()), pieces)))


def _safetensors(folder: Path, _: None) -> float:
    from safetensors import safe_open  # noqa: PLC0415

    with safe_open(folder / "float32.safetensors", "numpy") as file:
        return float(file.get_tensor(_KEY).sum())


def _loaded(folder: Path, dtype: str, _: None) -> float:
    ds = xr.open_dataset(folder / f"{dtype}.mag", engine="tensorfmt")
    return float(ds[_KEY].load().values.sum())


def _by_dask(folder: Path, dtype: str, _: None) -> float:
    ds = xr.open_dataset(folder / f"{dtype}.mag", engine="tensorfmt", chunks={})
    return float(ds[_KEY].sum(skipna=False))


def _float32_loads(folder: Path) -> Iterator[Case]:
    yield Case("np.memmap", lambda _: float(_mapped(folder, "float32").sum()), "limit")
    yield Case("tensorfmt, float32", partial(_loaded, folder, "float32"), "ours")
    yield Case("safetensors, float32", partial(_safetensors, folder))


def _bfloat16_loads(folder: Path) -> Iterator[Case]:
    def by_hand(_: None) -> float:
        return float(_float32(_mapped(folder, "bfloat16")).sum())

    yield Case("np.memmap, shifted", by_hand, "limit")
    yield Case("tensorfmt, bfloat16", partial(_loaded, folder, "bfloat16"), "ours")
    yield Case(f"np.memmap, shifted in pieces, {CORES} threads", partial(_in_pieces, folder))
    yield Case("tensorfmt, bfloat16, dask", partial(_by_dask, folder, "bfloat16"), "ours")


def _tables(folder: Path) -> Sequence[Table]:
    note = "`open_dataset`{}, then `.close()`."
    openings = [
        Table(
            f"Open {count:,} tensors{' with `chunks={}`' * dask}".replace(
                " 1 tensors", " 1 tensor"
            ),
            note.format(_dask(dask)),
            tuple(_openings(folder, count, dask)),
            memory=not dask and count > 1,
        )
        for dask in (False, True)
        for count in _COUNTS
    ]
    return (
        *openings,
        Table(
            "Load float32",
            "`.load()`, then the sum of the values in one thread, as a mapped view costs nothing.",
            tuple(_float32_loads(folder)),
        ),
        Table(
            "Load bfloat16 as float32",
            "The same. By hand the 16 bits are shifted into new memory. The rows of several "
            "threads add up pieces of 32 MiB (dask: `chunks={}`, `.sum(skipna=False)`), so that no "
            "2 GiB of new memory are needed.",
            tuple(_bfloat16_loads(folder)),
        ),
    )


def _aims(results: Results) -> Iterator[Aim]:
    def seconds(contender: str, count: int, dask: bool) -> float:
        result = results.get(_name(contender, count, dask))
        return result.seconds if result else np.inf

    lead = np.inf
    for dask in (False, True):
        for count in _COUNTS:
            mine = seconds("tensorfmt", count, dask)
            most = (_OPEN_AIMS_DASK if dask else _OPEN_AIMS)[count]
            text = f"opening {_tensors(count)}{_dask(dask)}: within {most} of xarray's floor"
            yield Aim(text, mine / seconds("xarray's floor", count, dask), most)
            lead = min(lead, *(seconds(name, count, dask) / mine for name in _ENGINES))
    text = "each of these: faster than every other engine of xarray (the least lead)"
    yield Aim(text, lead, 1, at_least=True)
    for ours, limit in {
        "tensorfmt, float32": "np.memmap",
        "tensorfmt, bfloat16": "np.memmap, shifted",
    }.items():
        text = f"loading {ours.rpartition(' ')[2]}, then the sum: within 1.1 of numpy by hand"
        yield Aim(text, results[ours].seconds / results[limit].seconds, 1.1)


SECTION = Section(
    "mag",
    "MAG",
    _INTRO,
    lambda size: 5 * size // 2 + (256 << 20),
    _write,
    _tables,
    lambda results: tuple(_aims(results)),
)
