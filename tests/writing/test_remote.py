"""Writing to stores with any scheduler."""

from __future__ import annotations

import errno
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import fsspec
import numpy as np
import pytest
import s3fs
import xarray as xr
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.zip import ZipFileSystem
from fsspec.spec import AbstractFileSystem
from obstore.fsspec import FsspecStore

from tests.opening import open_lazily
from tests.servers import HttpStore, S3Store
from xr_tensorfmt import to_file

MIB = 1 << 20
CHUNKS: list[dict[str, Any]] = [{}, {"x": 100}, {"y": 100}, {"x": 500, "y": 300}, {"x": 7}]


def make_dataset(rows: int = 3000) -> xr.Dataset:
    """Return 12 MB for 3000 rows, 24 MB for 6000."""
    values = np.random.default_rng(0).random((rows, 1000), dtype="f4")
    return xr.Dataset(
        {"a": (("x", "y"), values, {"unit": "m"}), "b": ("x", np.arange(rows, dtype="i2"))},
        {"x": np.arange(rows, dtype="i4")},
        {"epoch": 3},
    )


class AppearingStore(AbstractFileSystem):
    """A store whose objects appear when they are complete."""

    __module__ = "gcsfs.core"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}

    def put_file(
        self, lpath: str, rpath: str, callback: Any = None, mode: str = "overwrite", **_: Any
    ) -> None:
        if mode == "create" and rpath in self.objects:
            raise FileExistsError(rpath)
        self.objects[rpath] = Path(lpath).read_bytes()
        callback.absolute_update(len(self.objects[rpath]))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return {"name": path, "size": len(self.objects[path]), "type": "file"}

    def cat_file(self, path: str, start: int = 0, end: int | None = None, **_: Any) -> bytes:
        return self.objects[path][start:end]


@pytest.fixture
def bucket(s3: S3Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3fs.S3FileSystem]:
    """An empty bucket, to which objects are uploaded in small parts."""
    monkeypatch.setattr(s3fs.core, "calculate_chunksize", lambda *_, **__: 5 * MIB)
    fs = s3fs.S3FileSystem(**s3.options)
    s3.put("first", b"")
    fs.invalidate_cache()
    for path in fs.find("bucket"):
        fs.rm_file(path)  # `rm` would expand patterns
    yield fs
    s3.refused = lambda environ: False
    assert fs.list_multipart_uploads("bucket") == []


def get_options(s3: S3Store) -> dict[str, Any]:
    return {"storage_options": s3.options}


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_dataset_round_trips_from_s3(s3: S3Store, bucket: Any, chunks: dict) -> None:
    to_file(make_dataset().chunk(chunks), "s3://bucket/x.mag", **get_options(s3))
    xr.testing.assert_identical(
        open_lazily("s3://bucket/x.mag", **get_options(s3)).load(), make_dataset()
    )


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_object_equals_local_file(tmp_path: Path, memory: Any, chunks: dict, threads: int) -> None:
    data = make_dataset(720)[["a", "b"]].drop_vars("x").chunk(chunks)
    with dask.config.set(num_workers=threads):
        to_file(data, "memory://bucket/x.safetensors")
    to_file(data, tmp_path / "x.safetensors")
    expected = (tmp_path / "x.safetensors").read_bytes()
    assert memory.cat_file("/bucket/x.safetensors") == expected
    assert memory.find("/bucket") == ["/bucket/x.safetensors"]


def test_variables_in_memory_and_lazy_ones_are_written_too(s3: S3Store, bucket: Any) -> None:
    to_file(make_dataset(), "s3://bucket/x.mag", **get_options(s3))
    lazy = open_lazily("s3://bucket/x.mag", **get_options(s3))
    lazy.tensorfmt.to_file("s3://bucket/y.mag", **get_options(s3))
    xr.testing.assert_identical(
        open_lazily("s3://bucket/y.mag", **get_options(s3)).load(), make_dataset()
    )


@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
def test_shared_tasks_are_computed_once(memory: Any, scheduler: str) -> None:
    calls = []

    def counted(block: np.ndarray) -> np.ndarray:
        calls.append(1)
        return block

    ones = da.ones((40, 10), chunks=(1, 10), dtype="f4")
    values = ones.map_blocks(counted, meta=np.ones((0, 0), "f4"))
    with dask.config.set(scheduler=scheduler):
        to_file(xr.Dataset({"a": (("x", "y"), values - values.mean())}), "memory://bucket/x.mag")
    assert len(calls) == 40
    assert not open_lazily("memory://bucket/x.mag").a.any()


