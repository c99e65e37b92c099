"""Unusual input is written unchanged or raises an error."""

from __future__ import annotations

import json
from collections.abc import Hashable
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from xarray.indexes import CoordinateTransform, CoordinateTransformIndex

from tests import tensfiles as tf
from tests.opening import load
from xr_tensorfmt import to_file, validate
from xr_tensorfmt.formats.registry import find_format

WRITERS = {name: partial(to_file, format=name) for name in ("tens", "mag", "pycauset", "vespa")}


def make_matrix(values, **attrs) -> xr.Dataset:
    return xr.Dataset({"v": (("p", "q"), values, attrs)})


def test_chunks_without_elements(tmp_path: Path) -> None:
    values = np.add.outer(np.arange(4.0), np.arange(4.0))
    lengths = (0, 2, 0, 2, 0)
    chunked = xr.Dataset({"v": (("a", "b"), da.from_array(values, chunks=(lengths, lengths)))})
    to_file(chunked, tmp_path / "a.tens")
    xr.testing.assert_identical(load(tmp_path / "a.tens"), chunked.compute())
    assert not validate(tmp_path / "a.tens")


def test_odd_bools_become_those_of_numpy(tmp_path: Path) -> None:
    odd = np.array([[0, 1, 2], [255, 128, 0]], dtype="u1").view(bool)
    to_file(make_matrix(odd), tmp_path / "a.mag")
    assert not validate(tmp_path / "a.mag")
    actual = load(tmp_path / "a.mag").v.values
    assert actual.view("u1").tolist() == [[0, 1, 1], [1, 1, 0]]


@pytest.mark.parametrize("name", ["mag", "tens", "pycauset"])
def test_attributes_of_as_many_dimensions_as_numpy_has(tmp_path: Path, name: str) -> None:
    before = make_matrix(np.ones((2, 3), "f4"), deep=np.ones((1,) * 64))
    WRITERS[name](before, tmp_path / f"a.{name}")
    actual = load(tmp_path / f"a.{name}")
    assert actual.v.dims == ("p", "q")
    assert actual.v.attrs["deep"].shape == (1,) * 64


@pytest.mark.parametrize("name", ["mag", "tens", "pycauset"])
def test_masked_attributes_raise(tmp_path: Path, name: str) -> None:
    masked = make_matrix(np.ones((2, 3), "f4"), m=np.ma.masked_array([1, 2], [False, True]))
    with pytest.raises(
        ValueError, match="'m' of 'v' has masked values, which JSON does not support"
    ):
        WRITERS[name](masked, tmp_path / f"a.{name}")
    assert not list(tmp_path.iterdir())
    WRITERS[name](masked, tmp_path / f"a.{name}", drop=["attrs"])
    assert "m" not in load(tmp_path / f"a.{name}").v.attrs


@pytest.mark.parametrize("name", ["mag", "tens", "pycauset"])
@pytest.mark.parametrize("shape", [(1 << 40, 1 << 40), (1 << 30, 1 << 30), (0, 1 << 62)])
def test_unaddressable_shape_raises(tmp_path: Path, name: str, shape) -> None:
    chunks = tuple(max(1, length >> 2) for length in shape)
    huge = make_matrix(da.zeros(shape, chunks=chunks, dtype="i1"))
    with pytest.raises(ValueError, match=r"'v' of shape .* is too large to address; write a part"):
        WRITERS[name](huge, tmp_path / f"a.{name}")


@pytest.mark.parametrize("name", WRITERS)
def test_unknown_keywords_are_named(tmp_path: Path, name: str) -> None:
    file_format = find_format(name)
    listed = ", ".join([*file_format.write_options, "data, path, format, mode"])
    requested = f"'colour' is not a keyword for {file_format.title} files, expected one of {listed}"
    with pytest.raises(TypeError, match=requested):
        to_file(make_matrix(np.ones((2, 3))), tmp_path / "a", name, colour="red")


@pytest.mark.parametrize("region", ["all", 5, [("p", slice(1))]])
def test_region_is_mapping(tmp_path: Path, region) -> None:
    to_file(make_matrix(np.ones((2, 3))), tmp_path / "a.tens")
    with pytest.raises(TypeError, match=r"must be 'auto' or like .'x': slice"):
        to_file(make_matrix(np.ones((2, 3))), tmp_path / "a.tens", region=region)


