"""Long attributes are displayed by their beginning alone, and are otherwise what the file has."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests.commands import done
from tests.processes import run_python
from xr_tensorfmt import to_file
from xr_tensorfmt.datasets.long_attributes import LONGEST_SHOWN, displayable

VOCABULARY = {f"token{number} <&>": number for number in range(50_000)}
LONG: dict[str, Any] = {
    "str": json.dumps(VOCABULARY),
    "dict": {"type": "BPE", "model": {"vocab": VOCABULARY}},
    "list": list(VOCABULARY),
    "nested": [[[{"a": "x" * 2 * LONGEST_SHOWN}]]],
    "many": dict.fromkeys(VOCABULARY),
}
SHORT = {"text": "x" * LONGEST_SHOWN, "config": {"layers": [1, 2]}, "epoch": 3, "none": None}


def dataset(**attrs: Any) -> xr.Dataset:
    return xr.Dataset({"layers.0.w": ("n", np.ones(3, "f4"), attrs)}, attrs=attrs)


def opened(path: Path, **attrs: Any) -> xr.Dataset:
    to_file(dataset(**attrs), path)
    return xr.open_dataset(path, engine="tensorfmt").load()


@pytest.mark.parametrize("suffix", [".mag", ".tens", ".yaml", ".pycauset"])
@pytest.mark.parametrize("kind", LONG)
def test_in_every_format_with_attributes_long_ones_fill_no_notebook(
    tmp_path: Path, kind: str, suffix: str
) -> None:
    names = {"layers.0.w": "tensor"} if suffix == ".yaml" else {}
    dims = {"n": "index"} if suffix == ".pycauset" else {}
    ds = dataset(tokenizer=LONG[kind]).rename(names | dims)
    path = tmp_path / f"a{suffix}"
    to_file(ds.astype("f8") if suffix == ".yaml" else ds, path)
    for shown in (
        found := xr.open_dataset(path, engine="tensorfmt"),
        next(iter(found.data_vars.values())),
        xr.open_datatree(path, engine="tensorfmt"),
        found.isel({dim: slice(2) for dim in found.dims}),
        *([] if kind == "str" else [found.attrs]),
    ):
        for text in (repr(shown), shown._repr_html_() if hasattr(shown, "_repr_html_") else ""):
            assert len(text) < 40_000
            assert "x" * 1000 not in text
    assert found.attrs["tokenizer"] == LONG[kind]
    assert next(iter(found.data_vars.values())).attrs["tokenizer"] == LONG[kind]


def test_the_beginning_is_displayed_and_how_long_the_rest_is(tmp_path: Path) -> None:
    html = opened(tmp_path / "a.mag", text="<b>" + "x" * 20_000, items=list(range(20_000)))
    assert "&lt;b&gt;xxx" in html._repr_html_()
    assert "(20003 characters)" in html._repr_html_()
    assert "[0, 1, 2, 3, ...] (20000 items)" in html._repr_html_()
    plain = xr.Dataset(attrs={"text": "short & <b>", "number": 3})._repr_html_()
    assert "short &amp; &lt;b&gt;" in plain


def test_short_attributes_stay_of_their_types(tmp_path: Path) -> None:
    found = opened(tmp_path / "a.mag", **SHORT).attrs
    assert found == SHORT
    assert [type(value) for value in found.values()] == [type(value) for value in SHORT.values()]


@pytest.mark.parametrize("kind", LONG)
def test_they_are_copied_pickled_encoded_and_written_as_plain_values(
    tmp_path: Path, kind: str
) -> None:
    plain = LONG[kind]
    long = opened(tmp_path / "a.mag", tokenizer=plain).attrs["tokenizer"]
    assert isinstance(long, type(plain))
    assert long == plain
    assert plain == long
    assert copy.deepcopy(long) == pickle.loads(pickle.dumps(long)) == plain
    for indent in (None, 1):
        assert json.dumps(long, indent=indent) == json.dumps(plain, indent=indent)
    ds = dataset(tokenizer=long)
    assert ds.identical(dataset(tokenizer=plain))
    to_file(ds, tmp_path / "b.mag")
    ds.to_zarr(tmp_path / "b.zarr", zarr_format=2)
    for path, engine in (("b.mag", "tensorfmt"), ("b.zarr", "zarr")):
        assert xr.open_dataset(tmp_path / path, engine=engine).attrs["tokenizer"] == plain


def test_long_strings_are_plain_ones() -> None:
    plain = LONG["str"]
    long = displayable({"a": plain})["a"]
    assert type(long) is str
    assert long is plain


def test_the_display_of_xarray_is_only_changed_where_a_long_string_was_opened() -> None:
    run_python(
        "-c",
        "import xarray as xr\n"
        "from xarray.core import formatting_html\n"
        "from xr_tensorfmt.datasets.long_attributes import displayable\n"
        "names = 'summarize_attrs', 'attr_section'\n"
        "before = [getattr(formatting_html, name) for name in names]\n"
        "displayable({'a': 'b' * 10_000, 'c': list(range(20_000)), 'd': 3.0})\n"
        "assert [getattr(formatting_html, name) for name in names] == before\n"
        "displayable({'a': 'b' * 100_000})\n"
        "assert len(xr.Dataset(attrs={'a': 'b' * 100_000})._repr_html_()) < 40_000\n",
    )


@pytest.mark.parametrize("kind", ["str", "list"])
def test_netcdf_has_them_whole(tmp_path: Path, kind: str) -> None:
    ds = opened(tmp_path / "a.mag", tokenizer=LONG[kind])
    ds.to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    done("convert", str(tmp_path / "a.mag"), str(tmp_path / "b.nc"))
    to_file(ds.astype("c8"), tmp_path / "a.tens")
    done("convert", str(tmp_path / "a.tens"), str(tmp_path / "c.nc"))
    ds.to_netcdf(tmp_path / "d.nc", engine="h5netcdf")
    xr.open_datatree(tmp_path / "a.mag", engine="tensorfmt").to_netcdf(
        tmp_path / "e.nc", engine="h5netcdf"
    )
    for name in "abcde":
        with xr.open_dataset(tmp_path / f"{name}.nc", engine="h5netcdf") as found:
            assert found.attrs["tokenizer"] == LONG[kind]
    for data in (ds, copy.deepcopy(ds), pickle.loads(pickle.dumps(ds)), ds.copy(deep=True)):
        data.to_zarr(tmp_path / "a.zarr", mode="w", zarr_format=2)
        with xr.open_zarr(tmp_path / "a.zarr", consolidated=True) as found:
            assert found["layers.0.w"].attrs["tokenizer"] == found.attrs["tokenizer"] == LONG[kind]
    xr.DataTree(ds).to_zarr(tmp_path / "tree.zarr", zarr_format=2)
    with xr.open_datatree(tmp_path / "tree.zarr", engine="zarr") as tree:
        assert tree.attrs["tokenizer"] == LONG[kind]
