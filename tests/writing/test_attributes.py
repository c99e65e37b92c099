"""Attributes of opened Datasets that are changed and written again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr

from tests import pycausetfiles as pf
from tests import tensfiles as tf
from tests.opening import open_lazily
from xr_tensorfmt import to_pycauset, to_tens, to_vespa
from xr_tensorfmt.writers import to_file

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
    to_vespa(users, path)
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
    "v1.mag": ("float32", {"version": 1, **NAMELESS}),
    "t.yaml": ("float64", {}),
    "t.pycauset": ("float64", {}),
    "t.safetensors": ("float32", {}),
    "t.npy": ("float32", NAMELESS),
}


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
        to_vespa(changed, path, encoding=encoding)
        back = open_lazily(path)
        assert back.tensor.attrs == {"vespa_type": expected}
        np.testing.assert_array_equal(back.tensor, changed.tensor)


def test_valid_symmetries_are_kept_and_others_dropped(tmp_path: Path) -> None:
    ds, path = open_lazily(write_tens_file(tmp_path / "old.tens")), tmp_path / "new.tens"
    attrs = {"symmetries": "x ba", "skipped_chunks": "OTHERONE"}
    assert ds.tensor.attrs == attrs
    to_tens(ds, path)
    assert open_lazily(path).tensor.attrs == attrs
    for name in ("isel", "transpose", "rename a dimension", "astype", "mean", "arithmetic"):
        to_tens(CHANGES[name](ds), path)
        assert open_lazily(path).tensor.attrs == {}, name
    for same in (ds, open_lazily(tmp_path / "old.tens")):  # in memory, and lazy
        to_tens(same, path, encoding={"tensor": {"dtype": "float32"}})
        assert open_lazily(path).tensor.attrs == {"symmetries": "x ba"}


def test_symmetries_are_dropped_for_selections(tmp_path: Path) -> None:
    content = tf.make_1_0(np.ones((5, 5)), tf.pack_symmetry("x", "ba"))
    (tmp_path / "old.tens").write_bytes(content)
    to_tens(open_lazily(tmp_path / "old.tens").isel(a=[0, 1, 3]), tmp_path / "new.tens")
    assert open_lazily(tmp_path / "new.tens").tensor.attrs == {}


@pytest.mark.parametrize("symmetries", ["C4v", "", 7, ["x ba"], None])
def test_symmetries_attribute_of_user_is_kept(symmetries: Any, tmp_path: Path) -> None:
    array = xr.DataArray(np.eye(3), dims=("a", "b"), attrs={"symmetries": symmetries})
    to_tens(array, tmp_path / "t.tens")
    assert get_only(open_lazily(tmp_path / "t.tens")).attrs == {"symmetries": symmetries}
    with pytest.raises(ValueError, match="cannot store the attribute 'symmetries'"):
        to_vespa(array, tmp_path / "t.tbf")


def test_losing_seed_raises(tmp_path: Path) -> None:
    ds = open_lazily(write_pycauset_file(tmp_path / "old.pycauset", seed=5)).isel(
        row=slice(2), col=slice(2)
    )
    to_pycauset(ds, tmp_path / "new.pycauset")
    attrs = open_lazily(tmp_path / "new.pycauset").tensor.attrs
    assert attrs.keys() == pf.STORAGE_ATTRS | {"seed"}
    assert attrs["seed"] == 5
    with pytest.raises(ValueError, match="cannot store the attribute 'seed'"):
        to_vespa(ds.astype("f4", keep_attrs=True), tmp_path / "t.tbf")
    alone = xr.DataArray(np.eye(2), dims=("row", "col"), attrs={"n": 2})
    with pytest.raises(ValueError, match="cannot store the attribute 'n'"):
        to_vespa(alone, tmp_path / "t.tbf")


def test_unit_attribute_belongs_to_user(tmp_path: Path) -> None:
    array = xr.DataArray(np.eye(2), dims=("a", "b"), attrs={"unit": 0.5})
    to_file(array, tmp_path / "t.yaml")
    with pytest.raises(ValueError, match="cannot store the attribute 'unit'"):
        to_vespa(open_lazily(tmp_path / "t.yaml"), tmp_path / "t.tbf", drop=["name"])


def test_error_of_lost_imaginary_parts_has_a_hint(tmp_path: Path) -> None:
    array = xr.DataArray(np.full(2, 1 + 2j), dims="x", name="z")
    real = {"z": {"dtype": "float32"}}
    message = (
        r"'z' is complex128, and as float32 it would lose its imaginary part; "
        r"write ds\['z'\]\.real to leave that out, or "
    )
    with pytest.raises(ValueError, match=message + "encode it as .*complex.* to keep it"):
        to_tens(array, tmp_path / "t.tens", encoding=real)
    with pytest.raises(ValueError, match=message + r"ds\['z'\]\.imag as well to keep it"):
        to_vespa(array, tmp_path / "t.tbf", encoding=real, drop=["name"])
    to_tens(array.real, tmp_path / "t.tens", encoding=real)
    assert open_lazily(tmp_path / "t.tens").z.values.tolist() == [1, 1]


def write_traced_file(path: Path) -> Path:
    """Write a matrix whose trace PyCauset has computed."""
    signature = {"payload_uuid": "1" * 32, "view_signature": "t=0;c=0;sr=1;si=0"}
    cached = {"trace": {"value": 15.0, "signature": signature}}
    metadata = pf.make_metadata("DENSE_FLOAT", "FLOAT64", 3, 3, cached=cached) | {
        "payload_uuid": "1" * 32, "properties": {"is_symmetric": False},
    }  # fmt: skip
    path.write_bytes(pf.r1(metadata, np.arange(1.0, 10).tobytes()))
    return path


def change_in_memory(ds: xr.Dataset) -> xr.Dataset:
    ds.tensor.load()[0, 0] = 100
    return ds


def replace_values(other: np.ndarray) -> Any:
    return lambda ds: ds.assign(tensor=ds.tensor.copy(data=other))


MOVED: dict[str, Any] = {
    "reversed": lambda ds: ds.isel(row=slice(None, None, -1)),
    "by an array": lambda ds: ds.isel(row=[1, 0, 2]),
    "other values": replace_values(np.ones((3, 3))),
    "other chunks": replace_values(da.ones((3, 3), chunks=2)),
    "in memory": change_in_memory,
    "loaded": lambda ds: ds.load(),
    "persisted": lambda ds: ds.chunk().persist(),
    "swapped": lambda ds: ds.transpose("col", "row"),
    "renamed": lambda ds: ds.rename(row="a"),
    "renamed in turn": lambda ds: ds.rename(row="col", col="row"),
    "blocks": lambda ds: ds.chunk().map_blocks(lambda block: block * 2, template=ds.chunk()),
    "in two parts": lambda ds: xr.concat([ds.isel(row=[2]), ds.isel(row=[0, 1])], "row"),
    "another dtype": lambda ds: ds.astype("f4", keep_attrs=True).astype("f8", keep_attrs=True),
    "attributes of another file": lambda ds: ds.assign(
        tensor=open_lazily(pf.r1(pf.make_metadata("DENSE_FLOAT", "FLOAT64", 3, 3), bytes(72)))
        .tensor.assign_attrs(ds.tensor.attrs)
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", ["t.pycauset", "t.safetensors", "t.tens", "t.yaml"])
@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("change", MOVED)
def test_results_are_dropped_if_values_change(
    change: str, chunks: Any, target: str, tmp_path: Path
) -> None:
    ds = open_lazily(write_traced_file(tmp_path / "old"), chunks=chunks)
    results = {"cached_trace": 15.0, "property_is_symmetric": 0}
    assert ds.tensor.attrs.items() >= results.items()
    to_file(MOVED[change](ds), tmp_path / target)
    assert not results.keys() & get_only(open_lazily(tmp_path / target)).attrs.keys()


UNMOVED: dict[str, Any] = {
    "nothing": lambda ds: ds,
    "a copy": lambda ds: ds.copy(deep=True),
    "whole": lambda ds: ds.isel(row=slice(None), col=slice(0, 3)),
    "in its order": lambda ds: ds.transpose("row", "col"),
    "another name": lambda ds: ds.rename(tensor="T"),
    "an array": lambda ds: ds.tensor.to_dataset(name="T"),
    "no encoding": lambda ds: ds.drop_encoding(),
    "a coordinate": lambda ds: ds.assign_coords(row=[1, 2, 3]),
}


@pytest.mark.parametrize("target", ["t.pycauset", "t.safetensors", "t.tens", "t.yaml"])
@pytest.mark.parametrize("chunks", [None, {}, "auto"])
@pytest.mark.parametrize("change", UNMOVED)
def test_results_are_kept_for_unmodified_values(
    change: str, chunks: Any, target: str, tmp_path: Path
) -> None:
    ds = UNMOVED[change](open_lazily(write_traced_file(tmp_path / "old"), chunks=chunks))
    to_file(ds, tmp_path / target)
    attrs = get_only(open_lazily(tmp_path / target)).attrs
    assert (attrs["cached_trace"], attrs["property_is_symmetric"]) == (15, 0)
    assert (attrs["matrix_type"], attrs["data_type"]) == ("DENSE_FLOAT", "FLOAT64")


def test_unmodified_results_are_kept(tmp_path: Path) -> None:
    ds = open_lazily(write_traced_file(tmp_path / "old"))
    ds.tensor.attrs["cached_trace"] = 16.0
    to_file(ds, tmp_path / "t.tens")
    attrs = open_lazily(tmp_path / "t.tens").tensor.attrs
    assert "cached_trace" not in attrs
    assert attrs["property_is_symmetric"] == 0


@pytest.mark.parametrize("change", [lambda ds: ds, lambda ds: ds.load(), lambda ds: ds.chunk()])
def test_symmetries_do_not_depend_on_preferred_chunks(change: Any, tmp_path: Path) -> None:
    ds = open_lazily(write_tens_file(tmp_path / "old.tens"))
    del ds.tensor.encoding["preferred_chunks"]
    to_tens(change(ds), tmp_path / "new.tens")
    back = open_lazily(tmp_path / "new.tens").tensor
    assert back.attrs["symmetries"] == "x ba"
    assert back.encoding["tensorfmt"]["symmetries"] == "x ba"
    with pytest.raises(ValueError, match="which the symmetry 'x ba' does not allow"):
        to_tens(ds.isel(a=slice(None, None, -1)), tmp_path / "new.tens")
