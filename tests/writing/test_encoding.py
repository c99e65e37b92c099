"""The dtypes of many variables: for all, and by names."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import xarray as xr

from tests.commands import run_ok
from xr_tensorfmt import to_file
from xr_tensorfmt.core.elements import get_stored_name

KEYS = ("embed", "layers.0.w", "layers.0.norm", "layers.1.w", "layers.1.norm")


def make_model() -> xr.Dataset:
    """Weights of floating-point numbers, positions, a mask, and a coordinate of floats."""
    ds = xr.Dataset({key: ("n", np.linspace(0, 1, 4, dtype="f4")) for key in KEYS})
    ds = ds.assign_coords(n=np.linspace(0, 1, 4, dtype="f4"))
    return ds.assign(position=("n", np.arange(4)), mask=("n", np.arange(4) > 1))


def read_dtypes(path: str | Path) -> dict[str, str]:
    """Return the stored dtypes of the variables of a file."""
    ds = xr.open_dataset(path, engine="tensorfmt")
    return {
        str(name): str(get_stored_name(item.encoding["dtype"]))
        for name, item in ds.variables.items()
    }


OWN = {**dict.fromkeys((*KEYS, "n"), "float32"), "position": "int64", "mask": "bool"}
FLOATS = dict.fromkeys(KEYS, "bfloat16")

CASES: dict[str, tuple[list[str], Any, dict[str, str]]] = {
    "all": (["bfloat16"], {"dtype": "bfloat16"}, FLOATS),
    "all integers": (["int32"], {"dtype": np.int32}, {"position": "int32"}),
    "a name wins over all": (
        ["bfloat16", "layers.0.w=float16"],
        {"dtype": "bfloat16", "layers.0.w": {"dtype": "f2"}},
        FLOATS | {"layers.0.w": "float16"},
    ),
    "the name of a coordinate": (
        ["float16", "n=bfloat16"],
        {"dtype": "f2", "n": {"dtype": "bfloat16"}},
        dict.fromkeys(KEYS, "float16") | {"n": "bfloat16"},
    ),
    "a name of another kind": (
        ["position=float16"], {"position": {"dtype": "f2"}}, {"position": "float16"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_encoding_for_all_and_by_name(tmp_path: Path, case: str) -> None:
    options, encoding, changed = CASES[case]
    to_file(make_model(), tmp_path / "a.mag")
    to_file(make_model(), tmp_path / "b.mag", encoding=encoding)
    dtypes = [word for option in options for word in ("--dtype", option)]
    run_ok("convert", str(tmp_path / "a.mag"), str(tmp_path / "c.mag"), *dtypes)
    assert read_dtypes(tmp_path / "b.mag") == read_dtypes(tmp_path / "c.mag") == OWN | changed


def test_encoding_for_all_changes_single_variable_of_any_dtype(tmp_path: Path) -> None:
    numbers = xr.Dataset({"a": ("x", np.arange(3))})
    to_file(numbers, tmp_path / "a.mag", encoding={"dtype": "f4"})
    assert read_dtypes(tmp_path / "a.mag") == {"a": "float32"}


def test_names_may_have_characters_of_patterns(tmp_path: Path) -> None:
    ones = np.ones(2, "f4")
    ds = xr.Dataset({"w[0]": ("x", ones), "w0": ("x", ones), "dtype": ("x", ones)})
    to_file(ds, tmp_path / "a.mag", encoding={"w[0]": {"dtype": "f2"}, "dtype": {"dtype": "f2"}})
    assert read_dtypes(tmp_path / "a.mag") == {
        "w[0]": "float16",
        "w0": "float32",
        "dtype": "float16",
    }


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        (
            {"dtype": "complex64"},
            "no variable of its kind; .* 'embed' .*; name a variable to convert",
        ),
        ({"dtype": ml_dtypes.float8_e4m3}, "'embed' is float8_e4m3, but MAG supports only float32"),
        ({"layers.2": {"dtype": "f2"}}, r"names 'layers\.2' .*, which is not one of the variables"),
        ({"embed": {"scale": 2}}, "has 'scale', expected some of '_FillValue'"),
    ],
)
def test_encoding_without_effect_raises(tmp_path: Path, encoding: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        to_file(make_model(), tmp_path / "a.mag", encoding=encoding)


def test_times_that_overflow_the_dtype_raise(tmp_path: Path) -> None:
    encoding = {"t": {"units": "days since 2000-01-01", "dtype": "int8"}}
    times = xr.Dataset({"t": ("x", np.array(["2000-01-03", "2001-01-02"], "M8[ns]"))})
    for data in (times, times.chunk()):
        with pytest.raises(ValueError, match=r"'t' contains .*367.*, which int8 cannot represent"):
            to_file(data, tmp_path / "a.mag", encoding=encoding)
    to_file(times.isel(x=[0]), tmp_path / "a.mag", encoding=encoding)
    with xr.open_dataset(tmp_path / "a.mag", decode_cf=False) as stored:
        assert stored.t.dtype == "int8"
        assert stored.t.values.tolist() == [2]


WITH_FLOATS = ["mag", "safetensors", "tens", "pycauset"]


def write_and_read(ds: xr.Dataset, path: Path, **keywords: Any) -> dict[str, str]:
    to_file(ds, path, **keywords)
    return read_dtypes(path)


@pytest.mark.parametrize("suffix", WITH_FLOATS)
def test_dtype_in_the_encoding_of_a_variable_is_used_or_refused(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"a.{suffix}"
    for dtype, stored in (
        ("float32", "float32"), (np.int16, "int16"), (np.dtype(">i4"), "int32"),
    ):  # fmt: skip
        ds = xr.Dataset({"w": ("x", np.arange(3.0))})
        ds.w.encoding["dtype"] = dtype
        assert write_and_read(ds, path) == {"w": stored}
    ds.w.encoding["dtype"] = "no such dtype"
    with pytest.raises(ValueError, match="no such dtype"):
        to_file(ds, path)
    ds["w"] = ds.w + 0.5
    ds.w.encoding["dtype"] = "int16"
    with pytest.raises(ValueError, match=r"0\.5.*, which int16 cannot represent"):
        to_file(ds, path)


@pytest.mark.parametrize("suffix", WITH_FLOATS)
def test_dtype_of_the_opened_file_does_not_bind_values_of_another_dtype(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"a.{suffix}"
    to_file(xr.Dataset({"w": ("x", np.arange(3, dtype="i2"))}), path)
    ds = xr.load_dataset(path, engine="tensorfmt")
    for changed in (ds, ds.copy(deep=True), pickle.loads(pickle.dumps(ds))):
        half = changed.copy(data={"w": np.array([0.5, 1, 2], "f4")})
        assert half.w.encoding["dtype"] == np.int16
        assert write_and_read(half, tmp_path / f"b.{suffix}") == {"w": "float32"}
        half.w.encoding["dtype"] = "int16"  # by the user
        with pytest.raises(ValueError, match="int16 cannot represent"):
            to_file(half, tmp_path / f"b.{suffix}")


@pytest.mark.parametrize("kind", [*WITH_FLOATS, "yaml", "netcdf", "zarr"])
def test_encoding_of_any_opened_file_is_accepted(tmp_path: Path, kind: str) -> None:
    ds = xr.Dataset({"w": (("a", "b"), np.arange(12.0).reshape(3, 4))}, {"a": [10, 20, 30]})
    ds["w"] = ds.w.astype("f4") if kind == "mag" else ds.w
    packed = (
        None if kind == "yaml" else {"w": {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -1}}
    )
    if kind == "netcdf":
        ds.to_netcdf(tmp_path / "a.nc", encoding={"w": {**(packed or {})["w"], "zlib": True}})
        opened = xr.open_dataset(tmp_path / "a.nc")
    elif kind == "zarr":
        ds.to_zarr(tmp_path / "a.zarr", encoding=packed, consolidated=False)
        opened = xr.open_zarr(tmp_path / "a.zarr", consolidated=False)
    else:
        to_file(ds, tmp_path / f"t.{kind}", encoding=packed)
        opened = xr.open_dataset(tmp_path / f"t.{kind}", engine="tensorfmt")
    opened = opened.load()
    encoding = {name: opened[name].encoding for name in opened.variables}
    computed = opened.drop_encoding()
    for data in (opened, computed):
        path = tmp_path / ("u.yaml" if kind == "yaml" else "u.safetensors")
        to_file(data, path, encoding=encoding)
        again = xr.open_dataset(path, engine="tensorfmt")
        xr.testing.assert_equal(again, opened)
        assert again.w.encoding.get("scale_factor") == opened.w.encoding.get("scale_factor")
        assert again.w.encoding["dtype"] == opened.w.encoding["dtype"]


@pytest.mark.parametrize("suffix", ["npy", "tbf", "bin", "tens", "yaml"])
@pytest.mark.parametrize("kind", ["nc", "safetensors"])
@pytest.mark.parametrize("scales", [{"scale_factor": 0.25}, {}], ids=str)
def test_values_of_a_packed_file_are_written_if_the_format_cannot_pack(
    tmp_path: Path, suffix: str, kind: str, scales: dict[str, Any]
) -> None:
    ds = xr.Dataset({"tensor": ("a", [12.5 if scales else 12, np.nan, 1])})
    packed = {"tensor": {"dtype": "int16", "_FillValue": -1, **({"add_offset": 0.0} | scales)}}
    source, target = tmp_path / f"s.{kind}", tmp_path / f"t.{suffix}"
    if kind == "nc":
        ds.to_netcdf(source, encoding=packed)
    else:
        to_file(ds, source, encoding=packed)
    opened = xr.load_dataset(source)
    options = {"version": "0.9"} if suffix == "tens" else {}
    drop = ["dims", "attrs"] if suffix in ("npy", "tens") else []
    to_file(opened, target, drop=drop, **options)
    (actual,) = xr.open_dataset(target, engine="tensorfmt").data_vars.values()
    np.testing.assert_array_equal(actual, ds.tensor)
    if suffix != "npy":
        with pytest.raises(ValueError, match=r"is int16, but .* supports only float64"):
            to_file(opened, target, drop=drop, encoding={"tensor": {"dtype": "int16"}}, **options)


def test_encoding_of_a_narrow_dtype_is_used_for_computed_values(tmp_path: Path) -> None:
    ds = xr.Dataset({"w": ("x", np.array([1, 2.5], "f4"))})
    to_file(ds, tmp_path / "a.mag", encoding={"dtype": "bfloat16"})
    opened = xr.load_dataset(tmp_path / "a.mag", engine="tensorfmt")
    encoding = {"w": opened.w.encoding}
    assert write_and_read(opened / 3, tmp_path / "b.mag", encoding=encoding) == {"w": "bfloat16"}
    # TENS has no bfloat16, but all values as float32.
    assert write_and_read(opened, tmp_path / "b.tens", encoding=encoding) == {"w": "float32"}


def test_key_of_another_engine_that_is_typed_by_the_user_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'zlib', expected some of"):
        to_file(make_model(), tmp_path / "a.mag", encoding={"embed": {"zlib": True}})


def test_dtype_of_a_coordinate_in_the_header_is_used(tmp_path: Path) -> None:
    ds = xr.Dataset({"w": ("x", np.arange(2.0))}, {"x": ("x", [0.5, 1.5], {}, {"dtype": "f4"})})
    for suffix in ("tens", "pycauset"):
        to_file(ds, tmp_path / f"a.{suffix}")
        assert xr.open_dataset(tmp_path / f"a.{suffix}").x.dtype == np.float32


TIMES = np.array(["2000-01-01T00:00:01", "2000-01-02"], "M8[ns]")
LABELS: list[tuple[Any, Any, str]] = [
    (TIMES, "M8[s]", r"datetime64\[s\]"),
    (TIMES - TIMES[0], "m8[s]", r"timedelta64\[s\]"),
    (np.arange(2), "M8[s]", r"datetime64\[s\]"),
    (np.arange(2), "m8[s]", r"timedelta64\[s\]"),
    (np.arange(2), "U2", "str"),
    (np.arange(2), "bfloat16", "bfloat16"),
    (np.array([1 + 2j, 3 - 1j]), "f8", "complex128, and as float64 it would lose its imaginary"),
]


@pytest.mark.parametrize("chunks", [None, 1])
@pytest.mark.parametrize("suffix", ["tens", "pycauset", "yaml", "safetensors"])
@pytest.mark.parametrize(("labels", "dtype", "words"), LABELS, ids=str)
def test_dtype_that_a_coordinate_cannot_have_is_refused(
    tmp_path: Path, suffix: str, chunks: int | None, labels: Any, dtype: str, words: str
) -> None:
    """Encoded times are integers, which became times since 1970."""
    if (suffix, dtype) == ("safetensors", "bfloat16"):
        pytest.skip("safetensors stores coordinates as tensors of this dtype")
    ds = xr.Dataset({"w": ("x", np.arange(2.0))}, {"t": ("x", labels)})
    path = tmp_path / f"a.{suffix}"
    with pytest.raises(ValueError, match=f"'t' is {words}"):
        to_file(ds.chunk(x=chunks) if chunks else ds, path, encoding={"t": {"dtype": dtype}})
    assert not path.exists()


@pytest.mark.parametrize("info", [5, "mag", None, ["dims"]])
@pytest.mark.parametrize("name", ["a.mag", "a.safetensors", "a.tens", "a.npy", "a.yaml"])
def test_encoding_of_other_type_is_ignored(tmp_path: Path, name: str, info: Any) -> None:
    values = np.ones((2, 3), "f4" if name == "a.mag" else "f8")
    ds = xr.Dataset({"tensor": (("dim_0", "dim_1"), values)})
    ds.encoding["tensorfmt"] = ds.tensor.encoding["tensorfmt"] = info
    drop = ["name"] if name == "a.npy" else []
    to_file(ds, tmp_path / name, drop=drop)
    to_file(xr.DataTree(ds), tmp_path / name, drop=drop)
    assert xr.open_dataset(tmp_path / name, engine="tensorfmt").sizes == ds.sizes
