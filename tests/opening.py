"""Open files with the engine."""

from __future__ import annotations

from typing import Any

import xarray as xr


def open_lazily(file: Any, **options: Any) -> xr.Dataset:
    """Open a file as a lazy Dataset."""
    return xr.open_dataset(file, engine="tensorfmt", **options)


def load(file: Any, **options: Any) -> xr.Dataset:
    """Open a file and load all values."""
    return open_lazily(file, **options).load()


def open_tensor(file: Any, **options: Any) -> xr.DataArray:
    """Open the variable `tensor` of a file lazily."""
    return open_lazily(file, **options).tensor
