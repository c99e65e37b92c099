"""Checks of input and arguments, and their messages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dask.array as da
import ml_dtypes
import numpy as np
import pytest
import xarray as xr
from numpy.lib.mixins import NDArrayOperatorsMixin

from tests.opening import load
from tests.processes import run_python
from xr_tensorfmt import TensorFormatWarning, to_file
from xr_tensorfmt.core.elements import get_stored_name
from xr_tensorfmt.writing.checked_input import check_input


def make_dataset(**attrs: Any) -> xr.Dataset:
    return xr.Dataset({"a": (("x", "y"), np.arange(6, dtype="f4").reshape(2, 3))}, attrs=attrs)


def make(values: Any, *dims: str) -> xr.Dataset:
    return xr.Dataset({"a": (dims, values)})


NOT_WRITTEN = {
    "a number as name": (
        xr.Dataset({1: ("x", [1])}), TypeError, "the name 1 is not a str; rename it to '1'"
    ),
    "a tuple as dim": (
        make(np.ones(2), ("p", "q")), TypeError, r"\('p', 'q'\) is not a str; rename it to"
    ),
    "half a pair": (xr.Dataset({"a\ud800": 1}), ValueError, r"'a\\ud800' cannot be encoded as UTF"),
    "several levels": (
        make_dataset().assign_coords(x=[1, 2], y=[1, 2, 3]).stack(z=("x", "y")),
        ValueError,
        r"'z' belongs to a MultiIndex, .* call reset_index\('z'\) first",
    ),
    "labels alone": (
        xr.Dataset(coords={"x": [1, 2]}).x,
        ValueError,
        "'x' has the name of one of its dimensions.*; rename it, or write a Dataset that has it as",
    ),
    "a dimension's name": (
        xr.DataArray(np.ones((2, 3)), dims=("x", "y"), name="y"),
        ValueError,
        "'y' has the name of one of its dimensions but is not a coordinate",
    ),
    "an array": (np.ones(3), TypeError, "a ndarray cannot be written; pass an xarray Dataset"),
    "a variable": (xr.Variable("x", [1]), TypeError, "a Variable cannot be written"),
    "objects": (make(np.array([None, 1]), "x"), ValueError, "'a' is object, but MAG"),
    "texts": (make(["a", "b"], "x"), ValueError, r"'a' is str32, .*; convert it with ds\['a'\]"),
    "bytes": (make([b"a", b"b"], "x"), ValueError, "'a' is bytes8, but MAG supports only float32"),
    "complex numbers": (make(np.ones(2, "c8"), "x"), ValueError, "complex64, .* split it"),
    "doubles": (make(np.ones(2), "x"), ValueError, r"'a' is float64, .*'dtype': \.\.\."),
    "records": (make(np.zeros(2, "i4,i4"), "x"), ValueError, "'a' is void64, but MAG supports"),
    "no elements": (make(np.zeros((0, 2), "i4"), "x", "y"), ValueError, "without elements"),
    "nothing": (xr.Dataset(), ValueError, "without elements; add a variable that has som"),
    "17 dimensions": (
        make(np.ones((1,) * 17, "i1"), *map(str, range(17))),
        ValueError,
        "'a' has 17 dimensions, and magnetron loads at most 16; stack some of them",
    ),
    "a name that is taken": (
        make_dataset(xr_tensorfmt=1), ValueError, "'xr_tensorfmt' of the Dataset has the name of"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_WRITTEN)
def test_unsupported_input_raises(tmp_path: Path, case: str) -> None:
    data, error, match = NOT_WRITTEN[case]
    with pytest.raises(error, match=match):
        to_file(data, tmp_path / "a.mag")
    assert list(tmp_path.iterdir()) == []


class Duck(NDArrayOperatorsMixin):
    """An array that numpy can convert."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    shape = property(lambda self: self.values.shape)
    dtype = property(lambda self: self.values.dtype)
    ndim = property(lambda self: self.values.ndim)
    size = property(lambda self: self.values.size)

    def __getitem__(self, key):
        return type(self)(self.values[key])

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype)

    def __array_function__(self, func, types, args, kwargs):
        return NotImplemented

    def __array_ufunc__(self, *args, **kwargs):
        return NotImplemented


