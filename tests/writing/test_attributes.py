"""Attributes of opened Datasets that are changed and written again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from tests import pycausetfiles as pf
from tests import tensfiles as tf
from tests.opening import open_lazily
from xr_tensorfmt import to_file

CHANGES: dict[str, Any] = {
    "nothing": lambda ds: ds,
    "isel": lambda ds: ds.isel({ds.tensor.dims[-1]: slice(2)}),
    "transpose": lambda ds: ds.transpose(*ds.tensor.dims[::-1]),
    "rename a dimension": lambda ds: ds.rename({ds.tensor.dims[-1]: "other"}),
    "rename the variable": lambda ds: ds.rename(tensor="embedding"),
    "astype": lambda ds: ds.astype("f8", keep_attrs=True),
    "mean": lambda ds: ds.mean(ds.tensor.dims[0], keep_attrs=True),
    "arithmetic": lambda ds: ds.map(lambda item: item * 2, keep_attrs=True),
    "chunk": lambda ds: ds.chunk(),
}


def get_only(ds: xr.Dataset) -> xr.DataArray:
    (only,) = ds.data_vars.values()
    return only


def write_vespa_file(path: Path) -> Path:
    users = xr.DataArray(
        np.arange(6, dtype="f4").reshape(2, 3), {"user": ["ada", "bob"]}, dims=("user", "x")
    )
    to_file(users, path, "vespa")
    return path


def write_tens_file(path: Path) -> Path:
    symmetric = np.add.outer(np.arange(3.0), np.arange(3.0))
    chunks = (tf.pack_symmetry("x", "ba"), tf.pack_chunk(b"OTHERONE", b""))
    path.write_bytes(tf.make_1_0(symmetric, *chunks))
    return path


def write_pycauset_file(path: Path, **more: Any) -> Path:
    causal = np.triu(np.ones((3, 3), bool), 1)
    path.write_bytes(
        pf.r1(pf.make_metadata("CAUSAL", "BIT", 3, 3, **more), pf.pack_triangle(causal))
    )
    return path


FILES = {"vespa": write_vespa_file, "tens": write_tens_file, "pycauset": write_pycauset_file}
NAMELESS = {"drop": ["name", "dims", "coords"]}
TARGETS: dict[str, Any] = {
    "t.tbf": ("float32", {"drop": ["name"]}),
    "t.tens": (None, {}),
    "t.bin": ("float64", {"version": "0.9", **NAMELESS}),
    "t.mag": ("float32", {}),
    "t.yaml": ("float64", {}),
    "t.pycauset": ("float64", {}),
    "t.safetensors": ("float32", {}),
    "t.npy": ("float32", NAMELESS),
}


@pytest.mark.filterwarnings("ignore:.*are in another order than in the opened file")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", FILES)
def test_attributes_of_reader_are_accepted(
    kind: str, target: str, change: str, tmp_path: Path
) -> None:
    ds = open_lazily(FILES[kind](tmp_path / "old"), format=kind, chunks={}, sparse="dense")
    ds = CHANGES[change](ds)
    array = get_only(ds)
    if target == "t.tens" and array.dtype == bool:
        ds = ds.map(lambda item: item.astype("f4", keep_attrs=True))
    dtype, options = TARGETS[target]
    encoding = {array.name: {"dtype": dtype}} if dtype else {}
    path = tmp_path / target
    # xarray drops the encoding of computed arrays, so the attribute may be one of the user.
    is_unknown = "vespa_type" in array.attrs and "tensorfmt" not in array.encoding
    if is_unknown and target in ("t.bin", "t.npy"):
        with pytest.raises(ValueError, match=r"the attribute 'vespa_type'.*drop=\['attrs'\]"):
            to_file(ds, path, encoding=encoding, **options)
        options = {**options, "drop": [*options["drop"], "attrs"]}
    to_file(ds, path, encoding=encoding, **options)
    assert sorted(get_only(open_lazily(path)).shape) == sorted(get_only(ds).shape)


def test_vespa_type_describes_the_written_file(tmp_path: Path) -> None:
    ds, path = open_lazily(write_vespa_file(tmp_path / "old.tbf")).load(), tmp_path / "new.tbf"
    for changed, encoding, expected in (
        (ds, {}, "tensor<float>(user{},x[3])"),
        (ds.isel(x=slice(2)), {}, "tensor<float>(user{},x[2])"),
        (ds.isel(user=0, drop=True), {}, "tensor<float>(x[3])"),
        (ds.rename(x="y"), {}, "tensor<float>(user{},y[3])"),
        (ds.rename(user="doc"), {}, "tensor<float>(doc{},x[3])"),
        (ds.astype("f8", keep_attrs=True), {}, "tensor(user{},x[3])"),
        (ds.mean("user", keep_attrs=True), {}, "tensor<float>(x[3])"),
        (ds, {"tensor": {"dtype": "bfloat16"}}, "tensor<bfloat16>(user{},x[3])"),
    ):
        to_file(changed, path, "vespa", encoding=encoding)
        back = open_lazily(path)
        assert back.tensor.encoding["tensorfmt"]["vespa_type"] == expected
        np.testing.assert_array_equal(back.tensor, changed.tensor)


def test_unit_attribute_belongs_to_user(tmp_path: Path) -> None:
    array = xr.DataArray(np.eye(2), dims=("a", "b"), attrs={"unit": 0.5})
    to_file(array, tmp_path / "t.yaml")
    with pytest.raises(ValueError, match="cannot store the attribute 'unit'"):
        to_file(open_lazily(tmp_path / "t.yaml"), tmp_path / "t.tbf", drop=["name"])


def test_error_of_lost_imaginary_parts_has_a_hint(tmp_path: Path) -> None:
    array = xr.DataArray(np.full(2, 1 + 2j), dims="x", name="z")
    real = {"z": {"dtype": "float32"}}
    message = "'z' is complex128, and as float32 it would lose its imaginary part; "
    with pytest.raises(ValueError, match=message + ".*'dtype': ..."):
        to_file(array, tmp_path / "t.tens", encoding=real)
    with pytest.raises(ValueError, match=message + r"split it .* with \.real and \.imag"):
        to_file(array, tmp_path / "t.tbf", encoding=real, drop=["name"])
    to_file(array.real, tmp_path / "t.tens", encoding=real)
    assert open_lazily(tmp_path / "t.tens").z.values.tolist() == [1, 1]


def test_claims_about_values_are_no_attributes(tmp_path: Path) -> None:
    """Claims of the opened file would be wrong for changed values."""
    metadata = pf.make_metadata("DENSE_FLOAT", "FLOAT64", 3, 3) | {
        "payload_uuid": "1" * 32, "properties": {"is_symmetric": False},
    }  # fmt: skip
    matrix = open_lazily(pf.r1(metadata, np.arange(1.0, 10).tobytes())).tensor
    tensor = open_lazily(write_tens_file(tmp_path / "old.tens")).tensor
    assert matrix.attrs == tensor.attrs == {}
    file_info = matrix.encoding["tensorfmt"]
    assert file_info["properties"] == {"is_symmetric": False}
    assert tensor.encoding["tensorfmt"]["symmetries"] == "x ba"
    assert tensor.encoding["tensorfmt"]["skipped_chunks"] == ["OTHERONE"]


@pytest.mark.parametrize("target", ["t.pycauset", "t.safetensors", "t.tens", "t.yaml", "t.mag"])
def test_attributes_do_not_depend_on_loading(target: str, tmp_path: Path) -> None:
    attrs = {"vespa_type": "mine", "symmetries": "C4v", "matrix_type": "mine", "cached_trace": 3}
    dtype = "f8" if target == "t.yaml" else "f4"
    for data in (np.eye(3, dtype=dtype), da.ones((3, 3), dtype=dtype, chunks=2)):
        array = xr.DataArray(data, dims=("row", "col"), attrs=attrs, name="tensor")
        to_file(array, tmp_path / target)
        opened = get_only(open_lazily(tmp_path / target))
        assert opened.attrs.items() >= attrs.items()
        to_file(opened.load(), tmp_path / target)
        assert get_only(open_lazily(tmp_path / target)).attrs == opened.attrs


# Names of properties of files, of keys of an encoding, and of single formats.
NAMES = [
    "byteorder", "calendar", "cell_type", "chunksizes", "component", "container", "data_type",
    "dims", "dtype", "elements", "file", "format", "grid", "header_crc32", "is_temporary", "key",
    "matrix_type", "name", "object_type", "offset", "order", "original_shape", "preferred_chunks",
    "properties", "seed", "shape", "source", "storage", "tag", "tensorfmt", "type", "types",
    "unit", "version", "vespa_type",
]  # fmt: skip
VALUES = ["C", "F", "0.9", "float32", "float64", "little", "mag", "safetensors", "tens", "cc4s"]
WITH_ATTRS = ["t.pycauset", "t.safetensors", "t.tens", "t.yaml", "t.mag"]


@pytest.mark.property
@pytest.mark.parametrize("suffix", WITH_ATTRS)
@given(data=st.data())
def test_attributes_like_properties_of_the_file_are_kept(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject
) -> None:
    """An attribute belongs to the user even if it equals a property of the opened file."""
    directory = tmp_path_factory.mktemp("attributes")
    values = np.eye(3, dtype="f4" if suffix == "t.mag" else "f8")
    array = xr.DataArray(values, dims=("row", "col"), name="tensor")
    to_file(array, directory / suffix)
    opened = get_only(xr.load_dataset(directory / suffix, engine="tensorfmt"))
    info = opened.encoding["tensorfmt"]
    texts = sorted({*VALUES, *(value for value in info.values() if isinstance(value, str))})
    # A format defines the attributes that it stores in its header.
    names = sorted({*NAMES, *info, *opened.encoding} - {"unit", "seed", "object_type"})
    attrs = data.draw(st.dictionaries(st.sampled_from(names), st.sampled_from(texts), max_size=5))
    attrs |= {name: info[name] for name in names if isinstance(info.get(name), str)}
    for written in (opened.assign_attrs(attrs), opened.to_dataset().assign_attrs(attrs)):
        to_file(written, directory / suffix)
        again = xr.load_dataset(directory / suffix, engine="tensorfmt")
        actual = again.attrs if isinstance(written, xr.Dataset) else get_only(again).attrs
        assert actual.items() >= attrs.items()
