"""Stores of obstore as ``fs=``."""

from __future__ import annotations

import multiprocessing
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import xarray as xr
from obstore.store import AzureStore, GCSStore, HTTPStore, LocalStore, MemoryStore, S3Store
from s3fs import S3FileSystem

from tests import tensfiles as tf
from tests.fault_server import FaultServer, reset, status
from tests.opening import open_tensor
from tests.processes import run_in_child
from tests.servers import HttpStore
from tests.servers import S3Store as Moto
from xr_tensorfmt import SourceChangedError, explain, to_file
from xr_tensorfmt.sources.locations import locate_for_reading

VALUES = np.arange(6000.0).reshape(30, 200)
CONTENT = tf.make_0_9(VALUES)
NAME = "bucket/t.bin"
PLAIN: dict[str, Any] = {"client_options": {"allow_http": True}}


def make_store(s3: Moto, **options: Any) -> S3Store:
    keys = {"access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}
    return S3Store("bucket", endpoint=s3.options["endpoint_url"], **keys, **PLAIN, **options)


@pytest.mark.parametrize("chunks", [None, {}])
def test_every_obstore_store_is_read(
    tmp_path: Path, http: HttpStore, s3: Moto, chunks: dict | None
) -> None:
    memory = MemoryStore()
    memory.put("t.bin", CONTENT)
    (tmp_path / "t.bin").write_bytes(CONTENT)
    http.put("t.bin", CONTENT)
    s3.put("t.bin", CONTENT)
    for store in (memory, LocalStore(tmp_path), HTTPStore(http.url, **PLAIN), make_store(s3)):
        tensor = open_tensor("t.bin", fs=store, chunks=chunks)
        np.testing.assert_array_equal(tensor[3:9, 7], VALUES[3:9, 7])
        np.testing.assert_array_equal(tensor, VALUES)


def test_store_has_url_that_fsspec_gives(tmp_path: Path) -> None:
    urls = [
        (S3Store("b", prefix="p", region="x"), "s3://b/p/d/t"),
        (GCSStore("b", skip_signature=True), "gs://b/d/t"),
        (AzureStore("c", account_name="a", skip_signature=True), "az://c/d/t"),
        (HTTPStore("https://user:secret@host/x"), "https://host/x/d/t"),
        (LocalStore(tmp_path), f"file://{tmp_path}/d/t"),
        (MemoryStore(), "memory://d/t"),
    ]
    for store, url in urls:
        assert locate_for_reading("d/t", None, store, 1).name == url


def test_another_object_in_same_directory_is_found() -> None:
    for name, other in (("t", "u"), ("d/t", "d/u")):
        location = locate_for_reading(name, None, MemoryStore(), 1).sibling("u")
        assert (location.url, location.path) == (f"memory://{other}", other)


def test_range_is_one_request_with_condition(s3: Moto) -> None:
    s3.put("t.bin", CONTENT)
    tensor = open_tensor("t.bin", fs=make_store(s3))
    s3.log.clear()
    assert explain(tensor[:, 3:5]).requests == 1
    tensor[:, 3:5].load()
    assert s3.log.gets == [(48 + 3 * 240, 480)]
    s3.put("t.bin", tf.make_0_9(VALUES + 1))
    with pytest.raises(SourceChangedError, match="replaced since it was opened"):
        tensor[:, 7].load()


def test_object_that_is_replaced_in_memory_or_on_disk_is_detected(tmp_path: Path) -> None:
    for store in (MemoryStore(), LocalStore(tmp_path)):
        store.put("t.bin", CONTENT)
        tensor = open_tensor("t.bin", fs=store)
        store.put("t.bin", CONTENT)
        with pytest.raises(SourceChangedError, match="replaced since it was opened"):
            tensor.load()


def test_errors_are_built_in_and_have_no_secrets(s3: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put("t.bin", CONTENT)
    with pytest.raises(FileNotFoundError) as missing:
        open_tensor("gone.bin", fs=make_store(s3))
    assert missing.value.filename == "s3://bucket/gone.bin"
    assert "Debug" not in str(missing.value)
    monkeypatch.setattr(s3, "refused", lambda environ: environ["REQUEST_METHOD"] == "GET")
    with pytest.raises(PermissionError, match="403 Forbidden") as refused:
        open_tensor("t.bin", fs=make_store(s3))
    assert "secret" not in str(refused.value)
    refusing = HTTPStore("http://127.0.0.1:1", **PLAIN, retry_config={"max_retries": 0})
    with pytest.raises(OSError, match="GenericError"):
        open_tensor("t.bin", fs=refusing)


def test_store_with_own_retries_is_not_retried() -> None:
    wait = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2)}
    retry: Any = {"max_retries": 2, "backoff": wait}
    for fault in (status(503), reset):
        with FaultServer().running() as server:
            server.put(NAME, CONTENT)
            tensor = open_tensor(NAME, fs=HTTPStore(server.url, **PLAIN, retry_config=retry))
            server.forget()
            server.always = fault
            with pytest.raises(OSError, match="GenericError"):
                tensor.load()
            assert len(server.requests) == 3


def compute_total(tensor: xr.DataArray) -> float:
    return float(tensor.sum())


def test_spawned_process_reads_file(http: HttpStore) -> None:
    http.put("t.bin", CONTENT)
    tensor = open_tensor("t.bin", fs=HTTPStore(http.url, **PLAIN), chunks={})
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(compute_total, (tensor,)) == VALUES.sum()


def test_names_of_dask_know_store(http: HttpStore, tmp_path: Path) -> None:
    http.put("a/t.bin", CONTENT)
    http.put("b/t.bin", CONTENT)
    names = {
        open_tensor("t.bin", fs=HTTPStore(f"{http.url}/{folder}", **PLAIN), chunks={}).data.name
        for folder in "aab"
    }
    assert len(names) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_store_does_not_hang_in_forked_process() -> None:
    store = MemoryStore()
    store.put("t.bin", CONTENT)
    tensor = open_tensor("t.bin", fs=store)

    def says_why() -> bool:
        try:
            tensor.load()
        except RuntimeError as error:
            return "forked" in str(error)
        return False

    assert run_in_child(says_why)


def test_urls_are_read_by_fsspec(s3: Moto) -> None:
    location = locate_for_reading(s3.put("t.bin", CONTENT), s3.options, None, 7)
    assert isinstance(location.fs, S3FileSystem)
    assert location.fs.config_kwargs["read_timeout"] == 7


def test_writing_with_obstore_raises() -> None:
    data = xr.Dataset({"a": ("x", np.ones(3))})
    with pytest.raises(TypeError, match="for reading a store of obstore, not a MemoryStore"):
        to_file(data, "t.mag", fs=MemoryStore())


def test_other_fs_arguments_raise() -> None:
    with pytest.raises(
        TypeError, match="file system of fsspec, or for reading a store of obstore, not a int"
    ):
        open_tensor("t.bin", fs=3)
    with pytest.raises(TypeError, match="needs the path of a file in it"):
        open_tensor(3, fs=MemoryStore())


def test_readers_and_bytes_of_obstore_open(tmp_path: Path) -> None:
    to_file(xr.DataArray(np.arange(6.0), dims="x", name="tensor"), tmp_path / "a.tens")
    store = LocalStore(tmp_path)
    for file in (obstore.open_reader(store, "a.tens"), obstore.get(store, "a.tens").bytes()):
        with xr.open_dataset(file, engine="tensorfmt") as ds:
            np.testing.assert_array_equal(ds.tensor, np.arange(6.0))
