"""The cases of the benchmark. All contenders of a case do the same and return the same value."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dask
import dask.array as da
import fsspec
import numpy as np
import s3fs
import xarray as xr
import zarr
from click.testing import CliRunner
from obstore.fsspec import FsspecStore
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from zarr.storage import ObjectStore

from benchmark import stores
from benchmark.stores import BUCKET, SlowMemory, connect, get_options, run_server
from benchmark.table import NUMPY, OURS, PROCESSES, PRODUCTS, SAFETENSORS
from benchmark.tutorial import get_functions
from xr_tensorfmt import cc4s, pycauset, vespa
from xr_tensorfmt.cli import main

ROW = 16384  # elements of the fast axis of a dense tensor
WIDTH = 64  # numbers of a labelled vector
MIB, GIB = 1 << 20, 1 << 30
PLAIN: dict[str, Any] = {"tensor": {"compressors": None}}
SERVERS = ExitStack()  # closed after each section
RANDOM = da.random.default_rng(0)  # type: ignore[attr-defined]
Built = tuple[dict[str, Any], Callable[[], Any]]


@dataclass(frozen=True)
class Case:
    """A task with a size, which is divided by `scale ** power`.

    `build` returns the contenders and a function that returns their value by numpy. A contender is
    a function, or a pair of a function and one that is not timed: it receives the result of the
    first and returns the value, such as what is read back from a file.
    """

    section: str
    text: str
    size: int
    build: Callable[[Path, int], Built]
    power: float

    def get_size(self, scale: int) -> int:
        """Return the size at a scale."""
        return max(int(self.size / scale**self.power), 1)

    def get_text(self, scale: int) -> str:
        """Return the description with the size."""
        size = self.get_size(scale)
        return self.text.format(count=f"{size:,}", size=f"{size / MIB:,.0f} MiB")


CASES: dict[str, Case] = {}


def case(
    section: str, text: str, size: int = 1, *, name: str = "", power: float = 1, **options: Any
) -> Any:
    """Register a function with options as a case."""

    def add(function: Any) -> Any:
        build = partial(function, **options)
        CASES[name or function.__name__] = Case(section, text, size, build, power)
        return function

    return add


def open_tensor(location: Any, engine: str = "tensorfmt", **options: Any) -> xr.DataArray:
    """Open the variable ``tensor``, with dask only if `chunks` is given."""
    options = {"chunks": None, "cache": False, **options}
    return xr.open_dataset(location, engine=engine, **options)["tensor"]


def read_back(write: Callable[..., Any], read: Callable[[], Any]) -> Any:
    """Return a contender that writes, and whose value is what is read back."""
    return write, lambda _: read()


def make_memory_directory() -> Path:
    """Return a directory in memory if there is one, because not all contenders use fsync."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    return Path(SERVERS.enter_context(TemporaryDirectory(dir=memory)))


