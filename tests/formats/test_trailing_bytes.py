"""All formats treat trailing bytes alike."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from tests import magfiles as mf
from tests import pycausetfiles as pf
from tests import tensfiles as tf
from tests.families import FILES
from xr_tensorfmt import TensorFormatError, TensorFormatWarning, to_file, validate

VALUES = np.arange(6.0).reshape(2, 3)


def make_zipped_matrix() -> bytes:
    keys = {"rows": 2, "cols": 3, "matrix_type": "DENSE_FLOAT", "data_type": "FLOAT64"}
    return pf.make_zip(keys, VALUES.tobytes())


def make_commented_npz() -> bytes:
    file = BytesIO()
    np.savez(file, a=VALUES)
    return file.getvalue()[:-2] + b"\7\0comment"


CONTENTS: dict[str, Callable[[], bytes]] = {
    **FILES,
    "tens-1.0-raw": lambda: tf.make_1_0(VALUES.astype("i2")),
    "mag-archive-empty": lambda: mf.make_archive({}, {"a": 1}),
    "mag-snapshot-100": lambda: mf.make_snapshot({"w": mf.put(VALUES.astype("f4"))}, version=100),
    "pycauset-1": lambda: pf.v2("DENSE", "FLOAT64", 2, 3, VALUES.tobytes(), version=1),
    "pycauset-zip": make_zipped_matrix,
    "npz-commented": make_commented_npz,
}

SIZED = {"tens-0.9", "tens-big-endian", "mag-stream", "mag-snapshot-100", "mag-snapshot-200"}
"""Containers whose size tells where their values are."""

PADDING = 4096
"""More bytes than any program leaves at the end of a file."""


def open_loaded(path: Path, **options: bool) -> xr.Dataset:
    return xr.open_dataset(path, engine="tensorfmt", **options).load()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CONTENTS if name not in SIZED])
def test_bytes_after_end_raise_unless_verify_is_false(name: str, tmp_path: Path) -> None:
    content = CONTENTS[name]()
    path = tmp_path / name
    path.write_bytes(content)
    expected = open_loaded(path)
    assert validate(path) == []
    path.write_bytes(content + bytes(PADDING))
    with pytest.raises(
        TensorFormatError, match="more bytes, expected the end of the file"
    ) as error:
        open_loaded(path)
    offset = error.value.offset
    assert offset is not None
    assert len(content) - 256 <= offset <= len(content) + 256
    with pytest.warns(TensorFormatWarning, match="more bytes, expected the end of the file"):
        xr.testing.assert_identical(open_loaded(path, verify=False), expected)
    assert [(finding.offset, finding.severity) for finding in validate(path)] == [(offset, "error")]


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", sorted(SIZED))
def test_other_sizes_raise_if_the_size_locates_data(name: str, verify: bool) -> None:
    content = CONTENTS[name]() + bytes(PADDING)
    with pytest.raises(
        TensorFormatError, match=r"the data of a tensor|the data at|the data section"
    ):
        xr.open_dataset(content, engine="tensorfmt", verify=verify)
    (finding,) = validate(content)
    assert finding.severity == "error"


def test_elements_of_cc4s_may_be_longer_as_programs_do_not_truncate_them(tmp_path: Path) -> None:
    path = tmp_path / "Any.yaml"
    to_file(xr.DataArray(VALUES, dims=("State", "State_2"), name="Any"), path, "cc4s")
    expected = open_loaded(path)
    with (tmp_path / "Any.elements").open("ab") as file:
        file.write(bytes(8))
    with pytest.warns(TensorFormatWarning, match="8 more bytes"):
        xr.testing.assert_identical(open_loaded(path), expected)
    (finding,) = validate(path)
    assert (finding.offset, finding.severity) == (48, "warning")
