"""Open, edit, write back: a file keeps its CF encoding, as with `Dataset.to_netcdf`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import cftime
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workflows.formats import DTYPES, WRITABLE, open_array, write
from xr_tensorfmt import to_file
from xr_tensorfmt.formats import registry

ATTRS = {"safetensors", "mag", "tens", "pycauset", "cc4s"}
"""Formats that store attributes."""

WITH_ATTRS = [pytest.param(name, id=name) for name in sorted(ATTRS)]
WITHOUT_ATTRS = [parameter for parameter in WRITABLE if parameter.values[0] not in ATTRS]
DAYS = {"units": "days since 2000-01-01", "calendar": "proleptic_gregorian"}

RAW: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
    "times": (np.arange(6.0), DAYS),
    "times between days": (np.arange(6) / 4, DAYS),
    "times of another calendar": (np.arange(55.0, 61.0), DAYS | {"calendar": "360_day"}),
    "timedeltas": (np.arange(6.0), {"units": "hours", "dtype": "timedelta64[ns]"}),
    "scaled": (np.arange(6.0), {"scale_factor": 0.5, "add_offset": 5.0}),
    "masked": (np.arange(6.0), {"_FillValue": 3.0}),
    "scaled and masked": (np.arange(6.0), {"scale_factor": 0.5, "_FillValue": 3.0}),
    "references": (np.arange(6.0), {"grid_mapping": "crs", "coordinates": "lat lon"}),
}
"""Stored values and attributes."""


def make_raw(name: str, case: str) -> xr.DataArray:
    values, attrs = RAW[case]
    values = values.reshape(2, 3).astype("f4" if name == "mag" else "f8")
    return xr.DataArray(values, dims=("x", "y"), name="tensor", attrs=attrs)


def assert_same_file(first: Path, second: Path) -> None:
    """Compare stored values and attributes."""
    actual, expected = (open_array(path, decode_cf=False).load() for path in (first, second))
    xr.testing.assert_identical(actual, expected)
    assert actual.dtype == expected.dtype


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("case", RAW)
@pytest.mark.parametrize("name", WITH_ATTRS)
def test_encoded_values_are_written_back(
    tmp_path: Path, name: str, case: str, chunks: dict[str, int] | None
) -> None:
    first = write(make_raw(name, case), tmp_path, name, "first")
    opened = open_array(first, chunks=chunks)
    second = write(opened, tmp_path, name, "second", encoding={})
    assert_same_file(second, first)
    selected = write(opened.isel(x=[1]), tmp_path, name, "selected", encoding={})
    expected = open_array(first, decode_cf=False).isel(x=[1])
    xr.testing.assert_equal(open_array(selected, decode_cf=False), expected)


@pytest.mark.parametrize("name", ["mag", "safetensors", "tens"])
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "i4"])
def test_packed_integers_are_exact_or_an_error(tmp_path: Path, name: str, dtype: str) -> None:
    info = np.iinfo(dtype)
    values = np.array([info.min + 1, 0, 1, info.max], dtype)
    attrs = {"scale_factor": 0.01, "_FillValue": values.dtype.type(info.min)}
    raw = xr.DataArray(values, dims="x", name="tensor", attrs=attrs)
    first = write(raw, tmp_path, name, "first")
    opened = open_array(first).load()
    assert_same_file(write(opened, tmp_path, name, "second"), first)
    opened[0], opened[1] = np.nan, 0.0149
    back = open_array(write(opened, tmp_path, name, "second"), decode_cf=False)
    assert back.values.tolist() == [info.min, 1, 1, info.max]
    opened[0] = (info.max + 1) * 0.01
    with pytest.raises(ValueError, match=r"'tensor' contains .*, which u?int\d+ cannot represent"):
        write(opened, tmp_path, name, "third")
    del opened.encoding["_FillValue"]
    opened[0] = np.nan
    with pytest.raises(ValueError, match=r"'tensor' contains .*nan"):
        write(opened, tmp_path, name, "third")


@pytest.mark.parametrize("name", ["mag", "safetensors", "tens"])
def test_masked_integers_are_not_rounded(tmp_path: Path, name: str) -> None:
    raw = xr.DataArray(np.array([1, 2, -9], "i2"), dims="x", name="tensor")
    path = write(raw.assign_attrs(_FillValue=np.int16(-9)), tmp_path, name)
    opened = open_array(path).load()
    opened[0] = 1.5
    with pytest.raises(ValueError, match=r"'tensor' contains .*1\.5.*, which int16 cannot"):
        write(opened, tmp_path, name, "second")


@pytest.mark.parametrize("name", ["mag", "safetensors", "tens"])
def test_unsigned_integers_in_signed_ones(tmp_path: Path, name: str) -> None:
    attrs = {"_Unsigned": "true", "_FillValue": np.int8(-1)}
    raw = xr.DataArray(np.array([1, -56, -1], "i1"), dims="x", name="tensor", attrs=attrs)
    for without in ((), ("_FillValue",)):
        kept = {key: value for key, value in attrs.items() if key not in without}
        first = write(raw.drop_attrs().assign_attrs(kept), tmp_path, name, "first")
        opened = open_array(first)
        second = open_array(write(opened, tmp_path, name, "second"))
        xr.testing.assert_identical(second.load(), opened.load())


@pytest.mark.parametrize("name", [name for name in WITH_ATTRS if name.values[0] != "cc4s"])
@pytest.mark.parametrize("chunks", [None, 1])
def test_new_times_get_units(tmp_path: Path, name: str, chunks: int | None) -> None:
    for dtype in ("M8[ns]", "M8[s]", "m8[ns]", "m8[ms]"):
        values = np.array([3, 86_400, 10**9]).astype(dtype)
        array = xr.DataArray(values, dims="x", name="tensor").chunk(x=chunks or -1)
        path = write(array if chunks else array.load(), tmp_path, name)
        raw = open_array(path, decode_cf=False)
        assert raw.dtype == "int64"
        assert "units" in raw.attrs
        opened = open_array(path, decode_timedelta=True).load()
        xr.testing.assert_equal(opened, array.load())
    times = xr.DataArray(
        np.array([cftime.datetime(2000, 2, 30, calendar="360_day")]), dims="x", name="tensor"
    )
    opened = open_array(write(times, tmp_path, name))
    assert opened.values.tolist() == times.values.tolist()


@pytest.mark.parametrize("name", ["mag", "safetensors", "tens", "pycauset"])
def test_coordinates_of_times_have_units(tmp_path: Path, name: str) -> None:
    times = np.array(["2000-01-01", "2000-01-03"], "M8[ns]")
    array = xr.DataArray(np.ones(2, "f4"), {"t": times}, dims="t", name="tensor")
    path = write(array, tmp_path, name)
    xr.testing.assert_identical(open_array(path).load(), array)
    raw = xr.open_dataset(path, engine="tensorfmt", decode_cf=False)
    assert raw.t.attrs["units"] == "days since 2000-01-01 00:00:00"


@pytest.mark.parametrize("name", ["mag", "safetensors", "tens", "pycauset"])
def test_bools(tmp_path: Path, name: str) -> None:
    array = xr.DataArray(np.array([[True, False]]), dims=("x", "y"), name="tensor")
    for data in (array, array.chunk()):
        opened = open_array(write(data, tmp_path, name))
        xr.testing.assert_identical(opened.load(), array)
        assert_same_file(write(opened, tmp_path, name, "second"), write(data, tmp_path, name))


@pytest.mark.parametrize("name", WITHOUT_ATTRS)
def test_formats_without_attributes_store_decoded_values(tmp_path: Path, name: str) -> None:
    raw = xr.DataArray(np.float32([[1, 2]]), dims=("x", "y"), name="tensor")
    source = write(raw.assign_attrs(scale_factor=0.5), tmp_path, "mag")
    opened = open_array(source).astype("f4", keep_attrs=True)
    np.testing.assert_array_equal(open_array(write(opened, tmp_path, name)), [[0.5, 1]])
    requested = {"tensor": {"dtype": "float32", "scale_factor": 0.5}}
    with pytest.raises(ValueError, match=r"'scale_factor' for 'tensor', but .* not store attrib"):
        write(raw, tmp_path, name, encoding=requested)
    raw.encoding["grid_mapping"] = "crs"
    with pytest.raises(ValueError, match="the attribute 'grid_mapping'"):
        write(raw, tmp_path, name)
    if name != "npy":  # numpy has times
        times = xr.DataArray(np.zeros((1, 1), "M8[ns]"), dims=("x", "y"), name="tensor")
        with pytest.raises(ValueError, match=r"is datetime64\[ns\].*astype\(\.\.\.\), or write an"):
            write(times, tmp_path, name)


@pytest.mark.parametrize("name", WITH_ATTRS)
@pytest.mark.parametrize("dtype", ["int64", "int8", "float16"])
def test_integers_and_half_floats_are_scaled_as_doubles(
    tmp_path: Path, name: str, dtype: str
) -> None:
    values = np.array([50.03125, 1, 2]).astype(dtype)
    data = xr.DataArray(values, dims="x", name="tensor")
    encoding = {"dtype": DTYPES.get(name, "int16"), "scale_factor": 0.01}
    path = write(data, tmp_path, name, encoding={"tensor": encoding})
    packed = values.astype("float64") / 0.01
    expected = packed if name in DTYPES else np.rint(packed)
    np.testing.assert_array_equal(open_array(path, mask_and_scale=False), expected)
    if name != "cc4s":  # text has no fixed width
        to_file(data[:1] + 1, path, name, region={"x": slice(0, 1)})
        np.testing.assert_allclose(open_array(path), [values[0] + 1, *values[1:]], atol=0.01)


def test_requested_encoding_is_that_of_netcdf(tmp_path: Path) -> None:
    ds = xr.Dataset(
        {
            "a": ("x", np.array([0.5, np.nan, 2.5])),
            "t": ("x", np.array([1, 2, 3], "M8[D]").astype("M8[ns]")),
        }
    )
    encoding = {
        "a": {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -9},
        "t": {"dtype": "float32", "units": "hours since 1970-01-01"},
    }
    to_file(ds, tmp_path / "a.mag", encoding=encoding)
    ds.to_netcdf(tmp_path / "a.nc", encoding=encoding, engine="h5netcdf")
    for keywords in ({}, {"decode_cf": False}):
        actual = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt", **keywords).load()
        with xr.open_dataset(tmp_path / "a.nc", engine="h5netcdf", **keywords) as expected:
            xr.testing.assert_equal(actual, expected)
            assert [v.dtype for v in actual.values()] == [v.dtype for v in expected.values()]
    # A dtype replaces the inherited packing.
    opened = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt")
    to_file(opened, tmp_path / "b.mag", encoding={"a": {"dtype": "float32"}})
    raw = xr.open_dataset(tmp_path / "b.mag", engine="tensorfmt", decode_cf=False)
    np.testing.assert_array_equal(raw.a, ds.a)


@st.composite
def make_variable(
    draw: st.DrawFn, dims: tuple[str, ...], float_dtype: str, kinds: str = "fibMmpz"
) -> xr.Variable:
    """Return a variable with an encoding that netCDF supports."""
    shape = tuple({"x": 2, "y": 3}[dim] for dim in dims)
    count = int(np.prod(shape))
    numbers = draw(st.lists(st.integers(-100, 100), min_size=count, max_size=count))
    values = np.array(numbers, "i8").reshape(shape)
    attrs = draw(st.dictionaries(st.sampled_from(["long_name", "note"]), st.text("ab", max_size=3)))
    kind = draw(st.sampled_from(kinds))
    encoding: dict[str, Any] = {}
    if kind == "M":
        data = np.array("2000-01-01", "M8[ns]") + values * np.timedelta64(1, "h")
        units = draw(st.sampled_from([None, "hours since 1999-01-01", "minutes since 2000-01-01"]))
        encoding = {} if units is None else {"units": units, "dtype": float_dtype}
    elif kind == "m":
        data = values.astype("m8[ns]") * 10**9
    elif kind in "pz":
        data = values * 0.5
        encoding = {"dtype": "int16", "scale_factor": 0.5, "add_offset": draw(st.floats(0, 2))}
        if kind == "z":
            data = np.where(values % 7 == 0, np.nan, data)
            encoding["_FillValue"] = np.int16(-32768)
    elif kind == "f":
        data = np.where(values == 0, np.nan, values / 3).astype(float_dtype)
        encoding = draw(st.sampled_from([{}, {"_FillValue": -5.0}, {"grid_mapping": "crs"}]))
    else:
        data = values.astype({"i": "i4", "b": "?"}[kind])
        encoding = draw(st.sampled_from([{}, {"grid_mapping": "crs"}]))
    return xr.Variable(dims, data, attrs, encoding)


@st.composite
def make_dataset(draw: st.DrawFn, float_dtype: str) -> xr.Dataset:
    names = draw(st.lists(st.sampled_from("abcde"), min_size=1, max_size=3, unique=True))
    shapes = st.sampled_from([("x", "y"), ("x",), ("y", "x")])
    data = {name: draw(make_variable(draw(shapes), float_dtype)) for name in names}
    coords = {
        name: draw(make_variable((dim,), float_dtype))
        for name, dim in draw(st.sampled_from([{}, {"x": "x"}, {"lat": "y"}])).items()
    }
    return xr.Dataset(data, coords | {"crs": ((), 0, {"crs_wkt": "..."})})


chunked = st.sampled_from([None, {}])
few_examples = settings(max_examples=settings.default.max_examples // 2)  # each writes three files


@pytest.mark.parametrize("name", ["mag", "safetensors"])
@few_examples
@given(data=st.data())
def test_any_dataset_is_that_of_netcdf(
    tmp_path_factory: Any, name: str, data: st.DataObject
) -> None:
    ds = data.draw(make_dataset("f4" if name == "mag" else "f8"))  # MAG has no float64
    check_like_netcdf(ds, tmp_path_factory.mktemp("files"), name, data.draw(chunked))


def check_like_netcdf(ds: xr.Dataset, tmp_path: Path, name: str, chunks: Any) -> None:
    """Compare a written file, opened and written back, with netCDF."""
    suffix = registry.find_format(name).suffixes[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", xr.SerializationWarning)  # no _FillValue for integers
        ds.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    paths = tmp_path / f"tensor{suffix}", tmp_path / "again" / f"tensor{suffix}"
    paths[1].parent.mkdir()
    to_file(ds, paths[0], name)
    keywords = {"decode_coords": "all", "decode_timedelta": True}
    with xr.open_dataset(tmp_path / "a.nc", engine="h5netcdf", **keywords) as file:
        expected = file.load()
    opened = xr.open_dataset(paths[0], engine="tensorfmt", chunks=chunks, **keywords)
    xr.testing.assert_identical(opened.load(), expected)
    for variable in expected.variables:
        assert opened[variable].dtype == expected[variable].dtype
    to_file(opened, paths[1], name)
    again = xr.open_dataset(paths[1], engine="tensorfmt", **keywords)
    xr.testing.assert_identical(again.load(), expected)


KINDS = {"tens": "fiMmpz", "pycauset": "fiM", "cc4s": "f"}
"""Kinds of variables that formats with one tensor store as netCDF does."""


@pytest.mark.parametrize("name", KINDS)
@few_examples
@given(data=st.data())
def test_any_array_is_that_of_netcdf(tmp_path_factory: Any, name: str, data: st.DataObject) -> None:
    dims = data.draw(st.sampled_from([("x", "y"), ("y", "x")]))
    variable = data.draw(make_variable(dims, "f8", KINDS[name]))
    coords = {
        coord: data.draw(make_variable((dim,), "f8", "fiM"))
        for coord, dim in data.draw(st.sampled_from([{}, {"x": "x"}, {"lat": "y"}])).items()
    }
    ds = xr.Dataset({"tensor": variable}, coords | {"crs": ((), 0, {"crs_wkt": "..."})})
    check_like_netcdf(ds, tmp_path_factory.mktemp("files"), name, data.draw(chunked))


@pytest.mark.parametrize("suffix", ["mag", "safetensors"])
def test_bounds_of_times(tmp_path: Path, suffix: str) -> None:
    times = np.array(["2000-01-01", "2000-01-02"], "M8[ns]")
    bounds = np.stack([times, times + np.timedelta64(12, "h")], axis=1)
    ds = xr.Dataset(
        {"time_bnds": (("time", "nv"), bounds)}, {"time": ("time", times, {"bounds": "time_bnds"})}
    )
    ds.time.encoding = {"units": "hours since 1990-01-01", "dtype": "float64"}
    for path in (tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"):
        to_file(ds, path)
        raw = xr.open_dataset(path, engine="tensorfmt", decode_cf=False)
        assert "units" not in raw.time_bnds.attrs
        np.testing.assert_array_equal(raw.time_bnds[:, 0], raw.time)
        ds = xr.open_dataset(path, engine="tensorfmt")
        np.testing.assert_array_equal(ds.time_bnds, bounds)


def test_large_lazy_variables_are_encoded_in_chunks(tmp_path: Path) -> None:
    values = da.ones((5000, 1000), chunks=(500, 1000), dtype="i2")
    raw = xr.Dataset({"a": (("x", "y"), values, {"scale_factor": 0.5})})
    to_file(raw, tmp_path / "a.mag")
    opened = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt")
    assert opened.a.nbytes > 31 << 20
    to_file(opened, tmp_path / "b.mag")
    back = xr.open_dataset(tmp_path / "b.mag", engine="tensorfmt", decode_cf=False)
    assert back.a.dtype == "int16"
    assert (back.a == 1).all()


def test_formats_of_numbers_are_known() -> None:
    assert set(DTYPES) <= ATTRS
