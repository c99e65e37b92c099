"""The built-in formats pass the test suite for formats."""

from __future__ import annotations

import numpy as np
import xarray as xr

from xr_tensorfmt.formats.registry import BUILT_IN
from xr_tensorfmt.testing import FormatTests, WritableFormatTests

VALUES = np.random.default_rng(0).random((64, 100))
WEIGHTS = VALUES.astype("f4")


class TestTens(WritableFormatTests):
    format = "tens"
    file_name = "example.tens"

    def create_dataset(self) -> xr.Dataset:
        return xr.Dataset({"tensor": (("a", "b"), VALUES)})


class TestTensWithMetadata(WritableFormatTests):
    format = "tens"
    file_name = "example.tens"

    def create_dataset(self) -> xr.Dataset:
        labels = np.arange(64) / 2
        attrs = {"unit": "eV"}
        return xr.Dataset({"gamma": (("F", "q"), VALUES, attrs)}, {"F": labels}, {"run": 3})


class TestMag(WritableFormatTests):
    format = "mag"
    file_name = "example.mag"

    def create_dataset(self) -> xr.Dataset:
        data = {
            "layers.0.weight": (("out", "in"), WEIGHTS),
            "layers.0.bias": ("out", WEIGHTS[:, 0]),
        }
        return xr.Dataset(data, attrs={"epoch": 3})


class TestSafetensors(WritableFormatTests):
    format = "safetensors"
    file_name = "example.safetensors"

    def create_dataset(self) -> xr.Dataset:
        return xr.Dataset({"weight": (("weight_dim_0", "weight_dim_1"), WEIGHTS)})


class TestNpy(WritableFormatTests):
    format = "npy"
    file_name = "example.npy"

    def create_dataset(self) -> xr.Dataset:
        return xr.Dataset({"tensor": (("dim_0", "dim_1"), VALUES)})


class TestNpz(FormatTests):
    format = "npz"
    file_name = "example.npz"

    def create_dataset(self) -> xr.Dataset:
        return xr.Dataset({"a": (("a_dim_0", "a_dim_1"), VALUES), "b": ("b_dim_0", np.arange(5))})

    def write(self, dataset: xr.Dataset, path: str) -> None:
        np.savez(path, **{str(name): array.values for name, array in dataset.items()})


class TestPycauset(WritableFormatTests):
    format = "pycauset"
    file_name = "example.pycauset"

    def create_dataset(self) -> xr.Dataset:
        return xr.Dataset({"tensor": (("row", "col"), VALUES)})


class TestCc4s(WritableFormatTests):
    format = "cc4s"
    file_name = "Amplitudes.yaml"
    needs_suffix = True
    is_single_file = False

    def create_dataset(self) -> xr.Dataset:
        return xr.Dataset({"Amplitudes": (("State", "State_2"), VALUES)})


class TestVespa(WritableFormatTests):
    format = "vespa"
    file_name = "example.tbf"

    def create_dataset(self) -> xr.Dataset:
        attrs = {"vespa_type": "tensor(x[64],y[100])"}
        return xr.Dataset({"tensor": (("x", "y"), VALUES, attrs)})


def test_every_built_in_format_runs_suite() -> None:
    suites = {value for value in globals().values() if isinstance(value, type)}
    reading = {suite.format for suite in suites if hasattr(suite, "format")}
    writing = {
        suite.format
        for suite in suites - {WritableFormatTests}
        if issubclass(suite, WritableFormatTests)
    }
    assert reading == {choice.name for choice in BUILT_IN}
    assert writing == {choice.name for choice in BUILT_IN if choice.can_write}