def fail_in_chunk(block: np.ndarray, block_info: Any = None) -> np.ndarray:
    if block_info and block_info[0]["chunk-location"][0] == 5:
        raise ZeroDivisionError("a chunk that fails")
    return block


def make_failing() -> xr.Dataset:
    values = da.zeros((6000, 1000), chunks=(1000, 1000), dtype="f4")
    return xr.Dataset(
        {"a": (("x", "y"), values.map_blocks(fail_in_chunk, meta=np.ones((0, 0), "f4")))}
    )


def test_failing_chunk_leaves_old_object_and_no_part(s3: S3Store, bucket: Any) -> None:
    url = s3.put("x.mag", b"old")
    with pytest.raises(ZeroDivisionError) as caught:
        to_file(make_failing(), url, "mag", **get_options(s3))
    assert f"{url} was not written; the target is unchanged." in caught.value.__notes__
    assert bucket.cat_file("bucket/x.mag") == b"old"
    assert bucket.list_multipart_uploads("bucket") == []


def test_failed_delayed_write_leaves_no_object(s3: S3Store, bucket: Any, tmp_path: Path) -> None:
    url = s3.put("x.mag", b"old")
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        tasks = to_file(make_failing(), url, "mag", compute=False, **get_options(s3))
    with pytest.raises(ZeroDivisionError):
        tasks.compute(scheduler="synchronous")
    assert bucket.list_multipart_uploads("bucket") == []
    assert bucket.cat_file("bucket/x.mag") == b"old"


def test_delayed_write_writes_on_every_compute(s3: S3Store, bucket: Any) -> None:
    tasks = to_file(
        make_dataset().chunk(x=500), "s3://bucket/x.mag", compute=False, **get_options(s3)
    )
    assert not bucket.exists("bucket/x.mag")
    tasks.compute()
    tasks.compute(scheduler="synchronous")
    xr.testing.assert_identical(
        open_lazily("s3://bucket/x.mag", **get_options(s3)).load(), make_dataset()
    )


@pytest.mark.parametrize("what", ["uploads", "partNumber=2", "uploadId", "POST"])
def test_store_that_refuses_leaves_old_object(
    s3: S3Store, bucket: Any, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "xr_tensorfmt")
    url = s3.put("x.mag", b"old")
    requests = {"PUT", "POST"} if what != "POST" else {"POST"}
    query = what if what != "POST" else "uploadId"
    s3.refused = lambda environ: (
        environ["REQUEST_METHOD"] in requests and query in environ["QUERY_STRING"]
    )
    with pytest.raises(PermissionError, match=f"the object is as before, unless .*: '{url}'"):
        to_file(make_dataset(6000).chunk(x=500), url, "mag", **get_options(s3))
    s3.refused = lambda environ: False
    assert f"{url}: not uploaded: PermissionError(" in caplog.text
    assert bucket.list_multipart_uploads("bucket") == []
    assert bucket.cat_file("bucket/x.mag") == b"old"


