"""Open files with the engine."""

from __future__ import annotations

from typing import Any

import pytest
import xarray as xr
from packaging.version import Version

SUPPORTS_FS = Version(xr.__version__) >= Version("2026.7")


def skip_if_unsupported(options: dict[str, Any]) -> None:
    """Skip a test that needs `fs=` if the version of xarray does not support it."""
    if options.get("fs") is not None and not SUPPORTS_FS:
        pytest.skip("fs= needs xarray 2026.7")


def open_lazily(file: Any, **options: Any) -> xr.Dataset:
    """Open a file as a lazy Dataset."""
    skip_if_unsupported(options)
    return xr.open_dataset(file, engine="tensorfmt", **options)


def load(file: Any, **options: Any) -> xr.Dataset:
    """Open a file and load all values."""
    return open_lazily(file, **options).load()


def open_tensor(file: Any, **options: Any) -> xr.DataArray:
    """Open the variable `tensor` of a file lazily."""
    return open_lazily(file, **options).tensor
