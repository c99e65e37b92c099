"""Attributes as long as a tokenizer do not make the display of a Dataset long."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

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


def test_long_lists_of_metadata(tmp_path: Path) -> None:
    tokens = [f"token {i}" for i in range(MAX_ATTRIBUTE_LENGTH // 8)]
    ds = xr.Dataset({"tensor": ("x", np.ones(3, "f4"))}, attrs={"tokens": tokens})
    to_file(ds, tmp_path / "a.mag")
    opened = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt")
    assert opened.tokens.item() == tokens
    to_file(opened, tmp_path / "b.mag")
    assert xr.open_dataset(tmp_path / "b.mag", engine="tensorfmt").tokens.item() == tokens
