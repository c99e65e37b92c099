"""Written files load in the released magnetron with equal values."""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import xarray as xr

from tests.released_magnetron import get_magnetron_dtype, snapshot
from tests.strategies import NARROW_DTYPES, NUMPY_DTYPES, bits
from xr_tensorfmt import to_file
from xr_tensorfmt.formats.mag import LITTLE_ENDIAN


def get_raw_values(tensor, name: str) -> np.ndarray:
    """Return the bits of a tensor of magnetron."""
    values = np.array(tensor.tolist(), dtype=object).reshape(tuple(tensor.shape))
    if name in NARROW_DTYPES:
        narrow = np.array(values.tolist(), np.float32).astype(getattr(ml_dtypes, name))
        return narrow.view(LITTLE_ENDIAN[name].stored)
    return np.array(values.tolist(), dtype=name).reshape(values.shape)


@pytest.mark.parametrize("chunk", [None, 3])
def test_every_dtype_loads_equal(tmp_path: Path, chunk: int | None) -> None:
    rng = np.random.default_rng(0)
    stored = {name: bits(rng, (5, 7), LITTLE_ENDIAN[name].stored) for name in NARROW_DTYPES}
    # magnetron returns one bit pattern for all NaN.
    for name, raw in stored.items():
        number = np.isfinite(LITTLE_ENDIAN[name].decode(raw))
        stored[name] = np.where(number, raw, 0).astype(raw.dtype)
    dataset = xr.Dataset(
        {name: (("x", "y"), LITTLE_ENDIAN[name].decode(stored[name])) for name in stored}
    )
    for name in NUMPY_DTYPES:
        values = bits(rng, (5, 7), name)
        stored[name] = np.where(values == values, values, 0).astype(name)
        dataset[name] = ("x", "y"), stored[name]
    encoding = {name: {"dtype": name} for name in NARROW_DTYPES}
    to_file(
        dataset if chunk is None else dataset.chunk(x=chunk), tmp_path / "m.mag", encoding=encoding
    )
    tensors, _ = snapshot.deserialize(tmp_path / "m.mag")
    assert list(tensors) == list(dataset)
    for name, raw in stored.items():
        assert tensors[name].dtype == get_magnetron_dtype("boolean" if name == "bool" else name)
        np.testing.assert_array_equal(get_raw_values(tensors[name], name), raw)


@pytest.mark.slow
def test_every_rank_loads_equal(tmp_path: Path) -> None:
    arrays = {f"r{rank}": np.arange(2**rank, dtype="f4").reshape((2,) * rank) for rank in range(17)}
    dataset = xr.Dataset(
        {
            name: ([f"{name}_dim_{axis}" for axis in range(item.ndim)], item)
            for name, item in arrays.items()
        }
    )
    to_file(dataset, tmp_path / "r.mag")
    tensors, _ = snapshot.deserialize(tmp_path / "r.mag")
    for name, array in arrays.items():
        assert tuple(tensors[name].shape) == array.shape
        np.testing.assert_array_equal(np.array(tensors[name].tolist(), "f4"), array)


def test_metadata_load_equal_and_embedded_metadata_do_not_disturb(tmp_path: Path) -> None:
    attrs = {
        "epoch": 12,
        "loss": 0.1 + 0.2,
        "huge": 2**200,
        "inf": -math.inf,
        "none": None,
        "classes": ["cat", "\N{DOG FACE}"],
        "config": {"hidden": 64, "rope": {"theta": 1e6}, "tied": True},
    }
    dataset = xr.Dataset(
        {"w": (("row", "col"), np.eye(3, 2, dtype="f4"), {"unit": "m"})},
        {"row": [1.5, 2.5, 3.5]},
        attrs,
    )
    to_file(dataset, tmp_path / "m.mag")
    tensors, metadata = snapshot.deserialize(tmp_path / "m.mag")
    assert metadata.pop("xr_tensorfmt")["version"] == 1
    assert metadata == attrs
    assert list(tensors) == ["w"]
    np.testing.assert_array_equal(np.array(tensors["w"].tolist(), "f4"), np.eye(3, 2))


def test_empty_tensors_among_others_load(tmp_path: Path) -> None:
    dataset = xr.Dataset({"e": (("x", "y"), np.zeros((0, 3), "i4")), "w": ("y", np.ones(3, "i4"))})
    to_file(dataset, tmp_path / "m.mag")
    tensors, _ = snapshot.deserialize(tmp_path / "m.mag")
    assert tensors["w"].tolist() == [1, 1, 1]
    assert "e" in tensors


def test_version_names_the_writer(tmp_path: Path) -> None:
    to_file(xr.Dataset({"w": ("x", np.ones(3, "f4"))}), tmp_path / "m.mag")
    snapshot.deserialize(tmp_path / "m.mag")
    with xr.open_dataset(tmp_path / "m.mag", engine="tensorfmt") as ds:
        assert ds.encoding["tensorfmt"]["magnetron_ver"] == "0.2.2+xr_tensorfmt"
