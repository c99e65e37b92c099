"""Objects are written and read under exactly their key or URL, in every format and store."""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import fsspec
import numpy as np
import pytest
import s3fs
import xarray as xr
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from tests.servers import HttpStore, S3Store
from tests.workflows.formats import DTYPES, WRITABLE, make_array
from xr_tensorfmt import to_file
from xr_tensorfmt.formats import registry
from xr_tensorfmt.sources.locations import build_sibling_path, split_path

KEYS = ["run?1/file", "run*/file", "[1]/file", "dir/a@b", "what?", "a b#c", "100%", "x;y=1", "\xe4"]
SHAPE = (30, 50)

FILES = [
    *(
        pytest.param(name, registry.find_format(name).suffixes[0], id=name)
        for (name,) in (parameter.values for parameter in WRITABLE)
    ),
    pytest.param("safetensors", ".safetensors.index.json", id="index"),
]
"""Formats and suffixes. A tensor of cc4s and an index have sibling files."""

every_file = pytest.mark.parametrize(("name", "suffix"), FILES)


def write(file: Any, name: str, offset: float = 0.0, **options: Any) -> None:
    if name in DTYPES:
        options["encoding"] = {"dtype": DTYPES[name]}
    to_file(make_array(offset, SHAPE), file, name, drop=["name", "dims"], **options)


def check(file: Any, offset: float = 0.0, **options: Any) -> xr.Dataset:
    """Open a file by its suffix or content, and compare the values."""
    ds = xr.open_dataset(file, engine="tensorfmt", **options)
    (variable,) = ds.data_vars.values()
    np.testing.assert_array_equal(variable, make_array(offset, SHAPE))
    return ds


def list_siblings(key: str, name: str, suffix: str) -> set[str]:
    if name == "cc4s":
        return {f"{key}.yaml", f"{key}.elements"}
    is_index = suffix.endswith(".index.json")
    shards = {f"{key}-00001-of-00001.safetensors"} if is_index else set()
    return {f"{key}{suffix}"} | shards


Store = tuple[Callable[[str], tuple[Any, dict[str, Any]]], Callable[[], set[str]]]
"""A function that returns the arguments for a key, and a function that lists all keys."""


def list_memory() -> set[str]:
    return {key.strip("/") for key in MemoryFileSystem.store}


@pytest.fixture
def store(request: pytest.FixtureRequest, memory: MemoryFileSystem) -> Iterator[Store]:
    class Directory(DirFileSystem):
        protocol = "mine"

    file_systems = {
        "fs": memory,
        "dir": DirFileSystem("/", DirFileSystem("/", memory)),
        "subclass": Directory("/", memory),
        "async": AsyncFileSystemWrapper(memory, asynchronous=False),
    }
    if request.param == "url":
        yield lambda key: (f"memory://{key}", {}), list_memory
    elif request.param == "s3":
        s3: S3Store = request.getfixturevalue("s3")
        s3.put("x", b"")  # creates the bucket
        fs = s3fs.S3FileSystem(**s3.options)

        def find() -> set[str]:
            fs.invalidate_cache()
            return {key.removeprefix("bucket/") for key in fs.find("bucket")}

        for key in find():
            fs.rm_file(f"bucket/{key}")
        yield lambda key: (f"s3://bucket/{key}", {"storage_options": s3.options}), find
    else:
        yield lambda key: (key, {"fs": file_systems[request.param]}), list_memory


STORES = ["url", "fs", "dir", "subclass", "async", "s3"]
# Every store has the two kinds of files with siblings, and one store has every format.
PLACES = [pytest.param("url", *file.values, id=f"url-{file.id}") for file in FILES] + [
    pytest.param(store, *file.values, id=f"{store}-{file.id}")
    for store in STORES[1:]
    for file in FILES
    if file.id in ("cc4s", "index")
]


@pytest.mark.parametrize(("store", "name", "suffix"), PLACES, indirect=["store"])
def test_object_is_at_its_key(store: Store, name: str, suffix: str) -> None:
    locate, find = store
    expected: set[str] = set()
    for offset, key in enumerate(KEYS):
        file, options = locate(f"{key}{suffix}")
        write(file, name, -1.0, **options)
        write(file, name, offset, **options)
        expected |= list_siblings(key, name, suffix)
    # Files of a replaced model have new names. A list also shows old ones that were left.
    found = [re.sub("-[0-9a-f]{8}(-00001-of-00001)", r"\1", key) for key in find()]
    assert sorted(found) == sorted(expected)
    for offset, key in enumerate(KEYS):
        file, options = locate(f"{key}{suffix}")
        check(file, offset, **options)


