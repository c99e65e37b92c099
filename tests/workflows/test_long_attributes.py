"""Attributes as long as a tokenizer are plain values, and do not make the display long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests.commands import run_ok
from tests.processes import run_python
from xr_tensorfmt import to_file
from xr_tensorfmt.datasets.long_attributes import MAX_ATTRIBUTE_LENGTH

SUFFIXES = ["mag", "safetensors", "safetensors.index.json", "tens", "yaml", "pycauset"]
TOKENIZER = json.dumps({f"token {i}": i for i in range(MAX_ATTRIBUTE_LENGTH // 8)})


def make_dataset(suffix: str) -> xr.Dataset:
    dtype = "f4" if suffix == "mag" else "f8"
    variable = ("x", np.arange(3, dtype=dtype))
    return xr.Dataset({"tensor": variable}, attrs={"tokenizer": TOKENIZER, "short": "text"})


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_display_is_short_and_attribute_is_written_back(
    tmp_path: Path, suffix: str, chunks: object
) -> None:
    written = make_dataset(suffix)
    path, copy = tmp_path / f"tensor.{suffix}", tmp_path / "copy" / f"tensor.{suffix}"
    copy.parent.mkdir()
    to_file(written, path)
    ds = xr.open_dataset(path, engine="tensorfmt", chunks=chunks)
    assert len(ds._repr_html_()) + len(repr(ds)) < MAX_ATTRIBUTE_LENGTH
    assert ds.tokenizer.item() == TOKENIZER
    assert ds.attrs["short"] == "text"
    for changed in (ds, ds.isel(x=slice(2)), ds.load()):
        to_file(changed, copy)
        stored = xr.open_dataset(copy, engine="tensorfmt")
        assert stored.tokenizer.item() == TOKENIZER
        expected = written.isel(x=slice(changed.sizes["x"])).tensor
        xr.testing.assert_identical(stored.tensor.drop_vars("tokenizer"), expected)
    to_file(stored.tensor, tmp_path / "b.npy", drop=["dims"])


def test_attribute_is_converted_and_written_from_a_tree(tmp_path: Path) -> None:
    to_file(make_dataset("mag").rename(tensor="layers.tensor"), tmp_path / "a.mag")
    tree = xr.open_datatree(tmp_path / "a.mag", engine="tensorfmt")
    assert len(tree._repr_html_()) < MAX_ATTRIBUTE_LENGTH
    to_file(tree, tmp_path / "a.safetensors")
    opened = xr.open_dataset(tmp_path / "a.safetensors", engine="tensorfmt")
    assert opened.tokenizer.item() == TOKENIZER
    size = int.from_bytes((tmp_path / "a.safetensors").read_bytes()[:8], "little")
    header = json.loads((tmp_path / "a.safetensors").read_bytes()[8 : 8 + size])
    assert header["__metadata__"]["tokenizer"] == TOKENIZER


def test_name_of_variable_or_group_remains_an_attribute(tmp_path: Path) -> None:
    attrs = dict.fromkeys(["tensor", "x", "layers"], TOKENIZER)
    ds = xr.Dataset(
        {"tensor": ("x", np.ones(3, "f4")), "layers.w": ("x", np.ones(3, "f4"))}, attrs=attrs
    )
    to_file(ds, tmp_path / "a.mag")
    assert xr.open_datatree(tmp_path / "a.mag", engine="tensorfmt").attrs == attrs


VOCABULARY = {f"token{number} <&>": number for number in range(50_000)}
LONG: dict[str, Any] = {
    "str": json.dumps(VOCABULARY),
    "dict": {"type": "BPE", "model": {"vocab": VOCABULARY}},
    "list": list(VOCABULARY),
}


def make_weights(**attrs: Any) -> xr.Dataset:
    return xr.Dataset({"layers.0.w": ("n", np.ones(3, "f4"), attrs)}, attrs=attrs)


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_values_are_plain_and_are_written_again(tmp_path: Path, name: str) -> None:
    to_file(make_weights(tokenizer=LONG[name]), tmp_path / "a.mag")
    ds = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt").load()
    for value in (ds["tokenizer"].item(), ds["layers.0.w"].attrs["tokenizer"]):
        assert value == LONG[name]
        assert type(value) is type(LONG[name])
        assert str(value) == str(LONG[name])
    to_file(ds, tmp_path / "b.mag")
    again = xr.open_dataset(tmp_path / "b.mag", engine="tensorfmt")
    assert again["tokenizer"].item() == LONG[name]
    expected = make_weights(tokenizer=LONG[name]).drop_attrs(deep=False)
    xr.testing.assert_identical(again.load().drop_vars("tokenizer"), expected)


@pytest.mark.parametrize("name", ["str", "list"])
def test_netcdf_has_them_whole(tmp_path: Path, name: str) -> None:
    to_file(make_weights(tokenizer=LONG[name]), tmp_path / "a.mag")
    run_ok("convert", str(tmp_path / "a.mag"), str(tmp_path / "b.nc"))
    with xr.open_dataset(tmp_path / "b.nc", engine="h5netcdf") as ds:
        assert ds.attrs["tokenizer"] == LONG[name]


@pytest.mark.slow
def test_display_of_xarray_is_not_changed(tmp_path: Path) -> None:
    to_file(make_weights(tokenizer=LONG["str"]), tmp_path / "a.mag")
    run_python(
        "-c",
        "import xarray as xr\n"
        "from xarray.core import formatting_html\n"
        "before = dict(vars(formatting_html))\n"
        f"ds = xr.open_dataset({str(tmp_path / 'a.mag')!r}, engine='tensorfmt')\n"
        "ds.tensorfmt.explain()\n"
        "assert dict(vars(formatting_html)) == before\n",
    )
