"""Opening of files with the engine."""

from __future__ import annotations

from typing import Any

import xarray as xr


def opened(file: Any, **options: Any) -> xr.Dataset:
    """The Dataset of a file, whose values are read when they are asked for."""
    return xr.open_dataset(file, engine="tensorfmt", **options)


def load(file: Any, **options: Any) -> xr.Dataset:
    """The Dataset of a file with all its values in memory."""
    return opened(file, **options).load()


def tensor_of(file: Any, **options: Any) -> xr.DataArray:
    """The variable `tensor` of a file, whose values are read when they are asked for."""
    return opened(file, **options).tensor
