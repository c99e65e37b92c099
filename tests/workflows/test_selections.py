"""Select a part: no attribute or field of the new file describes the old one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from tests.workflows.formats import DTYPES, WRITABLE, make_array, open_array, write


@pytest.mark.parametrize("name", WRITABLE)
@pytest.mark.parametrize("target", WRITABLE)
def test_attributes_of_the_reader_are_not_written(tmp_path: Path, name: str, target: str) -> None:
    opened = open_array(write(make_array(), tmp_path, name))
    opened.attrs.pop("unit", None)  # of cc4s, which describes the values
    encoding = {"dtype": DTYPES.get(target, "float32")}
    path = write(opened[:2].load(), tmp_path, target, "part", encoding=encoding)
    written = open_array(path)
    assert not opened.attrs.items() & written.attrs.items()


@pytest.mark.parametrize("attribute", ["n", "object_type", "vespa_type", "seed"])
@pytest.mark.parametrize("name", ["npy", "tens", "vespa"])
def test_no_attribute_of_the_user_vanishes(tmp_path: Path, name: str, attribute: str) -> None:
    array = make_array().astype("f8").assign_attrs({attribute: 7})
    options = {"version": "0.9"} if name == "tens" else {}
    with pytest.raises(ValueError, match=rf"the attribute '{attribute}'.*drop=\['attrs'\]"):
        write(array, tmp_path, name, **options)
    write(array, tmp_path, name, drop=["name", "dims", "attrs"], **options)


def test_part_of_a_causal_set_is_not_the_causal_set(tmp_path: Path) -> None:
    causal = xr.DataArray(np.triu(np.ones((9, 9), bool), 1), dims=("row", "col"), name="tensor")
    path = write(causal, tmp_path, "pycauset", seed=4)
    whole = open_array(path)
    info = open_array(write(whole, tmp_path, "pycauset", "whole")).encoding["tensorfmt"]
    assert (info["seed"], info["matrix_type"]) == (4, "CAUSAL")
    part = whole.isel(row=slice(4), col=slice(4))
    info = open_array(write(part, tmp_path, "pycauset", "part")).encoding["tensorfmt"]
    assert (info["seed"], info["shape"]) == (0, (4, 4))
