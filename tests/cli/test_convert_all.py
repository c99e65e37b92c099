"""`xr-tensorfmt convert` reads and writes every format without changing values.

`test_format_tables` writes every format from every other.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from tests.commands import run_ok
from tests.opening import open_lazily
from xr_tensorfmt import formats, to_file

VALUES = np.arange(12.0).reshape(3, 4)
PARTS = ("name", "dims", "coords", "attrs")
WRITTEN = [file_format.name for file_format in formats.BUILT_IN if file_format.can_write]
READ = [file_format.name for file_format in formats.BUILT_IN]
DTYPES = {"mag": "float32"}
"""It has no float64."""


def get_path(name: str, stem: str) -> str:
    return stem + formats.find_format(name).suffixes[0]


def put(name: str) -> str:
    path = get_path(name, "in")
    if name == "npz":
        np.savez(path, tensor=VALUES)
        return path
    dims = ("x", "y")
    dataset = xr.Dataset({"tensor": (dims, VALUES.astype(DTYPES.get(name, "f8")))})
    to_file(dataset, path, name, drop=PARTS)
    return path


@pytest.mark.parametrize(
    ("from_", "to"), [*((name, "npy") for name in READ), *(("npy", name) for name in WRITTEN)]
)
def test_values_are_kept(working_directory: Path, from_: str, to: str) -> None:
    target = get_path(to, "out")
    options = [option for part in PARTS for option in ("--drop", part)]
    name = next(iter(open_lazily(put(from_)).data_vars))
    dtype = DTYPES.get(to, "float64")
    run_ok("convert", get_path(from_, "in"), target, "--dtype", f"{name}={dtype}", *options)
    (actual,) = open_lazily(target).data_vars.values()
    values = actual.values if actual.shape == VALUES.shape else actual.values.T
    assert values.dtype == dtype
    np.testing.assert_array_equal(values, VALUES)


def test_bfloat16_goes_from_one_model_format_to_another(working_directory: Path) -> None:
    dataset = xr.Dataset({"a.w": (("out", "in"), VALUES.astype("f4"))}, attrs={"format": "pt"})
    to_file(dataset, "a.mag", encoding={"a.w": {"dtype": "bfloat16"}})
    run_ok("convert", "a.mag", "b.safetensors")
    assert open_lazily("b.safetensors")["a.w"].encoding["dtype"] == "bfloat16"
    run_ok("convert", "b.safetensors", "c.mag")
    assert open_lazily("c.mag")["a.w"].encoding["dtype"] == "bfloat16"
    xr.testing.assert_identical(open_lazily("c.mag").load(), dataset)


def test_info_explain_and_validate_support_new_formats(working_directory: Path) -> None:
    for name in ("npy", "npz", "safetensors"):
        path = put(name)
        assert path in run_ok("info", path)
        assert run_ok("validate", path)
        assert run_ok("explain", path)
