"""Variables are decoded by the CF conventions, as by `xarray.decode_cf`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from xr_tensorfmt import to_file

DAYS = {"units": "days since 2000-01-01"}


def build_references() -> xr.Dataset:
    """Return a Dataset of variables that only the attributes of others describe."""
    grid = np.zeros((2, 3), "f4")
    return xr.Dataset(
        {
            "t2m": (("y", "x"), grid, {"coordinates": "lat lon", "grid_mapping": "crs"}),
            "lat": (("y", "x"), grid),
            "lon": (("y", "x"), grid),
            "crs": ((), np.int32(0)),
            "station": ((), np.int32(7)),
            "time_bnds": (("time", "nv"), np.ones((3, 2), "f4")),
        },
        {"time": ("time", np.arange(3, dtype="i4"), DAYS | {"bounds": "time_bnds"})},
        {"coordinates": "station", "title": "References"},
    )


def assert_decoded(actual: xr.Dataset, stored: xr.Dataset, **keywords: Any) -> None:
    expected = xr.decode_cf(stored, **keywords)
    xr.testing.assert_identical(actual, expected)
    for name, variable in expected.variables.items():
        assert actual[name].dtype == variable.dtype
        names = {"grid_mapping", "coordinates", "bounds", "units", "scale_factor", "_FillValue"}
        for attribute in names & variable.encoding.keys():
            assert actual[name].encoding[attribute] == variable.encoding[attribute]


@pytest.mark.slow
@pytest.mark.parametrize(
    "keywords",
    [{}, {"decode_coords": "all"}, {"decode_coords": False}, {"decode_times": False}],
    ids=str,
)
@pytest.mark.parametrize("chunks", [None, {}])
def test_attributes_describe_other_variables(
    tmp_path: Path, keywords: dict[str, Any], chunks: Any
) -> None:
    path = tmp_path / "a.mag"
    to_file(build_references(), path, "mag")
    actual = xr.open_dataset(path, engine="tensorfmt", chunks=chunks, **keywords)
    stored = xr.open_dataset(path, engine="tensorfmt", decode_cf=False)
    xr.testing.assert_identical(stored, build_references())
    assert_decoded(actual, stored, **keywords)


def test_netcdf_is_decoded_the_same_way(tmp_path: Path) -> None:
    to_file(build_references(), tmp_path / "a.mag")
    build_references().to_netcdf(tmp_path / "a.nc", engine="scipy")
    for decode_coords in (True, "all"):
        with xr.open_dataset(tmp_path / "a.nc", decode_coords=decode_coords) as expected:
            actual = xr.open_dataset(
                tmp_path / "a.mag", engine="tensorfmt", decode_coords=decode_coords
            )
            assert set(actual.coords) == set(expected.coords)
            xr.testing.assert_equal(actual, expected)


def test_attributes_describe_other_variables_of_a_group(tmp_path: Path) -> None:
    path = tmp_path / "a.mag"
    xr.DataTree.from_dict({"/g": build_references().drop_attrs(deep=False)}).tensorfmt.to_file(path)
    actual = xr.open_datatree(path, engine="tensorfmt")["g"].to_dataset()
    assert {"lat", "lon", "time"} <= set(actual.coords)
    assert actual.time_bnds.dtype.kind == "M"
    groups = xr.open_groups(io.BytesIO(path.read_bytes()), engine="tensorfmt")
    xr.testing.assert_identical(groups["/g"], actual)


def test_dropped_variables_are_not_decoded(tmp_path: Path) -> None:
    to_file(build_references(), tmp_path / "a.mag")
    ds = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt", drop_variables=["lat", "time"])
    assert set(ds.coords) == {"lon", "station"}
    assert ds.time_bnds.dtype == np.float32


@pytest.mark.parametrize("coordinates", ["polar", "lat missing", ["lat"], 3, ""])
def test_attribute_of_the_file_with_another_meaning_is_kept(
    tmp_path: Path, coordinates: Any
) -> None:
    ds = build_references().assign_attrs(coordinates=coordinates)
    to_file(ds, tmp_path / "a.mag")
    actual = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt")
    assert set(actual.coords) == {"lat", "lon", "time"}
    assert actual.attrs == ds.attrs


NAMES = ("a", "b", "x", "y")
ATTRS = st.fixed_dictionaries(
    {},
    optional={
        "coordinates": st.sampled_from(["a", "b x", "a missing"]),
        "grid_mapping": st.sampled_from(["b", "x: y"]),
        "bounds": st.sampled_from(["a", "missing"]),
        "units": st.sampled_from(["days since 2000-01-01", "K"]),
        "scale_factor": st.just(0.5),
        "_FillValue": st.sampled_from([1, 0.0]),
        "note": st.just("text"),
    },
)


@pytest.mark.property
@pytest.mark.filterwarnings("ignore:Variable\\(s\\) referenced in:UserWarning")
@given(
    attrs=st.fixed_dictionaries(dict.fromkeys(NAMES, ATTRS)),
    global_attrs=st.sampled_from([{}, {"coordinates": "a b"}, {"note": "text"}]),
    decode_coords=st.sampled_from([True, "all", False]),
)
def test_any_attributes_are_decoded_as_by_xarray(
    tmp_path_factory: pytest.TempPathFactory,
    attrs: dict[str, Any],
    global_attrs: dict[str, Any],
    decode_coords: Any,
) -> None:
    values = np.arange(2, dtype="i4")
    dims = {"a": "x", "b": "x", "x": "x", "y": "y"}
    ds = xr.Dataset({name: (dims[name], values, attrs[name]) for name in NAMES}, attrs=global_attrs)
    path = tmp_path_factory.mktemp("decoding") / "a.mag"
    to_file(ds, path, "mag")
    keywords = {"decode_coords": decode_coords, "decode_timedelta": False}
    stored = xr.open_dataset(path, engine="tensorfmt", decode_cf=False)
    xr.testing.assert_identical(stored, ds)
    assert_decoded(xr.open_dataset(path, engine="tensorfmt", **keywords), stored, **keywords)


@pytest.mark.parametrize("dropped", ["lat", ["lat", "lon"]])
def test_dropped_coordinate_keeps_the_others(tmp_path: Path, dropped: Any) -> None:
    values = {name: ("x", np.arange(3, dtype="f4")) for name in ("t", "lat", "lon")}
    raw = xr.Dataset(values, attrs={"coordinates": "lat lon", "title": "a"})
    to_file(raw, tmp_path / "a.mag")
    ds = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt", drop_variables=dropped)
    xr.testing.assert_identical(ds, xr.decode_cf(raw, drop_variables=dropped))


def test_values_with_a_requested_fill_value_are_rounded_as_by_netcdf(tmp_path: Path) -> None:
    ds = xr.Dataset({"v": ("x", [1.5, 2.4, np.nan])})
    encoding = {"v": {"dtype": "int16", "_FillValue": -1}}
    to_file(ds, tmp_path / "a.mag", encoding=encoding)
    ds.to_netcdf(tmp_path / "a.nc", encoding=encoding)
    with xr.open_dataset(tmp_path / "a.nc") as expected:
        opened = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt").load()
        xr.testing.assert_identical(opened, expected)
    opened.v[0] = 1.5  # the dtype is one of the file
    with pytest.raises(ValueError, match=r"contains np.float\d+\(1.5\), which int16 cannot"):
        to_file(opened, tmp_path / "b.mag")
