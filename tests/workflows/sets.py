"""Sets of files: tensors of cc4s, and models with an index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import xarray as xr

from xr_tensorfmt import to_file

SETS: Mapping[str, tuple[str, int]] = {
    "tensor": ("w.yaml", 1),
    "set": ("s.yaml", 3),
    "model": ("m.safetensors.index.json", 3),
}
"""Name of the index, and number of variables."""

KINDS = pytest.mark.parametrize("kind", SETS)


def make_dataset(kind: str, value: float, size: int = 50) -> xr.Dataset:
    """Return variables with one value."""
    count = SETS[kind][1]
    names = ["w"] if count == 1 else [f"t{number}" for number in range(count)]
    return xr.Dataset({name: (f"{name}_x", np.full(size, float(value))) for name in names})


def write_set(kind: str, value: float, directory: Any, **options: Any) -> Any:
    """Write a set of files to a directory or URL. Each variable has a file."""
    if kind == "model":
        options["max_shard_bytes"] = 1
    return to_file(make_dataset(kind, value), f"{directory}/{SETS[kind][0]}", **options)


def read_set(kind: str, directory: Any, **options: Any) -> set[float] | None:
    """Return the values of all variables, or None if the set cannot be opened."""
    try:
        ds = xr.open_dataset(f"{directory}/{SETS[kind][0]}", engine="tensorfmt", **options).load()
    except (OSError, ValueError):
        return None
    return {float(value) for name in ds.data_vars for value in np.unique(ds[name])}
