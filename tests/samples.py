"""How to write a sample of each format: the table behind tests that run over all formats.

A new built-in format needs an entry here, golden files (`tests.goldenfiles`), a large file in
`tests.families`, its fields in `tests.fuzz.structure`, and a row in
`tests/project/test_format_tables.py`. `tests/formats/test_suite.py` names what is missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import xarray as xr

from xr_tensorfmt import to_file
from xr_tensorfmt.formats import registry

VALUES = np.random.default_rng(0).random((64, 100))
WEIGHTS = VALUES.astype("f4")


@dataclass(frozen=True)
class Sample:
    """A Dataset that a format stores whole, and properties of its suite of tests."""

    format: str
    file_name: str
    make: Callable[[], xr.Dataset]
    suite: Mapping[str, Any] = field(default_factory=dict)
    write: Callable[[xr.Dataset, str], object] | None = None


def make_tensor(*dims: str, **attrs: Any) -> Callable[[], xr.Dataset]:
    """Return a function that makes a Dataset with one variable `tensor`."""
    return lambda: xr.Dataset({"tensor": (dims, VALUES, attrs)})


def make_labelled() -> xr.Dataset:
    gamma = (("F", "q"), VALUES, {"unit": "eV"})
    return xr.Dataset({"gamma": gamma}, {"F": np.arange(64) / 2}, {"run": 3})


def make_layers() -> xr.Dataset:
    data = {"layers.0.weight": (("out", "in"), WEIGHTS), "layers.0.bias": ("out", WEIGHTS[:, 0])}
    return xr.Dataset(data, attrs={"epoch": 3})


def make_archive() -> xr.Dataset:
    return xr.Dataset({"a": (("a_dim_0", "a_dim_1"), VALUES), "b": ("b_dim_0", np.arange(5))})


def write_npz(dataset: xr.Dataset, path: str) -> None:
    np.savez(path, **{str(name): array.values for name, array in dataset.items()})


SAMPLES: dict[str, Sample] = {
    "tens": Sample("tens", "example.tens", make_tensor("a", "b")),
    "tens with metadata": Sample("tens", "example.tens", make_labelled),
    "mag": Sample("mag", "example.mag", make_layers),
    "safetensors": Sample(
        "safetensors",
        "example.safetensors",
        lambda: xr.Dataset({"weight": (("weight_dim_0", "weight_dim_1"), WEIGHTS)}),
    ),
    "npy": Sample("npy", "example.npy", make_tensor("dim_0", "dim_1")),
    "npz": Sample("npz", "example.npz", make_archive, write=write_npz),
    "pycauset": Sample("pycauset", "example.pycauset", make_tensor("row", "col")),
    "cc4s": Sample(
        "cc4s",
        "Amplitudes.yaml",
        lambda: xr.Dataset({"Amplitudes": (("State", "State_2"), VALUES)}),
        {"needs_suffix": True, "is_single_file": False},
    ),
    "vespa": Sample(
        "vespa", "example.tbf", make_tensor("x", "y", vespa_type="tensor(x[64],y[100])")
    ),
}


@cache
def can_write_dtype(name: str, dtype: str) -> bool:
    """Return whether a format stores a dtype as it is."""
    data = xr.DataArray(np.zeros((2, 2), dtype), dims=("x", "y"), name="tensor")
    with TemporaryDirectory() as directory:
        path = os.path.join(directory, f"file{registry.find_format(name).suffixes[0]}")
        try:
            to_file(data, path, name, drop=["name", "dims"])
        except ValueError:
            return False
    return True


def write_sample(name: str, path: str) -> None:
    """Write the sample of a name."""
    sample = SAMPLES[name]
    write = sample.write or (lambda dataset, target: to_file(dataset, target, sample.format))
    write(sample.make(), path)
