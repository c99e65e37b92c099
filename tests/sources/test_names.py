"""Names of files: a local path is a local path, and a name is the same for all entries."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from tests import cc4sfiles
from tests.commands import run_ok
from tests.opening import open_lazily, open_tensor
from xr_tensorfmt import cc4s, to_file, validate
from xr_tensorfmt.formats.vespa.feeds import open_stream
from xr_tensorfmt.sources import find_matches, find_source, is_url, list_names

SUFFIXES = [".mag", ".tens", ".safetensors", ".npy", ".pycauset", ".tbf", ".yaml"]
SUFFIXES += [".safetensors.index.json"]
STEMS = ["H2O::hf", "run-1::a", "file::x", "memory::y", "simplecache::z", "zip::a", "s3:x"]
STEMS += [
    "why?",
    "what?versionId=1",
    "user@host",
    "me:pw@host",
    "a*b",
    "a[1]",
    "50%",
    "a%20b",
    "a#1",
]
on_posix = pytest.mark.skipif(os.name == "nt", reason="Windows refuses these names")
stems = pytest.mark.parametrize("stem", STEMS)
# A file, a file with a sibling, and a set of files have any name. Others have a few names.
LOCAL_NAMES = [
    (stem, suffix) for stem in STEMS for suffix in (".mag", ".yaml", ".safetensors.index.json")
] + [(stem, suffix) for stem in ("H2O::hf", "a*b") for suffix in SUFFIXES[1:-2]]


@pytest.fixture(autouse=True)
def in_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let relative paths be in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_array(number: float = 0.0) -> xr.DataArray:
    values = np.arange(12, dtype="f4").reshape(3, 4) + number
    return xr.DataArray(values, dims=("dim_0", "dim_1"), name="tensor")


def read(path: object, **options: object) -> np.ndarray:
    (variable,) = open_lazily(path, **options).data_vars.values()
    return variable.values


@pytest.mark.slow
@on_posix
@pytest.mark.parametrize(("stem", "suffix"), LOCAL_NAMES)
def test_local_name_is_local_file(stem: str, suffix: str, in_directory: Path) -> None:
    Path("H2O").write_text("notes")
    name = f"{stem}{suffix}"
    for number, path in enumerate((name, os.path.abspath(name), Path(name))):
        array = make_array(number).astype("f8" if suffix == ".yaml" else "f4")
        to_file(array.isel(dim_0=0) if suffix == ".pycauset" else array, path, drop=["dims"])
        expected = array.values[0] if suffix == ".pycauset" else array.values
        assert name in os.listdir()
        for other in (name, os.path.abspath(name), Path(name)):
            np.testing.assert_array_equal(read(other), expected)
        np.testing.assert_array_equal(read(name, chunks={}), expected)
        np.testing.assert_array_equal(read(os.path.abspath(name), fs=LocalFileSystem()), expected)
    assert validate(name) == []
    assert Path("H2O").read_text() == "notes"
    assert {path.name for path in in_directory.iterdir()} >= {"H2O", name}


@pytest.mark.slow
@on_posix
@stems
def test_command_takes_local_names(stem: str) -> None:
    name = f"{stem}.mag"
    to_file(make_array(), name)
    assert "tensor" in run_ok("info", name)
    run_ok("validate", name)
    run_ok("convert", name, f"{stem}.safetensors")
    np.testing.assert_array_equal(read(f"{stem}.safetensors"), make_array())
    assert sorted(os.listdir()) == sorted([name, f"{stem}.safetensors"])


@pytest.mark.slow
@on_posix
@pytest.mark.parametrize("name", ["H2O::x.zarr", "file::x.nc"])
def test_stores_of_xarray_take_local_names(name: str) -> None:
    to_file(make_array(), "H2O::a.mag")
    run_ok("convert", "H2O::a.mag", name)
    run_ok("convert", name, "H2O::b.mag")
    np.testing.assert_array_equal(read("H2O::b.mag"), make_array())
    assert sorted(os.listdir()) == sorted([name, "H2O::a.mag", "H2O::b.mag"])


@on_posix
@pytest.mark.parametrize("name", ["H2O::a.npy", "file::a.npy", "50%.npy", "a%20b.npy", "a?.npy"])
def test_virtual_files_take_local_names(name: str) -> None:
    store = pytest.importorskip("obstore.store")
    registry = pytest.importorskip("obspec_utils.registry")
    virtual = pytest.importorskip("xr_tensorfmt.virtual")
    np.save(name, make_array().values)
    files = registry.ObjectStoreRegistry({"file://": store.LocalStore()})
    if "?" in name:
        with pytest.raises(ValueError, match="cannot read names with"):
            virtual.TensorFormatParser()(name, files)
        return
    opened = xr.open_zarr(virtual.TensorFormatParser()(name, files), consolidated=False)
    np.testing.assert_array_equal(opened.tensor, make_array())


@on_posix
def test_directories_may_have_any_name() -> None:
    os.mkdir("run::2")
    cc4s.to_calculation(make_calculation(), "run::2/calc")
    assert dict(cc4s.open_calculation("run::2/calc").sizes) == {"State": 3, "State_2": 3}
    assert os.listdir() == ["run::2"]


def make_calculation() -> xr.Dataset:
    return xr.Dataset({"Overlap": (("State", "State_2"), np.eye(3))})


@stems
def test_objects_may_have_any_name(stem: str, memory: MemoryFileSystem) -> None:
    if "?versionId" in stem or "#" in stem:
        pytest.skip("names a version of an object")
    url = f"memory://folder/{stem}.mag"
    to_file(make_array(), url)
    assert memory.ls("/folder", detail=False) == [f"/folder/{stem}.mag"]
    np.testing.assert_array_equal(read(url), make_array())
    np.testing.assert_array_equal(read(f"/folder/{stem}.mag", fs=memory), make_array())
    np.testing.assert_array_equal(read(f"simplecache::{url}"), make_array())
    assert find_matches(url) == [url]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket/a.mag", True),
        ("memory://a::b.mag", True),
        ("simplecache::s3://bucket/a.mag", True),
        ("simplecache::zip://a.mag::s3://bucket/a.zip", True),
        ("zip://a.mag::archive.zip", True),
        ("http://[::1]:80/a.mag", True),
        ("simplecache::a.mag", False),
        ("file::a.mag", False),
        ("H2O::memory://a.mag", False),
        ("nowhere://a.mag", False),
        ("C:/a.mag", False),
        ("/a/b://c.mag", False),
        (b"s3://bucket/a.mag", False),
    ],
)
def test_only_known_protocols_make_a_url(text: object, expected: bool) -> None:
    assert is_url(text) is expected


def test_unknown_protocol_is_named_without_secrets() -> None:
    for call in (open_tensor, lambda url: to_file(make_array(), url)):
        with pytest.raises(FileNotFoundError, match="fsspec knows no protocol 's3x'") as caught:
            call("s3x://user:hunter2@host/a.mag")
        assert "hunter2" not in str(caught.value)


class BytesPath(os.PathLike):
    """A path of bytes, such as the entries of ``os.scandir(b".")``."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __fspath__(self) -> bytes:
        return os.fsencode(self.path)


