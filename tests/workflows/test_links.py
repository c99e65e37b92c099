"""Writing to links, as in the cache of Hugging Face: the link is replaced, and not its target."""

from __future__ import annotations

import os
from pathlib import Path

import dask.array as da
import pytest
import xarray as xr

from tests.workflows.formats import WRITABLE, make_array, open_array, write
from xr_tensorfmt import to_file

INDEX = "model.safetensors.index.json"


def make_links(directory: Path) -> dict[Path, bytes]:
    """Replace all files by links to files in `blobs`, and return the contents of these."""
    blobs = directory.parent / "blobs"
    blobs.mkdir()
    for path in list(directory.iterdir()):
        path.rename(blobs / path.name)
        path.symlink_to(f"../blobs/{path.name}")
    return {path: path.read_bytes() for path in blobs.iterdir()}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "snapshot").mkdir()
    return tmp_path / "snapshot"


@pytest.mark.parametrize("compute", [True, False])
@pytest.mark.parametrize("name", WRITABLE)
def test_link_is_replaced(directory: Path, name: str, compute: bool) -> None:
    path = write(make_array(), directory, name)
    blobs = make_links(directory)
    task = to_file(
        make_array(1).astype("f8" if name == "cc4s" else "f4"),
        path,
        name,
        drop=["name", "dims"],
        compute=compute,
    )
    if task is not None:
        task.compute()
    assert {blob: blob.read_bytes() for blob in blobs} == blobs
    assert not any(path.is_symlink() for path in directory.iterdir())
    assert open_array(path).values[0, 0] == 1


def test_links_of_model_are_replaced(directory: Path) -> None:
    ds = xr.Dataset({"a": ("x", [1.0, 2.0]), "b": ("y", [3.0])})
    to_file(ds, directory / INDEX, max_shard_bytes=16)
    blobs = make_links(directory)
    to_file(ds * 2, directory / INDEX, max_shard_bytes=16)
    assert len(blobs) == 3
    assert {blob: blob.read_bytes() for blob in blobs} == blobs
    xr.testing.assert_equal(open_model(directory), (ds * 2).rename(x="a_dim_0", y="b_dim_0"))


def open_model(directory: Path) -> xr.Dataset:
    ds = xr.open_dataset(directory / INDEX, engine="tensorfmt")
    return ds.rename({old: f"{name}_dim_0" for name in ds.data_vars for old in ds[name].dims})


@pytest.mark.parametrize("name", WRITABLE)
def test_link_without_target_is_replaced(directory: Path, name: str) -> None:
    path = write(make_array(), directory, name)
    blobs = make_links(directory)
    for blob in blobs:
        blob.unlink()
    write(make_array(1), directory, name)
    assert not any(blob.exists() for blob in blobs)
    assert open_array(path).values[0, 0] == 1


def test_mode_x_refuses_link_without_target_before_computing(directory: Path) -> None:
    (directory / "file.mag").symlink_to("missing")

    def fail(values: object) -> object:
        raise AssertionError

    array = make_array().copy(data=da.zeros((300, 500), "f4").map_blocks(fail, dtype="f4"))
    with pytest.raises(FileExistsError, match="exists already"):
        to_file(array, directory / "file.mag", mode="x")
    assert os.readlink(directory / "file.mag") == "missing"


@pytest.mark.parametrize("name", WRITABLE)
def test_linked_directory(directory: Path, tmp_path: Path, name: str) -> None:
    linked = tmp_path / "linked"
    linked.symlink_to(directory, target_is_directory=True)
    for offset in (0, 1):
        path = write(make_array(offset), linked, name)
        assert open_array(directory / path.name).values[0, 0] == offset
    assert linked.is_symlink()
