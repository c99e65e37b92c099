"""Write from dask to a file, and upload."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from dask.system import CPU_COUNT
from numpy.typing import NDArray

from benchmark.job import Job, Prepared
from benchmark.report import format_bytes
from benchmark.sections.remote import connect, get_s3_options
from benchmark.slowstore import BUCKET, run_server

TITLE = "Writing"
INTRO = """\
Arrays of dask with chunks of 31 MiB in memory are written without compression. The target is a file
system in memory, except for the job "to the disk". All contenders synchronise the files. The
baseline writes a file of the same size with `pwrite`. The upload goes to moto, an emulation of S3
without latency. Its baseline is a `put` by obstore."""
MEMORY = Path("/dev/shm")
SIZE, UPLOAD_SIZE, LABELS = 1 << 30, 128 << 20, 10**6
CHUNK, COLUMNS, WIDTH = 31 << 20, 4096, 128
SUFFIXES = {"MAG": ".mag", "TENS": ".tens", "PyCauset": ".pycauset", "Vespa": ".tbf"}
PWRITE = f"pwrite, {CPU_COUNT} threads"
RUN_MOTO = """
import logging
import signal
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
signal.pause()
"""
Write = Callable[[Any, Path], None]


@contextmanager
def provide(folder: Path, scale: int) -> Iterator[None]:  # noqa: ARG001
    """Create the target in memory, and run an S3 server."""
    import s3fs  # noqa: PLC0415

    parent = MEMORY if MEMORY.is_dir() else folder
    with TemporaryDirectory(dir=parent) as memory, run_server("-c", RUN_MOTO) as url:
        (folder / "memory").write_text(memory)
        (folder / "url").write_text(url)
        s3fs.S3FileSystem(**get_s3_options(url), skip_instance_cache=True).mkdir(BUCKET)
        yield


def get_jobs(folder: Path, scale: int) -> Sequence[Job]:
    """Return the jobs."""
    memory, url = Path((folder / "memory").read_text()), (folder / "url").read_text()
    size = max(SIZE // scale, 4 * COLUMNS)
    return [
        _get_float_job(memory, size, "MAG", "as MAG", PEERS),
        *(_get_float_job(memory, size, name, f"as {name}", {}) for name in list(SUFFIXES)[1:]),
        _get_float_job(folder, size, "MAG", "to the disk", PEERS),
        _get_bits_job(memory, size),
        _get_label_job(memory, LABELS // scale),
        _get_upload_job(url, max(UPLOAD_SIZE // scale, 4 * COLUMNS)),
    ]


def _write(path: Path, build: Callable[[], Any], write: Write) -> Prepared:
    """Write to a new file, after earlier files are removed and their pages are written."""

    def prepare() -> Any:
        for old in path.parent.glob("written.*"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        os.sync()
        return build()

    return Prepared(lambda data: write(data, path), prepare)


def _get_float_job(folder: Path, size: int, name: str, what: str, peers: dict[str, Write]) -> Job:
    # The first dimension of TENS is the fast one, so the bytes have the same order.
    build = partial(_build_floats, size, ("y", "x") if name == "TENS" else ("x", "y"))
    return Job(
        what,
        f"write {format_bytes(size)} of float32 {what}",
        _write(folder / f"written{SUFFIXES[name]}", build, _to_file),
        PWRITE,
        _write(folder / "written.raw", lambda: size, _write_floats_by_hand),
        {peer: _write(folder / f"written.{peer}", build, write) for peer, write in peers.items()},
        memory=True,
    )


def _get_bits_job(folder: Path, size: int) -> Job:
    order = max(int(size**0.5) // 512 * 512, 128)

    def build() -> xr.DataArray:
        return xr.DataArray(_repeat(_get_bits(order), order), dims=("row", "col"), name="tensor")

    return Job(
        "bits",
        f"write {format_bytes(order**2)} of bool as {format_bytes(order**2 / 8)} of bits",
        _write(folder / "written.pycauset", build, _to_file),
        f"np.packbits and {PWRITE}",
        _write(folder / "written.raw", lambda: order, _write_bits_by_hand),
        {},
        memory=True,
    )


def _get_label_job(folder: Path, count: int) -> Job:
    def build() -> xr.Dataset:
        labels = np.array([f"document {number:07}" for number in range(count)])
        values = _repeat(_get_floats(WIDTH), count)
        return xr.Dataset({"tensor": (("document", "x"), values)}, {"document": labels})

    size = count * (1 + len("document 0000000") + 4 * WIDTH)
    return Job(
        "labels",
        f"write {count:,} labelled vectors",
        _write(folder / "written.tbf", build, _to_file),
        PWRITE,
        _write(folder / "written.raw", lambda: size, _write_floats_by_hand),
        {},
        memory=True,
    )


def _get_upload_job(url: str, size: int) -> Job:
    target, options, build = f"s3://{BUCKET}/x", get_s3_options(url), partial(_build_floats, size)

    def upload(data: Any) -> None:
        data.tensorfmt.to_file(f"{target}.mag", storage_options=options)

    def upload_zarr(data: Any) -> None:
        _to_zarr(data, f"{target}.zarr", storage_options=options, mode="w")

    def upload_by_hand(content: bytes) -> None:
        connect(url).put("x.raw", content)

    return Job(
        "upload",
        f"upload {format_bytes(size)} of float32",
        Prepared(upload, build),
        "obstore",
        Prepared(upload_by_hand, lambda: bytes(size)),
        {"zarr by s3fs": Prepared(upload_zarr, build)},
        memory=True,
    )


def _to_file(data: Any, path: Path) -> None:
    data.tensorfmt.to_file(path)


def _to_zarr(data: xr.Dataset, path: Any, **options: Any) -> None:
    encoding = {"tensor": {"compressors": None}}
    data.to_zarr(path, encoding=encoding, consolidated=False, **options)


def _synchronise(write: Write, data: xr.Dataset, path: Path) -> None:
    """Write, and wait until the disk has all files, as this package does."""
    write(data, path)
    for file in [path] if path.is_file() else path.rglob("*"):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _to_netcdf(engine: Any, data: xr.Dataset, path: Path) -> None:
    data.to_netcdf(path, engine=engine)


PEERS: dict[str, Write] = {
    "zarr": partial(_synchronise, _to_zarr),
    "netCDF4": partial(_synchronise, partial(_to_netcdf, "netcdf4")),
    "h5netcdf": partial(_synchronise, partial(_to_netcdf, "h5netcdf")),
}


@cache
def _get_floats(columns: int) -> NDArray[np.float32]:
    """Return a chunk of whole rows."""
    random = np.random.default_rng(0)
    return random.random((CHUNK // (4 * columns), columns), dtype=np.float32)


@cache
def _get_bits(columns: int) -> NDArray[np.bool_]:
    """Return a chunk of whole rows."""
    return np.random.default_rng(0).random((CHUNK // columns, columns)) < 0.5


def _build_floats(size: int, dims: Sequence[str] = ("x", "y")) -> xr.Dataset:
    values = _repeat(_get_floats(COLUMNS), size // (4 * COLUMNS))
    return xr.Dataset({"tensor": (("x", "y"), values)}).transpose(*dims)


def _repeat(block: NDArray[Any], rows: int) -> Any:
    """Return an array of dask; its chunks are the same block in memory."""
    full, rest = divmod(rows, len(block))
    chunks = ((len(block),) * full + ((rest,) if rest else ()), block.shape[1:])

    def get_part(block_info: Any = None) -> NDArray[Any]:
        return block[: block_info[None]["chunk-shape"][0]]

    return da.map_blocks(get_part, chunks=chunks, dtype=block.dtype, meta=block[:0])


def _write_floats_by_hand(size: int, path: Path) -> None:
    raw = _get_floats(COLUMNS).reshape(-1).view(np.uint8)
    _write_by_hand(lambda: raw, raw.size, size, path)


def _write_bits_by_hand(order: int, path: Path) -> None:
    bits = _get_bits(order)

    def pack() -> NDArray[np.uint8]:
        return np.packbits(bits, axis=1, bitorder="little").reshape(-1)

    _write_by_hand(pack, bits.size // 8, order**2 // 8, path)


def _write_by_hand(
    build: Callable[[], NDArray[np.uint8]], step: int, size: int, path: Path
) -> None:
    """Reserve the space, write the same part again and again, and synchronise the file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, size)

    def write(start: int) -> None:
        view = build()[: size - start].data
        while view:
            written = os.pwrite(descriptor, view, start)
            start, view = start + written, view[written:]
        os.posix_fadvise(descriptor, 0, start, os.POSIX_FADV_DONTNEED)

    with ThreadPoolExecutor(CPU_COUNT) as threads:
        list(threads.map(write, range(0, size, step)))
    os.fsync(descriptor)
    os.close(descriptor)
