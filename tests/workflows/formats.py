"""All formats that can be written, so that each habit is tested with each of them.

Parametrise a test with `WRITABLE`. A new format is tested too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests.samples import can_write_dtype
from xr_tensorfmt import to_file
from xr_tensorfmt.formats import registry

SHAPE = (300, 500)
"""586 KiB of float32: above the size of arrays that are mapped."""

WRITABLE = [
    pytest.param(file_format.name, id=file_format.name)
    for file_format in registry.BUILT_IN
    if file_format.can_write
]
"""Parameters with the names of all formats that can be written."""


def make_array(offset: float = 0.0, shape: tuple[int, int] = SHAPE) -> xr.DataArray:
    """Return an array that every format can store, with the name and dims of one tensor."""
    values = np.arange(np.prod(shape), dtype="f4").reshape(shape) + offset
    return xr.DataArray(values, dims=("x", "y"), name="tensor")


DTYPES = {
    built_in.name: "float64"
    for built_in in registry.BUILT_IN
    if built_in.can_write and not can_write_dtype(built_in.name, "float32")
}
"""dtypes of formats that cannot store float32."""


def write(data: Any, directory: Path, name: str, stem: str = "file", **options: Any) -> Path:
    """Write data in the format `name`, and return the path. Names that it cannot store go."""
    path = directory / f"{stem}{registry.find_format(name).suffixes[0]}"
    if name in DTYPES:
        options = {"encoding": {"dtype": DTYPES[name]}} | options
    to_file(data, path, name, **({"drop": ["name", "dims"]} | options))
    return path


def open_array(path: Path | str, **keywords: Any) -> xr.DataArray:
    """Open the array that `write` wrote."""
    ds = xr.open_dataset(os.fspath(path), engine="tensorfmt", **keywords)
    (name,) = ds.data_vars
    return ds[name]
