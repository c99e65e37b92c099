"""Conversion between tensor files of all formats, zarr stores and netCDF files."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path, PureWindowsPath
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr

from tests import tensfiles as tf
from tests import vespafiles as vf
from tests.commands import GAMMA, load_any, make_dataset, run, run_failing, run_ok, save
from tests.opening import open_lazily
from tests.servers import S3Store
from xr_tensorfmt import to_file
from xr_tensorfmt.formats import registry

pytestmark = pytest.mark.usefixtures("working_directory")
BOTH = pytest.mark.parametrize("store", ["b.zarr", "b.nc"])

VALUES = np.arange(12.0).reshape(3, 4)
PARTS = ("name", "dims", "coords", "attrs")
FORMATS = {file_format.name: file_format for file_format in registry.BUILT_IN}
WRITTEN = [name for name, file_format in FORMATS.items() if file_format.can_write]
DTYPES = {"mag": "float32"}
"""It has no float64."""


def write_values(name: str) -> str:
    path = "in" + FORMATS[name].suffixes[0]
    if name == "npz":
        np.savez(path, tensor=VALUES)
    else:
        array = xr.DataArray(VALUES.astype(DTYPES.get(name, "f8")), dims=("x", "y"), name="tensor")
        to_file(array, path, name, drop=PARTS)
    return path


@pytest.mark.parametrize(
    ("from_", "to"), [*((name, "npy") for name in FORMATS), *(("npy", name) for name in WRITTEN)]
)
def test_values_of_every_format_are_kept(from_: str, to: str) -> None:
    source, target = write_values(from_), "out" + FORMATS[to].suffixes[0]
    (name,) = open_lazily(source).data_vars
    dtype = DTYPES.get(to, "float64")
    options = [option for part in PARTS for option in ("--drop", part)]
    run_ok("convert", source, target, "--dtype", f"{name}={dtype}", *options)
    (actual,) = open_lazily(target).data_vars.values()
    values = actual.values if actual.shape == VALUES.shape else actual.values.T
    assert values.dtype == dtype
    np.testing.assert_array_equal(values, VALUES)


@BOTH
def test_round_trip_is_identical(store: str) -> None:
    save()
    run_ok("convert", "a.mag", store)
    xr.testing.assert_identical(load_any(store), make_dataset())
    run_ok("convert", store, "c.mag")
    xr.testing.assert_identical(load_any("c.mag"), make_dataset())
    assert run_ok("validate", "c.mag") == "c.mag: ok\n"


@pytest.mark.filterwarnings("ignore:The codec `vlen-utf8`:UserWarning")  # zarr before 3.1
def test_netcdf_to_zarr_and_back() -> None:
    ds = make_dataset().assign(z=("col", np.arange(30) * (1 + 2j)), t=("row", ["x", "yy"] * 10))
    ds = ds.assign_coords(time=("row", np.datetime64("2020-01-01", "ns") + np.arange(20)))
    ds.chunk(row=7).to_netcdf("a.nc", engine="h5netcdf")
    run_ok("convert", "a.nc", "b.zarr")
    run_ok("convert", "b.zarr", "c.nc")
    xr.testing.assert_identical(xr.load_dataset("c.nc", engine="h5netcdf"), ds)


@pytest.mark.parametrize("format", ["NETCDF3_64BIT", "NETCDF4"])
def test_both_netcdf_versions_convert_with_strings(format: Any) -> None:
    strings = [f"label {number}" for number in range(3000)]
    values = np.arange(3000 * 80, dtype="f4").reshape(3000, 80)
    ds = xr.Dataset({"w": (("x", "y"), values)}, {"x": strings, "t": ("x", strings)})
    ds.to_netcdf("a.nc", format=format)
    run_ok("convert", "a.nc", "a.mag")
    actual = load_any("a.mag")
    np.testing.assert_array_equal(actual.w.values, values)
    assert actual.x.values.tolist() == actual.t.values.tolist() == strings


@pytest.mark.filterwarnings("ignore:The codec `vlen-utf8`:UserWarning")  # zarr before 3.1
def test_labels_become_coordinates_of_zarr() -> None:
    content = vf.make_tensor("double", ["u"], {"x": 2}, [("a",), ("ö",)], np.ones((2, 2)))
    Path("v.tbf").write_bytes(content)
    run_ok("convert", "v.tbf", "v.zarr")
    assert load_any("v.zarr").u.values.tolist() == ["a", "ö"]
    assert load_any("v.zarr").tensor.shape == (2, 2)


def test_complex_numbers_become_netcdf() -> None:
    Path("c.bin").write_bytes(tf.make_0_9(GAMMA + 1j))
    run_ok("convert", "c.bin", "c.nc", "--name", "vertex", "--dims", "F,q,r")
    ds = xr.load_dataset("c.nc", engine="h5netcdf")
    np.testing.assert_array_equal(ds.vertex.values, GAMMA + 1j)
    assert ds.vertex.dims == ("F", "q", "r")
    run_ok("convert", "c.nc", "c.zarr")
    assert load_any("c.zarr").vertex.dtype == np.complex128


def test_error_names_packages_for_complex_netcdf(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("c.bin").write_bytes(tf.make_0_9(GAMMA + 1j))
    module = importlib.import_module("xr_tensorfmt.cli.convert")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    message = run_failing("convert", "c.bin", "c.nc")
    assert "install h5netcdf and h5py to write complex numbers, or write zarr" in message
    assert not Path("c.nc").exists()


def test_netcdf_3_is_read_with_scipy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = xr.Dataset({"w": ("x", np.ones(2))}, {"x": [3.0, 4.0]}, {"title": "text"})
    ds.to_netcdf("a.nc", engine="scipy")
    engines = {"scipy": xr.backends.list_engines()["scipy"]}
    for module in ("xarray.backends.plugins.list_engines", "xarray.backends.list_engines"):
        monkeypatch.setattr(module, lambda: engines)
    module = importlib.import_module("xr_tensorfmt.cli.convert")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with monkeypatch.context() as patch:
        patch.setattr("xr_tensorfmt.saving.to_file", lambda ds, *_, **__: opened.append(ds.load()))
        opened: list[xr.Dataset] = []
        run_ok("convert", "a.nc", "a.safetensors")
    xr.testing.assert_identical(opened[0], ds)


@pytest.mark.parametrize("owner", ["'w'", "'number'", "the Dataset"])
def test_nested_attributes_become_netcdf(monkeypatch: pytest.MonkeyPatch, owner: str) -> None:
    ds = xr.Dataset({"w": ("x", np.ones(2, "f4"))}, {"number": ("x", [3, 4])})
    momenta = [[0, 0, 0], [1, 0, 0]]
    holder = ds if owner == "the Dataset" else ds[owner.strip("'")]
    holder.attrs |= {"values": momenta}
    to_file(ds, "a.mag")
    result = run("convert", "a.mag", "a.nc")
    assert result.exit_code == 0
    advice = f"with the nested attribute 'values' of {owner}; pass engine='h5netcdf'"
    assert f"Warning: a.nc: netCDF4 cannot open files {advice}" in result.stderr
    xr.testing.assert_identical(xr.load_dataset("a.nc", engine="h5netcdf"), ds)
    run_ok("convert", "a.nc", "b.mag")
    xr.testing.assert_identical(load_any("b.mag"), ds)
    module = importlib.import_module("xr_tensorfmt.cli.convert")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    message = run_failing("convert", "a.mag", "c.nc")
    advice = f"to write the nested attribute 'values' of {owner}, or write zarr"
    assert f"install h5netcdf and h5py {advice}" in message
    assert not Path("c.nc").exists()


@pytest.mark.parametrize("format", ["NETCDF3_64BIT", "NETCDF4"])
def test_error_about_netcdf_names_option_that_reads_it(format: Any) -> None:
    ds = xr.Dataset({"w": ("x", np.arange(3.0))})
    ds.to_netcdf("data", format=format)
    for command in (["info", "data"], ["convert", "data", "b.mag"]):
        assert "or run xr-tensorfmt convert --from netcdf" in run_failing(*command)
    run_ok("convert", "data", "b.safetensors", "--from", "netcdf")
    xr.testing.assert_equal(load_any("b.safetensors"), ds)


def test_error_about_zarr_names_option_that_reads_it() -> None:
    xr.Dataset({"w": ("x", np.arange(3.0))}).to_zarr("data.zarr", consolidated=False)
    for command in ("info", "validate"):
        assert "or run xr-tensorfmt convert --from zarr" in run_failing(command, "data.zarr")
    assert "out: the suffix names no format" in run_failing("convert", "data.zarr", "out")


def test_files_of_pairs_are_converted_with_all_elements() -> None:
    Path("s.tens").write_bytes(tf.make_index_value((3, 4), [0, 5], np.array([1.0, 2.0])))
    run_ok("convert", "s.tens", "full.zarr")
    assert load_any("full.zarr").tensor.shape == (3, 4)


@BOTH
def test_dtypes_follow_encoding(store: str) -> None:
    Path("a.bin").write_bytes(tf.make_0_9(GAMMA / 3))
    run_ok("convert", "a.bin", store, "--dtype", "float32")
    np.testing.assert_array_equal(load_any(store).tensor.values, (GAMMA / 3).astype("f4"))
    assert load_any(store).tensor.dtype == np.float32


@pytest.mark.parametrize("values", [np.full(4, -0.0), np.full(4, complex(-0.0, -0.0))])
def test_negative_zeros_keep_their_signs_in_zarr(values: np.ndarray) -> None:
    Path("z.bin").write_bytes(tf.make_0_9(values))
    run_ok("convert", "z.bin", "z.zarr")
    actual = load_any("z.zarr").tensor.values
    assert np.signbit(actual.real).all()
    assert np.signbit(actual.imag).all() == np.iscomplexobj(values)


# Input that xarray refuses


def test_attributes_that_netcdf_cannot_represent_can_be_dropped() -> None:
    ds = make_dataset().assign_attrs(config={"a": 1})
    save("a.mag", ds)
    message = run_failing("convert", "a.mag", "b.nc")
    assert message.startswith("Error: b.nc from a.mag: Invalid value for attr 'config'")
    assert not Path("b.nc").exists()
    run_ok("convert", "a.mag", "b.nc", "--drop", "attrs")
    xr.testing.assert_identical(load_any("b.nc"), ds.drop_attrs())
    run_ok("convert", "a.mag", "b.zarr")
    xr.testing.assert_identical(load_any("b.zarr"), ds)


def test_source_that_cannot_be_opened_is_named() -> None:
    Path("junk.nc").write_bytes(b"junk")
    assert run_failing("convert", "junk.nc", "t.mag").startswith("Error: junk.nc: ")
    assert "missing.nc" in run_failing("convert", "missing.nc", "t.mag")
    assert "missing.zarr" in run_failing("convert", "missing.zarr", "t.mag")


@pytest.mark.parametrize("to", ["b.zarr", "b.nc", "b.mag"])
def test_errors_of_both_files_name_both(to: str) -> None:
    ds = xr.Dataset({"v": ("x", np.arange(6.0, dtype="f4"))})
    ds.to_zarr("s.zarr", consolidated=False)
    Path("s.zarr/v/c/0").write_bytes(b"junk, and more of it")
    assert run_failing("convert", "s.zarr", to).startswith(f"Error: {to} from s.zarr: ")


def test_errors_show_no_secrets() -> None:
    save()
    url = "nowhere://user:hunter2@host/b.zarr?signature=hunter2"
    for arguments in (("a.mag", url), (url, "b.mag")):
        message = run_failing("convert", *arguments)
        assert "nowhere://host/b.zarr?..." in message
        assert "hunter2" not in message


def test_limits_of_netcdf_and_of_options() -> None:
    save()
    assert "only be written to local paths" in run_failing("convert", "a.mag", "memory://b.nc")
    assert "--option is only for tensor formats" in run_failing(
        "convert", "a.mag", "b.nc", "-o", "version=1"
    )


# Existing targets


@pytest.mark.usefixtures("memory")
def test_zarr_behind_url() -> None:
    save()
    url = "memory://store/b.zarr"
    run_ok("convert", "a.mag", url)
    run_ok("convert", url, "c.mag")
    xr.testing.assert_identical(load_any("c.mag"), make_dataset())
    assert f"{url}: it exists already; pass mode='w' or --overwrite" in run_failing(
        "convert", "a.mag", url
    )
    run_ok("convert", "a.mag", url, "--overwrite")


def test_store_in_s3_is_not_converted_to_itself(s3: S3Store) -> None:
    s3.put("first", b"")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr has not specified consolidated metadata
        make_dataset().to_zarr("s3://bucket/self.zarr", storage_options=s3.options)
    options = [
        argument
        for key, value in s3.options.items()
        for argument in ("--storage-option", f"{key}={value}")
    ]
    source, same = "s3://bucket/self.zarr", "s3a://bucket/self.zarr/"
    assert "is the input s3://" in run_failing("convert", source, same, "--overwrite", *options)
    ds = xr.load_dataset(source, engine="zarr", storage_options=s3.options)
    xr.testing.assert_identical(ds, make_dataset())


def test_store_is_not_written_over_one_that_contains_input() -> None:
    run_ok("convert", save("a.mag"), "s.zarr")
    Path("a.mag").rename("s.zarr/in.mag")
    message = run_failing("convert", "s.zarr/in.mag", "s.zarr", "--overwrite")
    assert "s.zarr contains the input s.zarr/in.mag; choose another target" in message
    assert Path("s.zarr", "in.mag").exists()


@pytest.mark.parametrize("target", ["s.zarr/w", "s.zarr/w/c/0/0", "s.zarr/new"])
@pytest.mark.parametrize("to", ["zarr", "netcdf", "mag"])
def test_target_inside_source_store_raises(target: str, to: str) -> None:
    run_ok("convert", save(), "s.zarr")
    message = run_failing("convert", "s.zarr", target, "--to", to, "--overwrite")
    assert target in message
    assert " is inside the input s.zarr; choose another target" in message
    xr.testing.assert_identical(load_any("s.zarr"), make_dataset())


def test_path_of_windows_within_store_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    run_ok("convert", save(), "s.zarr")
    module = importlib.import_module("xr_tensorfmt.cli.convert")
    monkeypatch.setattr(module, "PurePath", PureWindowsPath)
    message = run_failing("convert", "s.zarr", "s.zarr\\inner.mag")
    assert "inner.mag is inside the input s.zarr; choose another target" in message
    xr.testing.assert_identical(load_any("s.zarr"), make_dataset())


def test_path_with_same_prefix_is_another_file() -> None:
    run_ok("convert", save(), "a.mag.zarr")
    xr.testing.assert_identical(load_any("a.mag.zarr"), make_dataset())


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "zarr"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "zarr", None)
    message = run_failing("convert", save(), "s.zarr")
    assert message.endswith("; run pip install zarr\n")


@pytest.mark.parametrize("content", ["group", "array", "dataset"])
def test_stores_of_zarr_2_are_replaced(content: str) -> None:
    zarr = importlib.import_module("zarr")
    if content == "group":
        zarr.open_group("s.zarr", mode="w", zarr_format=2)
    elif content == "array":
        zarr.save_array("s.zarr", np.ones(3), zarr_format=2)
    else:
        make_dataset().to_zarr("s.zarr", zarr_format=2, consolidated=False)
    run_ok("convert", save(), "s.zarr", "--overwrite")
    xr.testing.assert_identical(load_any("s.zarr"), make_dataset())


@pytest.mark.parametrize("file", ["docs.d/diary", "diary"])
@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.usefixtures("memory")
def test_only_stores_are_replaced_by_stores(file: str, remote: bool) -> None:
    save()
    root = "memory://" if remote else ""
    with fsspec.open(f"{root}{file}", "w", auto_mkdir=True) as opened_file:
        opened_file.write("dear")
    target = f"{root}{file.partition('/')[0]}"
    message = run_failing("convert", "a.mag", target, "--to", "zarr", "--overwrite")
    assert f"{target} exists and is not a zarr store" in message
    with fsspec.open(f"{root}{file}") as kept:
        assert kept.read() == b"dear"


def make_tree() -> xr.DataTree:
    """Return a tree with a shared dimension, a coordinate, and variables."""
    root = xr.Dataset({"bias": ("x", np.ones(3, "f4"))}, {"x": [1, 2, 3]}, {"title": "all"})
    layers = [
        xr.Dataset({"w": (("x", "y"), np.full((3, n + 1), n, "f4")), "n": ((), n)}) for n in (0, 1)
    ]
    return xr.DataTree.from_dict({"/": root, "/layers/0": layers[0], "/layers/1": layers[1]})


def write_tree(path: str, tree: xr.DataTree | None = None) -> str:
    tree = tree or make_tree()
    if path.endswith(".zarr"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zarr has not specified consolidated metadata
            tree.to_zarr(path)
    else:
        tree.to_netcdf(path)
    return path


def open_tree(path: str) -> xr.DataTree:
    engine = "zarr" if path.endswith(".zarr") else "h5netcdf"
    with xr.open_datatree(path, engine=engine if Path(path).suffix != ".mag" else "tensorfmt") as t:
        return t.load()


@pytest.mark.parametrize("source", ["a.zarr", "a.nc"])
def test_store_with_groups_is_converted_whole(source: str) -> None:
    run_ok("convert", write_tree(source), "a.mag")
    xr.testing.assert_identical(open_tree("a.mag"), make_tree())
    run_ok("diff", source, "a.mag")
    run_ok("convert", "a.mag", "flat.zarr")
    assert "layers.1.w" in load_any("flat.zarr")


def test_dtypes_of_grouped_variables_use_names_in_file() -> None:
    write_tree("a.zarr")
    run_ok("convert", "a.zarr", "b.mag", "--dtype", "layers.1.w=float16")
    assert load_any("b.mag")["layers.1.w"].encoding["dtype"] == "float16"


def test_groups_of_store_are_chosen_or_named_in_error() -> None:
    write_tree("a.zarr")
    run_ok("convert", "a.zarr", "part.mag", "--group", "layers.1")
    assert load_any("part.mag").w.shape == (3, 2)
    run_ok("convert", "a.zarr", "layers.nc", "--group", "/layers")
    assert set(load_any("layers.nc").data_vars) == {"0.w", "0.n", "1.w", "1.n"}
    message = run_failing("convert", "a.zarr", "b.zarr", "--variable", "w")
    assert "there is no variable 'w'; it has " in message
    assert all(f"'{name}'" in message for name in ("bias", "layers.0.n", "layers.1.w"))
    run_ok("convert", "a.zarr", "b.zarr", "--variable", "layers.0.w")
    assert list(load_any("b.zarr")) == ["layers.0.w"]
    refusal = run_failing("convert", "a.zarr", "one.tens", "--dims", "x,y")
    assert "a.zarr is zarr, and dims applies only to tensor files" in refusal


@pytest.mark.parametrize("source", ["a.zarr", "a.nc"])
def test_groups_of_store_inherit_indexes(source: str) -> None:
    values = xr.Dataset({"w": ("i", np.ones(2, "f4"))})
    tree = xr.DataTree.from_dict({"/": xr.Dataset(coords={"i": [0, 1]}), "/g/h": values})
    write_tree(source, tree)
    to_file(tree, "b.mag")
    for group in ("g", "g.h"):
        run_ok("convert", source, f"{group}.mag", "--group", group)
        run_ok("diff", source, "b.mag", "--group", group)
        assert load_any(f"{group}.mag").i.values.tolist() == [0, 1]
    message = run_failing("convert", source, "c.mag", "--group", "x")
    assert "the group 'x' is not in the file" in message


def test_bits_equal_bools() -> None:
    bits = xr.DataArray(np.eye(4, dtype=bool), dims=("row", "col"), name="tensor")
    save("a.pycauset", bits.to_dataset())
    run_ok("convert", "a.pycauset", "b.safetensors")
    run_ok("diff", "a.pycauset", "b.safetensors")


@pytest.mark.parametrize("store", ["b.zarr", "b.nc"])
def test_conversion_adds_no_fill_values(store: str) -> None:
    save("a.mag", xr.Dataset({"a": ("x", np.array([1, np.nan], "f4"))}, {"lab": ("x", ["a", "b"])}))
    run_ok("convert", "a.mag", store)
    run_ok("convert", store, "c.mag")
    run_ok("diff", "a.mag", "c.mag")
    assert "_FillValue" not in load_any("c.mag").a.encoding


def test_attributes_of_groups_raise_for_tensor_files() -> None:
    tree = make_tree()
    tree["layers/1"].attrs["kind"] = "last"
    write_tree("a.zarr", tree)
    assert "the group '/layers/1' has attributes" in run_failing("convert", "a.zarr", "a.mag")
    run_ok("convert", "a.zarr", "a.mag", "--drop", "attrs")


def test_names_with_slashes_need_a_tree_in_zarr() -> None:
    ds = xr.Dataset({name: ("x", np.ones(3, "f4")) for name in ("a/b.c.w", "a/b.d")})
    to_file(ds, "a.mag")
    assert "'a/b.c.w' has a slash" in run_failing("convert", "a.mag", "a.zarr")
    assert not Path("a.zarr").exists()
    open_tree("a.mag").to_zarr("a.zarr", consolidated=False)
    assert "2 equal, 0 different" in run_ok("diff", "a.mag", "a.zarr")
    assert "1 equal, 0 different" in run_ok("diff", "a.mag", "a.zarr", "--group", "/a%2Fb/c")


@pytest.mark.parametrize("store", ["a.zarr", "a.nc"])
def test_times_in_stores_are_converted(store: str) -> None:
    times = np.array(["2000-01-01", "2000-01-03"], "M8[ns]")
    ds = xr.Dataset(
        {"bounds": ("time", times), "step": ("time", times - times[0])}, {"time": times}
    )
    if store == "a.zarr":
        ds.to_zarr(store, consolidated=False)
    else:
        ds.to_netcdf(store)
    run_ok("convert", store, "a.mag")
    xr.testing.assert_equal(open_lazily("a.mag"), ds)
    assert "3 equal, 0 different" in run_ok("diff", store, "a.mag")


@pytest.mark.parametrize("source", ["a.zarr", "a.nc"])
@pytest.mark.parametrize("target", ["b.mag", "b.nc", "b.zarr"])
def test_missing_times_in_stores_keep_other_times_exact(source: str, target: str) -> None:
    times = np.array(["2020-01-01T00:00:00.123456789", "NaT", "1970-01-01T00:00:00.000000007"])
    ds = xr.Dataset({"t": ("x", times.astype("M8[ns]"))})
    units = "nanoseconds since 1970-01-01"
    encoding = {"t": {"units": units, "dtype": "int64", "_FillValue": np.int64(-9)}}
    packed = xr.Variable("x", [0.5, np.nan, 1.5], encoding={"scale_factor": 0.5, "dtype": "i2"})
    packed.encoding["_FillValue"] = np.int16(-9)
    steps = xr.Variable("x", np.array([1, -9, 2**62 + 1]), {"units": "seconds"})
    steps.encoding["_FillValue"] = np.int64(-9)
    ds = ds.assign(packed=packed)
    raw = ds.assign(steps=steps) if target == "b.mag" else ds
    if source == "a.zarr":
        raw.to_zarr(source, consolidated=False, encoding=encoding)
    else:
        raw.to_netcdf(source, encoding=encoding)
    run_ok("convert", source, target, "--dtype", "packed=float32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened = load_any(target, drop_variables="steps")
    xr.testing.assert_equal(opened, ds)
    if target == "b.mag":
        stored = open_lazily(target, decode_cf=False).steps.values
        assert stored.tolist() == [1, -9, 2**62 + 1]


def test_values_that_need_python_name_no_option() -> None:
    xr.Dataset({"s": ("x", ["a", "b"])}).to_netcdf("a.nc")
    message = run_failing("convert", "a.nc", "b.mag")
    assert "convert it with ds['s'].astype(...), or write" in message


def test_packed_values_are_converted_as_they_are_stored() -> None:
    packed = {"scale_factor": 0.5, "_FillValue": np.int16(3)}
    days = {"units": "days since 2000-01-01"}
    values = np.arange(6, dtype="i2")
    ds = xr.Dataset({"p": ("x", values, packed), "t": ("x", np.arange(6), days)})
    to_file(ds, "a.mag")
    run_ok("convert", "a.mag", "b.safetensors")
    copy = xr.open_dataset("b.safetensors", engine="tensorfmt", decode_cf=False)
    xr.testing.assert_identical(copy, ds)
    assert "2 equal, 0 different" in run_ok("diff", "a.mag", "b.safetensors")
    for store in ("a.zarr", "a.nc"):
        run_ok("convert", "a.mag", store)
        assert "2 equal, 0 different" in run_ok("diff", "a.mag", store)
        with xr.open_dataset(store, decode_cf=False) as stored:
            assert (stored.p.dtype, stored.p.attrs["scale_factor"]) == (np.int16, 0.5)
    dropped = [f"--drop={part}" for part in ("attrs", "dims", "name")]
    run_ok("convert", "a.mag", "p.npy", "--variable", "p", *dropped)
    np.testing.assert_array_equal(np.load("p.npy"), xr.decode_cf(ds).p)