def test_path_of_bytes_is_a_path() -> None:
    path = BytesPath("a.mag")
    to_file(make_array(), path)
    (entry,) = os.scandir(b".")
    for file in (path, entry):
        np.testing.assert_array_equal(read(file), make_array())
        np.testing.assert_array_equal(open_tensor(file).chunk(), make_array())  # not by chunks=
        assert validate(file) == []
    to_file(make_array()[:1], path, region={"dim_0": slice(0, 1)})
    os.mkdir("calc")
    cc4s.to_calculation(make_calculation(), BytesPath("calc"))
    assert list(cc4s.open_calculation(BytesPath("calc"))) == ["Overlap"]
    np.testing.assert_array_equal(read(BytesPath("calc/Overlap.yaml")), np.eye(3))


@pytest.mark.parametrize("folder", ["calc", "memory://calc"])
def test_hidden_names_are_ignored(folder: str, memory: MemoryFileSystem) -> None:
    values = cc4sfiles.make_values((3, 3))
    names = {
        "x.yaml": cc4sfiles.format_yaml(values.shape).encode(),
        "x.elements": cc4sfiles.pack_binary(values),
    }
    hidden = {f"{prefix}{name}": b"\\0\\5\\x16\\7" for name in names for prefix in ("._", ".")}
    os.mkdir("calc")
    for name, content in (names | hidden).items():
        Path("calc", name).write_bytes(content)
        memory.pipe_file(f"/calc/{name}", content)
    assert list_names(folder) == ["x.elements", "x.yaml"]
    assert [match.rpartition("/")[2] for match in find_matches(f"{folder}/*.yaml")] == ["x.yaml"]
    assert validate(f"{folder}/" if "://" in folder else folder) == []
    if "://" not in folder:
        assert list(cc4s.open_calculation(folder)) == ["x"]


@pytest.mark.parametrize("kind", ["local", "object", "bytes"])
def test_stream_has_the_bytes_of_the_source(kind: str, memory: MemoryFileSystem) -> None:
    content = np.random.default_rng(0).bytes(3_000_001)
    Path("a").write_bytes(content)
    memory.pipe_file("/a", content)
    source, _ = find_source({"local": "a", "object": "memory://a", "bytes": content}[kind])
    with open_stream(source) as stream:
        assert stream.read(10) == content[:10]
        assert stream.read() == content[10:]
        assert stream.read() == b""
        assert stream.seek(-5, os.SEEK_END) == len(content) - 5
        assert stream.read() == content[-5:]
