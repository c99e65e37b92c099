"""The cases of the benchmark. All contenders of a case do the same and return the same value."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import dask.array as da
import numpy as np
import pandas as pd
import xarray as xr
from safetensors.numpy import load_file, save_file

import xr_tensorfmt  # noqa: F401  # registers the accessor
from benchmark import stores
from benchmark.stores import BUCKET, MOTO, connect, get_s3_options, run_server

OURS = "xr_tensorfmt"
ROW = 16384  # elements of the fast axis of a dense tensor
WIDTH = 64  # numbers of a labelled vector
PLAIN: dict[str, Any] = {"tensor": {"compressors": None}}
SERVERS = ExitStack()  # closed by the worker
Built = tuple[dict[str, Any], Callable[[], Any] | None]


@dataclass(frozen=True)
class Case:
    """A task with a size, which is divided by `scale ** power`.

    `build` returns the contenders and a function that returns their value by numpy. A contender is
    a function, or a pair of a function that is not timed and one that receives its result. If the
    value is a function, it is called without being timed, to read back what was written. A case
    with `max_rounds` of 0 is run once, without a round to warm up.
    """

    section: str
    text: str
    size: int
    build: Callable[[Path, int], Built]
    power: float
    max_rounds: int

    def get_size(self, scale: int) -> int:
        """Return the size at a scale."""
        return max(int(self.size / scale**self.power), 1)

    def get_text(self, scale: int) -> str:
        """Return the description with the size."""
        size = self.get_size(scale)
        return self.text.format(count=f"{size:,}", size=f"{size / (1 << 20):,.0f} MiB")


CASES: dict[str, Case] = {}


def case(
    section: str,
    text: str,
    *sizes: int,
    name: str = "",
    power: float = 1,
    max_rounds: int = 9,
) -> Any:
    """Register a function as a case of each size."""

    def add(function: Any) -> Any:
        for size in sizes or (1,):
            key = (name or function.__name__) + (f"_{size}" if len(sizes) > 1 else "")
            CASES[key] = Case(section, text, size, function, power, max_rounds)
        return function

    return add


def open_tensor(location: Any, engine: str = "tensorfmt", **options: Any) -> xr.DataArray:
    """Open the variable ``tensor``, with dask only if `chunks` is given."""
    options = {"chunks": None, "cache": False, **options}
    return xr.open_dataset(location, engine=engine, **options)["tensor"]


def write_then(read: Callable[[], Any], write: Callable[..., Any], *args: Any, **kw: Any) -> Any:
    """Write, and return a function that reads back."""
    write(*args, **kw)
    return read


DENSE = partial(case, "Dense tensors")


def write_dense(folder: Path, size: int) -> dict[str, Callable[..., xr.DataArray]]:
    """Write float64 as TENS, zarr and netCDF4, and return functions that open the files."""
    path, rows = folder / "dense", max(size // (8 * ROW), 64)
    if not path.with_suffix(".nc").exists():
        random = da.random.default_rng(0)  # type: ignore[attr-defined]
        ds = xr.Dataset({"tensor": (("b", "a"), random.random((rows, ROW), chunks=(256, ROW)))})
        ds.transpose("a", "b").tensorfmt.to_file(path.with_suffix(".tens"))
        encoding = {"tensor": {"compressors": None, "chunks": (64, ROW)}}
        ds.to_zarr(path.with_suffix(".zarr"), encoding=encoding)
        ds.to_netcdf(path.with_suffix(".nc"), engine="h5netcdf")
    return {
        OURS: partial(open_tensor, path.with_suffix(".tens")),
        "zarr": partial(open_tensor, path.with_suffix(".zarr"), "zarr"),
        "netCDF4": partial(open_tensor, path.with_suffix(".nc"), "netcdf4"),
        "h5netcdf": partial(open_tensor, path.with_suffix(".nc"), "h5netcdf"),
    }


def map_dense(folder: Path, size: int) -> np.ndarray:
    """Map the values of the TENS file."""
    path, rows = folder / "dense.tens", max(size // (8 * ROW), 64)
    return np.memmap(path, "<f8", "r", path.stat().st_size - 8 * ROW * rows, (rows, ROW))


def load_dense(folder: Path, size: int, b: slice = slice(None), a: slice = slice(None)) -> Built:
    """Return contenders that load a part of the tensor."""

    def load(opener: Any) -> Any:
        return opener().isel(a=a, b=b).load().transpose("b", "a").values

    openers = write_dense(folder, size).items()
    contenders = {name: partial(load, opener) for name, opener in openers}
    return contenders, lambda: map_dense(folder, size)[b, a]


REDUCTIONS: dict[str, Any] = {
    "sum": (lambda array: array.sum(skipna=False), np.sum),
    "nansum": (xr.DataArray.sum, np.nansum),
    "mean": (lambda array: array.mean("b", skipna=False), partial(np.mean, axis=0)),
}


def reduce_dense(folder: Path, size: int, reduce: str) -> Built:
    """Return contenders that reduce the tensor with dask, in chunks of 32 MiB where they choose."""
    ours, by_numpy = REDUCTIONS[reduce]
    contenders = {
        name: lambda o=opener, c={} if name in (OURS, "zarr") else {"b": 256}: (
            ours(o(chunks=c)).values
        )
        for name, opener in write_dense(folder, size).items()
    }
    contenders["numpy"] = lambda: by_numpy(map_dense(folder, size))
    return contenders, contenders["numpy"]


PART, GIB = slice(32, 288), 1 << 30
DENSE("load {size} of float64", GIB, name="values")(load_dense)
DENSE("load 256 rows on the slow axis", GIB, name="slow_slab")(partial(load_dense, b=PART))
DENSE("load 256 columns on the fast axis", GIB, name="fast_slab")(partial(load_dense, a=PART))
DENSE("sum {size} with dask", GIB, name="sum")(partial(reduce_dense, reduce="sum"))
DENSE("sum {size}, NaN skipped", GIB, name="nansum")(partial(reduce_dense, reduce="nansum"))
DENSE("mean of {size} on the slow axis", GIB, name="mean")(partial(reduce_dense, reduce="mean"))


@DENSE("explain the read of 100,000 points", 1 << 30)
def explain_points(folder: Path, size: int) -> Built:
    array, random = write_dense(folder, size)[OURS](), np.random.default_rng(0)
    keys = {dim: random.integers(0, array.sizes[dim], 100_000) for dim in "ab"}
    points = array.isel({dim: xr.DataArray(key, dims="p") for dim, key in keys.items()})
    count = np.unique(keys["a"] + ROW * keys["b"]).size

    def explain() -> Any:
        needed = points.tensorfmt.explain().needed_bytes
        return lambda: needed == 8 * count

    def read() -> Any:
        found = points.copy().load()
        return lambda: np.array_equal(found, map_dense(folder, size)[keys["b"], keys["a"]])

    return {OURS: explain, "the read": read}, lambda: True


@DENSE("load {size} of float32 from safetensors", 256 << 20)
def float32(folder: Path, size: int) -> Built:
    path, random = folder / "weights.safetensors", np.random.default_rng(0)
    array = random.random((size // 4096, 1024), np.float32)
    save_file({"tensor": array}, path)
    ours, theirs = lambda: open_tensor(path).values, lambda: load_file(path)["tensor"]
    return {OURS: ours, "safetensors": theirs}, lambda: array


MODELS = partial(case, "Models")


def build_model(count: int) -> tuple[dict[str, np.ndarray], xr.Dataset]:
    """Return small arrays with names of a model, and a Dataset of them."""
    blocks = np.random.default_rng(0).random((count, 8, 8), np.float32)
    model = {f"layers.{i // 10}.block{i % 10}.weight": block for i, block in enumerate(blocks)}
    dims = {key: (f"{key}_dim_0", f"{key}_dim_1") for key in model}
    return model, xr.Dataset({key: (dims[key], block) for key, block in model.items()})


def run_command(*arguments: str) -> str:
    """Run the command in this process, and return its output."""
    from xr_tensorfmt.cli import main  # noqa: PLC0415

    with redirect_stdout(io.StringIO()) as output, suppress(SystemExit):
        main.main(list(arguments), standalone_mode=False)
    return output.getvalue()


@MODELS("compare two files of {count} tensors", 1000, 4000)
def diff(folder: Path, count: int) -> Built:
    paths = [str(folder / f"{name}.safetensors") for name in "ab"]
    for path in paths:
        save_file(build_model(count)[0], path)

    def compare() -> bool:
        first, second = map(load_file, paths)
        return all(np.array_equal(first[key], second[key]) for key in first)

    def compare_ours() -> bool:
        return '"equal": false' not in run_command("diff", *paths, "--json")

    return {OURS: compare_ours, "safetensors": compare}, lambda: True


@MODELS("statistics of {count} tensors", 1000, 4000)
def stats(folder: Path, count: int) -> Built:
    path, (model, _) = str(folder / "stats.safetensors"), build_model(count)
    save_file(model, path)

    def summarize() -> list[float]:
        (report,) = json.loads(run_command("info", "--stats", "--json", path))
        return [report["variables"][key]["stats"]["mean"] for key in model]

    def summarize_by_numpy() -> list[float]:
        rows = [
            (array.min(), array.max(), array.mean(), np.isnan(array).sum(), (array == 0).sum())
            for array in map(load_file(path).__getitem__, model)
        ]
        return [row[2] for row in rows]

    expected = [array.mean() for array in model.values()]
    return {OURS: summarize, "safetensors and numpy": summarize_by_numpy}, lambda: expected


@MODELS("write {count} small tensors", 1000, 4000)
def write_model(folder: Path, count: int, *, chunk: bool = False) -> Built:
    """Return contenders that write a Dataset of many variables."""
    model, ds = build_model(count)
    ds = ds.chunk() if chunk else ds
    ours, theirs = folder / "ours.safetensors", folder / "theirs.safetensors"

    def save() -> None:
        loaded = ds.compute()
        save_file({key: loaded.variables[key].values for key in model}, theirs)

    return {
        OURS: lambda: write_then(partial(load_file, ours), ds.tensorfmt.to_file, ours),
        "safetensors": lambda: write_then(partial(load_file, theirs), save),
    }, lambda: model


@MODELS("write {count} small tensors of dask", 1000)
def write_chunked(folder: Path, count: int) -> Built:
    return write_model(folder, count, chunk=True)


@MODELS("write a small file")
def write_small_file(folder: Path, _: int) -> Built:
    ds = xr.Dataset({"tensor": (("x", "y"), np.random.default_rng(0).random((10, 10)))})
    ours, nc, npy = (folder / f"small.{suffix}" for suffix in ("safetensors", "nc", "npy"))

    def save() -> None:
        with npy.open("wb") as file:
            np.save(file, ds.tensor.values)
            os.fsync(file.fileno())

    read, read_nc = partial(open_tensor, ours), partial(open_tensor, nc, "netcdf4")
    return {
        OURS: lambda: write_then(read, ds.tensorfmt.to_file, ours),
        "netCDF4": lambda: write_then(read_nc, ds.to_netcdf, nc, engine="netcdf4"),
        "numpy and fsync": lambda: write_then(partial(np.load, npy), save),
    }, lambda: ds.tensor.values


def write_peers(folder: Path, count: int) -> dict[str, tuple[Path, str]]:
    """Write a model for this package, zarr and netCDF4, and return paths and engines."""
    _, ds = build_model(count)
    engines = {OURS: ("mag", "tensorfmt"), "zarr": ("zarr", "zarr"), "netCDF4": ("nc", "netcdf4")}
    paths = {
        name: (folder / f"{count}.{suffix}", engine) for name, (suffix, engine) in engines.items()
    }
    ds.tensorfmt.to_file(paths[OURS][0])
    if count > 1000:  # the others take minutes
        return {OURS: paths[OURS]}
    ds.to_zarr(paths["zarr"][0], mode="w")
    ds.to_netcdf(paths["netCDF4"][0], engine="h5netcdf")
    return paths


@MODELS("open {count} tensors", 1, 1000, 10_000)
def open_model(folder: Path, count: int, **options: Any) -> Built:
    """Return contenders that open a model without reading values."""
    last, array = list(build_model(count)[0].items())[-1]

    def open_and_close(path: Path, engine: str) -> Any:
        xr.open_dataset(path, engine=engine, **options).close()
        return lambda: xr.open_dataset(path, engine=engine).variables[last].values

    peers = write_peers(folder, count).items()
    return {name: partial(open_and_close, *entry) for name, entry in peers}, lambda: array


@MODELS("open {count} tensors with dask", 1000)
def open_chunked(folder: Path, count: int) -> Built:
    return open_model(folder, count, chunks={})


@MODELS("open a tree of {count} tensors", 1000, 10_000)
def open_tree(folder: Path, count: int) -> Built:
    path, (model, ds) = folder / "tree.mag", build_model(count)
    ds.tensorfmt.to_file(path)
    names = {key: key.removesuffix(".weight").replace(".", "/") for key in model}
    groups = {names[key]: xr.Dataset({"weight": (("x", "y"), model[key])}) for key in model}

    def use(tree: xr.DataTree) -> Any:
        return lambda: tree[list(groups)[-1]]["weight"].values

    return {
        OURS: lambda: use(xr.open_datatree(path, engine="tensorfmt")),
        "DataTree.from_dict": lambda: use(xr.DataTree.from_dict(groups)),  # type: ignore[arg-type]
    }, lambda: list(model.values())[-1]


STARTING = partial(case, "Starting")


def run_python(code: str) -> str:
    """Run Python, and return its output."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@STARTING("start Python and open a file")