@pytest.mark.parametrize("suffix", ["mag", "tens", "pycauset", "safetensors", "npy", "yaml", "tbf"])
def test_coordinate_with_name_of_its_array_is_not_lost(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    ds = xr.Dataset(coords={"w": ("x", np.array([10, 20, 30], "f4"))})
    options: Any = {"encoding": {"dtype": "f8" if suffix == "yaml" else "f4"}}
    for array in (
        ds.w * 2,
        ds.w.assign_attrs(a=1),
        (ds.w * 2).rename("x").assign_coords(x=[1, 2, 3]),
    ):
        with pytest.raises(ValueError, match="the same name as one of its coordinates"):
            to_file(array, path, **options)
    with pytest.raises(ValueError, match="the same name as one of its coordinates"):
        to_file((ds.w * 2).rename(None).assign_coords(tensor=1), path, **options)
    assert not path.exists()
    to_file(ds.w * 2, path, drop=["coords", "name", "dims"], **options)
    assert load(path)[next(iter(load(path)))].values.tolist() == [20, 40, 60]
    if suffix not in ("npy", "tbf"):
        to_file((ds.w * 2).rename("v"), path, **options)
        assert load(path).w.values.tolist() == [10, 20, 30]
        to_file(ds.w, path, **options)  # the coordinate itself
        assert load(path).w.values.tolist() == [10, 20, 30]


def test_lengths_that_dask_does_not_know_raise(tmp_path: Path) -> None:
    array = da.from_array(np.arange(10, dtype="f4"), chunks=5)
    unknown = make(array[array > 3], "x")
    with pytest.raises(ValueError, match=r"'a' has chunks of unknown size; call compute_chunk_siz"):
        to_file(unknown, tmp_path / "a.mag")
    expected = make(array[array > 3].compute_chunk_sizes(), "x")
    to_file(expected, tmp_path / "a.mag")
    np.testing.assert_array_equal(load(tmp_path / "a.mag").a, np.arange(4, 10))


def test_unnamed_arrays_have_name_in_file(tmp_path: Path) -> None:
    to_file(xr.DataArray(np.ones(3, "f4")), tmp_path / "a.mag")
    assert list(load(tmp_path / "a.mag")) == ["tensor"]


def test_arrays_keep_their_name_attributes_and_coordinates(tmp_path: Path) -> None:
    array = make_dataset().a.assign_coords(x=["p", "q"]).assign_attrs(unit="m")
    to_file(array, tmp_path / "a.mag")
    xr.testing.assert_identical(xr.load_dataarray(tmp_path / "a.mag", engine="tensorfmt"), array)


def test_coordinates_themselves_are_written(tmp_path: Path) -> None:
    full = make_dataset().assign_coords(x=[10, 20], level=("x", np.arange(2, dtype="i4")))
    to_file(full.level, tmp_path / "a.mag")
    expected = xr.Dataset({"level": ("x", np.arange(2, dtype="i4"))}, {"x": [10, 20]})
    xr.testing.assert_identical(load(tmp_path / "a.mag"), expected)
    to_file(full[["x"]], tmp_path / "a.mag")
    xr.testing.assert_identical(load(tmp_path / "a.mag"), full[["x"]])


WRONG = {
    "unknown variable": ({"encoding": {"b": {}}}, ValueError, "names 'b', which is not one of the"),
    "unknown key": (
        {"encoding": {"a": {"dtype": "f4", "zlib": True}}}, ValueError,
        "has 'zlib', expected some of '_FillValue'",
    ),
    "no mapping": (
        {"encoding": "f2"}, TypeError, r"must have the form {name: \{'dtype': ...\}\}, .* not 'f2'"
    ),
    "no mapping of mappings": ({"encoding": {"a": "f4"}}, TypeError, "must have the form {name"),
    "None for one": ({"encoding": {"a": None}}, TypeError, "must have the form {name"),
    "unknown dtype": ({"encoding": {"a": {"dtype": "f4000"}}}, ValueError, "'a' is f4000, but MAG"),
    "no dtype": ({"encoding": {"a": {"dtype": 3}}}, ValueError, "'a' is 3, but MAG supports only"),
    "float64": ({"encoding": {"a": {"dtype": "f8"}}}, ValueError, "'a' is float64, but MAG"),
    "a text to drop": ({"drop": "attributes"}, ValueError, "must be a list with any of"),
    "unknown to drop": ({"drop": ["attributes"]}, ValueError, "'name', 'dims', 'coords', 'attrs'"),
    "no text to drop": ({"drop": [[]]}, ValueError, "must be a list with any of"),
    "mode": ({"mode": "a"}, ValueError, r"mode='a' is neither 'w' \(overwrite\) nor 'w-'"),
    "version": ({"version": 1}, TypeError, "'version' is not a keyword for MAG files"),
    "unknown keyword": ({"zlib": 1}, TypeError, "'zlib' is not a keyword for MAG files"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_invalid_arguments_raise(tmp_path: Path, case: str) -> None:
    options, error, match = WRONG[case]
    with pytest.raises(error, match=match.replace("{name", r"\{name").replace(r"\\{", r"\{")):
        to_file(make_dataset(), tmp_path / "a.mag", **options)
    assert list(tmp_path.iterdir()) == []


def test_unsupported_parts_can_be_dropped(tmp_path: Path) -> None:
    data = make_dataset(bad=object(), good=1).assign_coords(
        t=("x", np.array([None, 1], dtype=object)), s=5
    )
    with pytest.raises(
        ValueError, match=r"'bad' of the Dataset contains a object.*drop=\['attrs'\]"
    ):
        to_file(data, tmp_path / "a.mag", drop=["coords"])
    with pytest.raises(ValueError, match=r"'t' has dtype object.*, or pass drop=\['coords'\]"):
        to_file(data, tmp_path / "a.mag", drop=["attrs"])
    to_file(data, tmp_path / "a.mag", drop=["attrs", "coords"])
    expected = make_dataset(good=1).assign_coords(s=5)
    xr.testing.assert_identical(load(tmp_path / "a.mag"), expected)


def test_single_tensor_formats_require_one_variable() -> None:
    two = check_input(xr.Dataset({"a": 1, "b": 2}), "f", "TENS", None, ())
    with pytest.raises(
        ValueError,
        match=r"holds one variable, but the Dataset has 2 \('a', 'b'\); .*, or choose a format",
    ):
        two.single_variable  # noqa: B018  # a property that raises
    none = check_input(xr.Dataset(), "f", "TENS", None, ())
    with pytest.raises(ValueError, match=r"the Dataset has 0 \(none\); pass one of them"):
        none.single_variable  # noqa: B018
    assert check_input(xr.Dataset({"a": 1}), "f", "TENS", None, ()).single_variable[0] == "a"


class Reluctant(Duck):
    """Refuse conversion."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("call todense() first")


def test_duck_arrays_are_converted_or_raise(tmp_path: Path) -> None:
    values = np.arange(6, dtype="f4").reshape(2, 3)
    to_file(make(Duck(values), "x", "y"), tmp_path / "a.mag")
    np.testing.assert_array_equal(load(tmp_path / "a.mag").a, values)
    with pytest.raises(RuntimeError, match=r"call todense\(\) first"):
        to_file(make(Reluctant(values), "x", "y"), tmp_path / "a.mag")
    np.testing.assert_array_equal(load(tmp_path / "a.mag").a, values)


class Named(np.ndarray):
    """A subclass of ndarray."""


def test_ndarray_subclasses_are_written(tmp_path: Path) -> None:
    values = np.arange(6, dtype="f4").view(Named)
    to_file(make(values, "x"), tmp_path / "a.mag")
    to_file(make(da.from_array(values, chunks=3, asarray=False), "x"), tmp_path / "b.mag")
    for name in ("a.mag", "b.mag"):
        np.testing.assert_array_equal(load(tmp_path / name).a, np.arange(6))


def test_masked_arrays_become_nan_like_xarray(tmp_path: Path) -> None:
    masked = np.ma.masked_array(np.arange(4, dtype="f4"), [0, 1, 0, 0])
    to_file(make(masked, "x"), tmp_path / "a.mag")
    np.testing.assert_array_equal(load(tmp_path / "a.mag").a, [0, np.nan, 2, 3])
    try:
        to_file(make(da.from_array(masked, chunks=2), "x"), tmp_path / "b.mag")
    except TypeError as error:  # older versions of xarray keep the masks of dask
        assert "'a' has masked values; fill them first" in str(error)  # noqa: PT017
        assert not (tmp_path / "b.mag").exists()
    else:
        np.testing.assert_array_equal(load(tmp_path / "b.mag").a, [0, np.nan, 2, 3])


def make_blocks(function: Any, values: Any = None) -> xr.Dataset:
    array = da.from_array(np.zeros(2000, "f4") if values is None else values, chunks=1000)
    return make(array.map_blocks(function, dtype="f4", meta=np.empty(0, "f4")), "x")


MADE = {
    "a list": lambda block: block.tolist(),
    "another dtype": lambda block: block.astype("f8"),
    "objects": lambda block: block.astype(object),
    "a view": lambda block: np.broadcast_to(np.float32(0), block.shape),
    "read-only": lambda block: block[::-1],
}


@pytest.mark.parametrize("case", MADE)
def test_chunks_are_converted_by_numpy(tmp_path: Path, case: str) -> None:
    to_file(make_blocks(MADE[case]), tmp_path / "a.mag")
    np.testing.assert_array_equal(load(tmp_path / "a.mag").a, np.zeros(2000))


SURPRISES = {
    "shorter": (lambda block: block[:3], r"has a chunk of shape \(3,\), but dask expected"),
    "longer": (lambda block: np.zeros(2000, "f4"), r"of shape \(2000,\), but .* \(1000,\)"),
    "more axes": (lambda block: block[np.newaxis], r"of shape \(1, 1000\), but .* \(1000,\)"),
    "nothing": (
        lambda _: None,
        r"of shape \(\), but .* \(1000,\); pass the right chunks= to map_blocks",
    ),
    "masked": (lambda block: np.ma.masked_equal(block, 0), "'a' has masked values; fill them"),
    "lost": (lambda block: block.astype("f8") + 0.1, "0.1.*, which float32 cannot represent"),
}


@pytest.mark.parametrize("case", SURPRISES)
def test_unexpected_chunk_shapes_raise(tmp_path: Path, case: str) -> None:
    function, match = SURPRISES[case]
    with pytest.raises((ValueError, TypeError), match=match):
        to_file(make_blocks(function), tmp_path / "a.mag")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_dtypes_of_ml_dtypes_are_written_as_they_are(tmp_path: Path, name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    values = np.array([1, -0.5, np.nan], "f4").astype(dtype)
    to_file(make(values, "x"), tmp_path / "a.mag")
    actual = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt").a
    assert get_stored_name(actual.encoding["dtype"]) == name
    np.testing.assert_array_equal(actual, values.astype("f4"))
    to_file(make_dataset(), tmp_path / "a.mag", encoding={"a": {"dtype": dtype.type}})
    assert get_stored_name(load(tmp_path / "a.mag").a.encoding["dtype"]) == name


def test_coordinates_use_requested_encoding(tmp_path: Path) -> None:
    data = make_dataset().assign_coords(x=[0.5, 1.5])
    to_file(data, tmp_path / "a.mag", encoding={"x": {"dtype": "float32"}})
    actual = load(tmp_path / "a.mag")
    assert actual.x.dtype == np.float32
    xr.testing.assert_equal(actual, data)


@pytest.mark.parametrize("chunks", [(), (1,), -1])
def test_scalar_input(tmp_path: Path, chunks) -> None:
    array = da.from_array(np.float32(3), chunks=()) if chunks == () else np.float32(3)
    to_file(make(array), tmp_path / "a.mag")
    assert load(tmp_path / "a.mag").a == 3


def test_input_is_not_modified(tmp_path: Path) -> None:
    values = np.arange(6, dtype="f4").reshape(2, 3)
    data = make(values, "x", "y").assign_coords(x=["p", "q"]).assign_attrs(a=[1, {"b": None}])
    before = data.copy(deep=True)
    to_file(data, tmp_path / "a.mag", encoding={"a": {"dtype": "bfloat16"}})
    xr.testing.assert_identical(data, before)
    assert data.a.values is values or np.shares_memory(data.a.values, values)
    assert data.a.chunks is None
    assert data.a.encoding == {}


def test_accessor_writes_datasets_and_arrays(tmp_path: Path) -> None:
    assert make_dataset().tensorfmt.to_file(tmp_path / "a.mag") is None
    make_dataset().a.tensorfmt.to_file(tmp_path / "b.data", format="mag", mode="x")
    for name in ("a.mag", "b.data"):
        xr.testing.assert_identical(load(tmp_path / name), make_dataset())
    task = make_dataset().tensorfmt.to_file(tmp_path / "c.MAG", compute=False)
    task.compute()
    xr.testing.assert_identical(load(tmp_path / "c.MAG"), make_dataset())
    with pytest.raises(TypeError, match="'zlib' is not a keyword for MAG files"):
        make_dataset().tensorfmt.to_file(tmp_path / "a.mag", zlib=1)


def test_suffix_selects_format(tmp_path: Path) -> None:
    for name in ("a", "a.nc", "mag", ".mag"):
        with pytest.raises(ValueError, match=re.escape(f"{name}: the suffix names no format; ")):
            to_file(make_dataset(), tmp_path / name)
    with pytest.raises(ValueError, match="format='nc' is not one of 'tens', 'cc4s', 'mag', 'pyc"):
        to_file(make_dataset(), tmp_path / "a.mag", format="nc")
    with pytest.raises(TypeError, match="neither a path nor a URL"):
        to_file(make_dataset(), b"a.mag")


@pytest.mark.slow
def test_writers_are_imported_on_first_use(tmp_path: Path) -> None:
    code = (
        "import sys, xr_tensorfmt; "
        "assert not any(name.startswith('xr_tensorfmt.writing') for name in sys.modules); "
        "assert 'dask' not in sys.modules; "
        "xr_tensorfmt.to_file(xr_tensorfmt.tutorial.open_dataset('cities'), 'a.tbf'); "
        "print('xr_tensorfmt.writing.blocks' in sys.modules)"
    )
    run = run_python("-c", code, cwd=tmp_path)
    assert run.stdout.strip() == "True"


@pytest.mark.filterwarnings("ignore:Duplicate dimension names:UserWarning")
def test_dimensions_of_one_name_raise(tmp_path: Path) -> None:
    twice = xr.DataArray(np.eye(3, dtype="f4"), dims=("a", "a"), name="v")
    with pytest.raises(
        ValueError, match=r"'v' has two dimensions of the same name in \('a', 'a'\)"
    ):
        to_file(twice, tmp_path / "v.mag")


def test_unknown_keywords_raise(tmp_path: Path) -> None:
    with pytest.raises(
        TypeError, match=r"'sprase' is not a keyword for MAG files, expected one of data, path"
    ):
        to_file(make_dataset(), tmp_path / "a.mag", sprase=True)
    with pytest.raises(
        TypeError, match=r"region= must be 'auto' or like \{'x': slice\(0, 10\)\}, not 'all'"
    ):
        to_file(make_dataset(), tmp_path / "a.mag", region="all")


def test_drop_accepts_a_str(tmp_path: Path) -> None:
    data = xr.DataArray(np.ones((2, 3)), dims=("x", "y"), name="tensor")
    to_file(data, tmp_path / "a.npy", drop="dims", encoding={})
    assert load(tmp_path / "a.npy").tensor.dims == ("dim_0", "dim_1")
    with pytest.raises(ValueError, match="drop=True must be a list with any of 'name', 'dims'"):
        to_file(make_dataset(), tmp_path / "a.mag", drop=True)


class Chunked(Duck):
    """An array in chunks of another library, such as `cubed`."""

    chunks = ((1, 2), (3,))


def test_chunks_of_other_libraries_are_written(tmp_path: Path) -> None:
    values = np.arange(9, dtype="f4").reshape(3, 3)
    for suffix in ("mag", "safetensors"):
        to_file(make(Chunked(values), "x", "y"), tmp_path / f"a.{suffix}")
        np.testing.assert_array_equal(load(tmp_path / f"a.{suffix}").a, values)


ORDERED = {
    "a.tens": ("f8", ("i", "j")),
    "a.safetensors": ("f4", ("x", "y")),
    "a.mag": ("f4", ("x", "y")),
    "a.pycauset": ("f8", ("row", "col")),
    "CoulombVertex.yaml": ("f8", ("State", "State_2")),
}


@pytest.mark.parametrize("file", ORDERED)
def test_permuted_dims_of_opened_file_are_named(file: str, tmp_path: Path) -> None:
    dtype, (first, second) = ORDERED[file]
    path, new = tmp_path / file, tmp_path / "new" / file
    new.parent.mkdir()
    name = "CoulombVertex" if file.endswith(".yaml") else "tensor"
    dims, shape = (first, second), (3, 3)
    if file.endswith(".yaml"):
        dims, shape = ("AuxiliaryField", *dims), (2, *shape)
    to_file(xr.Dataset({name: (dims, np.ones(shape, dtype), {"unit": 1.0})}), path)
    ds = load(path)
    changed = (*dims[:-2], second, first)
    order = ", ".join(map(repr, dims))
    for chunks in (None, {}):
        opened = xr.open_dataset(path, engine="tensorfmt", chunks=chunks)
        permuted = opened.transpose(*changed)
        with pytest.warns(TensorFormatWarning, match=re.escape(f".transpose({order}) for")):
            to_file(permuted, new, mode="w")
    to_file(ds, new, mode="w")
    if not file.endswith(".yaml"):  # the names are types there
        renamed = ds.rename({first: "k"})
        to_file(renamed, new, mode="w")
        with pytest.warns(TensorFormatWarning, match=re.escape(f".transpose('k', '{second}') for")):
            to_file(renamed.transpose(), new, mode="w")
