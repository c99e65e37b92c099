"""Caches of fsspec before a URL: values, requests and errors."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.cached import CachingFileSystem

from tests import tensfiles as tf
from tests.opening import open_tensor
from tests.servers import HttpStore, S3Store
from xr_tensorfmt import SourceChangedError, StoreUnavailableError

# fsspec leaves files of block caches open until garbage collection.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"
    ),
]

MIB = 1 << 20
CACHES = ["simplecache", "filecache", "blockcache"]
caches = pytest.mark.parametrize("cache", CACHES)
whole_caches = pytest.mark.parametrize("cache", CACHES[:2])


@pytest.fixture(params=["http", "s3"])
def store(request: pytest.FixtureRequest) -> Iterator[HttpStore | S3Store]:
    fixture = request.getfixturevalue(request.param)
    fixture.log.clear()
    yield fixture
    CachingFileSystem.clear_instance_cache()


def make_values(number: float = 0.0, side: int = 300) -> np.ndarray:
    return np.arange(float(side**2)).reshape(side, side) + number


def make_options(store: HttpStore | S3Store, cache: str, folder: Path) -> dict[str, Any]:
    protocol = "s3" if isinstance(store, S3Store) else "http"
    return {protocol: store.options, cache: {"cache_storage": str(folder)}}


def remove(directory: Path) -> None:
    """Remove a directory, into which fsspec may write metadata meanwhile."""
    while directory.exists():
        shutil.rmtree(directory, ignore_errors=True)


def open_elsewhere(
    cache: str, store: HttpStore | S3Store, content: bytes, folder: Path, **settings: Any
) -> Any:
    """Return a function that opens an object as another process would."""
    url = store.put("cached.bin", content)

    def opened(**options: Any) -> Any:
        for item in (CachingFileSystem, *CachingFileSystem.__subclasses__()):
            item.clear_instance_cache()
        given = make_options(store, cache, folder)
        given[cache] |= settings
        return open_tensor(f"{cache}::{url}", storage_options=given, **options)

    return opened


@caches
@pytest.mark.parametrize("chunks", [None, {}], ids=["at once", "chunks"])
def test_values_are_correct_and_second_opening_fetches_none(
    store: Any, cache: str, tmp_path: Path, chunks: Any
) -> None:
    opened = open_elsewhere(cache, store, tf.make_0_9(make_values()), tmp_path)
    tensor = opened(chunks=chunks, **({} if chunks is None else {"chunk_bytes": 100_000}))
    np.testing.assert_array_equal(tensor, make_values())
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(tensor))[5:9, ::-7], make_values()[5:9, ::-7]
    )
    store.log.clear()
    np.testing.assert_array_equal(opened(chunks=chunks), make_values())
    assert store.log.gets == []


def test_cache_of_blocks_fetches_only_some(http: HttpStore, tmp_path: Path) -> None:
    requested = make_values(side=2000)
    tensor = open_elsewhere("blockcache", http, tf.make_0_9(requested), tmp_path)()
    assert 0 < http.log.fetched <= 5 * MIB
    np.testing.assert_array_equal(tensor[:, 1990:], requested[:, 1990:])
    assert http.log.fetched <= 15 * MIB < tensor.nbytes
    assert http.log.heads < 10


@whole_caches
def test_copy_is_read_after_object_was_replaced(store: Any, cache: str, tmp_path: Path) -> None:
    opened = open_elsewhere(cache, store, tf.make_0_9(make_values()), tmp_path)
    before = opened()
    store.put("cached.bin", tf.make_0_9(make_values(1.0, 310)))
    store.log.clear()
    for tensor in (before, opened()):
        np.testing.assert_array_equal(tensor, make_values())
    assert store.log.gets == []


def test_copy_that_fsspec_checks_is_fetched_again(s3: S3Store, tmp_path: Path) -> None:
    opened = open_elsewhere("filecache", s3, tf.make_0_9(make_values()), tmp_path, check_files=True)
    np.testing.assert_array_equal(opened(chunks={}), make_values())
    s3.put("cached.bin", tf.make_0_9(make_values(1.0, 310)))
    np.testing.assert_array_equal(opened(chunks={}), make_values(1.0, 310))


def test_copy_of_another_size_raises(http: HttpStore, tmp_path: Path) -> None:
    content = pickle.dumps(
        open_elsewhere("filecache", http, tf.make_0_9(make_values()), tmp_path)()
    )
    remove(tmp_path)  # like a worker with another disk
    http.put("cached.bin", tf.make_0_9(make_values(1.0, 310)))
    with pytest.raises(SourceChangedError, match="768848 bytes, expected 720048"):
        pickle.loads(content).load()


@caches
@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, PermissionError), (404, FileNotFoundError), (500, StoreUnavailableError)],
)
def test_status_is_same_error_with_cache(
    http: HttpStore, cache: str, tmp_path: Path, status: int, kind: type[OSError]
) -> None:
    opened = open_elsewhere(cache, http, tf.make_0_9(make_values()), tmp_path)
    http.status = status
    with pytest.raises(kind, match=f"the server answered {status}|no such object") as caught:
        opened()
    assert type(caught.value) is kind
    http.status = 0
    tensor = opened()
    remove(tmp_path)
    http.status = status
    with pytest.raises(kind, match=f"the server answered {status}|no such object") as caught:
        tensor.load()
    assert type(caught.value) is kind


def test_compressed_object_is_read_through_cache(tmp_path: Path, memory: Any) -> None:
    with fsspec.open("memory://bucket/t.bin.gz", "wb", compression="gzip") as file:
        file.write(tf.make_0_9(make_values()))
    options = {"simplecache": {"cache_storage": str(tmp_path), "compression": "gzip"}}
    tensor = open_tensor("simplecache::memory://bucket/t.bin.gz", storage_options=options)
    np.testing.assert_array_equal(tensor, make_values())


def test_cache_downloads_once_however_many_parts_are_read(http: HttpStore, tmp_path) -> None:
    url = "simplecache::" + http.put("once", tf.make_0_9(np.zeros(4 * MIB)))
    options = {"simplecache": {"cache_storage": str(tmp_path)}}
    open_tensor(url, storage_options=options).load()
    # Some versions of fsspec check its existence by the same request.
    assert http.log.gets in ([(0, -1)], [(0, -1)] * 2)


@pytest.mark.parametrize("cache", ["simplecache", "filecache"])
def test_files_are_downloaded_concurrently_and_each_once(
    cache: str, memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads: list[str] = []
    together, get_file = Barrier(4, timeout=30), type(memory).get_file

    def download(fs: Any, path: str, *arguments: Any, **options: Any) -> Any:
        downloads.append(path)
        if cache == "simplecache":
            together.wait()
        return get_file(fs, path, *arguments, **options)

    monkeypatch.setattr(type(memory), "get_file", download)
    for number in range(4):
        memory.pipe_file(f"/{number}.bin", tf.make_0_9(make_values(number)))
    options = {cache: {"cache_storage": str(tmp_path)}}

    def load(number: int) -> np.ndarray:
        url = f"{cache}::memory://{number % 4}.bin"
        return open_tensor(url, storage_options=options).values

    with ThreadPoolExecutor(8) as threads:
        for number, values in enumerate(threads.map(load, range(8))):
            np.testing.assert_array_equal(values, make_values(number % 4))
    # Threads of fsspec may lose the metadata of a filecache, which is filled again then.
    expected = [f"/{number}.bin" for number in range(4)]
    assert sorted(downloads if cache == "simplecache" else set(downloads)) == expected