def test_dead_line_in_middle_leaves_old_object(
    s3: S3Store, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.put("x.mag", b"old")
    call = s3fs.S3FileSystem._call_s3

    async def cut(fs: Any, method: str, *more: Any, **options: Any) -> Any:
        if method == "upload_part" and options["PartNumber"] == 2:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        return await call(fs, method, *more, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", cut)
    with pytest.raises(ConnectionResetError, match=f"reset by peer; .* unless .*'{url}'"):
        to_file(make_dataset(6000).chunk(x=500), url, "mag", **get_options(s3))
    assert bucket.list_multipart_uploads("bucket") == []
    assert bucket.cat_file("bucket/x.mag") == b"old"


def test_other_errors_name_object(
    s3: S3Store, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = s3fs.S3FileSystem._call_s3

    async def odd(fs: Any, method: str, *more: Any, **options: Any) -> Any:
        if method == "put_object":
            raise RuntimeError("a library gave up")
        return await call(fs, method, *more, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", odd)
    with pytest.raises(OSError, match=r"RuntimeError: a library gave up; .*'s3://bucket/x.mag'"):
        to_file(make_dataset(10), "s3://bucket/x.mag", **get_options(s3))


def test_options_for_reading_are_accepted(s3: S3Store, bucket: Any) -> None:
    options = s3.options | {"timeout": 60}
    to_file(make_dataset(10), "s3://bucket/a.mag", storage_options=options)
    opened = open_lazily("s3://bucket/a.mag", storage_options=options)
    xr.testing.assert_identical(opened.load(), make_dataset(10))


def test_missing_bucket_is_named(s3: S3Store) -> None:
    for rows in (10, 6000):
        with pytest.raises(FileNotFoundError, match=r"bucket does not exist; .*'s3://none/x.mag'"):
            to_file(make_dataset(rows), "s3://none/x.mag", **get_options(s3))


@pytest.mark.parametrize("rows", [10, 6000], ids=["small", "in parts"])
def test_opened_object_can_be_replaced(s3: S3Store, bucket: Any, rows: int) -> None:
    url = "s3://bucket/x.mag"
    to_file(make_dataset(rows), url, "mag", **get_options(s3))
    again = open_lazily(url, chunks={}, chunk_bytes=4 * MIB, **get_options(s3))
    to_file(again + 1, url, "mag", **get_options(s3))
    xr.testing.assert_equal(open_lazily(url, **get_options(s3)).load(), make_dataset(rows) + 1)


def test_object_in_memory_can_be_replaced(memory: Any) -> None:
    to_file(make_dataset(), "memory://bucket/x.mag")
    again = open_lazily("memory://bucket/x.mag", chunks={}, chunk_bytes=MIB)
    to_file(again + 1, "memory://bucket/x.mag")
    xr.testing.assert_equal(open_lazily("memory://bucket/x.mag").load(), make_dataset() + 1)


EXISTS = "exists already; pass mode='w' or --overwrite to replace it"


def test_mode_x_replaces_no_file(s3: S3Store, bucket: Any, memory: Any) -> None:
    options = {"mode": "x", **get_options(s3)}
    to_file(make_dataset(10), "s3://bucket/x.mag", **options)
    with pytest.raises(FileExistsError, match=f"{EXISTS}; .*: 's3://bucket/x.mag'"):
        to_file(make_dataset(20), "s3://bucket/x.mag", **options)
    to_file(make_dataset(10), "memory://bucket/x.mag", mode="x")
    with pytest.raises(FileExistsError) as caught:
        to_file(make_dataset(20), "memory://bucket/x.mag", mode="x")
    assert caught.value.strerror == f"it {EXISTS}; the target is unchanged"
    assert caught.value.filename == "memory://bucket/x.mag"
    xr.testing.assert_identical(open_lazily("memory://bucket/x.mag").load(), make_dataset(10))


@pytest.mark.parametrize("rows", [10, 6000], ids=["small", "in parts"])
def test_object_created_during_upload_is_not_replaced(s3: S3Store, bucket: Any, rows: int) -> None:
    tasks = to_file(
        make_dataset(rows), "s3://bucket/x.mag", mode="x", compute=False, **get_options(s3)
    )
    s3.put("x.mag", b"another's")
    with pytest.raises(FileExistsError, match=f"{EXISTS}; .*: 's3://bucket/x.mag'"):
        tasks.compute()
    assert bucket.cat_file("bucket/x.mag") == b"another's"


def test_file_created_during_write_is_not_replaced(memory: Any) -> None:
    tasks = to_file(make_dataset(10), "memory://bucket/x.mag", mode="x", compute=False)
    memory.pipe_file("/bucket/x.mag", b"another's")
    with pytest.raises(FileExistsError, match=EXISTS):
        tasks.compute()
    assert memory.cat_file("/bucket/x.mag") == b"another's"
    assert memory.find("/bucket") == ["/bucket/x.mag"]


def test_stores_with_atomic_uploads_get_objects_directly() -> None:
    fs = AppearingStore()
    to_file(make_dataset(), "bucket/x.mag", fs=fs)
    assert list(fs.objects) == ["bucket/x.mag"]
    xr.testing.assert_identical(open_lazily("bucket/x.mag", fs=fs).load(), make_dataset())
    tasks = to_file(make_dataset(10), "bucket/y.mag", fs=fs, mode="x", compute=False)
    fs.objects["bucket/y.mag"] = b"another's"
    with pytest.raises(FileExistsError):
        tasks.compute()
    assert fs.objects["bucket/y.mag"] == b"another's"


def test_file_system_of_obstore_writes_objects_directly(s3: S3Store, bucket: Any) -> None:
    url, options = s3.options["endpoint_url"], {"region": "us-east-1"}
    keys = {"access_key_id": "key", "secret_access_key": "secret", "endpoint": url}
    fs = FsspecStore("s3", config=keys | options, client_options={"allow_http": True})
    data, path = make_dataset(6000), "bucket/x.mag"
    s3.refused = lambda environ: "HTTP_X_AMZ_COPY_SOURCE" in environ
    to_file(data, path, fs=fs)
    assert bucket.find("bucket") == [path]
    xr.testing.assert_identical(open_lazily(path, fs=fs).load(), data)
    to_file(make_dataset(10), path, fs=fs)
    xr.testing.assert_identical(open_lazily(path, fs=fs).load(), make_dataset(10))
    with pytest.raises(FileExistsError, match=EXISTS):
        to_file(data, path, fs=fs, mode="x")
    tasks = to_file(data, "bucket/y.mag", fs=fs, mode="x", compute=False)
    s3.put("y.mag", b"another's")
    with pytest.raises(FileExistsError, match=EXISTS):
        tasks.compute()
    assert bucket.cat_file("bucket/y.mag") == b"another's"
    for factor in (1, 2):  # a set of objects is replaced
        to_file(
            factor * data.a[:9].drop_vars("x").drop_attrs().astype("f8"),
            "bucket/set/x.yaml",
            "cc4s",
            fs=fs,
        )
        read = open_lazily("bucket/set/x.yaml", fs=fs)["a"].values
        np.testing.assert_array_equal(read, data.a[:9] * factor)


@pytest.mark.parametrize("compute", [True, False])
def test_failed_write_creates_no_object(tmp_path: Path, compute: bool) -> None:
    fs = AppearingStore()
    fs.objects["bucket/x.mag"] = b"old"

    def write() -> None:
        with dask.config.set({"temporary-directory": str(tmp_path)}):
            tasks = to_file(make_failing(), "bucket/x.mag", fs=fs, compute=compute)
        tasks.compute(scheduler="synchronous")

    with pytest.raises(ZeroDivisionError):
        write()
    assert fs.objects == {"bucket/x.mag": b"old"}


def test_temporary_file_is_removed_after_failure(memory: Any) -> None:
    memory.pipe_file("/bucket/x.mag", b"old")
    with pytest.raises(ZeroDivisionError):
        to_file(make_failing(), "memory://bucket/x.mag")
    assert memory.find("/bucket") == ["/bucket/x.mag"]
    assert memory.cat_file("/bucket/x.mag") == b"old"


def test_directory_of_store_is_store(memory: Any) -> None:
    to_file(make_dataset(10), "x.mag", fs=DirFileSystem("/bucket", fs=memory))
    xr.testing.assert_identical(open_lazily("memory://bucket/x.mag").load(), make_dataset(10))


def test_local_files_by_other_names_are_written_as_such(tmp_path: Path) -> None:
    path = tmp_path / "x.mag"
    for target, options in (
        (path.as_uri(), {}),
        (f"local://{path}", {}),
        (str(path), {"fs": fsspec.filesystem("file")}),
        (fsspec.open(path.as_uri()), {}),
    ):
        to_file(make_dataset(10), target, **options)
        xr.testing.assert_identical(open_lazily(str(path)).load(), make_dataset(10))
        path.unlink()
    assert list(tmp_path.iterdir()) == []


def test_open_file_of_fsspec_names_object(s3: S3Store, bucket: Any) -> None:
    file = fsspec.open("s3://bucket/x.mag", "wb", **s3.options)
    to_file(make_dataset(10), file)
    xr.testing.assert_identical(
        open_lazily(file.full_name, **get_options(s3)).load(), make_dataset(10)
    )


def test_region_of_object_raises(s3: S3Store, memory: Any) -> None:
    words = "no store can change a part of an object"
    with pytest.raises(ValueError, match=words):
        to_file(
            make_dataset(10), "s3://bucket/x.mag", region={"x": slice(0, 10)}, **get_options(s3)
        )
    with pytest.raises(ValueError, match=words):
        to_file(make_dataset(10), "bucket/x.mag", region={"x": slice(0, 10)}, fs=memory)


def test_region_of_local_url_is_written(tmp_path: Path) -> None:
    url = (tmp_path / "x.mag").as_uri()
    to_file(make_dataset(10), url, "mag")
    to_file(
        (make_dataset(10)[["a"]] + 1).drop_vars("x").isel(x=slice(3, 5)),
        url,
        "mag",
        region={"x": slice(3, 5)},
    )
    np.testing.assert_array_equal(open_lazily(url).a[3:5], make_dataset(10).a[3:5] + 1)


def test_read_only_store_raises(http: HttpStore) -> None:
    with pytest.raises(OSError, match=r"its file system is read-only; write to a local .*x.mag'"):
        to_file(make_dataset(10), f"{http.url}/x.mag")


def test_archives_are_not_written(tmp_path: Path) -> None:
    url = f"zip://inside/x.mag::{tmp_path / 'x.zip'}"
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("README", "text")
    content = (tmp_path / "x.zip").read_bytes()
    for path, fs in ((url, None), ("x.mag", ZipFileSystem(str(tmp_path / "x.zip")))):
        with pytest.raises(OSError, match=r"its file system is read-only; write to a local"):
            to_file(make_dataset(10), path, "mag", fs=fs)
    assert (tmp_path / "x.zip").read_bytes() == content


def test_compressed_files_are_not_written(tmp_path: Path) -> None:
    file = fsspec.open(str(tmp_path / "x.mag"), "wb", compression="gzip")
    with pytest.raises(ValueError, match=r"x\.mag: compression='gzip', but .* omit compression="):
        to_file(make_dataset(10), file)
    assert list(tmp_path.iterdir()) == []


def test_invalid_object_name_raises(s3: S3Store, memory: Any, tmp_path: Path) -> None:
    for url in ("s3://bucket/folder/", "memory://", "s3://bucket"):
        with pytest.raises(
            IsADirectoryError, match="is a directory, expected a file; append a name"
        ):
            to_file(
                make_dataset(10), url, "mag", storage_options=s3.options if url[0] == "s" else None
            )
    with pytest.raises(OSError, match="is read-only; write to a local path, or to the store"):
        to_file(make_dataset(10), "simplecache::memory://bucket/x.mag")
    with pytest.raises(ValueError, match=r"storage_options= is for URLs, but .*x.mag is a"):
        to_file(make_dataset(10), tmp_path / "x.mag", **get_options(s3))
    with pytest.raises(TypeError, match="neither a path nor a URL"):
        to_file(make_dataset(10), b"x.mag")


@pytest.mark.parametrize("compute", [True, False])
def test_directory_of_dask_is_used(memory: Any, tmp_path: Path, compute: bool) -> None:
    missing = str(tmp_path / "missing")

    def write() -> None:
        with dask.config.set({"temporary-directory": missing}):
            tasks = to_file(make_dataset(), "memory://bucket/x.mag", compute=compute)
        tasks.compute()

    with pytest.raises(FileNotFoundError, match="set dask's 'temporary-directory'") as caught:
        write()
    assert missing in str(caught.value)


def test_too_little_local_space_raises_before_computing(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil._ntuple_diskusage(1 << 30, (1 << 30) - 1000, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda directory: usage)
    memory.pipe_file("/bucket/x.mag", b"old")
    words = r"1000 of 24004096 bytes are.*in .*memory://bucket/x.mag.*'temporary-directory'.*space"
    with (
        dask.config.set({"temporary-directory": str(tmp_path)}),
        pytest.raises(OSError, match=words) as caught,
    ):
        to_file(make_failing(), "memory://bucket/x.mag")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path))
    assert memory.cat_file("/bucket/x.mag") == b"old"
    assert list(tmp_path.iterdir()) == []


def test_local_directory_that_fills_up_is_named(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with (
        dask.config.set({"temporary-directory": str(tmp_path)}),
        pytest.raises(OSError, match=r"No space left .*'temporary-directory'") as caught,
    ):
        to_file(make_dataset(10), "memory://bucket/x.mag")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_processes_write_shared_file(s3: S3Store, bucket: Any, tmp_path: Path) -> None:
    options = {"scheduler": "processes", "num_workers": 1, "temporary-directory": str(tmp_path)}
    with dask.config.set(options):
        to_file(make_dataset(300).chunk(x=50, y=500), "s3://bucket/x.mag", **get_options(s3))
    xr.testing.assert_identical(
        open_lazily("s3://bucket/x.mag", **get_options(s3)).load(), make_dataset(300)
    )
    assert list(tmp_path.iterdir()) == []


def test_processes_write_to_memory_of_this_one(memory: Any) -> None:
    with dask.config.set(scheduler="processes"):
        to_file(make_dataset(10), "memory://bucket/x.mag")
    xr.testing.assert_identical(open_lazily("memory://bucket/x.mag").load(), make_dataset(10))


@pytest.mark.parametrize("compute", [True, False])
def test_refused_upload_leaves_no_file_on_disk(
    tmp_path: Path, s3: S3Store, bucket: Any, compute: bool
) -> None:
    def write() -> None:
        with dask.config.set({"temporary-directory": str(tmp_path)}):
            tasks = to_file(
                make_dataset(10), "s3://bucket/x.mag", compute=compute, **get_options(s3)
            )
        tasks.compute()

    s3.refused = lambda environ: environ["REQUEST_METHOD"] == "PUT"
    with pytest.raises(PermissionError, match=r"object is as before, unless .*'s3://bucket/x.mag'"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_worker_that_does_not_see_directory_raises(tmp_path: Path) -> None:
    words = "No such file .*set dask's 'temporary-directory' to a directory that all"
    fs = AppearingStore()
    (tmp_path / "scratch").mkdir()
    with dask.config.set({"temporary-directory": str(tmp_path / "scratch")}):
        tasks = to_file(make_dataset().chunk(x=500), "bucket/x.mag", fs=fs, compute=False)
    (tmp_path / "scratch").rmdir()
    with pytest.raises(FileNotFoundError, match=words):
        tasks.compute()


# Families

RNG = np.random.default_rng(5)
SQUARE = RNG.random((300, 300))
FAMILIES: dict[str, tuple[str, xr.DataArray, dict[str, Any]]] = {
    "tens": (".tens", xr.DataArray(RNG.random((40, 30, 20)), dims=("F", "q", "r")), {}),
    "tens-0.9": (
        ".bin",
        xr.DataArray(RNG.random((40, 30)), dims=("a", "b"), name="tensor"),
        {"version": "0.9"},
    ),
    "pycauset": (".pycauset", xr.DataArray(SQUARE, dims=("row", "col")), {}),
    "pycauset-bits": (".pycauset", xr.DataArray(SQUARE < 0.5, dims=("row", "col")), {}),
    "pycauset-causal": (
        ".pycauset",
        xr.DataArray(np.triu(SQUARE < 0.5, 1), dims=("row", "col")),
        {"matrix_type": "CAUSAL"},
    ),
    "vespa": (".tbf", xr.DataArray(RNG.random((40, 30)), dims=("x", "y"), name="tensor"), {}),
    "vespa-labels": (
        ".tbf",
        xr.DataArray(SQUARE, {"doc": [f"d{i}" for i in range(300)]}, ("doc", "x"), "tensor"),
        {},
    ),
}


@pytest.mark.parametrize("chunks", [None, 7, 100], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_written_to_store(memory: Any, family: str, chunks: int | None) -> None:
    suffix, array, options = FAMILIES[family]
    data = array if chunks is None else array.chunk(chunks).rename(array.name)
    url = f"memory://bucket/file{suffix}"
    to_file(data, url, **options)
    back = xr.open_dataset(url, engine="tensorfmt")
    np.testing.assert_array_equal(back[array.name or "tensor"].values, array.values)
    assert back[array.name or "tensor"].dims == array.dims
    assert len(memory.find("bucket")) == 1


def test_value_below_triangle_creates_no_object(memory: Any) -> None:
    data = xr.DataArray(SQUARE < 0.5, dims=("row", "col")).chunk(100)
    with pytest.raises(ValueError, match="strict upper triangle"):
        to_file(data, "memory://bucket/file.pycauset", matrix_type="CAUSAL")
    assert not memory.find("bucket")


def test_unresponsive_store_is_not_treated_as_missing_object(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe_file("/a.mag", b"kept")

    def fail(*args: object, **kwargs: object) -> None:
        raise TimeoutError(errno.ETIMEDOUT, "no answer")

    monkeypatch.setattr(type(memory), "info", fail)
    with pytest.raises(TimeoutError, match="no answer"):
        to_file(xr.Dataset({"a": ("x", np.ones(3, "f4"))}), "memory://a.mag", mode="x")
    monkeypatch.undo()
    assert memory.cat_file("/a.mag") == b"kept"


def test_parts_of_an_upload_are_small(s3: S3Store) -> None:
    lengths = []

    def record(environ: dict, answer: Any) -> Any:
        if "partNumber" in environ["QUERY_STRING"]:
            lengths.append(int(environ["CONTENT_LENGTH"]))
        return answer()

    url = s3.put("parts.mag", b"")
    s3.fault = record
    ds = xr.Dataset({"a": (("x", "y"), np.full((20, 1 << 18), 7, "f4"))})
    to_file(ds, url, storage_options=s3.options)
    assert sum(lengths) > 20 << 20
    assert max(lengths) <= 8 << 20
