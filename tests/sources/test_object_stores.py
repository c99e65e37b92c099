"""File systems of obstore as ``fs=``."""

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
from obstore.fsspec import FsspecStore
from obstore.store import LocalStore, MemoryStore
from s3fs import S3FileSystem

from tests import tensfiles as tf
from tests.fault_server import FaultServer, reset, status
from tests.opening import open_tensor
from tests.processes import run_in_child
from tests.servers import HttpStore, S3Store
from xr_tensorfmt import SourceChangedError, explain, to_file
from xr_tensorfmt.sources.locations import locate_for_reading

VALUES = np.arange(6000.0).reshape(30, 200)
CONTENT = tf.make_0_9(VALUES)
NAME = "bucket/t.bin"
PLAIN: dict[str, Any] = {"client_options": {"allow_http": True}}


def make_file_system(s3: S3Store) -> FsspecStore:
    keys: dict[str, Any] = {"access_key_id": "key", "secret_access_key": "secret"}
    url = s3.options["endpoint_url"]
    return FsspecStore("s3", endpoint=url, region="us-east-1", **keys, **PLAIN)


@pytest.mark.parametrize("chunks", [None, {}])
def test_file_systems_of_obstore_are_read(
    tmp_path: Path, http: HttpStore, s3: S3Store, chunks: dict | None
) -> None:
    (tmp_path / "t.bin").write_bytes(CONTENT)
    http.put("t.bin", CONTENT)
    s3.put("t.bin", CONTENT)
    for fs, path in (
        (make_file_system(s3), NAME),
        (make_file_system(s3), f"s3://{NAME}"),
        (FsspecStore("http", **PLAIN), f"{http.url}/t.bin"),
        (FsspecStore("file"), str(tmp_path / "t.bin")),
    ):
        tensor = open_tensor(path, fs=fs, chunks=chunks)
        np.testing.assert_array_equal(tensor[3:9, 7], VALUES[3:9, 7])
        np.testing.assert_array_equal(tensor, VALUES)


def test_object_that_is_replaced_is_detected(s3: S3Store, http: HttpStore) -> None:
    s3.put("t.bin", CONTENT)
    tensor = open_tensor(NAME, fs=make_file_system(s3))
    s3.log.clear()
    assert explain(tensor[:, 3:5]).requests == 1
    tensor[:, 3:5].load()
    assert s3.log.gets == [(48 + 3 * 240, 480)]
    s3.put("t.bin", tf.make_0_9(VALUES + 1))
    with pytest.raises(SourceChangedError, match="replaced since it was opened"):
        tensor[:, 7].load()
    kept = open_tensor(NAME, fs=make_file_system(s3), verify_unchanged=False)
    s3.put("t.bin", CONTENT)
    np.testing.assert_array_equal(kept, VALUES)


def test_errors_are_built_in_and_have_no_secrets(
    s3: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put("t.bin", CONTENT)
    with pytest.raises(FileNotFoundError) as missing:
        open_tensor("bucket/gone.bin", fs=make_file_system(s3))
    assert missing.value.filename == "s3://bucket/gone.bin"
    assert "Debug" not in str(missing.value)
    monkeypatch.setattr(s3, "refused", lambda environ: environ["REQUEST_METHOD"] == "GET")
    with pytest.raises(PermissionError, match="403 Forbidden") as refused:
        open_tensor(NAME, fs=make_file_system(s3))
    assert "secret" not in str(refused.value)
    refusing = FsspecStore("http", **PLAIN, retry_config={"max_retries": 0})
    with pytest.raises(OSError, match="GenericError"):
        open_tensor("http://127.0.0.1:1/t.bin", fs=refusing)


def test_store_with_own_retries_is_not_retried() -> None:
    wait = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2)}
    retry: Any = {"max_retries": 2, "backoff": wait}
    for fault in (status(503), reset):
        with FaultServer().running() as server:
            server.put(NAME, CONTENT)
            fs = FsspecStore("http", **PLAIN, retry_config=retry)
            tensor = open_tensor(f"{server.url}/{NAME}", fs=fs)
            server.forget()
            server.always = fault
            with pytest.raises(OSError, match="GenericError"):
                tensor.load()
            assert len(server.requests) == 3


def test_spawned_process_reads_file(s3: S3Store) -> None:
    s3.put("t.bin", CONTENT)
    tensor = open_tensor(NAME, fs=make_file_system(s3), chunks={})
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(xr.DataArray.load, (tensor,)), VALUES)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_store_does_not_hang_in_forked_process(s3: S3Store) -> None:
    s3.put("t.bin", CONTENT)
    tensor = open_tensor(NAME, fs=make_file_system(s3))

    def says_why() -> bool:
        try:
            tensor.load()
        except RuntimeError as error:
            return "forked" in str(error)
        return False

    assert run_in_child(says_why)


def test_urls_are_read_by_fsspec(s3: S3Store) -> None:
    location = locate_for_reading(s3.put("t.bin", CONTENT), s3.options, None, 7)
    assert isinstance(location.fs, S3FileSystem)
    assert location.fs.config_kwargs["read_timeout"] == 7


def test_other_fs_arguments_raise() -> None:
    for fs, name in ((3, "int"), (MemoryStore(), "MemoryStore")):
        words = f"file system of fsspec, for example obstore.fsspec.FsspecStore, not a {name}"
        with pytest.raises(TypeError, match=words):
            open_tensor("t.bin", fs=fs)
        with pytest.raises(TypeError, match=words):
            to_file(xr.Dataset({"a": ("x", np.ones(3))}), "t.mag", fs=fs)
    with pytest.raises(TypeError, match="needs the path of a file in it"):
        open_tensor(3, fs=FsspecStore("memory"))


def test_readers_and_bytes_of_obstore_open(tmp_path: Path) -> None:
    to_file(xr.DataArray(np.arange(6.0), dims="x", name="tensor"), tmp_path / "a.tens")
    store = LocalStore(tmp_path)
    for file in (obstore.open_reader(store, "a.tens"), obstore.get(store, "a.tens").bytes()):
        with xr.open_dataset(file, engine="tensorfmt") as ds:
            np.testing.assert_array_equal(ds.tensor, np.arange(6.0))
