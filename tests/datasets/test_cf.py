"""What is written decodes to what was given, with attributes of any type."""

from __future__ import annotations

import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from xr_tensorfmt import TensorFormatWarning, to_file

SUFFIXES = ["mag", "safetensors", "safetensors.index.json", "tens", "pycauset"]
NAMES = [
    "_FillValue", "missing_value", "_Unsigned", "add_offset", "bounds", "calendar", "cell_measures",
    "coordinates", "dtype", "geometry", "grid_mapping", "note", "scale_factor", "units",
]  # fmt: skip
SCALARS = st.one_of(
    st.integers(-3, 3), st.sampled_from([0.5, -2.0, 10**400, True, None, "days", "2", "", "bool"])
)
ANY = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.dictionaries(st.sampled_from("ab"), SCALARS, max_size=2),
    st.sampled_from([np.array([0.5]), np.float32(2), np.array(2), np.arange(2), np.array(["a"])]),
)
TIMES = np.array(["2000-01-01", "2000-01-03", "NaT"], "M8[ns]")
ENCODED: dict[str, tuple[Any, dict[str, Any]]] = {
    "packed": ([2.0, 3.0, 5.0], {"scale_factor": 0.5, "add_offset": 1.0, "dtype": "int16"}),
    "packed by a list": ([2.0, 3.0, 5.0], {"scale_factor": [0.5], "dtype": "int16"}),
    "filled": ([2.0, np.nan, 5.0], {"_FillValue": -1, "dtype": "int16"}),
    "filled by an array": ([2.0, np.nan, 5.0], {"_FillValue": np.array([-1]), "dtype": "int16"}),
    "several fills": ([2.0, np.nan, 5.0], {"missing_value": [-1, -2], "dtype": "int16"}),
    "two fills": ([2.0, np.nan], {"missing_value": -2, "_FillValue": -1, "dtype": "int16"}),
    "unsigned": ([2.0, np.nan, 200.0], {"_FillValue": -1, "dtype": "int8", "_Unsigned": "true"}),
    "signed": ([2.0, np.nan, -20.0], {"_FillValue": 255, "dtype": "uint8", "_Unsigned": "false"}),
    "no sign": ([2.0, np.nan, -20.0], {"_FillValue": -1, "dtype": "int8", "_Unsigned": "false"}),
    "times": (TIMES, {}),
    "times in hours": (TIMES, {"units": "hours since 1999-01-01", "dtype": "int64"}),
    "int32": (np.array([1.0, 2.0]), {"dtype": "int32"}),
}  # fmt: skip


def make_dataset(kind: str, attrs: dict[str, Any]) -> xr.Dataset:
    values, encoding = ENCODED[kind]
    return xr.Dataset({"v": ("x", values, attrs, encoding)})


