"""Long attributes, such as a tokenizer, are plain values."""

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

VOCABULARY = {f"token{number} <&>": number for number in range(50_000)}
LONG: dict[str, Any] = {
    "str": json.dumps(VOCABULARY),
    "dict": {"type": "BPE", "model": {"vocab": VOCABULARY}},
    "list": list(VOCABULARY),
}


def make_dataset(**attrs: Any) -> xr.Dataset:
    return xr.Dataset({"layers.0.w": ("n", np.ones(3, "f4"), attrs)}, attrs=attrs)


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_values_are_plain_and_are_written_again(tmp_path: Path, name: str) -> None:
    to_file(make_dataset(tokenizer=LONG[name]), tmp_path / "a.mag")
    ds = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt").load()
    for value in (ds["tokenizer"].item(), ds["layers.0.w"].attrs["tokenizer"]):
        assert value == LONG[name]
        assert type(value) is type(LONG[name])
        assert str(value) == str(LONG[name])
    to_file(ds, tmp_path / "b.mag")
    assert (tmp_path / "b.mag").read_bytes() == (tmp_path / "a.mag").read_bytes()


@pytest.mark.parametrize("name", ["str", "list"])
def test_netcdf_has_them_whole(tmp_path: Path, name: str) -> None:
    to_file(make_dataset(tokenizer=LONG[name]), tmp_path / "a.mag")
    run_ok("convert", str(tmp_path / "a.mag"), str(tmp_path / "b.nc"))
    with xr.open_dataset(tmp_path / "b.nc", engine="h5netcdf") as ds:
        assert ds.attrs["tokenizer"] == LONG[name]


@pytest.mark.slow
def test_display_of_xarray_is_not_changed(tmp_path: Path) -> None:
    to_file(make_dataset(tokenizer=LONG["str"]), tmp_path / "a.mag")
    run_python(
        "-c",
        "import xarray as xr\n"
        "from xarray.core import formatting_html\n"
        "before = dict(vars(formatting_html))\n"
        f"ds = xr.open_dataset({str(tmp_path / 'a.mag')!r}, engine='tensorfmt')\n"
        "ds.tensorfmt.explain()\n"
        "assert dict(vars(formatting_html)) == before\n",
    )