def first_open(folder: Path, _: int) -> Built:
    code = "import xarray; print(len(xarray.open_dataset({!r}, engine={!r})))"
    contenders = {
        name: lambda path=path, engine=engine: int(run_python(code.format(str(path), engine)))
        for name, (path, engine) in write_peers(folder, 1).items()
    }
    contenders["import xarray"] = lambda: int(run_python("import xarray; print(1)"))
    return contenders, lambda: 1


@STARTING("`xr-tensorfmt --help`")
def command_help(folder: Path, _: int) -> Built:  # noqa: ARG001
    code = "from xr_tensorfmt.cli import main; main(['--help'])"
    return {
        OURS: lambda: "Options" in run_python(code),
        "import xarray": lambda: bool(run_python("import xarray; print(1)")),
    }, lambda: True


BITS = partial(case, "Causal matrices", power=0.5)


def write_random_bits(path: Path, order: int) -> list[np.ndarray]:
    """Write a PyCauset container with random bits, and return the words of each row."""
    counts = np.arange(order - 1, -1, -1)
    ends, rest = np.cumsum(-(-counts // 64)), (counts % 64).astype(np.uint64)
    words = np.random.default_rng(0).integers(0, 1 << 64, ends[-1], np.uint64)
    words[ends[rest > 0] - 1] &= (np.uint64(1) << rest[rest > 0]) - np.uint64(1)
    texts = {"data_type": "BIT", "matrix_type": "CAUSAL", "payload_uuid": "0" * 32}
    entries = {key: struct.pack("<BI", 5, len(text)) + text.encode() for key, text in texts.items()}
    entries |= {key: struct.pack("<BQ", 3, order) for key in ("rows", "cols")}
    content = struct.pack("<BI", 8, len(entries))
    for key in sorted(entries):
        content += struct.pack("<H", len(key)) + key.encode() + entries[key]
    metadata = struct.pack("<4s3IQ2I", b"PCMB", 1, 1, 0, len(content), crc32(content), 0) + content
    padding = -words.nbytes % 16
    start = 4096 + words.nbytes + padding
    pointers = struct.pack("<7Q", 1, 4096, words.nbytes, start, len(metadata), 0, 0)
    slot = (pointers + struct.pack("<I", crc32(pointers))).ljust(128, b"\0")
    head = b"PYCAUSET" + struct.pack("<IBHB", 1, 1, 4096, 0) + slot + slot
    with path.open("wb") as file:
        file.write(head.ljust(4096, b"\0"))
        words.tofile(file)
        file.write(bytes(padding) + metadata)
    return np.split(words, ends[:-1])


def unpack_row(rows: list[np.ndarray], number: int) -> np.ndarray:
    """Return the bits of a row right of the diagonal."""
    count = len(rows) - 1 - number
    return np.unpackbits(rows[number].view(np.uint8), bitorder="little", count=count)


def unpack(rows: list[np.ndarray]) -> np.ndarray:
    """Return the matrix as bool."""
    matrix = np.zeros((len(rows), len(rows)), bool)
    for number in range(len(rows)):
        matrix[number, number + 1 :] = unpack_row(rows, number)
    return matrix


def count_columns(rows: list[np.ndarray]) -> np.ndarray:
    """Count the bits of columns by the simplest loop: add up to 255 rows in uint8."""
    counts, part = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.uint8)
    for number in range(len(rows)):
        part[number + 1 :] += unpack_row(rows, number)
        if number % 255 == 254:
            counts += part
            part[:] = 0
    return counts + part


def count_rows(rows: list[np.ndarray]) -> np.ndarray:
    """Count the bits of rows."""
    return np.array([np.bitwise_count(words).sum() for words in rows], np.int64)


@BITS("unpack a matrix of {count} elements", 2000, 20_000)
def unpack_bits(folder: Path, order: int) -> Built:
    path = folder / "bits.pycauset"
    rows = write_random_bits(path, order)
    contenders = {OURS: lambda: open_tensor(path).values, "numpy": lambda: unpack(rows)}
    if order < 10_000 and find_spec("pycauset"):
        import pycauset  # noqa: PLC0415

        contenders["pycauset"] = lambda: pycauset.to_numpy(pycauset.load(str(path)))
    return contenders, lambda: unpack(rows)


def popcount(folder: Path, order: int, dim: str, by_numpy: Any) -> Built:
    """Return contenders that count the bits along a dimension."""
    from xr_tensorfmt.pycauset import popcount  # noqa: PLC0415

    path = folder / "count.pycauset"
    rows = write_random_bits(path, order)
    ours = (partial(open_tensor, path), lambda array: popcount(array, dim=dim).values)
    return {OURS: ours, "numpy": lambda: by_numpy(rows)}, lambda: by_numpy(rows)


@BITS("count the relations of {count} elements by column", 100_000)
def popcount_columns(folder: Path, order: int) -> Built:
    return popcount(folder, order, "row", count_columns)


@BITS("count the relations of {count} elements by row", 100_000)
def popcount_rows(folder: Path, order: int) -> Built:
    return popcount(folder, order, "col", count_rows)


def write_causal_set(folder: Path, order: int) -> tuple[Any, np.ndarray]:
    """Write the order of random events, and return a function with the histogram, and the order."""
    from xr_tensorfmt.pycauset import interval_sizes  # noqa: PLC0415

    light = np.random.default_rng(0).random((order, 2))
    u, v = light[np.argsort(light.sum(axis=1))].T
    causal = (u[:, np.newaxis] < u) & (v[:, np.newaxis] < v)
    path = folder / "causal.pycauset"
    xr.DataArray(causal, dims=("row", "col"), name="tensor").tensorfmt.to_file(path)
    return lambda: interval_sizes(open_tensor(path, chunks={})).values, causal


@BITS("histogram of the interval sizes of {count} elements", 4000)
def interval_sizes(folder: Path, order: int) -> Built:
    count_ours, causal = write_causal_set(folder, order)

    def count() -> np.ndarray:
        matrix = causal.astype(np.float32)
        return np.bincount((matrix @ matrix)[causal].astype(int))

    return {OURS: lambda: np.trim_zeros(count_ours(), "b"), "numpy": count}, count


@BITS("histogram of the interval sizes of {count} elements", 20_000, max_rounds=0)
def interval_sizes_large(folder: Path, order: int) -> Built:
    count, causal = write_causal_set(folder, order)

    def sum_up() -> list[int]:  # an element is between each of its past and each of its future
        return [int(causal.sum()), int(causal.sum(axis=0) @ causal.sum(axis=1))]

    def sum_up_ours() -> list[int]:
        sizes = count()
        return [int(sizes.sum()), int(sizes @ np.arange(sizes.size))]

    return {OURS: sum_up_ours}, sum_up


LABELS = partial(case, "Labelled vectors")


def write_labels(folder: Path, count: int) -> dict[str, tuple[Path, str]]:
    """Write labelled vectors as Vespa and zarr, and return paths and engines."""
    table, store = folder / "labels.tbf", folder / "labels.zarr"
    if not table.exists():
        numbers = np.random.default_rng(0).random((count, WIDTH), np.float32)
        labels = np.array([f"doc{number:07}" for number in range(count)], object)
        ds = xr.Dataset({"tensor": (("user", "x"), numbers)}, {"user": labels})
        ds.tensorfmt.to_file(table)
        ds.to_zarr(store, encoding={**PLAIN, "user": {"chunks": (count,), "compressors": None}})
    return {OURS: (table, "tensorfmt"), "zarr": (store, "zarr")}


def map_records(folder: Path, count: int) -> np.ndarray:
    """Map the labels of 10 bytes and the numbers of the Vespa file."""
    record = np.dtype([("length", "u1"), ("label", "S10"), ("numbers", ">f4", WIDTH)])
    path = folder / "labels.tbf"
    return np.memmap(path, record, "r+", path.stat().st_size - count * record.itemsize, count)


def use_labels(folder: Path, count: int, run: Any, numpy: Any, **options: Any) -> Built:
    """Return contenders that use the open table."""
    contenders: dict[str, Any] = {
        name: (partial(open_tensor, *entry, **options), run)
        for name, entry in write_labels(folder, count).items()
    }
    contenders["numpy"] = lambda: numpy(map_records(folder, count)["numbers"])
    return contenders, contenders["numpy"]


@LABELS("open {count} labels with an index", 10**6)
def open_labels(folder: Path, count: int) -> Built:
    def loop() -> pd.Index:
        content = (folder / "labels.tbf").read_bytes()
        position, labels = len(content) - count * (11 + 4 * WIDTH), []
        for _ in range(count):
            start = position + 1
            position = start + content[position]
            labels.append(content[start:position].decode())
            position += 4 * WIDTH
        return pd.Index(labels)

    def use(build: Callable[[], pd.Index]) -> Any:
        index = build()
        return lambda: [len(index), index.get_loc(f"doc{count - 1:07}")]

    contenders = {
        name: lambda entry=entry: use(lambda: open_tensor(*entry).indexes["user"])
        for name, entry in write_labels(folder, count).items()
    }
    return contenders | {"Python loop": lambda: use(loop)}, lambda: [count, count - 1]


@LABELS("load {count} vectors", 10**6)
def load_labels(folder: Path, count: int) -> Built:
    return use_labels(folder, count, lambda a: a.values, lambda a: a.astype("f4"))


@LABELS("mean of {count} vectors with dask", 10**6)
def mean_labels(folder: Path, count: int) -> Built:
    def average(array: xr.DataArray) -> np.ndarray:
        return array.mean("user", skipna=False, dtype="f8").values

    return use_labels(folder, count, average, partial(np.mean, axis=0, dtype="f8"), chunks={})


@LABELS("select one of {count} vectors by label", 10**6)
def select_label(folder: Path, count: int) -> Built:
    return use_labels(folder, count, lambda a: a.sel(user="doc0000007").values, lambda a: a[7])


@LABELS("update 1,000 scattered ones of {count} vectors", 10**6)
def update_vectors(folder: Path, count: int) -> Built:
    path, random = write_labels(folder, count)[OURS][0], np.random.default_rng(1)
    chosen = np.sort(random.choice(count, min(1000, count // 2), replace=False))
    new = random.random((chosen.size, WIDTH), np.float32)
    labels = [f"doc{number:07}" for number in chosen]
    data = xr.DataArray(new, {"user": labels}, ("user", "x"), name="tensor")

    def read() -> np.ndarray:
        return map_records(folder, count)["numbers"][chosen]

    def update() -> None:
        records = map_records(folder, count)
        records["numbers"][chosen] = new
        records.flush()

    return {
        OURS: lambda: write_then(read, data.tensorfmt.to_file, path, region={"user": chosen}),
        "numpy": lambda: write_then(read, update),
    }, lambda: new


FEED = {"field": "v", "dim": "user", "prefix": "id:a:b::"}
LINE = '{"put": "id:a:b::%s", "fields": {"v": {"type": "tensor<float>(x[384])", "values": "%s"}}}'


def build_vectors(count: int) -> xr.DataArray:
    """Return labelled vectors of 384 numbers."""
    numbers = np.random.default_rng(0).normal(size=(count, 384)).astype(np.float32)
    labels = [f"doc{number}" for number in range(count)]
    return xr.DataArray(numbers, {"user": labels}, ("user", "x"), "tensor")


def write_feed(path: Path, vectors: xr.DataArray) -> None:
    """Write a feed by the simplest loop."""
    with path.open("w") as file:
        for label, vector in zip(vectors.user.values, vectors.values, strict=True):
            cells = vector.astype(">f4").tobytes().hex().upper()
            file.write(f"{LINE}\n" % (label, cells))


def read_feed(path: Path, count: int) -> np.ndarray:
    """Read a feed by the simplest loop."""
    numbers = np.empty((count, 384), np.float32)
    with path.open() as file:
        for number, line in enumerate(file):
            cells = json.loads(line)["fields"]["v"]["values"]
            numbers[number] = np.frombuffer(bytes.fromhex(cells), ">f4")
    return numbers


@LABELS("read a feed of {count} documents", 10_000)
def from_jsonl(folder: Path, count: int) -> Built:
    from xr_tensorfmt.vespa import from_jsonl  # noqa: PLC0415

    path, vectors = folder / "feed.jsonl", build_vectors(count)
    write_feed(path, vectors)
    ours = lambda: from_jsonl(path, **FEED)["tensor"].values  # noqa: E731
    return {OURS: ours, "numpy": lambda: read_feed(path, count)}, lambda: vectors.values


@LABELS("write a feed of {count} documents", 10_000)
def to_jsonl(folder: Path, count: int) -> Built:
    from xr_tensorfmt.vespa import to_jsonl  # noqa: PLC0415

    path, vectors = folder / "written.jsonl", build_vectors(count)
    read = partial(read_feed, path, count)
    return {
        OURS: lambda: write_then(read, to_jsonl, vectors, path, **FEED),
        "numpy": lambda: write_then(read, write_feed, path, vectors),
    }, lambda: vectors.values


WRITING = partial(case, "Writing")


def make_memory_directory() -> Path:
    """Return a directory in memory if there is one, because not all contenders use fsync."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    return Path(SERVERS.enter_context(TemporaryDirectory(dir=memory)))


def build_floats(size: int) -> tuple[np.ndarray, xr.Dataset]:
    """Return numbers, and a Dataset of dask that repeats them up to a size."""
    block = np.random.default_rng(0).random((1024, 4096), np.float32)
    chunk = da.from_array(block, chunks=-1)  # type: ignore[no-untyped-call]
    blocks = da.concatenate([chunk] * max(size // block.nbytes, 1))
    return block, xr.Dataset({"tensor": (("x", "y"), blocks)})


def write_blocks(block: np.ndarray, write: Any, location: Any, *args: Any, **options: Any) -> Any:
    """Write, and return a function that checks whether each block of the file is the same."""
    write(location)
    array = open_tensor(location, *args, **options)
    starts = range(0, len(array), len(block))
    return lambda: all(np.array_equal(array[i : i + len(block)].values, block) for i in starts)


@WRITING("write {size} of float32 from dask", 512 << 20)
def write_floats(folder: Path, size: int) -> Built:  # noqa: ARG001
    block, ds = build_floats(size)
    path, write = make_memory_directory() / "new", partial(write_blocks, block)
    to_zarr = partial(ds.to_zarr, mode="w", encoding=PLAIN)
    to_netcdf = partial(ds.to_netcdf, engine="h5netcdf")
    return {
        OURS: lambda: write(ds.tensorfmt.to_file, path.with_suffix(".mag")),
        "zarr": lambda: write(to_zarr, path.with_suffix(".zarr"), "zarr"),
        "h5netcdf": lambda: write(to_netcdf, path.with_suffix(".nc"), "h5netcdf"),
    }, lambda: True


@WRITING("pack {size} of bool to bits", 256 << 20)
def write_bits(folder: Path, size: int) -> Built:  # noqa: ARG001
    order = int(size**0.5) // 64 * 64
    bits = np.random.default_rng(0).random((order, order)) < 0.5
    data = xr.DataArray(bits, dims=("row", "col"), name="tensor").chunk(row=256)
    path = make_memory_directory() / "new.pycauset"

    def save() -> None:
        with path.with_suffix(".raw").open("wb") as file:
            np.packbits(bits, axis=1, bitorder="little").tofile(file)
            os.fsync(file.fileno())

    return {
        OURS: lambda: write_then(partial(open_tensor, path), data.tensorfmt.to_file, path),
        "numpy": lambda: write_then(lambda: bits, save),
    }, lambda: bits


@WRITING("upload {size} to S3 without latency", 128 << 20)
def upload(folder: Path, size: int) -> Built:  # noqa: ARG001
    import s3fs  # noqa: PLC0415
    from zarr.storage import ObjectStore  # noqa: PLC0415

    block, ds = build_floats(size)
    url = SERVERS.enter_context(run_server("-c", MOTO))
    options = get_s3_options(url)
    s3fs.S3FileSystem(**options, skip_instance_cache=True).mkdir(BUCKET)
    target, s3 = f"s3://{BUCKET}/x", {"storage_options": options}
    to_file = partial(ds.tensorfmt.to_file, **s3)
    to_zarr = partial(ds.to_zarr, mode="w", encoding=PLAIN)
    zarr, write = ObjectStore(connect(url, "y.zarr")), partial(write_blocks, block)
    return {
        OURS: lambda: write(to_file, f"{target}.mag", **s3),
        "zarr by s3fs": lambda: write(partial(to_zarr, **s3), f"{target}.zarr", "zarr", **s3),
        "zarr by obstore": lambda: write(to_zarr, zarr, "zarr"),
    }, lambda: True


REMOTE = partial(case, "Object storage, 20 ms away")


def read_remote(folder: Path, size: int, run: Any, by_numpy: Any) -> Built:
    """Return contenders that open a tensor in a store that is 20 ms away, and use it."""
    from zarr.storage import ObjectStore  # noqa: PLC0415

    write_dense(folder, size)
    url = SERVERS.enter_context(run_server(stores.__file__, str(folder)))
    target, s3 = f"s3://{BUCKET}/dense", {"storage_options": get_s3_options(url)}
    zarr = ObjectStore(connect(url, "dense.zarr"), read_only=True)
    openers = {
        OURS: partial(open_tensor, f"{target}.tens", **s3),
        "xr_tensorfmt by obstore": partial(open_tensor, "dense.tens", fs=connect(url)),
        "zarr by s3fs": partial(open_tensor, f"{target}.zarr", "zarr", **s3),
        "zarr by obstore": partial(open_tensor, zarr, "zarr"),
    }
    contenders = {name: partial(run, opener) for name, opener in openers.items()}
    return contenders, lambda: by_numpy(map_dense(folder, size))


@REMOTE("open a tensor of {size} and read one column", 256 << 20)
def remote_column(folder: Path, size: int) -> Built:
    return read_remote(folder, size, lambda o: o().isel(b=5).values, lambda array: array[5])


@REMOTE("open and sum {size} with dask", 256 << 20)
def remote_sum(folder: Path, size: int) -> Built:
    return read_remote(folder, size, lambda o: o(chunks={}).sum(skipna=False).values, np.sum)