@dataclass(frozen=True)
class Format:
    """How the tensor of a format is stored."""

    suffix: str
    dtype: str = "f4"
    columns: int = 1024
    order: str = "C"

    def build(self, size: int) -> xr.DataArray:
        """Return random numbers in the order in which the format stores them."""
        rows = max(size // np.dtype(self.dtype).itemsize // self.columns, 1)
        numbers = np.random.default_rng(0).random((rows, self.columns), np.float32)
        values = numbers < 0.5 if self.dtype == "?" else numbers.astype(self.dtype)
        labels = np.array([f"doc{i:07}" for i in range(rows)], object)
        coords = {"row": labels} if self.suffix == "tbf" else {}
        return xr.DataArray(values, coords, ("row", "col"), "tensor")


FORMATS = {
    "TENS": Format("tens", "f8", order="F"),
    "cc4s": Format("yaml", "f8", order="F"),
    "Vespa": Format("tbf", columns=WIDTH),
    "PyCauset": Format("pycauset", "?", 8192),
    "MAG": Format("mag"),
    "safetensors": Format("safetensors"),
    "NumPy": Format("npy"),
}


def get_packages(folder: Path, fmt: Format, data: xr.DataArray) -> dict[str, Any]:
    """Return the path of each package, a function that writes the data, and one that opens it."""
    ds, path, own = data.to_dataset(), folder / f"tensor.{fmt.suffix}", folder / f"o.{fmt.suffix}"
    nc, h5, store = (path.with_suffix(suffix) for suffix in (".nc", ".h5", ".zarr"))
    ours = data.rename(row="dim_0", col="dim_1") if fmt.suffix == "npy" else data
    write, opened = ours.tensorfmt.to_file, partial(open_tensor, path)
    if fmt.order == "F":
        write, opened = ours.T.tensorfmt.to_file, lambda **kw: open_tensor(path, **kw).T
    encoding = {name: {"compressors": None} for name in ds.variables}
    to_zarr = partial(ds.to_zarr, store, mode="w", encoding=encoding)
    packages: dict[str, Any] = {
        OURS: (path, partial(write, path), opened),
        "zarr": (store, to_zarr, partial(open_tensor, store, "zarr")),
    }
    for engine, target in (("netCDF4", nc), ("h5netcdf", h5)):
        to_netcdf = partial(ds.to_netcdf, target, engine=engine.lower())
        packages[engine] = target, to_netcdf, partial(open_tensor, target, engine.lower())
    if fmt.suffix == "npy":
        packages[NUMPY] = own, partial(np.save, own, data), partial(np.load, own, mmap_mode="r")
    elif fmt.suffix == "safetensors":
        save = partial(save_file, {"tensor": data.values}, own)
        packages[SAFETENSORS] = own, save, lambda: safe_open(own, "np").get_slice("tensor")
    return packages


def write_files(folder: Path, fmt: Format, data: xr.DataArray) -> dict[str, Callable[..., Any]]:
    """Write a file of each package unless it exists, and return functions that open them."""
    packages = get_packages(folder, fmt, data)
    for path, write, _ in packages.values():
        if not path.exists():
            write()
    return {name: opened for name, (_, _, opened) in packages.items()}


def load(array: Any, rows: slice = slice(None), columns: slice = slice(None)) -> np.ndarray:
    """Return a part of an open array in memory."""
    part = array[rows, columns]
    return np.array(part) if isinstance(part, np.memmap) else np.asarray(part)


def read_format(folder: Path, size: int, fmt: Format, action: str) -> Built:
    """Return contenders that open, load or select the tensor of a format."""
    data, part = fmt.build(size), slice(8, 40) if action == "select" else slice(None)
    path = folder / fmt.suffix
    path.mkdir(exist_ok=True)
    openers = write_files(path, fmt, data).items()
    if action == "open":
        contenders: Any = {name: (o, lambda array: load(array, slice(1))) for name, o in openers}
        return contenders, lambda: data.values[:1]
    contenders = {name: lambda o=o: load(o(), columns=part) for name, o in openers}
    return contenders, lambda: data.values[:, part]


def write_format(folder: Path, size: int, fmt: Format, rows: int = 0) -> Built:  # noqa: ARG001
    """Return contenders that write an array of numpy, or of dask with some rows in each chunk."""
    array = fmt.build(size)
    packages = get_packages(make_memory_directory(), fmt, array.chunk(row=rows) if rows else array)
    contenders = {
        name: read_back(write, lambda opened=opened: load(opened()))
        for name, (_, write, opened) in packages.items()
    }
    return contenders, lambda: array.values


FORMAT = partial(case, "Formats")
TASKS = {"open": "open", "load": "load {size} of", "select": "load 32 columns of"}
for title, fmt in FORMATS.items():
    for action, text in TASKS.items():
        options = {"name": f"{action}_{title}", "fmt": fmt, "action": action}
        FORMAT(f"{text} {title}", 64 * MIB, **options)(read_format)
    FORMAT(f"write {{size}} of {title}", 64 * MIB, name=f"write_{title}", fmt=fmt)(write_format)

DENSE = partial(case, "Dense tensors")


def write_dense(folder: Path, size: int) -> tuple[dict[str, Any], Callable[[], np.ndarray]]:
    """Write float64, and return functions that open the files, and one that maps the values."""
    shape = (max(size // (8 * ROW), 64), ROW)
    data = xr.DataArray(RANDOM.random(shape, chunks=(64, ROW)), dims=("row", "col"), name="tensor")
    path, openers = folder / "tensor.tens", write_files(folder, FORMATS["TENS"], data)
    start = path.stat().st_size - data.nbytes
    return openers, partial(np.memmap, path, "<f8", "r", start, shape)


PART = slice(32, 288)


@DENSE("load 256 columns on the fast axis", GIB, name="fast_slab", col=PART)
@DENSE("load 256 rows on the slow axis", GIB, name="slow_slab", row=PART)
@DENSE("load {size} of float64", GIB, name="values")
def load_dense(folder: Path, size: int, **selection: slice) -> Built:
    openers, map_values = write_dense(folder, size)
    contenders = {name: lambda o=o: o().isel(selection).values for name, o in openers.items()}
    parts = [selection.get(dim, slice(None)) for dim in ("row", "col")]
    return contenders, lambda: map_values()[*parts]


@DENSE("mean of {size} on the slow axis", GIB, name="mean", reduce="mean", dim="row")
@DENSE("sum {size} with dask", GIB, name="sum", reduce="sum")
def reduce_dense(folder: Path, size: int, reduce: str, dim: str | None = None) -> Built:
    """Return contenders that reduce the tensor with dask, in chunks of 32 MiB where they choose."""
    openers, map_values = write_dense(folder, size)

    def run(opened: Any, chunks: dict[str, int]) -> Any:
        return getattr(opened(chunks=chunks), reduce)(dim, skipna=False).values

    contenders = {
        name: partial(run, opened, {} if name in (OURS, "zarr") else {"row": 256})
        for name, opened in openers.items()
    }
    axis = 0 if dim else None
    contenders[NUMPY] = lambda: getattr(map_values(), reduce)(axis=axis)
    return contenders, contenders[NUMPY]


@DENSE("explain the read of 100,000 points", GIB)
def explain_points(folder: Path, size: int) -> Built:
    openers, map_values = write_dense(folder, size)
    array, random = openers[OURS](), np.random.default_rng(0)
    keys = {dim: random.integers(0, array.sizes[dim], 100_000) for dim in ("row", "col")}
    points = array.isel({dim: xr.DataArray(key, dims="p") for dim, key in keys.items()})
    needed = 8 * np.unique(keys["col"] + ROW * keys["row"]).size
    values = map_values()[keys["row"], keys["col"]]
    return {
        OURS: (points.tensorfmt.explain, lambda plan: plan.needed_bytes == needed),
        "the read": (lambda: points.copy().load(), lambda array: np.array_equal(array, values)),
    }, lambda: True


MODELS = partial(case, "Models")


def build_model(count: int) -> tuple[dict[str, np.ndarray], xr.Dataset]:
    """Return small arrays with names of a model, and a Dataset of them."""
    blocks = np.random.default_rng(0).random((count, 8, 8), np.float32)
    model = {f"layers.{i // 10}.block{i % 10}.weight": block for i, block in enumerate(blocks)}
    dims = {key: (f"{key}_dim_0", f"{key}_dim_1") for key in model}
    return model, xr.Dataset({key: (dims[key], block) for key, block in model.items()})


def run_command(*arguments: str) -> str:
    """Run the command in this process, and return what it prints."""
    return CliRunner().invoke(main, arguments).stdout


@MODELS("compare two files of {count} tensors", 4000, power=0.5)
def diff(folder: Path, count: int) -> Built:
    paths = [str(folder / f"{name}.safetensors") for name in "ab"]
    for path in paths:
        save_file(build_model(count)[0], path)

    def compare() -> bool:
        first, second = map(load_file, paths)
        return all(np.array_equal(first[key], second[key]) for key in first)

    return {
        OURS: (partial(run_command, "diff", *paths), lambda text: " 0 different" in text),
        "safetensors": compare,
    }, lambda: True


@MODELS("write {count} small tensors of dask", 1000, name="write_chunked", power=0.5, chunk=True)
@MODELS("write {count} small tensors", 4000, power=0.5)
def write_model(folder: Path, count: int, *, chunk: bool = False) -> Built:  # noqa: ARG001
    model, ds = build_model(count)
    ds = ds.chunk() if chunk else ds
    directory = make_memory_directory()
    ours, theirs = directory / "ours.safetensors", directory / "theirs.safetensors"

    def save() -> None:
        (arrays,) = da.compute({key: ds.variables[key].data for key in model})
        save_file(arrays, theirs)

    def read(path: Path) -> list[np.ndarray]:
        return [*map(load_file(path).__getitem__, model)]

    return {
        OURS: read_back(partial(ds.tensorfmt.to_file, ours), partial(read, ours)),
        "safetensors": read_back(save, partial(read, theirs)),
    }, lambda: [*model.values()]


@MODELS("write a small file, with fsync")
def write_small_file(folder: Path, _: int) -> Built:
    data = FORMATS["safetensors"].build(4096)
    packages = get_packages(folder, FORMATS["safetensors"], data)
    del packages["zarr"]  # a directory

    def run(name: str) -> None:
        path, write, _ = packages[name]
        write()
        for written in () if name == OURS else (path, folder):  # as this package
            file = os.open(written, os.O_RDONLY)
            os.fsync(file)
            os.close(file)

    return {
        name: read_back(partial(run, name), lambda opened=opened: load(opened()))
        for name, (_, _, opened) in packages.items()
    }, lambda: data.values


def write_peers(folder: Path, count: int) -> dict[str, tuple[Path, str]]:
    """Write a model for this package, zarr and netCDF4, and return paths and engines."""
    _, ds = build_model(count)
    path = folder / f"{count}.mag"
    store, nc = path.with_suffix(".zarr"), path.with_suffix(".nc")
    ds.tensorfmt.to_file(path)
    if not nc.exists():
        ds.to_zarr(store, mode="w")
        ds.to_netcdf(nc, engine="h5netcdf")
    return {OURS: (path, "tensorfmt"), "zarr": (store, "zarr"), "netCDF4": (nc, "netcdf4")}


@MODELS("open {count} tensors with dask", 1000, name="open_chunked", power=0.5, chunks={})
@MODELS("open {count} tensors", 1000, power=0.5)
def open_model(folder: Path, count: int, **options: Any) -> Built:
    last, array = list(build_model(count)[0].items())[-1]
    read = lambda ds: ds.variables[last].values  # noqa: E731
    return {
        name: (partial(xr.open_dataset, path, engine=engine, **options), read)
        for name, (path, engine) in write_peers(folder, count).items()
    }, lambda: array


@MODELS("open a tree of {count} tensors", 1000, power=0.5)
@MODELS("open a tree of {count} tensors", 10_000, name="open_large_tree")
def open_tree(folder: Path, count: int) -> Built:
    path, (model, ds) = folder / "tree.mag", build_model(count)
    ds.tensorfmt.to_file(path)
    names = {key: key.removesuffix(".weight").replace(".", "/") for key in model}
    groups = {names[key]: xr.Dataset({"weight": (("x", "y"), model[key])}) for key in model}
    use = lambda tree: tree[list(groups)[-1]]["weight"].values  # noqa: E731
    return {
        OURS: (partial(xr.open_datatree, path, engine="tensorfmt"), use),
        "DataTree.from_dict": (partial(xr.DataTree.from_dict, groups), use),
    }, lambda: list(model.values())[-1]


STARTING = partial(case, "Starting")


@STARTING("start Python and open a file")
def first_open(folder: Path, _: int) -> Built:
    codes = {"import xarray": "import xarray; print(1)"}
    for name, (path, engine) in write_peers(folder, 1).items():
        opened = f"xarray.open_dataset({str(path)!r}, engine={engine!r})"
        codes[name] = f"import xarray; print(len({opened}))"

    def run(code: str) -> int:
        return int(subprocess.check_output([sys.executable, "-W", "ignore", "-c", code]))

    return {name: partial(run, code) for name, code in codes.items()}, lambda: 1


BITS = partial(case, "Causal matrices", power=0.5)


def write_random_bits(path: Path, order: int) -> list[np.ndarray]:
    """Write a causal matrix with random bits, and return the words of each row."""
    bits = RANDOM.integers(0, 2, (order, order), dtype=bool, chunks=(256, order))
    data = xr.DataArray(da.triu(bits, 1), dims=("row", "col"), name="tensor")
    if not path.exists():
        data.tensorfmt.to_file(path, matrix_type="CAUSAL")
    ends = np.cumsum(-(-np.arange(order - 1, -1, -1) // 64))
    return np.split(np.fromfile(path, np.uint64, ends[-1], offset=4096), ends[:-1])


def unpack_row(rows: list[np.ndarray], number: int) -> np.ndarray:
    """Return the bits of a row right of the diagonal."""
    count = len(rows) - 1 - number
    return np.unpackbits(rows[number].view(np.uint8), bitorder="little", count=count)


@BITS("unpack a matrix of {count} elements", 20_000)
def unpack_bits(folder: Path, order: int) -> Built:
    path = folder / "bits.pycauset"
    rows = write_random_bits(path, order)

    def unpack() -> np.ndarray:
        matrix = np.zeros((order, order), bool)
        for number in range(order):
            matrix[number, number + 1 :] = unpack_row(rows, number)
        return matrix

    return {OURS: lambda: open_tensor(path).values, "numpy": unpack}, unpack


@BITS("count the relations of {count} elements by column", 50_000)
def popcount_columns(folder: Path, order: int) -> Built:
    path = folder / "count.pycauset"
    rows = write_random_bits(path, order)
    array = open_tensor(path)

    def count() -> np.ndarray:  # the simplest loop: add up to 255 rows in uint8
        counts, part = np.zeros(order, np.int64), np.zeros(order, np.uint8)
        for number in range(order):
            part[number + 1 :] += unpack_row(rows, number)
            if number % 255 == 254:
                counts += part
                part[:] = 0
        return counts + part

    return {OURS: lambda: pycauset.popcount(array, dim="row").values, "numpy": count}, count


@BITS("histogram of the interval sizes of {count} elements", 4000)
def interval_sizes(folder: Path, order: int) -> Built:
    light = np.random.default_rng(0).random((order, 2))
    u, v = light[np.argsort(light.sum(axis=1))].T
    causal = (u[:, np.newaxis] < u) & (v[:, np.newaxis] < v)
    path = folder / "causal.pycauset"
    xr.DataArray(causal, dims=("row", "col"), name="tensor").tensorfmt.to_file(path)

    def count() -> np.ndarray:
        matrix = causal.astype(np.float32)
        return np.bincount((matrix @ matrix)[causal].astype(int))

    ours = partial(open_tensor, path, chunks={})
    return {
        OURS: lambda: np.trim_zeros(pycauset.interval_sizes(ours()).values, "b"),
        "numpy": count,
    }, count


@case("Quantum chemistry", "second-order energy of a vertex of {size}", GIB, name="energy")
def compute_energy(folder: Path, size: int) -> Built:
    states = max(int((size / 64) ** (1 / 3)), 8)
    occupied, fields = states // 8, 4 * states
    shape, chunks = (fields, states, states), (fields, states, 1)
    parts = [RANDOM.normal(size=shape, chunks=chunks) / states for _ in range(2)]
    energies = np.linspace(-1, 8, states)
    ds = xr.Dataset(
        {
            "CoulombVertex": (("AuxiliaryField", "State", "State_2"), parts[0] + 1j * parts[1]),
            "EigenEnergies": ("State", energies),
        }
    )
    ds.CoulombVertex.attrs |= {"unit": 1.0, "halfGrid": 0}
    fermi = float(energies[occupied - 1 : occupied + 1].mean())
    ds.EigenEnergies.attrs |= {"unit": 1.0, "fermiEnergy": fermi}
    cc4s.to_calculation(ds, folder / "calculation")
    elements = folder / "calculation" / "CoulombVertex.elements"
    low, high = energies[:occupied], energies[occupied:]
    pairs = [(i, j) for i in range(occupied) for j in range(occupied)]

    def select() -> tuple[np.ndarray, np.ndarray]:
        vertex = np.memmap(elements, complex, "r", shape=shape, order="F")
        i_a = np.ascontiguousarray(vertex[:, :occupied, occupied:].transpose(1, 2, 0)).conj()
        b_j = np.ascontiguousarray(vertex[:, occupied:, :occupied].transpose(2, 0, 1))
        return i_a, b_j

    def loop() -> float:
        total, (i_a, b_j) = 0.0, select()
        for i, j in pairs:
            integrals = i_a[i] @ b_j[j]
            gap = low[i] + low[j] - high[:, np.newaxis] - high
            total += (integrals.conj() * (2 * integrals - integrals.T) / gap).real.sum()
        return total

    def multiply() -> None:
        i_a, b_j = select()
        for i, j in pairs:
            i_a[i] @ b_j[j]

    def ours() -> float:
        opened = cc4s.open_calculation(folder / "calculation")
        return float(get_functions()["second_order_energy"](opened))

    return {OURS: ours, "numpy": loop, PRODUCTS: (multiply, lambda _: loop())}, loop


def write_text_of_cc4s(path: Path, data: xr.DataArray) -> None:
    """Write a tensor of cc4s whose elements are text, as cc4s itself can."""
    dims = [f"  - {{length: {length}, type: {name}}}" for name, length in data.sizes.items()]
    header = ["version: 100", "type: Tensor", "scalarType: Real64", "unit: 1.0", "dimensions:"]
    path.write_text("\n".join([*header, *dims, "elements: {type: TextFile}"]))
    np.savetxt(path.with_suffix(".elements"), data.values.ravel("F"))


PROCESS_FILES: dict[str, Any] = {
    "tens": ("TENS", lambda path, data: data.tensorfmt.to_file(path)),
    "tbf": ("Vespa", lambda path, data: data.tensorfmt.to_file(path)),
    "npz": ("a compressed .npz", lambda path, data: np.savez_compressed(path, tensor=data)),
    "yaml": ("text of cc4s", write_text_of_cc4s),
}


def sum_in_processes(folder: Path, size: int, suffix: str) -> Built:
    """Return contenders that sum chunks in threads and in processes, which have started before."""
    numbers = np.random.default_rng(0).random((size // 512, 64))
    labels = {"row": [f"doc{number}" for number in range(len(numbers))]}
    coords = labels if suffix == "tbf" else {}
    path = folder / f"tensor.{suffix}"
    PROCESS_FILES[suffix][1](path, xr.DataArray(numbers, coords, ("row", "col"), "tensor"))
    pool = SERVERS.enter_context(ProcessPoolExecutor(2, get_context("spawn")))

    def total(**options: Any) -> float:
        with dask.config.set(**options):
            return float(open_tensor(path, chunks={"row": -(-len(numbers) // 8)}).sum())

    processes = partial(total, scheduler="processes", pool=pool)
    return {OURS: partial(total, scheduler="threads"), PROCESSES: processes}, numbers.sum


for suffix, (title, _) in PROCESS_FILES.items():
    text, size = f"sum {{size}} of {title} in 8 chunks", 2 * MIB if suffix == "yaml" else 32 * MIB
    case("Processes", text, size, name=f"processes_{suffix}", suffix=suffix)(sum_in_processes)


LABELS = partial(case, "Labelled vectors")


def map_records(folder: Path, count: int) -> np.ndarray:
    """Map the labels of 10 bytes and the numbers of the Vespa file."""
    record = np.dtype([("length", "u1"), ("label", "S10"), ("numbers", ">f4", WIDTH)])
    path = folder / "tensor.tbf"
    return np.memmap(path, record, "r+", path.stat().st_size - count * record.itemsize, count)


@LABELS("open {count} labels with an index", 10**6)
def open_labels(folder: Path, count: int) -> Built:
    fmt = FORMATS["Vespa"]
    openers = write_files(folder, fmt, fmt.build(4 * WIDTH * count))

    find_last = lambda index: [len(index), index.get_loc(f"doc{count - 1:07}")]  # noqa: E731
    contenders = {name: (lambda o=o: o().indexes["row"], find_last) for name, o in openers.items()}
    return contenders, lambda: [count, count - 1]


@LABELS("update 1,000 scattered ones of {count} vectors", 10**6)
def update_vectors(folder: Path, count: int) -> Built:
    path, random = folder / "tensor.tbf", np.random.default_rng(1)
    FORMATS["Vespa"].build(4 * WIDTH * count).tensorfmt.to_file(path)
    chosen = np.sort(random.choice(count, min(1000, count // 2), replace=False))
    new = random.random((chosen.size, WIDTH), np.float32)
    labels = [f"doc{number:07}" for number in chosen]
    data = xr.DataArray(new, {"row": labels}, ("row", "col"), name="tensor")
    read = lambda: map_records(folder, count)["numbers"][chosen]  # noqa: E731

    def update() -> None:
        records = map_records(folder, count)
        assert (records["length"] == 10).all()  # otherwise blocks have other offsets
        assert records["label"][chosen].astype(str).tolist() == labels
        records["numbers"][chosen] = new
        records.flush()

    ours = partial(data.tensorfmt.to_file, path, region={"row": chosen})
    return {OURS: read_back(ours, read), "numpy": read_back(update, read)}, lambda: new


FEED = {"field": "v", "dim": "user", "prefix": "id:a:b::"}
LINE = '{"put": "id:a:b::%s", "fields": {"v": {"type": "tensor<float>(x[384])", "values": "%s"}}}'


@LABELS("write a feed of {count} documents", 10_000, name="to_jsonl", write=True)
@LABELS("read a feed of {count} documents", 10_000, name="from_jsonl", write=False)
def run_feed(folder: Path, count: int, *, write: bool) -> Built:  # noqa: ARG001
    numbers = np.random.default_rng(0).normal(size=(count, 384)).astype(np.float32)
    labels = [f"doc{number}" for number in range(count)]
    vectors = xr.DataArray(numbers, {"user": labels}, ("user", "x"), "tensor")
    path = make_memory_directory() / "feed.jsonl"

    def write_feed() -> None:
        with path.open("w") as file:
            for label, vector in zip(labels, numbers, strict=True):
                cells = vector.astype(">f4").tobytes().hex().upper()
                file.write(f"{LINE}\n" % (label, cells))

    def read_feed() -> np.ndarray:
        found, ids = np.empty((count, 384), np.float32), []
        with path.open() as file:
            for number, line in enumerate(file):
                doc = json.loads(line)
                ids.append(doc["put"].removeprefix(FEED["prefix"]))
                found[number] = np.frombuffer(bytes.fromhex(doc["fields"]["v"]["values"]), ">f4")
        return xr.DataArray(found, {"user": ids}, ("user", "x")).values

    write_feed()
    if write:
        ours = read_back(partial(vespa.to_jsonl, vectors, path, **FEED), read_feed)
        return {OURS: ours, "numpy": read_back(write_feed, read_feed)}, lambda: numbers
    read = lambda: vespa.from_jsonl(path, **FEED)["tensor"].values  # noqa: E731
    return {OURS: read, "numpy": read_feed}, lambda: numbers


WRITING = partial(case, "Writing")
FROM_DASK: dict[str, Any] = {"name": "write_floats", "fmt": FORMATS["MAG"], "rows": 4096}
WRITING("write {size} of float32 from dask", 512 * MIB, **FROM_DASK)(write_format)


@WRITING("upload {size} to S3 by obstore", 128 * MIB, name="upload_by_obstore", by="obstore")
@WRITING("upload {size} to S3 by s3fs", 128 * MIB, name="upload_by_s3fs", by="s3fs")
def upload(folder: Path, size: int, *, by: str) -> Built:  # noqa: ARG001
    array = FORMATS["MAG"].build(size)
    data, url = array.chunk(row=4096), SERVERS.enter_context(run_server(stores.__file__))
    s3: dict[str, Any] = {"key": "a", "secret": "b", "endpoint_url": url}
    mag, fs = f"s3://{BUCKET}/x.mag", s3fs.S3FileSystem(**s3)
    store: Any = zarr.storage.FsspecStore.from_url(f"s3://{BUCKET}/x.zarr", storage_options=s3)
    if by == "obstore":
        fs, store = FsspecStore("s3", **get_options(url)), ObjectStore(connect(url, "x.zarr"))
    write = partial(data.to_dataset().to_zarr, mode="w", consolidated=False, encoding=PLAIN)
    read = lambda: open_tensor(mag, storage_options=s3).values  # noqa: E731
    return {
        OURS: read_back(partial(data.tensorfmt.to_file, mag, fs=fs), read),
        "zarr": read_back(partial(write, store), lambda: zarr.open_array(store, path="tensor")[:]),
    }, lambda: array.values


REMOTE = partial(case, "Object storage, 20 ms away")


def read_remote(folder: Path, size: int, run: Any, by_numpy: Any) -> Built:
    """Return contenders that open a tensor in a store that is 20 ms away, and use it."""
    _, map_values = write_dense(folder, size)
    url = SERVERS.enter_context(run_server(stores.__file__, str(folder)))
    target, s3 = f"s3://{BUCKET}/tensor", {"storage_options": {"anon": True, "endpoint_url": url}}
    zarr = ObjectStore(connect(url, "tensor.zarr"), read_only=True)
    openers = {
        OURS: partial(open_tensor, f"{target}.tens", **s3),
        "zarr by s3fs": partial(open_tensor, f"{target}.zarr", "zarr", **s3),
        "zarr by obstore": partial(open_tensor, zarr, "zarr"),
    }
    contenders = {name: partial(run, opener) for name, opener in openers.items()}
    return contenders, lambda: by_numpy(map_values())


@REMOTE("open a tensor of {size} and read one row", 256 * MIB)
def remote_row(folder: Path, size: int) -> Built:
    return read_remote(folder, size, lambda o: o().isel(row=5).values, lambda array: array[5])


@REMOTE("open and sum {size} with dask", 256 * MIB)
def remote_sum(folder: Path, size: int) -> Built:
    return read_remote(folder, size, lambda o: o(chunks={}).sum(skipna=False).values, np.sum)


@REMOTE("read 100 chunks from a store of fsspec", 100 << 16)
def remote_chunks(folder: Path, size: int) -> Built:  # noqa: ARG001
    fsspec.register_implementation("slow", SlowMemory, clobber=True)
    numbers = np.random.default_rng(0).random((100, max(size // 400, 1)), np.float32)
    data = xr.DataArray(numbers, dims=("row", "col"), name="tensor")
    data.tensorfmt.to_file("slow://bench/new.mag")
    encoding = {"tensor": {"compressors": None, "chunks": (1, numbers.shape[1])}}
    data.to_dataset().to_zarr("slow://bench/new.zarr", mode="w", encoding=encoding)
    contenders = {
        OURS: lambda: open_tensor("slow://bench/new.mag", chunks={"row": 1}).values,
        "zarr": lambda: open_tensor("slow://bench/new.zarr", "zarr", chunks={}).values,
    }
    return contenders, lambda: numbers
