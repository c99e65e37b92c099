"""Attributes as long as a tokenizer are attributes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests.commands import run_ok
from xr_tensorfmt import to_file

SUFFIXES = ["mag", "safetensors", "safetensors.index.json", "tens", "yaml", "pycauset"]
VOCABULARY = {f"token{number} <&>": number for number in range(5_000)}
LONG: dict[str, Any] = {
    "str": json.dumps(VOCABULARY),
    "dict": {"type": "BPE", "model": {"vocab": VOCABULARY}},
    "list": list(VOCABULARY),
}


def make_dataset(value: Any, suffix: str = "mag") -> xr.Dataset:
    attrs = {"tokenizer": value, "short": "text"}
    values = np.arange(3, dtype="f8" if suffix == "yaml" else "f4")
    return xr.Dataset({"tensor": ("x", values, attrs)}, attrs=attrs)


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_long_attributes_are_written_again(tmp_path: Path, suffix: str, name: str) -> None:
    written = make_dataset(LONG[name], suffix)
    path, copy = tmp_path / f"tensor.{suffix}", tmp_path / "copy" / f"tensor.{suffix}"
    copy.parent.mkdir()
    to_file(written, path)
    ds = xr.open_dataset(path, engine="tensorfmt")
    assert ds.attrs.items() >= written.attrs.items()
    assert ds.tensor.attrs.items() >= written.tensor.attrs.items()
    to_file(ds.assign_attrs(tokenizer="new"), copy)
    assert xr.open_dataset(copy, engine="tensorfmt").attrs["tokenizer"] == "new"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_other_engines_write_long_attributes(tmp_path: Path, suffix: str) -> None:
    to_file(make_dataset(LONG["list"], suffix), tmp_path / f"tensor.{suffix}")
    ds = xr.open_dataset(tmp_path / f"tensor.{suffix}", engine="tensorfmt", chunks={})
    ds.to_zarr(tmp_path / "a.zarr", consolidated=False)
    ds.drop_attrs().to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    assert xr.merge([ds, ds.drop_attrs()], combine_attrs="override").attrs == ds.attrs


def test_tree_and_converted_file_have_long_attributes(tmp_path: Path) -> None:
    written = make_dataset(LONG["str"]).rename(tensor="tokenizer.tensor", x="tokenizer.x")
    to_file(written, tmp_path / "a.mag")
    tree = xr.open_datatree(tmp_path / "a.mag", engine="tensorfmt")
    assert tree.attrs == written.attrs
    to_file(tree, tmp_path / "a.safetensors")
    xr.testing.assert_identical(xr.open_dataset(tmp_path / "a.safetensors"), written)
    run_ok("convert", str(tmp_path / "a.mag"), str(tmp_path / "b.nc"))
    with xr.open_dataset(tmp_path / "b.nc", engine="h5netcdf") as ds:
        assert ds.attrs == written.attrs
