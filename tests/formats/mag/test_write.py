"""MAG archives of version 1 equal the archives of magnetron 0.1.2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests.opening import open_lazily
from tests.paths import DATA
from xr_tensorfmt import to_mag, validate
from xr_tensorfmt.core.header import Cursor, HeaderReader
from xr_tensorfmt.formats.mag.archive import (
    pack_metadata,
    pack_record,
    read_metadata,
    read_record,
)
from xr_tensorfmt.formats.mag.spec import TensorRecord
from xr_tensorfmt.sources import find_source


@pytest.mark.parametrize("chunks", [None, {}])
def test_genuine_archive_is_written_byte_for_byte(tmp_path: Path, chunks: Any) -> None:
    genuine = DATA / "a1-gpt2-like.mag"
    to_mag(open_lazily(genuine, chunks=chunks), tmp_path / "a.mag", version=1)
    assert (tmp_path / "a.mag").read_bytes() == genuine.read_bytes()


# One has a truncated header. In the other, some padding after a view is zero.
OTHERS = ("a1-failed-write.mag", "a1-views.mag")


def test_every_genuine_archive_is_written_byte_for_byte(conformance: Path, tmp_path: Path) -> None:
    count = 0
    for genuine in sorted((conformance / "mag").glob("a1-*.mag")):
        if genuine.name in OTHERS:
            continue
        to_mag(open_lazily(genuine), tmp_path / "a.mag", version=1)
        assert (tmp_path / "a.mag").read_bytes() == genuine.read_bytes(), genuine.name
        count += 1
    assert count == 9


WEIGHTS = xr.Variable(("w_dim_0", "w_dim_1"), np.arange(6, dtype="f4").reshape(2, 3))


def test_archive_opens_with_written_values(tmp_path: Path) -> None:
    dataset = xr.Dataset({"w": WEIGHTS}, attrs={"epoch": 3, "loss": -0.5, "least": -(1 << 63)})
    to_mag(dataset, tmp_path / "a.mag", version=1)
    xr.testing.assert_identical(open_lazily(tmp_path / "a.mag").load(), dataset)
    assert validate(tmp_path / "a.mag") == []


def test_numpy_numbers_in_metadata_of_archive_become_those_of_python(tmp_path: Path) -> None:
    attrs = {"epoch": np.int8(3), "loss": np.float32(0.5)}
    to_mag(xr.Dataset({"w": WEIGHTS}, attrs=attrs), tmp_path / "a.mag", version=1)
    actual = open_lazily(tmp_path / "a.mag").attrs
    assert {name: type(value) for name, value in actual.items()} == {"epoch": int, "loss": float}
    assert actual == {"epoch": 3, "loss": 0.5}


REFUSED = {
    "coordinates": (
        xr.Dataset({"w": WEIGHTS}, coords={"step": 7}),
        r"a MAG archive of version 1 cannot store the coordinate 'step'; .* drop=\['coords'\]",
    ),
    "dims": (
        xr.Dataset({"w": (("a", "b"), WEIGHTS.data)}),
        r"cannot store the names \('a', 'b'\) of the dimensions of 'w'; write version=300",
    ),
    "attributes of a variable": (
        xr.Dataset({"w": (WEIGHTS.dims, WEIGHTS.data, {"unit": "m"})}),
        "cannot store the attributes of 'w'; write version=300",
    ),
    "a string in the metadata": (
        xr.Dataset({"w": WEIGHTS}, attrs={"title": "net"}),
        "the attribute 'title' of the Dataset, which is neither an int64 nor a float; write",
    ),
    "an integer of more than 64 bits": (
        xr.Dataset({"w": WEIGHTS}, attrs={"n": 1 << 63}),
        "the attribute 'n' of the Dataset, which is neither an int64 nor a float",
    ),
    "a scalar": (
        xr.Dataset({"w": np.float32(1)}),
        r"'w' has shape \(\), and a MAG archive of version 1 holds tensors of 1 to 6 dimensions",
    ),
    "seven dimensions": (
        xr.Dataset({"w": (tuple("abcdefg"), np.ones((1,) * 7, "f4"))}),
        "1 to 6 dimensions that are not empty; reshape it, or write version=300",
    ),
    "an empty tensor": (
        xr.Dataset({"w": ("w_dim_0", np.ones(0, "f4"))}),
        r"'w' has shape \(0,\)",
    ),
    "an empty key": (
        xr.Dataset({"": ("_dim_0", np.ones(1, "f4"))}),
        "'' cannot be a key of a MAG archive of version 1, which is a str of 1 to 65535 bytes",
    ),
    "NUL in a key of the metadata": (
        xr.Dataset({"w": WEIGHTS}, attrs={"a\0b": 1}),
        "cannot be a key of a MAG archive of version 1, .* without NUL; rename it, or write",
    ),
    "another dtype": (
        xr.Dataset({"w": WEIGHTS.astype("f8")}),
        "'w' is float64, but a MAG archive of version 1 supports only float32, float16, bool",
    ),
}


@pytest.mark.parametrize(("dataset", "message"), REFUSED.values(), ids=REFUSED)
def test_unsupported_data_raise_in_archive(
    tmp_path: Path, dataset: xr.Dataset, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        to_mag(dataset, tmp_path / "a.mag", version=1)
    assert not list(tmp_path.iterdir())


def test_unsupported_parts_can_be_dropped_in_archive(tmp_path: Path) -> None:
    variable = xr.Variable(("a", "b"), WEIGHTS.data, {"unit": "m"})
    dataset = xr.Dataset({"w": variable}, {"step": 7}, {"title": "net", "epoch": 3})
    to_mag(dataset, tmp_path / "a.mag", version=1, drop=["coords", "dims", "attrs"])
    expected = xr.Dataset({"w": WEIGHTS}, attrs={"epoch": 3})
    xr.testing.assert_identical(open_lazily(tmp_path / "a.mag").load(), expected)


def make_cursor(content: bytes) -> Cursor:
    return Cursor(HeaderReader(find_source(content, "read")[0]), 0)


@pytest.mark.parametrize("value", [7, -(1 << 63), 0.5, float("inf")])
def test_metadata_records_are_read_as_they_are_packed(value: float) -> None:
    key = "\N{GREEK SMALL LETTER ALPHA}"
    assert read_metadata(make_cursor(pack_metadata(key, value)), 1) == {key: value}


def test_tensor_records_are_read_as_they_are_packed() -> None:
    record = TensorRecord("k", (2, 3), 9, 4096, length=6)
    assert read_record(make_cursor(pack_record(record)), 0) == record


@pytest.mark.parametrize("version", ["300", 300.0, "1", 1.0])
def test_version_may_be_number_or_its_str(version, tmp_path) -> None:
    to_mag(xr.Dataset({"w": WEIGHTS}), tmp_path / "a.mag", version=version)
    file_info = open_lazily(tmp_path / "a.mag").encoding["tensorfmt"]
    assert file_info["version"] == int(float(version))
