"""Unusual names, sizes, numbers and directories."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZipFile

import fsspec
import numpy as np
import pytest
import xarray as xr

import xr_tensorfmt
from xr_tensorfmt import cc4s, to_file, validate
from xr_tensorfmt.sources.store_errors import MAX_PAUSE, Response

pytestmark = pytest.mark.filterwarnings("error")


def make_model() -> xr.Dataset:
    return xr.Dataset({name: ("x", np.ones(4, "f4")) for name in ("a", "b", "c")})


@pytest.mark.parametrize("name", ["model.safetensors.index.json", "old.npz", "b.safetensors"])
def test_directories_with_names_of_files_are_no_files(tmp_path: Path, name: str) -> None:
    to_file(make_model(), tmp_path / "model.safetensors")
    (tmp_path / name).mkdir()
    assert validate(tmp_path) == []
    xr.testing.assert_equal(xr.open_dataset(tmp_path, engine="tensorfmt"), make_model())


def test_directories_in_stores_are_no_files(memory: fsspec.AbstractFileSystem) -> None:
    to_file(make_model(), "memory://folder/model.safetensors")
    memory.mkdir("/folder/old.safetensors")
    opened = xr.open_dataset("memory://folder/", engine="tensorfmt")
    xr.testing.assert_equal(opened.load(), make_model())


@pytest.mark.parametrize("region", [{}, {"dim_1": slice(0, 1)}])
def test_region_of_empty_array_changes_nothing(tmp_path: Path, region: dict) -> None:
    empty = xr.DataArray(np.zeros((0, 3)), dims=("dim_0", "dim_1"), name="tensor")
    to_file(empty, tmp_path / "a.npy", drop=["name", "dims"])
    before = (tmp_path / "a.npy").read_bytes()
    to_file(empty.isel(region), tmp_path / "a.npy", region=region)
    assert (tmp_path / "a.npy").read_bytes() == before


def test_files_of_index_with_other_spelling_are_removed(tmp_path: Path) -> None:
    index = tmp_path / "m.safetensors.index.json"
    to_file(make_model(), index, max_shard_bytes=16)
    document = json.loads(index.read_text())
    document["weight_map"] = {k: f"./{v}" for k, v in document["weight_map"].items()}
    index.write_text(json.dumps(document))
    to_file(make_model(), index, max_shard_bytes=1 << 20)
    assert [path.name for path in tmp_path.glob("*.safetensors")] == [
        "m-00001-of-00001.safetensors"
    ]


def test_files_of_a_large_index_are_removed(tmp_path: Path) -> None:
    index = tmp_path / "m.safetensors.index.json"
    to_file(make_model(), index, max_shard_bytes=16)
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    index.write_text(index.read_text().rstrip()[:-1] + " " * (70 << 20) + "}")
    xr.testing.assert_equal(xr.load_dataset(index, engine="tensorfmt"), make_model())
    to_file(make_model(), index, max_shard_bytes=1 << 20)
    assert [path.name for path in tmp_path.glob("*.safetensors")] == [
        "m-00001-of-00001.safetensors"
    ]


@pytest.mark.parametrize("units", ["metres", ""])
def test_durations_in_unknown_units_are_an_error(tmp_path: Path, units: str) -> None:
    stored = xr.DataArray(np.arange(3), dims="x", name="tensor", attrs={"units": units})
    to_file(stored, tmp_path / "a.safetensors")
    values = xr.DataArray(np.arange(3).astype("m8[s]"), dims="x", name="tensor")
    refused = r"'tensor' is timedelta64\[s\], but 'tensor' in the file supports only int64"
    with pytest.raises(ValueError, match=refused):
        to_file(values, tmp_path / "a.safetensors", region={})
    values.encoding["units"] = units
    with pytest.raises(ValueError, match=r"the encoding of 'tensor'|units"):
        xr_tensorfmt.to_file(values, tmp_path / "b.safetensors")


@pytest.mark.parametrize("name", ["../evil.hh", "/tmp/evil.hh", "a/b"])
def test_names_of_variables_lead_to_no_other_directory(tmp_path: Path, name: str) -> None:
    target = tmp_path / "sub" / "calculation"
    ds = xr.Dataset({name: (("State", "State_2"), np.ones((2, 2)))})
    with pytest.raises(ValueError, match="cannot be the name of a file"):
        cc4s.to_calculation(ds, target)
    assert [*tmp_path.iterdir()] == []


def test_size_of_deflated_member_is_bounded_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.arange(4.0))
    with ZipFile(path) as archive:
        (member,) = archive.infolist()
    size = member.file_size.to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(size, (1 << 31).to_bytes(4, "little")))
    (finding, *_) = validate(path)
    assert "2147483648 bytes of content" in finding.actual


@pytest.mark.parametrize("value", [complex(np.nan, 0.1), complex(0.1, np.nan)])
def test_nan_in_one_part_of_a_complex_number_excuses_no_rounding(
    tmp_path: Path, value: complex
) -> None:
    stored = xr.DataArray(np.zeros(1, "c8"), dims="x", name="tensor")
    to_file(stored, tmp_path / "a.tens", version="1.0")
    with pytest.raises(ValueError, match="cannot represent"):
        to_file(stored.astype(complex) + value, tmp_path / "a.tens", region={})
    to_file(stored.astype(complex) + complex(np.nan, 0.5), tmp_path / "a.tens", region={})


@pytest.mark.parametrize("value", ["9" * 400, "Mon, 01 Jan 99999 00:00:00 GMT", "86401"])
def test_requested_pause_has_a_limit(value: str) -> None:
    assert Response(429, "", {"Retry-After": value}).pause <= MAX_PAUSE
