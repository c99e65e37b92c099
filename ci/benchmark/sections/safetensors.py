"""safetensors: a file of many tensors, opened; and one large tensor, loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from benchmark import magfiles
from benchmark.case import Aim, Case, Results, Section, Table

_COUNT = 10_000
# HDF5 takes minutes for 10,000 variables.
_COUNT_IN_HDF = 1_000
_KEY = "embed_tokens.weight"

_INTRO = """\
The keys, shapes and dtypes of 10,000 tensors, 1280 x 1024 float32 each, whose data are a hole; and
one tensor of 2 GiB of float32. The limit is the package safetensors itself, with numpy; it makes no
Dataset. The zarr group has as many arrays, the netCDF4 file only 1,000 variables, as HDF5 takes
minutes for more."""


def _write(folder: Path, size: int) -> None:
    shapes = dict.fromkeys(magfiles.keys(_COUNT), magfiles.LENGTHS)
    many = folder / "many.safetensors"
    magfiles.write_hole(many, *magfiles.safetensors_header(shapes))
    magfiles.write_zarr_group(folder / "many.zarr", _COUNT)
    magfiles.write_netcdf_group(folder / "many.nc", _COUNT_IN_HDF)
    header, _ = magfiles.safetensors_header({_KEY: magfiles.shape_of(size)})
    magfiles.write_large(folder / "large.safetensors", header, size, np.asarray)
    large = xr.Dataset({_KEY: (("row", "column"), _mapped(folder))})
    large.to_netcdf(folder / "large.nc", engine="netcdf4")
    large.chunk(row=(32 << 20) // (4 * magfiles.COLUMNS)).to_zarr(
        folder / "large.zarr", encoding={_KEY: {"compressors": ()}}
    )


def _mapped(folder: Path) -> NDArray[Any]:
    path = folder / "large.safetensors"
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
    return np.memmap(path, "<f4", "r", start).reshape(-1, magfiles.COLUMNS)


def _keys(folder: Path, _: None) -> None:
    from safetensors import safe_open  # noqa: PLC0415

    with safe_open(folder / "many.safetensors", "numpy") as file:
        for key in file.keys():  # noqa: SIM118
            tensor = file.get_slice(key)
            assert tensor.get_shape()
            assert tensor.get_dtype()


def _opened(path: Path, engine: Any, _: None) -> None:
    with xr.open_dataset(path, engine=engine) as ds:
        assert len(ds)


def _loaded_by_package(folder: Path, _: None) -> float:
    from safetensors import safe_open  # noqa: PLC0415

    with safe_open(folder / "large.safetensors", "numpy") as file:
        return float(file.get_tensor(_KEY).sum())


def _loaded(path: Path, engine: Any, _: None) -> float:
    with xr.open_dataset(path, engine=engine) as ds:
        return float(ds[_KEY].load().values.sum())


def _openings(folder: Path) -> Iterator[Case]:
    many = folder / "many.safetensors"

    def job(suffix: str, engine: str) -> Callable[[None], None]:
        return partial(_opened, many.with_suffix(suffix), engine)

    yield Case("safetensors, keys", partial(_keys, folder), "limit")
    yield Case("tensorfmt, open", job(".safetensors", "tensorfmt"), "ours")
    yield Case("zarr, consolidated, open", job(".zarr", "zarr"), rounds=3)
    yield Case("netcdf4, 1,000, open", job(".nc", "netcdf4"), rounds=3)
    yield Case("h5netcdf, 1,000, open", job(".nc", "h5netcdf"), rounds=1)


def _loads(folder: Path) -> Iterator[Case]:
    large = folder / "large.safetensors"
    yield Case("safetensors, load", partial(_loaded_by_package, folder), "limit")
    yield Case("tensorfmt, load", partial(_loaded, large, "tensorfmt"), "ours")
    for name, suffix in {"zarr": ".zarr", "netcdf4": ".nc", "h5netcdf": ".nc"}.items():
        path = large.with_suffix(suffix)
        yield Case(f"{name}, load", partial(_loaded, path, name))


def _tables(folder: Path) -> Sequence[Table]:
    return (
        Table("The keys of 10,000 tensors", "A Dataset, or keys.", tuple(_openings(folder))),
        Table("Load float32", "All values, then their sum in one thread.", tuple(_loads(folder))),
    )


def _aims(results: Results) -> Iterator[Aim]:
    mine = results["tensorfmt, open"].seconds
    others = ("zarr, consolidated, open", "netcdf4, 1,000, open", "h5netcdf, 1,000, open")
    lead = min(results[name].seconds for name in others) / mine
    text = "opening 10,000 tensors of safetensors: faster than every other engine of xarray"
    yield Aim(text, lead, 1, at_least=True)
    loading = results["tensorfmt, load"].seconds
    text = "loading safetensors, then the sum: within 1.1 of the package itself"
    yield Aim(text, loading / results["safetensors, load"].seconds, 1.1)
    lead = min(results[f"{name}, load"].seconds for name in ("zarr", "netcdf4", "h5netcdf"))
    text = "loading safetensors: faster than every other engine of xarray (the least lead)"
    yield Aim(text, lead / loading, 1, at_least=True)


SECTION = Section(
    "safetensors",
    "safetensors",
    _INTRO,
    lambda size: 3 * size + (256 << 20),
    _write,
    _tables,
    lambda results: tuple(_aims(results)),
)
