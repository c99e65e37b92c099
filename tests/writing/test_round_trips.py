"""Written Datasets open unchanged."""

from __future__ import annotations

import tempfile
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import given

from tests import magfiles as mf
from tests.opening import open_lazily
from tests.paths import DATA
from tests.strategies import NARROW_DTYPES, bits, datasets
from xr_tensorfmt import to_file
from xr_tensorfmt.core.elements import get_stored_name
from xr_tensorfmt.formats.mag import LITTLE_ENDIAN


def to_native(dtype: np.dtype) -> np.dtype:
    return dtype.newbyteorder("=")


def assert_same(actual: xr.Dataset, expected: xr.Dataset) -> None:
    expected = expected.compute()
    xr.testing.assert_identical(actual.load(), expected)
    assert list(actual) == list(expected)
    for name, variable in expected.variables.items():
        assert actual[name].dtype == to_native(variable.dtype)
        if variable.dtype.kind in "mM":
            assert actual[name].encoding["dtype"].kind in "if"  # as xarray decodes netCDF
        else:
            stored = variable.encoding.get("dtype", to_native(variable.dtype))
            assert actual[name].encoding["dtype"] == stored


@given(dataset=datasets())
def test_any_dataset_round_trips(dataset: xr.Dataset) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.mag")
        to_file(dataset, path, "mag")
        assert_same(open_lazily(path), dataset)
        # Write the opened file over itself, lazily and in chunks.
        to_file(open_lazily(path), path, "mag")
        to_file(open_lazily(path, chunks={}), path, "mag")
        assert_same(open_lazily(path), dataset)


@pytest.mark.parametrize("name", NARROW_DTYPES)
@pytest.mark.parametrize("chunks", [None, {}])
def test_narrow_dtypes_round_trip(tmp_path: Path, name: str, chunks) -> None:
    kind = LITTLE_ENDIAN[name]
    raw = bits(np.random.default_rng(0), (7, 5), kind.stored)
    values = xr.DataArray(kind.decode(raw), dims=("x", "y"), name="w")
    to_file(values, tmp_path / "1.mag", encoding={"w": {"dtype": name}})
    to_file(open_lazily(tmp_path / "1.mag", chunks=chunks), tmp_path / "2.mag")
    for number in (1, 2):
        actual = open_lazily(tmp_path / f"{number}.mag").w
        assert get_stored_name(actual.encoding["dtype"]) == name
        np.testing.assert_array_equal(actual, values)
        # Bits are also equal, except for NaN.
        start = actual.encoding["tensorfmt"]["offset"]
        content = (tmp_path / f"{number}.mag").read_bytes()[start:]
        stored = np.frombuffer(content, kind.stored)[: raw.size].reshape(raw.shape)
        number_at = ~np.isnan(values.values)
        np.testing.assert_array_equal(stored[number_at], raw[number_at])


def test_numbers_that_became_others_are_not_rounded_to_dtype_of_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "w.mag"
    path.write_bytes(mf.make_document({"w": mf.Put("bfloat16", (2,), b"\x80\x3f\x80\x3f")}))
    changed = open_lazily(path).load() + np.float32(1e-6)
    changed.w.encoding = open_lazily(path).w.encoding
    with pytest.raises(ValueError, match="bfloat16 cannot represent") as caught:
        to_file(changed, tmp_path / "v.mag")
    assert "to approximate such values, or choose 'float32' for the file to keep them" in str(
        caught.value
    )
    to_file(changed, tmp_path / "v.mag", encoding={"w": {"dtype": "float32"}})
    xr.testing.assert_identical(open_lazily(tmp_path / "v.mag").load(), changed)
    assert open_lazily(tmp_path / "v.mag").w.encoding["dtype"] == np.float32


REAL = sorted(path.name for path in DATA.glob("*.mag"))


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("chunks", [None, {}])
def test_real_files_round_trip(tmp_path: Path, name: str, chunks) -> None:
    before = open_lazily(DATA / name, chunks=chunks)
    to_file(before, tmp_path / "again.mag")
    assert_files_same(open_lazily(tmp_path / "again.mag"), before)


def test_every_real_file_round_trips(conformance: Path, tmp_path: Path) -> None:
    count = 0
    for path in sorted((conformance / "mag").glob("*.mag")):
        try:
            before = open_lazily(path)
        except ValueError:
            continue  # damaged; other tests check the errors
        if not any(variable.size for variable in before.values()):
            with pytest.raises(ValueError, match="without elements"):
                to_file(before, tmp_path / path.name, "mag")
            continue
        if any(variable.ndim > 16 for variable in before.values()):
            with pytest.raises(ValueError, match="loads at most 16"):
                to_file(before, tmp_path / path.name, "mag")
            continue
        to_file(before, tmp_path / path.name, "mag")
        assert_files_same(open_lazily(tmp_path / path.name), before)
        count += 1
    assert count > 25


def assert_files_same(actual: xr.Dataset, expected: xr.Dataset) -> None:
    xr.testing.assert_identical(actual, expected)
    assert list(actual) == list(expected)
    for name in expected:
        assert actual[name].dtype == expected[name].dtype
        dtypes = actual[name].encoding["dtype"], expected[name].encoding["dtype"]
        assert dtypes[0] == to_native(dtypes[1])
        assert get_stored_name(dtypes[0]) == get_stored_name(dtypes[1])


def test_lazy_variables_of_other_engines_are_written(tmp_path: Path) -> None:
    values = np.arange(24, dtype="f4").reshape(4, 6)
    before = xr.Dataset({"a": (("x", "y"), values)}, {"x": [1.0, 2.0, 3.0, 4.0]}, {"t": "text"})
    before.to_netcdf(tmp_path / "a.nc")
    with xr.open_dataset(tmp_path / "a.nc") as lazy:
        to_file(lazy.isel(x=slice(None, None, -1)), tmp_path / "a.mag")
    xr.testing.assert_identical(open_lazily(tmp_path / "a.mag").load(), before.isel(x=[3, 2, 1, 0]))


LAZY = {
    "basic": lambda array: array[2:5, 1, ::-1],
    "outer": lambda array: array.isel(x=[4, 0, 0], z=[1, 2]),
    "pointwise": lambda array: array.isel(x=xr.Variable("p", [1, 2]), z=xr.Variable("p", [0, 3])),
    "transposed": lambda array: array.transpose("z", "x", "y").drop_encoding(),
    "nothing": lambda array: array[:0],
}


@pytest.mark.parametrize("key", LAZY)
def test_lazy_selections_are_written(tmp_path: Path, key: str) -> None:
    values = np.arange(5 * 3 * 4, dtype="i4").reshape(5, 3, 4)
    full = xr.DataArray(values, dims=("x", "y", "z"), name="a")
    to_file(full, tmp_path / "whole.mag")
    lazy = LAZY[key](open_lazily(tmp_path / "whole.mag").a)
    to_file(xr.Dataset({"a": lazy, "b": np.int8(1)}), tmp_path / "part.mag")
    xr.testing.assert_identical(open_lazily(tmp_path / "part.mag").a.load(), LAZY[key](full))


def test_chunks_of_any_size_give_same_file(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 99, (40, 30, 20), dtype="u2")
    contents = set()
    for number, chunks in enumerate([(40, 30, 20), (7, 11, 3), (1, 30, 20), (40, 1, 20)]):
        path = tmp_path / f"{number}.mag"
        to_file(xr.Dataset({"a": (("x", "y", "z"), da.from_array(values, chunks))}), path, "mag")
        contents.add(path.read_bytes()[-values.nbytes :])
    assert contents == {values.tobytes()}