@pytest.mark.property
@pytest.mark.parametrize("suffix", SUFFIXES)
@given(data=st.data())
def test_encoded_values_beside_any_attributes_come_back(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(list(ENCODED)))
    # Attributes that a decoder would apply to the values as well.
    names = sorted({*NAMES, "cell_methods"} - {*ENCODED["packed"][1], "_FillValue", "_Unsigned"})
    names = [name for name in names if name not in ("missing_value", "units", "calendar")]
    attrs = data.draw(st.dictionaries(st.sampled_from(names), ANY, max_size=4))
    ds = make_dataset(kind, attrs)
    path = tmp_path_factory.mktemp("cf") / f"a.{suffix}"
    to_file(ds, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        actual = xr.load_dataset(path, engine="tensorfmt")
    xr.testing.assert_allclose(actual, ds, rtol=1e-6)
    kept = actual.v.attrs | actual.v.encoding
    for name, value in attrs.items():
        np.testing.assert_equal(simplify(kept[name]), simplify(value))


def simplify(value: Any) -> Any:
    """Return a value without differences of JSON."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


@pytest.mark.property
@pytest.mark.parametrize("dtype", ["i2", "u1", "f4", "?", "U1"])
@given(attrs=st.dictionaries(st.sampled_from(NAMES), ANY, max_size=4))
def test_any_attributes_open_and_are_written_again(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, attrs: dict[str, Any]
) -> None:
    """No attribute prevents opening or is lost, and the opened file can be written again."""
    values = np.array([1, 0, 1]).astype(dtype)
    ds = xr.Dataset({"w": ("x", np.ones(3, "f4"))}, {"v": ("x", values, attrs)})
    path = tmp_path_factory.mktemp("cf") / "a.mag"
    to_file(ds, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stored = xr.load_dataset(path, engine="tensorfmt", decode_cf=False)
        np.testing.assert_equal(
            {k: simplify(v) for k, v in stored.v.attrs.items()} | {"dtype": None},
            {k: simplify(v) for k, v in attrs.items()} | {"dtype": None},
        )
        opened = xr.open_dataset(path, engine="tensorfmt")
        to_file(opened, path.with_name("b.mag"))
        again = xr.load_dataset(path.with_name("b.mag"), engine="tensorfmt")
        xr.testing.assert_equal(again, opened.load())


@pytest.mark.parametrize("dtype", ["i2", "u1", "i8", "f4"])
@pytest.mark.parametrize("fills", [("_FillValue",), ("missing_value", "_FillValue"), ()])
@pytest.mark.parametrize("scale", [{"scale_factor": 2}, {"add_offset": 1}])
def test_integer_scales_do_not_make_values_integers(
    tmp_path: Path, dtype: str, fills: tuple[str, ...], scale: dict[str, int]
) -> None:
    """xarray computes in the dtype of the scale, and casts NaN or 0.5 to an integer."""
    values = np.array([3, 0, 1]).astype(dtype) / (2 if dtype == "f4" else 1)
    attrs = {**dict.fromkeys(fills, 0), **scale}
    ds = xr.Dataset({"v": ("x", values.astype(dtype), attrs)})
    to_file(ds, tmp_path / "a.safetensors")
    opened = xr.load_dataset(tmp_path / "a.safetensors", engine="tensorfmt")
    expected = values * scale.get("scale_factor", 1) + scale.get("add_offset", 0)
    np.testing.assert_array_equal(opened.v, np.where((values == 0) & bool(fills), np.nan, expected))
    to_file(opened, tmp_path / "b.safetensors")
    again = xr.load_dataset(tmp_path / "b.safetensors", engine="tensorfmt")
    xr.testing.assert_identical(again, opened)


@pytest.mark.parametrize(
    ("dtype", "attrs"),
    [
        ("u1", {"_FillValue": -1}),
        ("u1", {"_FillValue": [-1]}),
        ("i1", {"_FillValue": 255}),
        ("u1", {"_FillValue": -1, "missing_value": 0}),
        ("u1", {"_FillValue": 0, "missing_value": -1}),
        ("i1", {"_FillValue": 255, "missing_value": 0}),
        ("u1", {"_FillValue": -1, "missing_value": [3, 0]}),
        ("u1", {"_FillValue": [-1, 0]}),
        ("u1", {"_FillValue": 0.5, "missing_value": 0}),
        ("u1", {"_FillValue": 0, "missing_value": 0.5}),
        ("u1", {"_FillValue": -1, "missing_value": 0, "scale_factor": 2.0}),
        ("u1", {"_FillValue": -1, "missing_value": 0, "_Unsigned": "true"}),
    ],
)
@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")  # of several fill values
@pytest.mark.filterwarnings("ignore::xr_tensorfmt.TensorFormatWarning")  # of 0.5
def test_fill_values_beyond_the_dtype_fill_nothing(
    tmp_path: Path, dtype: str, attrs: dict[str, Any]
) -> None:
    """The byte 255 is no fill value, although it is -1 with the other sign. xarray refuses them."""
    values = np.array([1, 0, 255], "u1").view(dtype)
    to_file(xr.Dataset({"v": ("x", values, attrs)}), tmp_path / "a.mag")
    opened = xr.load_dataset(tmp_path / "a.mag", engine="tensorfmt")
    assert not np.isnan(opened.v[2])
    to_file(opened, tmp_path / "b.mag")
    xr.testing.assert_equal(xr.load_dataset(tmp_path / "b.mag", engine="tensorfmt"), opened)
    stored = xr.load_dataset(tmp_path / "b.mag", engine="tensorfmt", decode_cf=False)
    for name in attrs.keys() - {"_Unsigned"}:
        np.testing.assert_array_equal(np.ravel(stored.v.attrs[name]), np.ravel(attrs[name]))


def test_nan_without_fill_value_of_the_dtype_raises(tmp_path: Path) -> None:
    encoding = {"_FillValue": -1, "missing_value": -2, "dtype": "uint8"}
    ds = xr.Dataset({"v": ("x", [1.0, np.nan], {}, encoding)})
    with pytest.raises(ValueError, match="uint8 cannot represent"):
        to_file(ds, tmp_path / "a.mag")


@pytest.mark.parametrize("suffix", [*SUFFIXES, "yaml"])
@pytest.mark.parametrize("attribute", ["units", "scale_factor"])
def test_messages_about_attributes_name_the_file(
    tmp_path: Path, suffix: str, attribute: str
) -> None:
    value = {"units": "days since x", "scale_factor": 10**400}[attribute]
    path = tmp_path / f"a.{suffix}"
    values = np.ones(3, "f8" if suffix == "yaml" else "f4")
    to_file(xr.Dataset({"v": ("x", values, {attribute: value})}), path)
    if attribute == "units":
        with pytest.raises(ValueError, match=rf"a\.{suffix}: .*'days since x'.*decode_cf=False"):
            xr.open_dataset(path, engine="tensorfmt")
    else:
        with pytest.warns(TensorFormatWarning, match=rf"a\.{suffix}: .*scale_factor=1000"):
            ds = xr.open_dataset(path, engine="tensorfmt")
        np.testing.assert_array_equal(ds.v, values)
    assert xr.open_dataset(path, engine="tensorfmt", decode_cf=False).v.attrs[attribute] == value


@pytest.mark.parametrize(
    "encoding",
    [{"scale_factor": "two"}, {"scale_factor": 0}, {"add_offset": [1, 2]}, {"_FillValue": {}}],
    ids=str,
)
def test_encoding_that_could_not_be_decoded_is_refused(
    tmp_path: Path, encoding: dict[str, Any]
) -> None:
    ds = xr.Dataset({"v": ("x", [1.0], {}, {**encoding, "dtype": "int16"})})
    with pytest.raises(ValueError, match=rf"a\.tens: the encoding of 'v' has {min(encoding)}="):
        to_file(ds, tmp_path / "a.tens")


def test_one_warning_for_many_variables(tmp_path: Path) -> None:
    attrs = {"scale_factor": "two"}
    ds = xr.Dataset({f"v{number}": ("x", np.ones(2, "f4"), attrs) for number in range(9)})
    to_file(ds, tmp_path / "a.mag")
    with pytest.warns(TensorFormatWarning, match="of 'v2', and 6 more") as caught:
        xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt")
    assert len(caught) == 1


def test_calendar_without_dates_does_not_prevent_decoding_of_durations(tmp_path: Path) -> None:
    values = np.array([1, 2], "m8[D]").astype("m8[ns]")
    ds = xr.Dataset({"v": ("x", values, {"calendar": 3}, {"units": "days", "dtype": "int64"})})
    path = tmp_path / "a.safetensors"
    to_file(ds, path)
    with pytest.warns(TensorFormatWarning, match="calendar=3 of 'v'"):
        opened = xr.open_dataset(path, engine="tensorfmt", decode_timedelta=True)
    np.testing.assert_array_equal(opened.v, values)


SCALES = [None, 0.5, 0.01, np.float32(0.01)]
OFFSETS = [None, 1, 1e6, 1e8, np.float32(0.1)]
FILLS: list[dict[str, Any]] = [
    {}, {"_FillValue": -9}, {"missing_value": -9, "_FillValue": -9}, {"missing_value": 2**31 - 1},
    {"_FillValue": np.nan}, {"_FillValue": 1e20},
]  # fmt: skip


def make_packings(dtype: str) -> dict[str, xr.Variable]:
    """Return a variable for every encoding that netCDF can store without an overflow."""
    variables = {}
    for scale, offset, fill, requested in product(SCALES, OFFSETS, FILLS, [None, "i4", "i8", "f8"]):
        values = np.array([32000 if dtype == "i2" else 33554432, 0.1, -3, 7.25, 1000]).astype(dtype)
        values[-1] = np.nan if fill and dtype[0] == "f" else values[-1]
        packed = (values.astype("f8") - (offset or 0)) / (scale or 1)
        fraction = any(not float(value).is_integer() for value in fill.values())
        is_integer = requested in ("i4", "i8") or (requested is None and dtype[0] == "i")
        if is_integer and dtype[0] == "f" and not (scale or offset or fill):
            continue  # an error in this package
        if is_integer and (fraction or 1e20 in fill.values() or np.nanmax(abs(packed)) > 2e9):
            continue
        encoding = {"scale_factor": scale, "add_offset": offset, "dtype": requested, **fill}
        encoding = {key: value for key, value in encoding.items() if value is not None}
        variable = xr.Variable("x", values, {}, encoding)
        try:
            xr.conventions.encode_cf_variable(variable)
        except (OverflowError, TypeError):  # xarray does not fill packed integers
            continue
        variables[f"v{len(variables)}"] = variable
    return variables


@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "i4"])
def test_values_are_packed_and_unpacked_as_in_netcdf(tmp_path: Path, dtype: str) -> None:
    ds = xr.Dataset(make_packings(dtype))
    assert len(ds) > 50
    ds.to_netcdf(tmp_path / "a.nc")
    expected = xr.load_dataset(tmp_path / "a.nc")
    raw = xr.load_dataset(tmp_path / "a.nc", decode_cf=False)
    to_file(raw, tmp_path / "raw.safetensors")
    xr.testing.assert_equal(xr.load_dataset(tmp_path / "raw.safetensors"), expected)

    to_file(ds, tmp_path / "a.safetensors")
    actual = xr.load_dataset(tmp_path / "a.safetensors")
    stored = xr.load_dataset(tmp_path / "a.safetensors", decode_cf=False)
    for name, variable in ds.variables.items():
        encoding = variable.encoding
        scales = [encoding[key] for key in encoding.keys() & {"scale_factor", "add_offset"}]
        is_filled = not encoding.keys().isdisjoint({"_FillValue", "missing_value"})
        is_single = np.float32 in map(type, scales)
        if not scales or not (is_filled or is_single):
            np.testing.assert_array_equal(stored[name], raw[name], str(encoding))
            np.testing.assert_array_equal(actual[name], expected[name], str(encoding))
            assert stored[name].dtype == raw[name].dtype or dtype[0] == "i"
        # xarray packs in float32 if there is a fill value or such a scale. This package does not.
        np.testing.assert_array_equal(np.isnan(actual[name]), np.isnan(expected[name]))
        errors = [float(abs(data[name] - variable).max()) for data in (actual, expected)]
        allowed = 1e-7 * float(abs(variable).max()) if is_single else 0
        is_rounded = stored[name].dtype == np.float32
        assert is_rounded or errors[0] <= errors[1] * 1.001 + allowed, (encoding, errors)


@pytest.mark.parametrize("suffix", ["mag", "safetensors", "tens", "pycauset"])
@pytest.mark.parametrize("value", [1e20, -999.9, np.float32(-999.9), 2**31 - 1, [-999.9, 1e20]])
@pytest.mark.parametrize("key", ["_FillValue", "missing_value"])
def test_fill_values_of_floats_are_those_that_are_stored(
    tmp_path: Path, suffix: str, value: Any, key: str
) -> None:
    """1e20 as float32 is another number, and NaN was read as this number."""
    values = np.array([1, np.nan], "f4")
    ds = xr.Dataset({"v": ("x", values, {}, {key: value})})
    to_file(ds, tmp_path / f"a.{suffix}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of several fill values
        opened = xr.load_dataset(tmp_path / f"a.{suffix}", engine="tensorfmt")
    np.testing.assert_array_equal(opened.v, values)
    first = np.ravel(value)[0]
    raw = xr.Dataset({"v": ("x", np.array([1, first], "f4"), {key: float(first)})})
    to_file(raw, tmp_path / f"b.{suffix}")
    opened = xr.load_dataset(tmp_path / f"b.{suffix}", engine="tensorfmt")
    np.testing.assert_array_equal(opened.v, values)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn"])
def test_fill_values_are_rounded_to_narrow_floats(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "a.mag"
    values = np.array([1, np.nan], "f4")
    encoding = {"dtype": dtype, "_FillValue": -100.3}
    to_file(xr.Dataset({"v": ("x", values, {}, encoding)}), path)
    np.testing.assert_array_equal(xr.load_dataset(path, engine="tensorfmt").v, values)


def test_fill_values_that_the_dtype_cannot_represent_raise(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    for dtype, value in (("float32", 1e300), ("int64", 0.5)):
        encoding = {"dtype": dtype, "_FillValue": value}
        ds = xr.Dataset({"v": ("x", [1, np.nan], {}, encoding)})
        with pytest.raises(ValueError, match=r"encoding of 'v' has _FillValue=.*; change"):
            to_file(ds, path)
    for value in (-(2**63) + 1, 2**63 - 1):  # which float64 cannot represent
        ds = xr.Dataset({"v": ("x", [1, np.nan], {}, {"dtype": "int64", "_FillValue": value})})
        with pytest.raises(ValueError, match="int64 cannot represent"):
            to_file(ds, path)


def test_dtype_that_the_format_does_not_have_is_named(tmp_path: Path) -> None:
    ds = xr.Dataset({"v": ("x", np.ones(2, "f4"), {}, {"add_offset": 1e8})})
    with pytest.raises(ValueError, match="'v' is float64, but MAG supports only"):
        to_file(ds, tmp_path / "a.mag")
