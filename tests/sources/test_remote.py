"""Reading from stores: values, requests and bytes."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import dask
import fsspec
import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.memory import MemoryFileSystem

from tests import magfiles as mf
from tests import tensfiles as tf
from tests import vespafiles as vf
from tests.families import FILES, SHAPE, make_values
from tests.opening import load, open_tensor
from tests.servers import Handler, HttpStore, MemoryStore, S3Store, Store
from xr_tensorfmt import SourceChangedError, to_file
from xr_tensorfmt.datasets.lazy_array import find_lazy_tensor
from xr_tensorfmt.sources.local import LocalFile
from xr_tensorfmt.sources.locations import Location
from xr_tensorfmt.sources.requests import MAX_REQUESTS, Version, run_all
from xr_tensorfmt.sources.stores import HEAD_BYTES, MAX_GAP, MAX_PART, RemoteFile

MIB = 1 << 20


AT_THE_END = ("pycauset-dense", "pycauset-bits", "pycauset-triangle")
"""Their metadata follows the values."""

PASSED_OVER = ("vespa-irregular.tbf", "vespa-uniform.tbf")
"""Their blocks are looked for, or at some of them."""

AT_MOST = ("tens-pairs", "pycauset-bits", "pycauset-triangle", *PASSED_OVER)
"""What is read of them depends on what is read first, or on how many points there are in a row."""


@pytest.fixture(params=["http", "s3", "memory"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "memory":
        with MemoryStore().running() as memory:
            yield memory
    else:
        yield request.getfixturevalue(request.param)


def open_remote(store: Store, url: str, **keywords: Any) -> xr.Dataset:
    dataset = xr.open_dataset(
        url, engine="tensorfmt", storage_options=store.options or None, **keywords
    )
    store.log.clear()
    return dataset


def open_local(content: bytes, **keywords: Any) -> xr.Dataset:
    magics = (b"TENS", b"MAG", b"PYCAUSET", b"\x93NUMPY", b"PK")
    nameless = "safetensors" if content[8:10] == b'{"' else "vespa"
    keywords["format"] = None if content.startswith(magics) else nameless
    return xr.open_dataset(memoryview(content), engine="tensorfmt", **keywords)


@pytest.mark.parametrize("family", FILES)
def test_opening_sends_two_requests_and_one_for_metadata_at_end(store: Store, family: str) -> None:
    content = FILES[family]()
    url = store.put(family, content)
    open_remote(store, url)  # s3fs requests the region of the bucket once
    xr.open_dataset(url, engine="tensorfmt", storage_options=store.options)
    (head, *more) = store.log.gets
    # Requests to fsspec's memory have no condition, so the version is compared after a read.
    assert store.log.heads == 1 or (
        isinstance(store, MemoryStore) and store.log.heads <= 1 + len(more)
    )
    assert head == (0, HEAD_BYTES)
    if family in AT_THE_END:
        (metadata,) = more
        assert sum(metadata) == len(content)
        assert metadata[1] < 2000
    elif family == "npz-several":
        # For the directory, and for each array after the first bytes.
        assert len(more) == 3
        assert sum(length for _, length in more) <= 80_000
    elif family in PASSED_OVER:
        # Once to find the blocks, and once for the labels of an index.
        assert sum(length for _, length in more) <= 2 * len(content)
    else:
        assert more == []


@pytest.mark.parametrize("family", FILES)
def test_values_equal_local_file(store: Store, family: str) -> None:
    content = FILES[family]()
    remote = open_remote(store, store.put(family, content))
    xr.testing.assert_identical(remote.load(), open_local(content).load())


def iterate_selections(dataset: xr.Dataset) -> Iterator[tuple[str, xr.Dataset]]:
    largest = max(dataset.data_vars, key=lambda name: dataset[name].size)
    tensor = dataset[[largest]]
    dims = tensor[largest].dims
    points = {dim: xr.DataArray([0, 3, 3, 1], dims="point") for dim in dims}
    yield "a slab along the last axis", tensor.isel({dims[-1]: slice(3, 5)})
    yield "a slab along the first axis", tensor.isel({dims[0]: slice(3, 5)})
    yield "one column", tensor.isel(dict.fromkeys(dims[1:], 3))
    yield "scattered points", tensor.isel(points)
    yield "scattered rows", tensor.isel({dims[0]: [1, 30, 2]})
    yield "a point for each of an axis", tensor.isel({dim: points[dim] for dim in dims[:2]})
    yield "nothing", tensor.isel({dims[0]: slice(0, 0)})


@pytest.mark.parametrize("family", FILES)
def test_selection_sends_the_explained_requests(store: Store, family: str) -> None:
    content = FILES[family]()
    remote = open_remote(store, store.put(family, content))
    for (what, lazy), (_, eager) in zip(
        iterate_selections(remote), iterate_selections(open_local(content).load()), strict=True
    ):
        explained = lazy.tensorfmt.explain()
        assert not store.log.gets
        xr.testing.assert_identical(lazy.load(), eager)
        planned = [(a, b - a) for read in explained.reads for _, a, b in read.request_ranges]
        if family not in AT_MOST:
            assert sorted(store.log.gets) == sorted(planned), what
            assert store.log.fetched == explained.fetched_bytes
        elif family != "tens-pairs":
            # A read also includes the labels of a block, which precede its cells.
            assert store.log.fetched <= explained.fetched_bytes + 4096
        assert explained.needed_bytes <= explained.fetched_bytes
        store.log.clear()


@pytest.mark.parametrize("family", FILES)
def test_chunks_send_the_explained_requests(store: Store, family: str) -> None:
    content = FILES[family]()
    remote = open_remote(store, store.put(family, content), chunks={}, chunk_bytes=MIB // 2)
    explained = remote.tensorfmt.explain()
    with dask.config.set(scheduler="threads", num_workers=4):
        values = remote.compute()
    xr.testing.assert_identical(values, open_local(content).load())
    if family not in AT_MOST:
        planned = [(a, b - a) for read in explained.reads for _, a, b in read.request_ranges]
        assert sorted(store.log.gets) == sorted(planned)
        assert explained.fetched_bytes == explained.needed_bytes
        assert not store.log.heads or isinstance(store, MemoryStore)


def test_one_chunk_is_its_bytes_in_parts(store: Store) -> None:
    values = np.arange(4 * MIB, dtype="f8").reshape(1024, 4096)
    tensor = open_remote(store, store.put("chunk", tf.make_0_9(values)), chunks={}).tensor
    np.testing.assert_array_equal(tensor, values)
    starts = [48 + number * 2 * MIB for number in range(16)]
    assert sorted(store.log.gets) == [(start, 2 * MIB) for start in starts]
    # A memory store has no conditions, so each batch is followed by a request for the version.
    assert bool(store.log.heads) == isinstance(store, MemoryStore)


def test_column_is_one_request_and_row_skips_no_more_than_it_may(store: Store) -> None:
    values = np.arange(4 * MIB, dtype="f8").reshape(256 << 10, 16)  # columns of 2 MiB
    tensor = open_remote(store, store.put("column", tf.make_0_9(values))).tensor
    np.testing.assert_array_equal(tensor[:1024, 7], values[:1024, 7])
    assert store.log.gets == [(48 + 7 * 2 * MIB, 8192)]
    store.log.clear()
    np.testing.assert_array_equal(tensor[100], values[100])
    assert sorted(store.log.gets) == [(848 + n * 2 * MIB, 8) for n in range(16)]


def test_near_points_share_request_and_far_ones_do_not(store: Store) -> None:
    values = np.arange(MIB, dtype="f8")
    tensor = open_remote(store, store.put("points", tf.make_0_9(values))).tensor
    near = MAX_GAP // 8
    assert tensor.values.nbytes == 8 * MIB
    tensor = open_remote(store, store.put("points", tf.make_0_9(values))).tensor
    picked = [10, 10 + near, 500_000, 500_001, 500_001 + near + 2]
    np.testing.assert_array_equal(tensor.isel(a=picked), values[picked])
    assert sorted(store.log.gets) == [
        (40 + 80, MAX_GAP + 8),
        (40 + 4_000_000, 16),
        (40 + 8 * (500_001 + near + 2), 8),
    ]


def test_pairs_are_passed_over_once_in_large_windows(store: Store) -> None:
    content = FILES["tens-pairs"]()
    tensor = open_remote(store, store.put("pairs", content)).tensor
    eager = open_local(content).tensor.load()
    assert tensor[0, 0, 0] == eager[0, 0, 0]
    scanned, store.log.gets[:] = list(store.log.gets), []
    assert sum(length for _, length in scanned) <= 2 * len(content)
    assert len(scanned) <= 4
    np.testing.assert_array_equal(tensor[3, 7], eager[3, 7])
    assert store.log.fetched <= len(content)


def test_long_header_needs_few_requests(store: Store) -> None:
    puts = {f"layer.{number:05}.weight": mf.put(np.ones(1, "f4")) for number in range(3000)}
    content = mf.make_archive(puts)
    header = content.index(np.ones(1, "f4").tobytes() + b"\xff" * 60)
    assert header > 2 * HEAD_BYTES
    url = store.put("many", content)
    open_remote(store, url)
    dataset = xr.open_dataset(url, engine="tensorfmt", storage_options=store.options)
    assert len(dataset.data_vars) == 3000
    assert len(store.log.gets) == 2
    first, second = store.log.gets
    assert first == (0, HEAD_BYTES)
    assert 0 <= HEAD_BYTES - second[0] < 64  # a field that the first bytes cut is fetched whole


def test_no_more_requests_are_in_flight_than_limit(http: HttpStore) -> None:
    values = np.zeros(12 * MIB)
    url = http.put("large", tf.make_0_9(values))
    tensor = open_remote(http, url, chunks={}, chunk_bytes=8 * MIB).tensor
    with dask.config.set(scheduler="threads", num_workers=8):
        assert tensor.sum() == 0
    assert 2 <= http.log.most_in_flight <= MAX_REQUESTS
    assert all(length <= MAX_PART for _, length in http.log.gets)
    assert http.log.fetched == values.nbytes


def test_pickled_dataset_is_small_and_readable(store: Store) -> None:
    content = FILES["mag-archive"]()
    dataset = open_remote(store, store.put("pickled", content))
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 4000
    xr.testing.assert_identical(pickle.loads(pickled).load(), open_local(content).load())


def test_graph_of_ten_thousand_chunks_stays_small(http: HttpStore) -> None:
    url = http.put("chunks", tf.make_0_9(np.zeros((16, 10_000))))
    tensor = open_remote(http, url, chunks={}, chunk_bytes=128).tensor
    assert tensor.data.npartitions == 10_000
    assert len(pickle.dumps(tensor.data)) < 200_000
    assert not http.log.gets


def test_variables_load_concurrently(http: HttpStore) -> None:
    values = {f"w{number}": mf.put(np.full(32_768, number, "f4")) for number in range(MAX_REQUESTS)}
    content = mf.make_archive(values)
    dataset = open_remote(http, http.put("async", content))
    together = Barrier(MAX_REQUESTS, timeout=60)

    def wait_for_each_other(_: Handler, content: bytes, start: int, stop: int) -> bool:
        together.wait()
        return False

    http.trouble = wait_for_each_other
    loaded = asyncio.run(dataset.load_async())
    xr.testing.assert_identical(loaded, open_local(content).load())
    assert http.log.most_in_flight == MAX_REQUESTS


@pytest.mark.parametrize("chunks", [None, {}])
def test_replaced_object_is_detected(store: Store, chunks: dict | None) -> None:
    url = store.put("replaced", tf.make_0_9(make_values()))
    before = open_remote(store, url, chunks=chunks).tensor
    store.put("replaced", tf.make_0_9(make_values() + 1))
    with pytest.raises(SourceChangedError, match="it has been replaced since it was opened"):
        before[0].compute()
    after = open_remote(store, url, chunks=chunks).tensor
    np.testing.assert_array_equal(after, make_values() + 1)


def test_replaced_object_has_another_name_in_dask_if_chunked_later(store: Store) -> None:
    url = store.put("named", tf.make_0_9(make_values()))
    before = open_remote(store, url).tensor.chunk().data.name
    assert before == open_remote(store, url).tensor.chunk().data.name
    store.put("named", tf.make_0_9(make_values() + 1))
    assert before != open_remote(store, url).tensor.chunk().data.name


@pytest.mark.parametrize("open_any", [xr.open_dataset, xr.open_datatree])
@pytest.mark.parametrize("attrs", [{}, {"units": "K"}])
def test_replaced_object_is_not_mixed_up_by_dask(open_any: Any, attrs: dict[str, str]) -> None:
    """With the default names of xarray, the difference would be 0."""
    arrays = []
    for value in (0.0, 1.0):
        ds = xr.Dataset({"w": ("x", np.full(4, value, "f4"), attrs)})
        to_file(ds, "memory://replaced/a.mag", mode="w")
        arrays.append(open_any("memory://replaced/a.mag", engine="tensorfmt", chunks={})["w"])
    with pytest.raises(SourceChangedError):
        (arrays[1] - arrays[0]).compute()
    with pytest.raises(SourceChangedError):
        (arrays[0] - arrays[1]).compute()


def test_trees_and_groups_open_from_stores(store: Store) -> None:
    content = FILES["mag-archive"]()
    url = store.put("tree", content)
    tree = xr.open_datatree(url, engine="tensorfmt", storage_options=store.options, chunks={})
    np.testing.assert_array_equal(tree["w/a"], open_local(content)["w.a"])
    groups = xr.open_groups(url, engine="tensorfmt", storage_options=store.options, chunks={})
    np.testing.assert_array_equal(groups["/w"]["b"], open_local(content)["w.b"])


def test_open_file_of_fsspec_and_file_system_will_do(store: Store) -> None:
    content = FILES["tens-0.9"]()
    url = store.put("ways", content)
    expected = open_local(content).load()
    file = fsspec.open(url, **store.options)
    by_file = xr.open_dataset(file, engine="tensorfmt")
    fs, path = fsspec.url_to_fs(url, **store.options)
    store.log.clear()
    xr.testing.assert_identical(by_file.load(), expected)
    xr.testing.assert_identical(load(path, fs=fs), expected)
    assert store.log.gets
    assert all(length > 0 for _, length in store.log.gets)


def test_many_objects_become_one_dataset(store: Store) -> None:
    for number in range(3):
        url = store.put(f"many/{number}.bin", tf.make_0_9(make_values() + number))
    fs, path = fsspec.url_to_fs(url, **store.options)
    if isinstance(store, HttpStore):
        urls = [f"{url.removesuffix('2.bin')}{number}.bin" for number in range(3)]
    else:
        urls = [fs.unstrip_protocol(item) for item in fs.glob(path.replace("2.bin", "*.bin"))]
    many = xr.open_mfdataset(
        urls,
        engine="tensorfmt",
        combine="nested",
        concat_dim="n",
        storage_options=store.options,
    )
    assert many.tensor.shape == (3, *SHAPE)
    np.testing.assert_array_equal(many.tensor[2], make_values() + 2)


def test_listing_from_before_does_not_hide_replaced_object(s3: S3Store) -> None:
    url = s3.put("listed/t.bin", tf.make_0_9(make_values()))
    fs, _ = fsspec.url_to_fs(url, **s3.options)
    fs.ls("bucket/listed", detail=True)
    s3.put("listed/t.bin", tf.make_0_9(make_values()[:3]))
    tensor = open_tensor("bucket/listed/t.bin", fs=fs)
    np.testing.assert_array_equal(tensor, make_values()[:3])


@pytest.mark.parametrize("size", [0, 1, 40])
def test_tiny_objects_raise_by_their_content(store: Store, size: int) -> None:
    url = store.put("tiny", b"TENS"[:size].ljust(size, b"\0"))
    with pytest.raises(ValueError, match="expected"):
        open_remote(store, url)


def test_guessing_asks_no_store(store: Store) -> None:
    from xr_tensorfmt import TensorFormatBackend  # noqa: PLC0415

    url = store.put("guess", FILES["tens-0.9"]())
    store.log.clear()
    backend = TensorFormatBackend()
    assert not backend.guess_can_open(url)
    assert not backend.guess_can_open(f"simplecache::{url}")
    assert not backend.guess_can_open(fsspec.open(url, **store.options))
    assert not store.log.gets
    assert not store.log.heads


def test_source_is_equal_to_its_copy_and_small() -> None:
    source = RemoteFile(Location("memory://x", MemoryStore().fs, "/x"), 5, Version(5, "etag"))
    copy = pickle.loads(pickle.dumps(source))
    assert copy == source
    assert len(pickle.dumps(source)) < 500


def test_local_copy_spares_pass_over_blocks_its_requests(tmp_path: Path) -> None:
    content = FILES["vespa-irregular.tbf"]()
    keywords = {"engine": "tensorfmt", "sparse": "stored"}
    with MemoryStore().running() as store:
        url = "simplecache::" + store.put("x.tbf", content)
        keywords["storage_options"] = {"simplecache": {"cache_storage": str(tmp_path)}}
        xr.open_dataset(url, **keywords)
        store.log.clear()
        again = xr.open_dataset(url, **keywords)
        xr.testing.assert_identical(again, open_local(content, sparse="stored"))
        assert not store.log.gets


def test_scan_writes_no_results_to_disk(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'index_cache' is not a keyword of the engine"):
        open_local(FILES["vespa-irregular.tbf"](), index_cache=tmp_path)


@pytest.mark.parametrize("sparse", ["auto", "dense"])
@pytest.mark.parametrize("mapped", [["x"], ["x", "z"]], ids=["one", "two"])
def test_labels_of_unequal_length_are_fetched_once(
    http: HttpStore, monkeypatch: pytest.MonkeyPatch, mapped: list[str], sparse: str
) -> None:
    # Several windows, without losing labels at their bounds.
    monkeypatch.setattr("xr_tensorfmt.formats.vespa.spec.WINDOW_BYTES", 1 << 16)
    addresses = [(f"label {i**3} {i % 7 * 'long '}", "") for i in range(4_000)]
    values = np.arange(4_000 * 5.0, dtype="f4").reshape(4_000, 5)
    rows = [address[: len(mapped)] for address in addresses]
    content = vf.make_tensor("float", mapped, {"y": 5}, rows, values)
    url = http.put("unequal.tbf", content)
    ds = xr.open_dataset(url, engine="tensorfmt", sparse=sparse)
    fetched = http.log.fetched
    assert fetched <= len(content) + (64 << 10) + (6 << 10)
    assert ds.x.values.tolist() == [address[0] for address in addresses]
    if sparse == "dense" or len(mapped) == 1:
        assert http.log.fetched == fetched
    assert pickle.loads(pickle.dumps(ds)).x.values.tolist() == ds.x.values.tolist()
    assert ds.tensor[2_345, ..., 3] == values[2_345, 3]


def test_one_part_that_fails_fails_read(http: HttpStore) -> None:
    values = np.zeros(4 * MIB)

    def last_part(handler: Handler, content: bytes, start: int, stop: int) -> bool:
        if stop == len(content):
            handler.answer(500, b"out of order")
        return stop == len(content)

    tensor = open_tensor(http.put("part", tf.make_0_9(values)))
    http.trouble = last_part
    with pytest.raises(OSError, match="the server answered 500"):
        tensor.values  # noqa: B018


def test_wrong_options_of_a_store_are_named(http: HttpStore) -> None:
    url = http.put("t", tf.make_0_9(np.ones((2, 2))))
    with pytest.raises(TypeError, match="argument 'annon'"):
        xr.open_dataset(url, engine="tensorfmt", storage_options={"annon": True})
    with pytest.raises(OSError, match="Port out of range"):
        xr.open_dataset("http://127.0.0.1:99999/a.tens", engine="tensorfmt")


def test_missing_object_raises_file_not_found(http: HttpStore, s3: S3Store) -> None:
    s3.put("there", b"")
    with pytest.raises(FileNotFoundError):
        open_tensor(f"{http.url}/missing")
    with pytest.raises(FileNotFoundError):
        open_tensor("s3://bucket/missing", storage_options=s3.options)
    with pytest.raises(FileNotFoundError):
        open_tensor("memory://missing")


def test_folder_raises() -> None:
    MemoryFileSystem().pipe_file("/folder/x", b"TENS")
    with pytest.raises((IsADirectoryError, FileNotFoundError)):
        open_tensor("memory://folder")


def test_file_url_is_local_file(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    path.write_bytes(tf.make_0_9(make_values()))
    for file, keywords in (
        (f"file://{path}", {}),
        (fsspec.open(str(path)), {}),
        (str(path), {"fs": fsspec.filesystem("file")}),
    ):
        tensor = open_tensor(file, **keywords)
        np.testing.assert_array_equal(tensor, make_values())
        tensor = find_lazy_tensor(open_tensor(file, **keywords).variable).array
        assert isinstance(tensor.source, LocalFile)


@pytest.mark.parametrize(
    ("file", "keywords", "error", "words"),
    [
        (
            "/a",
            {"storage_options": {"anon": True}},
            ValueError,
            "storage_options= applies only to URLs",
        ),
        ("memory://a", {"storage_options": "anon"}, TypeError, "must be a mapping .*, not a str"),
        (
            "/a",
            {"fs": "s3"},
            TypeError,
            "file system of fsspec, for example obstore.fsspec.FsspecStore, not a str",
        ),
        (b"TENS", {"fs": MemoryFileSystem()}, TypeError, "needs the path of a file in it"),
        ("nowhere://a", {}, FileNotFoundError, "fsspec knows no protocol 'nowhere'"),
        ("memory://a", {"io": "fast"}, ValueError, "io='fast' is not one of"),
        (
            "/a",
            {"fs": MemoryFileSystem(), "storage_options": {"a": 1}},
            ValueError,
            "already has a file system",
        ),
    ],
)
def test_invalid_arguments_raise(file, keywords, error, words) -> None:
    with pytest.raises(error, match=words):
        xr.open_dataset(file, engine="tensorfmt", **keywords)


def test_compressed_open_files_raise() -> None:
    MemoryFileSystem().pipe_file("/t.gz", b"x")
    with pytest.raises(ValueError, match=r"compression='gzip', but .* decompress the file"):
        open_tensor(fsspec.open("memory://t.gz", compression="gzip"))


def test_store_without_object_size_raises() -> None:
    class Silent(MemoryFileSystem):
        def info(self, path: str, **_: Any) -> dict[str, Any]:
            return {"name": path, "size": None, "type": "file"}

    fs = Silent(skip_instance_cache=True)
    fs.pipe_file("/t", FILES["tens-0.9"]())
    with pytest.raises(ValueError, match="does not report the size of the object"):
        open_tensor("/t", fs=fs)


def test_many_threads_read_concurrently(http: HttpStore) -> None:
    url = http.put("threads", tf.make_0_9(make_values()))
    tensor = open_tensor(url)
    picks = xr.DataArray(np.arange(40) % 7, dims="p")
    expected = make_values()[:, np.arange(40) % 7, np.arange(40) % 7]

    def read(_: int) -> bool:
        return bool((tensor.isel(b=picks, c=picks).values.T == expected.T).all())

    with ThreadPoolExecutor(40) as threads:
        assert all(threads.map(read, range(40)))


def test_calls_stop_at_first_error() -> None:
    taken = []

    def items() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    def start(number: int) -> Future[None]:
        future: Future[None] = Future()
        if number == 3:
            future.set_exception(KeyError(number))
        else:
            future.set_result(None)
        return future

    with pytest.raises(KeyError):
        run_all(start, items())
    assert len(taken) <= 4 + 2 * MAX_REQUESTS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_process_reads_with_own_threads(http: HttpStore) -> None:
    tensor = open_tensor(http.put("fork", tf.make_0_9(make_values())))
    tensor[0].values  # noqa: B018  # threads and connections are there
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, pickle.dumps(float(tensor.values.sum())))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    assert pickle.loads(answer) == float(tensor.values.sum())