@every_file
def test_names_with_at_sign_at_root_have_their_own_siblings(
    tmp_path: Path, memory: MemoryFileSystem, name: str, suffix: str
) -> None:
    names = [f"V{suffix}", f"Li@V{suffix}"]
    archive = tmp_path / "a.zip"
    for offset, file in enumerate(names):
        write(tmp_path / file, name, offset)
    with zipfile.ZipFile(archive, "w") as content:
        for path in tmp_path.glob("*V*"):
            content.write(path, path.name)
            memory.pipe_file(f"/{path.name}", path.read_bytes())
    for offset, file in enumerate(names):
        check(tmp_path / file, offset)
        check(f"memory://{file}", offset)
        check(f"zip://{file}::{archive.as_uri()}", offset)
        check(fsspec.open(f"zip://{file}::{archive.as_uri()}"), offset)
        check(file, offset, fs=fsspec.filesystem("zip", fo=str(archive)))


@every_file
def test_url_keeps_its_query_for_siblings(
    tmp_path: Path, http: HttpStore, name: str, suffix: str
) -> None:
    sent: list[str] = []

    def note(handler: Any, *_: object) -> bool:
        sent.append(handler.path)
        return False

    for offset, key in enumerate(["plain", "what?1", "a b#c", "100%", "\xe4"]):
        write(tmp_path / f"{key}{suffix}", name, offset)
    for path in tmp_path.iterdir():
        http.put(f"d/{quote(path.name)}", path.read_bytes())
    http.trouble = note
    for offset, key in enumerate(["plain", "what?1", "a b#c", "100%", "\xe4"]):
        url = f"{http.url}/d/{quote(key + suffix)}"
        for end in ("", "?download=1", "?path=/a/b", "#token=a/b"):
            sent.clear()
            ds = check(url + end, offset)
            assert ds.encoding["source"] == url + (f"{end[0]}..." if end else "")
            assert all(path.endswith(end) for path in sent) or end.startswith("#")


@pytest.mark.parametrize(
    "file", ["../x.safetensors", "..%2fx.safetensors", "%2e%2e/x.safetensors", "..\\x.safetensors"]
)
def test_sibling_outside_of_directory_is_refused(
    tmp_path: Path, http: HttpStore, memory: MemoryFileSystem, file: str
) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    index = directory / "m.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"w": file}}))
    http.put("d/m.safetensors.index.json", index.read_bytes())
    memory.pipe_file("/d/m.safetensors.index.json", index.read_bytes())
    to_file(xr.Dataset({"w": ("x", np.ones(3))}), tmp_path / "x.safetensors")
    http.put("x.safetensors", (tmp_path / "x.safetensors").read_bytes())
    for path in (index, f"{http.url}/d/m.safetensors.index.json", f"memory://d/{index.name}"):
        with pytest.raises(ValueError, match=r"in (its|the) directory"):
            xr.open_dataset(os.fspath(path), engine="tensorfmt")


class AzureMemory(MemoryFileSystem):
    """URLs with a container and an account, as in adlfs."""

    protocol = ("abfs", "az")
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        host, _, key = path.partition("://")[2].partition("/")
        return f"/{host.partition('@')[0]}/{key}" if host else path


@every_file
def test_container_of_azure_is_shown(
    monkeypatch: pytest.MonkeyPatch, name: str, suffix: str
) -> None:
    monkeypatch.setitem(_registry, "abfs", AzureMemory)
    AzureMemory.store.clear()
    urls = [f"abfs://{container}@account/run/x{suffix}" for container in ("raw", "final")]
    for offset, url in enumerate(urls):
        write(url, name, offset)
    for offset, url in enumerate(urls):
        assert check(url, offset).encoding["source"] == url


@pytest.mark.parametrize("end", ["?sig=SECRET", "#token=SECRET", ";sig=SECRET"])
def test_secrets_of_url_are_not_kept_in_encoding(http: HttpStore, tmp_path: Path, end: str) -> None:
    write(tmp_path / "x.npy", "npy")
    url = http.put(f"x.npy{end if end.startswith(';') else ''}", (tmp_path / "x.npy").read_bytes())
    ds = check(url.partition(";")[0] + end)
    assert "SECRET" not in str(ds.encoding)
    assert ds.encoding["source"].startswith(f"{http.url}/x.npy")


def test_source_of_store_is_a_url(memory: MemoryFileSystem, tmp_path: Path) -> None:
    write("memory://d/x.npy", "npy")
    options: dict[str, Any] = {"engine": "tensorfmt"}
    for fs, path in ((memory, "d/x.npy"), (DirFileSystem("/d", memory), "x.npy")):
        for opened in (
            xr.open_dataset(path, fs=fs, **options),
            xr.open_datatree(path, fs=fs, **options),
            xr.open_dataset(fsspec.open("memory://d/x.npy"), **options),
        ):
            assert opened.encoding["source"] == "memory:///d/x.npy"
    write(tmp_path / "x.npy", "npy")
    ds = xr.open_dataset(tmp_path / "x.npy", fs=LocalFileSystem(), **options)
    assert ds.encoding["source"] == str(tmp_path / "x.npy")


def test_version_of_one_object_is_no_version_of_siblings() -> None:
    for version in ("?versionId=a1", "?generation=12", "#12"):
        key = f"bucket/run?1/V.yaml{version}"
        assert split_path(key)[1] == "V.yaml"
        with pytest.raises(ValueError, match=r"but 'V\.elements' is also"):
            build_sibling_path(key, "V.elements")
