"""Models as they are published: directories, indices, current dtypes, edited models."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import xarray as xr

from xr_tensorfmt import TensorFormatError, TensorFormatWarning, to_file, validate
from xr_tensorfmt.core.narrow_floats import FLOAT8_NAMES

WEIGHT = np.arange(6, dtype="f4").reshape(2, 3)
INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def open_model(path: Path | str, **keywords: Any) -> xr.Dataset:
    return xr.open_dataset(os.fspath(path), engine="tensorfmt", **keywords)


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, list[int], bytes]]) -> None:
    """Write a file of tensors: dtype, shape and bytes by key."""
    header, start = {}, 0
    for key, (dtype, shape, data) in tensors.items():
        offsets = [start, start := start + len(data)]
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        len(text).to_bytes(8, "little") + text + b"".join(item[2] for item in tensors.values())
    )


def write_index(path: Path, weight_map: Mapping[str, str], **metadata: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))
    return path


_SUPPORTED = ("F32", [2, 3], WEIGHT.tobytes())
_UNSUPPORTED = ("F4", [2, 4], bytes(4))


def write_unsupported_safetensors(directory: Path) -> Path:
    path = directory / "model.safetensors"
    write_safetensors(path, {"layers.0.weight": _SUPPORTED, "layers.1.scale": _UNSUPPORTED})
    return path


def write_unsupported_index(directory: Path) -> Path:
    write_safetensors(directory / SHARDS[0], {"layers.0.weight": _SUPPORTED})
    write_safetensors(directory / SHARDS[1], {"layers.1.scale": _UNSUPPORTED})
    return write_index(
        directory / INDEX,
        {"layers.0.weight": SHARDS[0], "layers.1.scale": SHARDS[1]},
    )


def write_unsupported_mag(directory: Path) -> Path:
    path = directory / "model.mag"
    scale = ("c", np.arange(4, dtype="i8"))
    to_file(xr.Dataset({"layers.0.weight": (("a", "b"), WEIGHT), "layers.1.scale": scale}), path)
    content = path.read_bytes()
    old, new = b'"dtype":"int64","dtype_id":12', b'"dtype":"int4","dtype_id":13 '
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    return path


def write_unsupported_npz(directory: Path) -> Path:
    path = directory / "model.npz"
    arrays = {"layers.0.weight": WEIGHT, "layers.1.scale": np.zeros(4, ml_dtypes.float4_e2m1fn)}
    np.savez(path, **arrays)
    return path


UNSUPPORTED = {
    "safetensors": write_unsupported_safetensors,
    "index": write_unsupported_index,
    "mag": write_unsupported_mag,
    "npz": write_unsupported_npz,
}
any_container = pytest.mark.parametrize("write", UNSUPPORTED.values(), ids=UNSUPPORTED)
Write = Callable[[Path], Path]


class TestUnsupportedDtype:
    @any_container
    def test_only_its_tensor_is_omitted_with_one_warning(
        self, write: Write, tmp_path: Path
    ) -> None:
        path = write(tmp_path)
        with pytest.warns(TensorFormatWarning, match="'layers.1.scale'.*omitted") as caught:
            ds = open_model(path)
        assert len(caught) == 1
        assert "corrupt" not in str(caught[0].message)
        assert list(ds) == ["layers.0.weight"]
        np.testing.assert_array_equal(ds["layers.0.weight"], WEIGHT)
        (finding,) = validate(path)
        assert (finding.severity, "layers.1.scale" in finding.sentence) == ("warning", True)

    @any_container
    def test_dropped_tensor_is_not_reported(self, write: Write, tmp_path: Path) -> None:
        ds = open_model(write(tmp_path), drop_variables="layers.1.scale")
        assert list(ds) == ["layers.0.weight"]

    @any_container
    @pytest.mark.parametrize(
        "request_it",
        [
            {"group": "layers.1"},
            {"group": "/layers/1"},
            {"dims": {"layers.1.scale": ("x",)}},
            {"dims": {"*.scale": ("x",)}},
        ],
        ids=str,
    )
    def test_request_by_name_is_an_error(
        self, write: Write, tmp_path: Path, request_it: dict[str, Any]
    ) -> None:
        path = write(tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TensorFormatWarning)
            with pytest.raises(TensorFormatError, match=r"'layers.1.scale'.*expected") as caught:
                open_model(path, **request_it)
        assert "corrupt" not in str(caught.value)

    def test_many_tensors_are_one_warning(self, tmp_path: Path) -> None:
        tensors = {f"layers.{number}": _UNSUPPORTED for number in range(50)}
        write_safetensors(tmp_path / "a.safetensors", {"w": _SUPPORTED, **tensors})
        with pytest.warns(TensorFormatWarning, match="and so are 49 others") as caught:
            assert list(open_model(tmp_path / "a.safetensors")) == ["w"]
        assert len(caught) == 1


NEW_DTYPES = {
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


@pytest.mark.parametrize(("dtype", "name"), NEW_DTYPES.items())
def test_current_dtypes_are_exact_float32_and_are_written_back(
    tmp_path: Path, dtype: str, name: str
) -> None:
    raw = np.arange(256, dtype="u1")
    write_safetensors(tmp_path / "a.safetensors", {"w": (dtype, [256], raw.tobytes())})
    ds = open_model(tmp_path / "a.safetensors")
    expected = raw.view(getattr(ml_dtypes, name)).astype("f4")
    np.testing.assert_array_equal(ds.w, expected)
    assert ds.w.encoding["dtype"] == name
    to_file(ds, tmp_path / "b.safetensors")
    content = (tmp_path / "b.safetensors").read_bytes()
    assert content.endswith(raw.tobytes())
    assert json.loads(content[8 : -raw.size])["w"]["dtype"] == dtype
    assert name in FLOAT8_NAMES
