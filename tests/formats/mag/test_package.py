"""Files written by the released magnetron open with equal values."""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import xarray as xr

from tests.released_magnetron import get_magnetron_dtype, magnetron, snapshot
from xr_tensorfmt.core.elements import get_stored_name
from xr_tensorfmt.formats.mag import LITTLE_ENDIAN

DTYPES = ["boolean" if name == "bool" else name for name in LITTLE_ENDIAN]


def get_numpy_dtype(name: str) -> np.dtype:
    if name in ("bfloat16", "float8_e4m3fn"):
        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype("bool" if name == "boolean" else name)


def make_random_array(name: str, shape: tuple[int, ...]) -> np.ndarray:
    dtype = get_numpy_dtype(name)
    generator = np.random.default_rng(len(shape))
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return (generator.normal(size=shape) * 10).astype(dtype)


def write(path: Path, arrays: dict[str, tuple[str, np.ndarray]], metadata=None) -> None:
    with snapshot.SnapshotWriter(path, metadata) as writer:
        for key, (name, array) in arrays.items():
            writer.declare(key, array.shape, get_magnetron_dtype(name))
        for key, (_, array) in arrays.items():
            writer.write(key, array.view(np.uint8) if array.ndim else array.tobytes())


@pytest.mark.parametrize("chunks", [None, {}])
def test_every_dtype_opens_equal(tmp_path: Path, chunks) -> None:
    arrays = {f"layer.{name}": (name, make_random_array(name, (5, 7))) for name in DTYPES}
    write(tmp_path / "model.mag", arrays)
    dataset = xr.open_dataset(tmp_path / "model.mag", engine="tensorfmt", chunks=chunks)
    assert list(dataset) == list(arrays)
    for key, (_, array) in arrays.items():
        narrow = array.dtype.kind == "V" or array.dtype.name.startswith(("bf", "float8"))
        expected = array.astype(np.float32) if narrow else array
        assert dataset[key].dtype == expected.dtype
        np.testing.assert_array_equal(dataset[key].values, expected)
        assert get_stored_name(dataset[key].encoding["dtype"]) == array.dtype.name


def test_every_rank_opens_equal(tmp_path: Path) -> None:
    arrays = {
        f"r{rank}": ("float32", make_random_array("float32", (2,) * rank)) for rank in range(17)
    }
    write(tmp_path / "ranks.mag", arrays)
    dataset = xr.open_dataset(tmp_path / "ranks.mag", engine="tensorfmt")
    for key, (_, array) in arrays.items():
        np.testing.assert_array_equal(dataset[key].values, array)


def test_tensors_saved_by_magnetron_open_equal(tmp_path: Path) -> None:
    tensor = magnetron.Tensor.uniform(6, 4)
    views = {"whole": tensor, "transposed": tensor.transpose(0, 1)}
    with snapshot.SnapshotWriter(tmp_path / "views.mag") as writer:
        for key, view in views.items():
            writer.declare(key, view.shape, view.dtype)
        for key, view in views.items():
            writer.write(key, view)
    dataset = xr.open_dataset(tmp_path / "views.mag", engine="tensorfmt")
    for key, view in views.items():
        np.testing.assert_array_equal(dataset[key].values, np.array(view.tolist(), np.float32))


def test_metadata_open_equal(tmp_path: Path) -> None:
    metadata = {
        "epoch": 12,
        "loss": 0.1 + 0.2,
        "huge": 2**200,
        "nan": math.nan,
        "inf": -math.inf,
        "none": None,
        "classes": ["cat", "dog", "\N{DOG FACE}"],
        "config": {"hidden": 64, "rope": {"theta": 1e6}, "tied": True},
        "w": "the same key as a tensor",
    }
    write(tmp_path / "model.mag", {"w": ("int8", make_random_array("int8", (3,)))}, metadata)
    attrs = xr.open_dataset(tmp_path / "model.mag", engine="tensorfmt").attrs
    assert math.isnan(attrs.pop("nan"))
    del metadata["nan"]
    assert attrs == metadata
