"""Stores that fail, and arguments that do not fit: a clear error, and never wrong data."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import fsspec
import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.memory import MemoryFileSystem

from tests import tensfiles as tf
from tests.families import FILES, numbers
from tests.opening import tensor_of
from tests.servers import Handler, HttpStore, MemoryStore, S3Store
from xr_tensorfmt import SourceChangedError, StoreUnavailableError, TensorFormatError
from xr_tensorfmt.core.extents import Extents
from xr_tensorfmt.datasets.lazy_array import unwrap
from xr_tensorfmt.errors import TensorFormatError as FormatError
from xr_tensorfmt.sources.local import LocalFile
from xr_tensorfmt.sources.locations import Location
from xr_tensorfmt.sources.remote import HEAD_BYTES, open_remote
from xr_tensorfmt.sources.requests import Version
from xr_tensorfmt.sources.threads import MAX_REQUESTS, StoreThreads

MIB = 1 << 20


def server_error(handler: Handler, content: bytes, start: int, stop: int) -> bool:
    handler.answer(500, b"out of order")
    return True


def cut_connection(handler: Handler, content: bytes, start: int, stop: int) -> bool:
    headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
    handler.answer(206, content[start : (start + stop) // 2], stop - start, headers)
    handler.close_connection = True
    return True


def too_little(handler: Handler, content: bytes, start: int, stop: int) -> bool:
    handler.partial(content, start, stop - 1)
    return True


def too_much(handler: Handler, content: bytes, start: int, stop: int) -> bool:
    handler.partial(content, start, min(stop + 1, len(content)))
    return True


def another_range(handler: Handler, content: bytes, start: int, stop: int) -> bool:
    handler.partial(content, max(0, start - 8), stop - 8)
    return True


def whole_file(handler: Handler, content: bytes, start: int, stop: int) -> bool:
    handler.answer(200, content)
    return True


def gone(handler: Handler, content: bytes, start: int, stop: int) -> bool:
    handler.answer(404, b"")
    return True


def no_content_range(handler: Handler, content: bytes, start: int, stop: int) -> bool:
    handler.answer(206, content[start:stop])
    return True


def false_length(handler: Handler, content: bytes, start: int, stop: int) -> bool:
    headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
    handler.answer(206, content[start:] + content, headers=headers)
    return True


TROUBLES: list[tuple[Callable, type[Exception], str]] = [
    (
        server_error,
        StoreUnavailableError,
        "the server answered 500 Internal Server Error, while bytes .* requested 5 times in",
    ),
    (
        cut_connection,
        StoreUnavailableError,
        "ClientPayloadError: .*not completed.*, while bytes .* requested 5 times in",
    ),
    (too_little, TensorFormatError, "the store sent another number of bytes than were requested"),
    (too_much, OSError, "the server sent the range"),
    (false_length, OSError, "the server sent 2688056 bytes instead of"),
    (another_range, OSError, "the server sent the range"),
    (whole_file, OSError, "the server sent the whole file .* does not serve byte ranges"),
    (gone, FileNotFoundError, "the server answered 404 Not Found, while bytes"),
    (no_content_range, OSError, "the server sent the range ''"),
]


@pytest.mark.parametrize(
    ("trouble", "error", "words"), TROUBLES, ids=[each[0].__name__ for each in TROUBLES]
)
def test_a_store_that_fails_gives_a_clear_error(
    http: HttpStore, trouble: Callable, error: type[Exception], words: str
) -> None:
    url = http.put("trouble", tf.version_0_9(numbers()))
    tensor = tensor_of(url)
    http.trouble = trouble
    with pytest.raises(error, match=words) as caught:
        tensor[:, 20:30, 40:].values  # noqa: B018
    named = caught.value.path if isinstance(caught.value, FormatError) else caught.value.filename
    assert named == url
    http.trouble = None
    np.testing.assert_array_equal(tensor, numbers())


AT_OPENING: dict[Callable, tuple[type[Exception], str]] = {
    **{trouble: (error, words) for trouble, error, words in TROUBLES},
    too_little: (SourceChangedError, "65535 first bytes, expected 1966136 bytes in all"),
    another_range: (SourceChangedError, "65528 first bytes, expected 1966136 bytes in all"),
    false_length: (OSError, "the server sent 3932272 bytes instead of bytes 0 to 65535"),
}


@pytest.mark.parametrize("trouble", AT_OPENING, ids=lambda each: each.__name__)
def test_a_store_that_fails_at_opening_gives_a_clear_error(
    http: HttpStore, trouble: Callable
) -> None:
    url = http.put("trouble", tf.version_0_9(numbers()))
    http.trouble = trouble
    error, words = AT_OPENING[trouble]
    with pytest.raises(error, match=words):
        tensor_of(url)


def test_one_part_that_fails_fails_the_read(http: HttpStore) -> None:
    values = np.zeros(4 * MIB)

    def last_part(handler: Handler, content: bytes, start: int, stop: int) -> bool:
        return stop == len(content) and server_error(handler, content, start, stop)

    tensor = tensor_of(http.put("part", tf.version_0_9(values)))
    http.trouble = last_part
    with pytest.raises(OSError, match="the server answered 500"):
        tensor.values  # noqa: B018


def test_what_is_not_there_is_a_missing_file(http: HttpStore, s3: S3Store) -> None:
    s3.put("there", b"")
    with pytest.raises(FileNotFoundError):
        tensor_of(f"{http.url}/missing")
    with pytest.raises(FileNotFoundError):
        tensor_of("s3://bucket/missing", storage_options=s3.options)
    with pytest.raises(FileNotFoundError):
        tensor_of("memory://missing")


def test_a_folder_is_refused() -> None:
    MemoryFileSystem().pipe_file("/folder/x", b"TENS")
    with pytest.raises((IsADirectoryError, FileNotFoundError)):
        tensor_of("memory://folder")


def test_a_server_without_conditions_is_found_out_by_its_answer(http: HttpStore) -> None:
    http.conditions = False
    url = http.put("plain", tf.version_0_9(numbers()))
    tensor = tensor_of(url)
    http.put("plain", tf.version_0_9(numbers() + 1))
    with pytest.raises(SourceChangedError, match="entity tag"):
        tensor[3].values  # noqa: B018


def test_a_server_without_versions_is_found_out_where_the_size_tells(http: HttpStore) -> None:
    http.etags = False
    url = http.put("bare", tf.version_0_9(numbers()))
    tensor = tensor_of(url)
    np.testing.assert_array_equal(tensor, numbers())
    tensor = tensor_of(url)
    http.put("bare", tf.version_0_9(numbers()[:, :, :3]))
    with pytest.raises(SourceChangedError):
        tensor.values  # noqa: B018


@pytest.mark.parametrize("modified", ["", "Mon, 05 Jan 2026 10:00:00 GMT"], ids=["none", "second"])
@pytest.mark.parametrize("rows", [3, 40], ids=["smaller", "larger"])
def test_an_object_of_another_size_is_found_out_without_a_version(
    http: HttpStore, modified: str, rows: int
) -> None:
    http.etags, http.modified = False, modified
    url = http.put("bare", tf.version_0_9(np.zeros((1000, 20))))
    tensor = tensor_of(url)
    http.put("bare", tf.version_0_9(np.ones((1000, rows))))
    with pytest.raises(SourceChangedError, match=f"{url}.* it has been replaced since"):
        tensor[:5, 1].values  # noqa: B018
    with pytest.raises(SourceChangedError, match=f"{url}.* it has been replaced since"):
        tensor[:, 19].values  # noqa: B018


def test_an_object_that_shrinks_while_it_is_opened_is_noticed(http: HttpStore) -> None:
    http.etags = False
    url = http.put("race", tf.version_0_9(np.zeros(50_000)))

    def replace(handler: Handler, content: bytes, start: int, stop: int) -> bool:
        handler.partial(tf.version_0_9(np.zeros(40_000)), start, stop)
        return True

    http.trouble = replace
    with pytest.raises(SourceChangedError, match="it has been replaced since"):
        tensor_of(url)


def change_answers(monkeypatch: pytest.MonkeyPatch, change: Callable[[dict], dict]) -> None:
    """Let the client of s3fs answer GetObject in another way."""
    import s3fs  # noqa: PLC0415

    get_s3 = s3fs.S3FileSystem.get_s3

    class Client:
        def __init__(self, client: Any) -> None:
            self.client = client

        def __getattr__(self, name: str) -> Any:
            return getattr(self.client, name)

        async def get_object(self, **options: Any) -> dict[str, Any]:
            return change(await self.client.get_object(**options))

    async def changed(fs: Any, bucket: str | None = None) -> Client:
        return Client(await get_s3(fs, bucket))

    monkeypatch.setattr(s3fs.S3FileSystem, "get_s3", changed)


def unread(answer: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """An answer of S3 whose body must not be received."""

    class Body:
        def iter_chunks(self, _: int) -> Any:
            raise AssertionError("the body was received")

        def close(self) -> None: ...

    answer["Body"].close()
    return {**answer, "Body": Body(), **changes}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"ContentRange": "bytes 0-79/424"}, OSError, "the server sent the range 'bytes 0-79/424'"),
        ({"ContentRange": ""}, OSError, "the server sent the range ''"),
        ({"ContentLength": 1 << 40}, OSError, "the server sent 1099511627776 bytes instead of"),
        (
            {"ContentRange": "bytes 344-423/512"},
            SourceChangedError,
            "512 bytes, expected 424",
        ),
    ],
    ids=["another range", "no range", "another length", "another size"],
)
def test_another_range_from_s3_is_refused_before_it_is_received(
    s3: S3Store, monkeypatch, changes: dict, error: type[Exception], words: str
) -> None:
    url = s3.put("other", tf.version_0_9(np.arange(48.0)))
    tensor = tensor_of(url, storage_options=s3.options)
    change_answers(monkeypatch, lambda answer: unread(answer, **changes))
    with pytest.raises(error, match=f"{url}.*{words}|{words}.*{url}"):
        tensor[-10:].values  # noqa: B018


def test_s3_without_ranges_is_refused_and_its_objects_are_not_received(
    s3: S3Store, monkeypatch
) -> None:
    small = s3.put("small", tf.version_0_9(np.arange(6.0)))
    large = s3.put("large", tf.version_0_9(np.zeros(MIB)))
    s3.ranges = False

    def wary(answer: dict[str, Any]) -> dict[str, Any]:
        return unread(answer) if answer["ContentLength"] > HEAD_BYTES else answer

    change_answers(monkeypatch, wary)
    words = "the server sent the whole file .* does not serve byte ranges.* 'simplecache::'"
    try:
        with pytest.raises(OSError, match=words):
            tensor_of(large, storage_options=s3.options)
        tensor = tensor_of(small, storage_options=s3.options)
        with pytest.raises(OSError, match=words):
            tensor[3:].values  # noqa: B018
    finally:
        s3.ranges = True
    np.testing.assert_array_equal(tensor, np.arange(6.0))


def test_an_object_of_s3_of_another_size_is_found_out_without_a_version(s3: S3Store) -> None:
    fs = fsspec.filesystem("s3", **s3.options)
    for rows in (3, 40):
        url = s3.put("bare", tf.version_0_9(np.zeros((10, 20))))
        source, _ = open_remote(Location(url, fs, "bucket/bare"))
        bare = replace(source, version=Version())
        s3.put("bare", tf.version_0_9(np.ones((10, rows))))
        with pytest.raises(SourceChangedError, match=f"{url}.* it has been replaced since"):
            bare.read(Extents.single(bare.size - 8, bare.size))


@pytest.mark.parametrize("count", [-1, 1], ids=["less", "more"])
def test_another_number_of_bytes_from_any_store_is_refused(monkeypatch, count: int) -> None:
    with MemoryStore().running() as store:
        tensor = tensor_of(store.put("any", tf.version_0_9(numbers())))
        cat_file = MemoryFileSystem.cat_file

        def other(fs: Any, path: str, *, start: int, end: int) -> bytes:
            return (cat_file(fs, path, start=start, end=end) + b"x")[: end - start + count]

        # Undone before the store undoes what it has patched itself.
        with monkeypatch.context() as patched:
            patched.setattr(MemoryFileSystem, "cat_file", other)
            with pytest.raises(TensorFormatError, match="sent another number of bytes than were"):
                tensor[:, 3].values  # noqa: B018


def test_an_object_replaced_while_it_is_opened_is_noticed(http: HttpStore) -> None:
    url = http.put("race", tf.version_0_9(numbers()))

    def replace(handler: Handler, content: bytes, start: int, stop: int) -> bool:
        handler.partial(tf.version_0_9(numbers() + 1), start, stop)
        return True

    http.trouble = replace
    with pytest.raises(SourceChangedError):
        tensor_of(url)


def test_a_small_file_of_a_server_without_ranges_is_not_read_wrongly(http: HttpStore) -> None:
    url = http.put("small", tf.version_0_9(np.arange(6.0).reshape(2, 3)))
    http.trouble = whole_file
    tensor = tensor_of(url)
    with pytest.raises(OSError, match="does not serve byte ranges"):
        tensor.values  # noqa: B018


@pytest.mark.parametrize("protocol", ["simplecache", "filecache"])
def test_caches_read_the_same_and_ask_the_store_once(tmp_path: Path, protocol: str) -> None:
    with MemoryStore().running() as store:
        url = f"{protocol}::" + store.put("cached", tf.version_0_9(numbers()))
        options = {protocol: {"cache_storage": str(tmp_path)}}
        tensor = tensor_of(url, storage_options=options, chunks={}, chunk_bytes=MIB // 4)
        np.testing.assert_array_equal(tensor, numbers())
        np.testing.assert_array_equal(tensor_of(url, storage_options=options), numbers())
        assert not store.log.gets


def test_a_cache_downloads_once_however_many_parts_are_read(http: HttpStore, tmp_path) -> None:
    url = "simplecache::" + http.put("once", tf.version_0_9(np.zeros(4 * MIB)))
    options = {"simplecache": {"cache_storage": str(tmp_path)}}
    tensor_of(url, storage_options=options).load()
    # Some versions of fsspec ask in the same way whether it is there.
    assert http.log.gets in ([(0, -1)], [(0, -1)] * 2)


def test_a_file_url_is_a_local_file(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    path.write_bytes(tf.version_0_9(numbers()))
    for file, keywords in (
        (f"file://{path}", {}),
        (fsspec.open(str(path)), {}),
        (str(path), {"fs": fsspec.filesystem("file")}),
    ):
        tensor = tensor_of(file, **keywords)
        np.testing.assert_array_equal(tensor, numbers())
        (tensor, _) = unwrap(tensor_of(file, **keywords).variable)
        assert isinstance(tensor.source, LocalFile)


@pytest.mark.parametrize(
    ("file", "keywords", "error", "words"),
    [
        ("/a", {"storage_options": {"anon": True}}, ValueError, "storage_options= applies to URLs"),
        ("memory://a", {"storage_options": "anon"}, TypeError, "must be a mapping .*, not a str"),
        (
            "/a",
            {"fs": "s3"},
            TypeError,
            "fs= must be a file system of fsspec or a store of obstore, not a str",
        ),
        (b"TENS", {"fs": MemoryFileSystem()}, TypeError, "needs the path of a file in it"),
        ("nowhere://a", {}, ValueError, "Protocol not known: nowhere"),
        ("memory://a", {"io": "fast"}, ValueError, "io='fast' is not one of"),
        (
            "/a",
            {"fs": MemoryFileSystem(), "storage_options": {"a": 1}},
            ValueError,
            "already has a file system",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(file, keywords, error, words) -> None:
    with pytest.raises(error, match=words):
        xr.open_dataset(file, engine="tensorfmt", **keywords)


def test_compressed_open_files_are_refused() -> None:
    MemoryFileSystem().pipe_file("/t.gz", b"x")
    with pytest.raises(ValueError, match=r"is compressed \(gzip\).* decompress it first"):
        tensor_of(fsspec.open("memory://t.gz", compression="gzip"))


def test_asynchronous_file_systems_are_refused(http: HttpStore) -> None:
    fs = fsspec.filesystem("http", asynchronous=True)
    with pytest.raises(ValueError, match="asynchronous=True"):
        tensor_of(f"{http.url}/x", fs=fs)


def test_a_store_that_does_not_say_how_long_its_objects_are_is_refused() -> None:
    class Silent(MemoryFileSystem):
        def info(self, path: str, **_: Any) -> dict[str, Any]:
            return {"name": path, "size": None, "type": "file"}

    fs = Silent(skip_instance_cache=True)
    fs.pipe_file("/t", FILES["tens-0.9"]())
    with pytest.raises(ValueError, match="does not report the size of the object"):
        tensor_of("/t", fs=fs)


def test_a_cut_connection_of_s3_is_tried_again(s3: S3Store, monkeypatch) -> None:
    url = s3.put("again", tf.version_0_9(numbers()))
    tensor = tensor_of(url, storage_options=s3.options)
    broken = threading.Semaphore(1)

    class Broken:
        async def iter_chunks(self, _: int) -> AsyncIterator[bytes]:
            yield b"a part"
            raise aiohttp.ClientPayloadError("cut")

        def close(self) -> None: ...

    def once_broken(answer: dict[str, Any]) -> dict[str, Any]:
        return {**answer, "Body": Broken()} if broken.acquire(blocking=False) else answer

    change_answers(monkeypatch, once_broken)
    np.testing.assert_array_equal(tensor, numbers())
    assert not broken.acquire(blocking=False)


def test_many_threads_that_read_at_once_do_not_wait_for_each_other(http: HttpStore) -> None:
    url = http.put("threads", tf.version_0_9(numbers()))
    tensor = tensor_of(url)
    picks = xr.DataArray(np.arange(40) % 7, dims="p")
    expected = numbers()[:, np.arange(40) % 7, np.arange(40) % 7]

    def read(_: int) -> bool:
        return bool((tensor.isel(b=picks, c=picks).values.T == expected.T).all())

    with ThreadPoolExecutor(40) as threads:
        assert all(threads.map(read, range(40)))


def test_threads_that_cannot_be_started_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = StoreThreads()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(MAX_REQUESTS):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                threads.submit(int)
    assert threads.submit(int, "7").result(timeout=60) == 7


def test_a_checksum_is_not_sent_as_a_condition(http: HttpStore) -> None:
    http.etags, http.headers = False, {"Content-MD5": "Q2hlY2sgSW50ZWdyaXR5IQ=="}
    sent: list[str | None] = []

    def note(handler: Handler, content: bytes, start: int, stop: int) -> bool:
        sent.append(handler.headers["If-Match"])
        return False

    url = http.put("checked", tf.version_0_9(numbers()))
    http.trouble = note
    np.testing.assert_array_equal(tensor_of(url), numbers())
    assert set(sent) == {None}


def test_threads_stop_at_the_first_error_and_take_no_more_than_they_can_do() -> None:
    threads, taken = StoreThreads(), []

    def items():
        for number in range(1000):
            taken.append(number)
            yield number

    def fail(number: int) -> None:
        if number == 3:
            raise KeyError(number)

    with pytest.raises(KeyError):
        threads.run_all(fail, items())
    assert len(taken) <= 4 + MAX_REQUESTS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_reads_with_threads_of_its_own(http: HttpStore) -> None:
    tensor = tensor_of(http.put("fork", tf.version_0_9(numbers())))
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


def test_the_head_is_not_read_twice() -> None:
    with MemoryStore().running() as store:
        url = store.put("head", FILES["mag-archive"]())
        store.log.clear()
        xr.open_dataset(url, engine="tensorfmt")
        assert store.log.gets == [(0, HEAD_BYTES)]