@pytest.mark.parametrize("path", [None, 3, b"a.tens", ["a.tens"]])
def test_invalid_path_type_raises(path) -> None:
    with pytest.raises(TypeError, match="is neither a path nor a URL"):
        to_file(make_matrix(np.ones((2, 3))), path, "tens")


def write_tens_with_metadata(path: Path, note: object) -> None:
    """Write a TENS file with replaced embedded metadata."""
    to_file(make_matrix(np.arange(6.0).reshape(2, 3), unit="m"), path, "tens")
    content = path.read_bytes()
    start, stop = content.index(b"XRTENSOR") + 16, content.index(b"DENSDATA")
    text = json.dumps(note).encode().ljust(stop - start, b"\0")
    path.write_bytes(content[:start] + text + content[stop:])


def make_labels(*dims: str) -> dict[str, object]:
    values = {"dtype": "|O", "shape": [], "strings": ["a"]}
    return {"dims": list(dims), "attrs": {}, "values": values}


TENSORS = {"tensor": {"name": "v", "dims": ["p", "q"], "attrs": {}}}
NOTES = {
    "or is a scalar and a dimension": {
        "tensors": TENSORS,
        "coordinates": {"p": make_labels()},
    },
    "unexpected keyword argument 'tdnsors'": {"tdnsors": TENSORS},
    "unexpected keyword argument 'eims'": {"tensors": {"tensor": {"eims": ["p", "q"]}}},
    "unexpected keyword argument 'attr3'": {
        "tensors": TENSORS,
        "coordinates": {"z": make_labels() | {"attr3": {}}},
    },
}


@pytest.mark.parametrize("problem", NOTES)
def test_mismatched_embedded_metadata_are_ignored(tmp_path: Path, problem: str) -> None:
    path = tmp_path / "a.tens"
    write_tens_with_metadata(path, {"version": 1, **NOTES[problem]})
    with pytest.warns(UserWarning, match=problem):
        actual = load(path)
    values = actual["tensor"].values
    np.testing.assert_array_equal(values, np.arange(6.0).reshape(2, 3))
    assert any(problem in str(finding) for finding in validate(path))


def test_corrupt_magic_of_chunk_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.tens"
    embedded = tf.pack_chunk(b"XRTENSOR", b'{"version": 1}')
    symmetric = np.array([[0.0, 2.0], [2.0, 0.0]])
    path.write_bytes(tf.make_1_0(symmetric, tf.pack_symmetry("x", "ba"), embedded))
    full = path.read_bytes()
    for magic in (b"SYMMETRY", b"XRTENSOR"):
        assert not validate(path)
        path.write_bytes(full.replace(magic, b"Z" + magic[1:]))
        (finding,) = validate(path)
        assert finding.severity == "warning"
        assert f"'Z{magic[1:].decode()}', which the format does not define" in str(finding)
        path.write_bytes(full)


@pytest.mark.parametrize("suffix", ["mag", "safetensors", "tens", "pycauset"])
def test_coordinates_of_one_index_are_written(tmp_path: Path, suffix: str) -> None:
    """As `to_netcdf` does. Only the levels of a MultiIndex cannot be written."""

    class Shift(CoordinateTransform):
        def forward(self, dim_positions: dict[str, Any]) -> dict[Hashable, Any]:
            return {"lon": dim_positions["x"] + 0.5, "lat": dim_positions["y"] * 2.0}

        def reverse(self, coord_labels: dict[Hashable, Any]) -> dict[str, Any]:
            return {"x": coord_labels["lon"] - 0.5, "y": coord_labels["lat"] / 2.0}

        def equals(self, other: object, **_: Any) -> bool:
            return isinstance(other, Shift)

    index = CoordinateTransformIndex(Shift(["lon", "lat"], {"y": 2, "x": 3}))
    coords = xr.Coordinates.from_xindex(index)
    ds = xr.Dataset({"v": (("y", "x"), np.ones((2, 3), "f4"))}, coords)
    to_file(ds, tmp_path / f"a.{suffix}")
    opened = xr.open_dataset(tmp_path / f"a.{suffix}", engine="tensorfmt")
    assert set(opened.coords) == {"lon", "lat"}
    xr.testing.assert_equal(opened.drop_indexes([]), ds.drop_indexes(["lon", "lat"]))
