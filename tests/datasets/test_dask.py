"""Chunks, and Datasets in other processes."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr

from tests import tensfiles as tf
from tests.clock import wait_for_a_tick
from tests.processes import run_python
from tests.recording import RecordingSource
from tests.workflows.formats import WRITABLE, make_array, open_array, write
from xr_tensorfmt import SourceChangedError, to_file
from xr_tensorfmt.datasets import lazy_array
from xr_tensorfmt.formats import registry

MIB = 1 << 20


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 MiB, column-major."""
    file = tmp_path_factory.mktemp("dask") / "tensor.bin"
    file.write_bytes(tf.make_0_9(make_values()))
    return file


def make_values() -> np.ndarray:
    return np.arange(2 * MIB, dtype="f8").reshape(256, 64, 128)


def test_grid_cuts_slowest_axis_and_keeps_pages_whole(path: Path) -> None:
    tensor = xr.open_dataset(path, engine="tensorfmt", chunks={}, chunk_bytes=MIB).tensor
    assert tensor.chunks == ((256,), (64,), (8,) * 16)
    np.testing.assert_array_equal(tensor, make_values())


def test_chunks_respect_dask_chunk_size(path: Path) -> None:
    with dask.config.set({"array.chunk-size": "512KiB"}):
        tensor = xr.open_dataset(path, engine="tensorfmt", chunks={}).tensor
        assert tensor.chunks == ((256,), (64,), (4,) * 32)


COUNT = """
import sys, xarray as xr
print(xr.open_dataset(sys.argv[1], engine="tensorfmt", chunks={}).tensor.data.npartitions)
"""


def count_chunks(path: Path, **environment: str) -> int:
    return int(run_python("-c", COUNT, path, env={**os.environ, **environment}).stdout)


def test_limit_in_dask_config_file_is_used(path: Path, tmp_path: Path) -> None:
    settings = tmp_path / ".config" / "dask"
    settings.mkdir(parents=True)
    (settings / "some.yaml").write_text("array: {chunk-size: 512KiB}")
    assert count_chunks(path, HOME=str(tmp_path)) == 32


@pytest.mark.parametrize(("limit", "count"), [("512KiB", 32), ("128MiB", 1)])
def test_limit_in_environment_is_used_without_dask(path: Path, limit: str, count: int) -> None:
    assert count_chunks(path, DASK_ARRAY__CHUNK_SIZE=limit) == count


@pytest.mark.parametrize("limit", ["300KiB", "2MiB", "100MiB"])
def test_automatic_chunks_keep_fast_axis_whole(path: Path, limit: str) -> None:
    with dask.config.set({"array.chunk-size": limit}):
        tensor = xr.open_dataset(path, engine="tensorfmt", chunks="auto", chunk_bytes=MIB).tensor
    assert tensor.chunks[0] == (256,)
    np.testing.assert_array_equal(tensor, make_values())


@pytest.mark.filterwarnings("ignore:The specified chunks separate:UserWarning")
@pytest.mark.parametrize("way", ["auto", "mmap", "read"])
@pytest.mark.parametrize("chunks", [{"a": 100, "b": 7, "c": 50}, {"c": -1}, 40])
def test_explicit_chunks_work(path: Path, chunks, way: str) -> None:
    tensor = xr.open_dataset(
        path, engine="tensorfmt", chunks=chunks, io=way, chunk_bytes=MIB
    ).tensor
    np.testing.assert_array_equal(tensor, make_values())


def test_each_chunk_is_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    content = tf.make_0_9(make_values())
    source = RecordingSource(content)
    monkeypatch.setattr(
        "xr_tensorfmt.formats.recognition.find_source", lambda *_, **__: (source, b"")
    )
    tensor = xr.open_dataset(
        io.BytesIO(content), engine="tensorfmt", chunks={}, chunk_bytes=MIB
    ).tensor
    source.requests.clear()
    with dask.config.set(scheduler="synchronous"):
        tensor.sum().compute()
    assert sorted(source.requests) == [(56 + number * MIB, MIB) for number in range(16)]


