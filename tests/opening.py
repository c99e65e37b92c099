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


def opened(file: Any, **options: Any) -> xr.Dataset:
    """The Dataset of a file, whose values are read when they are asked for."""
    skip_if_unsupported(options)
    return xr.open_dataset(file, engine="tensorfmt", **options)


def load(file: Any, **options: Any) -> xr.Dataset:
    """The Dataset of a file with all its values in memory."""
    return opened(file, **options).load()


def tensor_of(file: Any, **options: Any) -> xr.DataArray:
    """The variable `tensor` of a file, whose values are read when they are asked for."""
    return opened(file, **options).tensor