@pytest.mark.parametrize("order", [("x", "y"), ("y", "x")])
def test_variables_of_different_dtypes_have_the_same_chunks(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    matrix = xr.DataArray(np.arange(12_000.0).reshape(4000, 3), dims=("x", "y"))
    ds = xr.Dataset({"a": matrix.astype("f4"), "b": matrix, "c": matrix.sum("y")})
    ds = ds.assign_coords(lab=("x", np.arange(4000))).transpose(*order)
    to_file(ds, tmp_path / "a.safetensors")
    chunked = xr.open_dataset(tmp_path / "a.safetensors", chunks={}, chunk_bytes=16_384)
    assert len(chunked.chunks[order[0]]) > 1
    assert chunked.b.chunks == chunked.a.chunks
    xr.testing.assert_equal(chunked.map_blocks(lambda block: block).compute(), ds)
    for variable in (chunked.a, chunked.b):
        assert all(read.range_count == 1 for read in variable.tensorfmt.explain().reads)


def test_reductions_agree_with_numpy(path: Path) -> None:
    tensor = xr.open_dataset(path, engine="tensorfmt", chunks={}, chunk_bytes=MIB).tensor
    np.testing.assert_allclose(tensor.mean(("a", "b")), make_values().mean((0, 1)), rtol=1e-12)
    np.testing.assert_allclose(tensor.T.std("a"), make_values().T.std(2), rtol=1e-9)


def _replace(file: Path, values: np.ndarray, seconds: int) -> None:
    other = file.with_name("other")
    other.write_bytes(tf.make_0_9(values))
    wait_for_a_tick(file)
    os.utime(other, ns=(0, 10**18 + seconds * 10**9))
    other.replace(file)


def test_two_files_with_one_path_have_different_names_in_dask(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_bytes(tf.make_0_9(np.zeros((4, 4))))
    before = xr.open_dataset(file, engine="tensorfmt", chunks={}).tensor
    _replace(file, np.ones((4, 4)), 1)
    after = xr.open_dataset(file, engine="tensorfmt", chunks={}).tensor
    assert before.data.name != after.data.name
    with pytest.raises(SourceChangedError):
        before.compute()
    assert (after.compute() == 1).all()


def test_two_files_with_one_path_and_time_have_different_names_if_chunked_later(
    tmp_path: Path,
) -> None:
    file = tmp_path / "t"
    file.write_bytes(tf.make_0_9(np.zeros((4, 4))))
    os.utime(file, ns=(0, 10**18))
    before = xr.open_dataset(file, engine="tensorfmt").chunk()
    _replace(file, np.ones((4, 4)), 0)
    after = xr.open_dataset(file, engine="tensorfmt").chunk()
    assert before.tensor.data.name != after.tensor.data.name
    with pytest.raises(SourceChangedError):
        before.compute()
    assert (after.tensor.compute() == 1).all()


@pytest.mark.parametrize("form", [memoryview, io.BytesIO])
def test_contents_in_memory_have_different_names_in_dask(form) -> None:
    contents = [tf.make_0_9(np.full((4, 4), float(number))) for number in range(2)]
    first, second = (
        xr.open_dataset(form(content), engine="tensorfmt", chunks={}).tensor for content in contents
    )
    assert first.data.name != second.data.name
    assert ((second - first).compute() == 1).all()


def test_pairs_are_filled_chunk_by_chunk() -> None:
    rng = np.random.default_rng(0)
    indices = np.sort(rng.choice(10**6, 5000, replace=False))
    dense = np.zeros(10**6)
    dense[indices] = 1 + np.arange(5000)
    content = tf.make_index_value((100, 100, 100), indices.tolist(), dense[indices])
    tensor = xr.open_dataset(
        io.BytesIO(content), engine="tensorfmt", chunks={}, chunk_bytes=MIB
    ).tensor
    assert len(tensor.chunks[2]) > 5
    np.testing.assert_array_equal(tensor, dense.reshape((100, 100, 100), order="F"))


LARGE = """
import resource, sys
import dask, dask.array, numpy, xarray
import xr_tensorfmt.backend

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

dask.array.ones(10).sum().compute()
start = peak()
dataset = xarray.open_dataset(sys.argv[1], engine="tensorfmt", chunks={})
lazy = xarray.open_dataset(sys.argv[1], engine="tensorfmt")
assert lazy.tensor.nbytes == 2000 * 1237 * 1237 * 16
column = lazy.tensor.isel(b=600, c=1200).values
assert column.shape == (2000,) and not column.any()
row = lazy.tensor.isel(a=7, c=1200).values
assert row.shape == (1237,) and not row.any()
print(peak() - start)
slab = dataset.tensor.isel(c=slice(100, 128))
assert 1 << 30 < slab.nbytes
total = abs(slab).sum(skipna=False).compute(num_workers=2)
assert float(total) == 0.0
print(peak() - start)
"""


def test_49_gigabyte_vertex_needs_little_memory(tmp_path: Path) -> None:
    file = tmp_path / "CoulombVertex.bin"
    lengths = (2000, 1237, 1237)
    with file.open("wb") as stream:
        stream.write(tf.pack_header(lengths, size=16, numbers=2))
        stream.truncate(56 + 2000 * 1237 * 1237 * 16)
    output = run_python("-c", LARGE, file).stdout
    selected, reduced = map(int, output.splitlines())
    assert selected < 100 * MIB
    assert reduced < 400 * 10**6


@pytest.mark.parametrize("name", ["mag", "pycauset", "safetensors", "tens"])
def test_many_coordinates_of_a_file_have_the_chunks_of_the_data(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy_array, "MAX_LOADED_LABELS", 63)
    names = {f"{dim}_time": (dim, np.arange(64)) for dim in ("row", "col")}
    bits = xr.DataArray(np.eye(64, dtype="?"), names, ("row", "col"), name="tensor")
    data = bits.astype("f8") if name == "tens" else bits
    data.tensorfmt.to_file(tmp_path / f"a.{name}")
    size = {"pycauset": 16, "tens": 4096}.get(name, 512)
    ds = xr.open_dataset(tmp_path / f"a.{name}", engine="tensorfmt", chunks={}, chunk_bytes=size)
    assert max(map(len, ds.chunks.values())) > 1
    is_in_header = name in ("pycauset", "tens")
    for dim in ("row", "col"):
        assert ds[f"{dim}_time"].chunks == (None if is_in_header else (ds.chunks[dim],))
    xr.testing.assert_equal(ds.tensor, data)


def write_labels(file: Path) -> xr.Dataset:
    """Write labels that a file stores, and labels and a number that its header embeds."""
    coords = {
        "doc": ("block", np.array(["a", "a", "b", "b"], object)),
        "is_long": ("block", np.array([True, False, True, False])),
        "pair": (("block", "x"), np.array([["p", "q"]] * 4)),
        "scale": 2.0,
    }
    ds = xr.Dataset({"v": (("block", "x"), np.arange(8, dtype="f4").reshape(4, 2))}, coords)
    to_file(ds, file)
    return ds


@pytest.mark.parametrize("name", ["a.safetensors", "a.mag", "memory"])
@pytest.mark.parametrize("chunks", [{}, {"block": 2}, "auto"])
def test_labels_select_and_group_chunked_variables(tmp_path: Path, name: str, chunks: Any) -> None:
    expected = write_labels(tmp_path / name.replace("memory", "b.mag"))
    file: Any = tmp_path / name
    if name == "memory":
        file = memoryview((tmp_path / "b.mag").read_bytes())
    ds = xr.open_dataset(file, engine="tensorfmt", chunks=chunks)
    assert ds.v.chunks is not None
    assert all(isinstance(coord.data, np.ndarray) for coord in ds.coords.values() if coord.ndim)
    for opened, given in ((ds, expected), (ds.chunk(), expected.chunk().load())):
        xr.testing.assert_identical(opened.load(), given)
    ds = xr.open_dataset(file, engine="tensorfmt", chunks=chunks)
    xr.testing.assert_identical(ds[{"block": ds.is_long}].load(), expected[{"block": [0, 2]}])
    xr.testing.assert_identical(ds.v[ds.doc == "a"].load(), expected.v[:2])
    xr.testing.assert_identical(
        ds.v.groupby("doc").max().compute(), expected.v.groupby("doc").max()
    )
    blocks = ds.map_blocks(lambda block: block * 2).compute()
    xr.testing.assert_identical(blocks, (expected * 2).drop_attrs())


def test_many_labels_and_unchunked_ones_stay_lazy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_labels(tmp_path / "a.mag")
    labels = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt").is_long
    assert "[4 values with dtype=bool]" in repr(labels)
    labels = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt", cache=False).is_long
    assert "[4 values with dtype=bool]" in repr(labels)
    assert labels.chunk(block=2).chunks == ((2, 2),)
    monkeypatch.setattr(lazy_array, "MAX_LOADED_LABELS", 3)
    ds = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt", chunks={}, chunk_bytes=16)
    assert ds.is_long.chunks == ds.v.chunks[:1] == ((2, 2),)  # in the file
    assert ds.doc.chunks is None  # in the header


@pytest.mark.parametrize("chunks", [{}, 2])
def test_labels_in_memory_are_not_chunked_without_an_index(tmp_path: Path, chunks: Any) -> None:
    table = xr.DataArray(np.eye(4), {"doc": list("abcd")}, ("doc", "x"), name="tensor")
    to_file(table, tmp_path / "a.tbf")
    ds = xr.open_dataset(
        tmp_path / "a.tbf", engine="tensorfmt", chunks=chunks, create_default_indexes=False
    )
    assert not ds.indexes
    np.testing.assert_array_equal(ds.tensor[ds.doc == "c"], [[0, 0, 1, 0]])
    assert ds.set_xindex("doc").tensor.sel(doc="b").chunks is not None


@pytest.mark.parametrize(
    ("name", "is_directory"),
    [*((*name.values, False) for name in WRITABLE), ("mag", True), ("safetensors", True)],
)
def test_names_contain_versions_of_all_files(tmp_path: Path, name: str, is_directory: bool) -> None:
    """Replace files. The path and its time do not change."""
    old, new = tmp_path / "old", tmp_path / "new"
    for offset, directory in enumerate([old, new]):
        directory.mkdir()
        write(make_array(float(offset), (2, 3)), directory, name)
    path = next(old.glob("file" + registry.find_format(name).suffixes[0]))
    opened = old if is_directory else path
    os.utime(opened, ns=(0, 0))
    first = open_array(opened, chunks={}).persist()
    for replacement in new.iterdir():
        replacement.replace(old / replacement.name)
    os.utime(opened, ns=(0, 0))
    second = open_array(opened, chunks={})
    np.testing.assert_array_equal(second - first, np.ones((2, 3)))
