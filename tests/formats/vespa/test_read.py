"""Reading typed binary tensors, built from the specification."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import xr_tensorfmt
from tests import vespafiles as vf
from xr_tensorfmt import TensorFormatError, TensorFormatWarning, validate, vespa
from xr_tensorfmt.core.elements import get_stored_name
from xr_tensorfmt.formats.recognition import is_recognised
from xr_tensorfmt.formats.vespa import spec
from xr_tensorfmt.formats.vespa.read import find_repeated_blocks

DTYPES = {"double": "f8", "float": "f4", "bfloat16": "f4", "int8": "i1"}


def open_vespa(content: bytes, **options) -> xr.Dataset:
    return xr.open_dataset(memoryview(content), engine="tensorfmt", format="vespa", **options)


def make_users(count: int = 5, cells: str = "float") -> bytes:
    labels = [(f"u{number}",) for number in range(count)]
    return vf.make_tensor(cells, ["user"], {"x": 3}, labels, vf.make_values(cells, (count, 3)))


@given(vf.tensors())
def test_tensors_decode_to_input(created) -> None:
    content, cells, mapped, indexed, addresses, values = created
    tensor = open_vespa(content, sparse="stored" if mapped else "auto").tensor
    expected = values if mapped else values[0]
    np.testing.assert_array_equal(tensor.values, expected, strict=True)
    assert tensor.dims == ((("block",) if mapped else ()) + tuple(indexed))
    assert tensor.dtype == DTYPES[cells]
    for axis, name in enumerate(mapped):
        assert tensor[name].values.tolist() == [address[axis] for address in addresses]


@given(vf.tensors())
def test_outer_product_has_each_block_at_its_labels(created) -> None:
    content, _, mapped, indexed, addresses, values = created
    tensor = open_vespa(content, sparse="dense", fill_value=-77).tensor
    assert tensor.dims == (*mapped, *indexed)
    expected = np.full(tensor.shape, -77, dtype=tensor.dtype)
    for address, block in zip(addresses, values, strict=True):
        position = (tensor.indexes[n].get_loc(a) for n, a in zip(mapped, address, strict=True))
        expected[tuple(position)] = block
    np.testing.assert_array_equal(tensor.values, expected, strict=True)
    for name in mapped:
        axis = mapped.index(name)
        in_order = dict.fromkeys(address[axis] for address in addresses)
        assert tensor[name].values.tolist() == list(in_order)


@pytest.mark.parametrize("cells", vf.CELL_TYPES)
def test_cell_types_and_their_encoding(cells: str) -> None:
    ds = open_vespa(vf.make_tensor(cells, [], {"x": 3}, [], vf.make_values(cells, (1, 3))))
    assert ds.tensor.dtype == DTYPES[cells]
    dtype = ds.tensor.encoding["dtype"]
    if cells == "bfloat16":
        assert get_stored_name(dtype) == cells
    else:
        assert dtype == vf.CELL_TYPES[cells]
    file_info = ds.tensor.encoding["tensorfmt"]
    assert (file_info["format"], file_info["cell_type"], file_info["offset"]) == ("vespa", cells, 7)


def test_tensor_without_cell_type_is_double() -> None:
    content = vf.pack_header(indexed={"x": 2}) + vf.pack_cells(np.array([1.5, -2]), "double")
    tensor = open_vespa(content).tensor
    assert (tensor.dtype, tensor.values.tolist()) == ("float64", [1.5, -2.0])
    assert tensor.attrs == {"vespa_type": "tensor(x[2])"}


@given(st.lists(st.integers(0, 300) | st.integers(0, spec.MAX_INTEGER), min_size=1))
def test_integers_are_packed_and_unpacked(values: list[int]) -> None:
    packed = [spec.pack(value) for value in values]
    assert packed == [vf.pack_integer(value) for value in values]
    assert [spec.unpack(record) for record in packed] == values


def test_integer_too_large_for_vespa_raises() -> None:
    with pytest.raises(ValueError, match="2147483648 is more than 2147483647"):
        spec.pack(1 << 31)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, spec.MAX_INTEGER])
def test_small_integers_are_read_in_four_bytes_too(value: int) -> None:
    long = vf.pack_integer(value, long=True)
    assert spec.unpack(long) == value


SCALARS = {
    "02 00": "dense",
    "01 00 01": "sparse",
    "03 00 00": "mixed",
    "06 00 00": "dense with cell type",
    "05 00 00 01": "sparse with cell type",
    "07 00 00 00": "mixed with cell type",
    "80000002 80000000": "dense in integers of four bytes",
}


@pytest.mark.parametrize("head", SCALARS, ids=SCALARS.values())
def test_scalars_in_all_their_forms(head: str) -> None:
    tensor = vespa.from_hex(head + "4045000000000000").tensor
    assert tensor.dims == ()
    assert tensor.values[()] == 42.0
    assert tensor.attrs["vespa_type"] == "double"


def test_sparse_scalar_without_cell_is_zero_and_float_scalar_is_read() -> None:
    assert vespa.from_hex("0x010000").tensor.values[()] == 0.0
    scalar = vespa.from_hex("0x0601003F800000").tensor
    assert (scalar.dtype, scalar.values[()]) == ("float32", 1.0)
    assert scalar.attrs["vespa_type"] == "tensor<float>()"


def test_empty_tensors_keep_their_sizes_and_names() -> None:
    one = vespa.from_hex("03 01 01 78 01 01 79 0A 00")
    assert dict(one.sizes) == {"x": 0, "y": 10}
    assert one.tensor.values.shape == (0, 10)
    two = vespa.from_hex("03 02 01 77 01 78 01 01 79 0A 00", chunks={})
    assert dict(two.sizes) == {"block": 0, "y": 10}
    assert set(two.coords) == {"w", "x"}
    filled = vespa.from_hex("03 02 01 77 01 78 01 01 79 0A 00", sparse="dense")
    assert filled.tensor.values.shape == (0, 0, 10)


def test_one_label_per_block_is_index_at_once() -> None:
    ds = open_vespa(make_users(20))
    assert ds.tensor.dims == ("user", "x")
    expected = vf.make_values("float", (20, 3))
    np.testing.assert_array_equal(ds.tensor.sel(user="u17").values, expected[17])
    np.testing.assert_array_equal(ds.tensor.sel(user=["u3", "u0"]).values, expected[[3, 0]])


def test_stored_blocks_have_lazy_labels_and_no_index() -> None:
    ds = open_vespa(make_users(), sparse="stored")
    assert (ds.tensor.dims, dict(ds.indexes)) == (("block", "x"), {})
    assert ds.user.values.tolist() == ["u0", "u1", "u2", "u3", "u4"]


def make_two_labels() -> tuple[bytes, np.ndarray]:
    labels = [("i1", "u1"), ("i2", "u1"), ("i1", "u3")]
    values = vf.make_values("double", (3, 2))
    return vf.make_tensor("double", ["item", "user"], {"x": 2}, labels, values), values


def test_two_labels_per_block_can_become_an_index() -> None:
    content, values = make_two_labels()
    ds = open_vespa(content)
    assert (ds.tensor.dims, dict(ds.indexes)) == (("block", "x"), {})
    indexed = ds.set_xindex(["item", "user"], xr.indexes.PandasMultiIndex)
    np.testing.assert_array_equal(indexed.tensor.sel(item="i1", user="u3").values, values[2])
    by_level = ds.set_index(block=["item", "user"]).tensor.sel(user="u1")
    np.testing.assert_array_equal(by_level.values, values[:2])


def test_type_sorts_mapped_and_indexed_dimensions_together() -> None:
    content = vf.pack_header("float", ["b", "d"], {"a": 2, "c": 3}, 0)
    assert open_vespa(content).tensor.attrs["vespa_type"] == "tensor<float>(a[2],b{},c[3],d{})"


@pytest.mark.parametrize(
    ("mapped", "indexed", "dims"),
    [
        (["block"], {"x": 1}, ("block", "x")),
        (["block", "user"], {"x": 1}, ("block", "x")),
        (["user"], {"block": 1}, ("user", "block")),
        (["item", "user"], {"block": 1}, ("block", "block_")),
        (["tensor"], {"x": 1}, ("tensor_", "x")),
        (["user"], {"tensor": 1, "tensor_": 1}, ("user", "tensor__", "tensor_")),
    ],
)
def test_conflicting_dims_get_an_underscore(mapped, indexed, dims) -> None:
    labels = [("l",) * len(mapped)]
    values = np.ones((1,) * (1 + len(indexed)))
    ds = open_vespa(vf.make_tensor("double", mapped, indexed, labels, values))
    assert ds.tensor.dims == dims
    names = {"block": "block_"} if len(mapped) > 1 else {"tensor": "tensor_"}
    assert set(ds.coords) == {names.get(name, name) for name in mapped}
    assert all(f"{name}{{}}" in ds.tensor.attrs["vespa_type"] for name in mapped)
    assert ds.tensor.load().size == 1


def test_dims_renames_mapped_dimensions_first() -> None:
    content, _ = make_two_labels()
    ds = open_vespa(content, dims=("a", "b", "c"), name="score")
    assert (ds.score.dims, set(ds.coords)) == (("block", "c"), {"a", "b"})
    with pytest.raises(ValueError, match="'block', which is the dimension that counts the blocks"):
        open_vespa(content, dims=("a", "block", "c"))


@pytest.mark.parametrize("long", [False, True])
def test_labels_of_any_length_and_script(long: bool) -> None:
    labels = [
        "",
        "a",
        "naïve/日本語 λ",
        "k" * 127,
        "k" * 128,
        "nul\0inside",
        "\0",
        "🙂",
        "x" * 70000,
    ]
    values = vf.make_values("int8", (len(labels), 1))
    content = vf.make_tensor(
        "int8", ["k"], {"x": 1}, [(label,) for label in labels], values, long=long
    )
    ds = open_vespa(content)
    assert ds.k.values.tolist() == labels
    np.testing.assert_array_equal(ds.tensor.values, values)
    assert ds.tensor.sel(k="k" * 128).values.tolist() == values[4].tolist()


@pytest.mark.parametrize("sparse", ["auto", "stored"])
def test_labels_that_are_not_utf_8_keep_their_bytes(sparse: str) -> None:
    labels = [b"ok", b"\xff\xfe", b"\xc3\xa4"]
    rows = [(label,) for label in labels]
    content = vf.make_tensor("int8", ["k"], {"x": 1}, rows, np.zeros((3, 1)))
    found = open_vespa(content, sparse=sparse).k.values
    assert [label.encode("utf-8", "surrogateescape") for label in found] == labels


def test_repeated_labels_are_kept_and_refused_when_dense() -> None:
    labels = [("a",), ("b",), ("a",)]
    content = vf.make_tensor("float", ["k"], {"x": 1}, labels, np.array([[1], [2], [3]]))
    message = "the labels of block 2: 'a', which block 0 has too; both are kept"
    with pytest.warns(TensorFormatWarning, match="blocks 0 and 2 have the label 'a'; both are"):
        ds = open_vespa(content)
    assert not ds.indexes["k"].is_unique
    assert ds.tensor.sel(k="a").values.tolist() == [[1.0], [3.0]]
    assert [message in str(finding) for finding in validate(content, format="vespa")] == [True]
    assert open_vespa(content, sparse="stored").k.values.tolist() == ["a", "b", "a"]
    with pytest.raises(
        TensorFormatError, match=r"the labels of block 2 at byte .*: those of block 0"
    ):
        open_vespa(content, sparse="dense")
    two = vf.make_tensor("int8", ["k", "l"], {}, [("a", "b"), ("a", "b"), ("a", "c")], np.ones(3))
    assert open_vespa(two, sparse="stored").k.values.tolist() == ["a", "a", "a"]


@given(st.lists(st.text(max_size=2)))
def test_repeated_labels_are_found_with_first_block(labels: list[str]) -> None:
    repeated = [block for block, label in enumerate(labels) if label in labels[:block]]
    actual = [[*blocks] for blocks in find_repeated_blocks((label,) for label in labels)]
    assert actual == [[block, labels.index(labels[block])] for block in repeated]


def test_files_are_recognised_by_suffix_and_never_by_their_first_byte(tmp_path: Path) -> None:
    named, unnamed = tmp_path / "users.TBF", tmp_path / "users.bin"
    for path in (named, unnamed):
        path.write_bytes(make_users())
    assert xr.open_dataset(named).sizes["user"] == 5
    assert is_recognised(named)
    assert not is_recognised(unnamed)
    assert not is_recognised(make_users())
    with pytest.raises(TensorFormatError, match=r"format=.*'vespa'"):
        xr.open_dataset(unnamed, engine="tensorfmt")
    assert xr.open_dataset(unnamed, engine="tensorfmt", format="vespa").sizes["user"] == 5


@pytest.mark.parametrize("content", [b"", b"\x08", b"\x04\x00", b"PK\3\4"])
def test_suffix_is_not_sufficient_for_recognition(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.tbf"
    path.write_bytes(content)
    assert not is_recognised(path)


def test_hexadecimal_digits_as_printed_by_vespa() -> None:
    digits = "0x" + make_users().hex().upper()
    assert vespa.from_hex(digits, chunks={}).tensor.chunks == ((5,), (3,))
    assert vespa.from_hex(f" {make_users().hex(' ')}\n", name="v").v.sel(user="u1").shape == (3,)
    with pytest.raises(
        ValueError, match="data='0x012' is not a string of hexadecimal digits, two per byte"
    ):
        xr_tensorfmt.vespa.from_hex("0x012")


def test_errors_name_digits() -> None:
    with pytest.raises(ValueError, match=r"^<hexadecimal digits>: fill_value=0 requires"):
        vespa.from_hex(make_users().hex(), fill_value=0)


def test_every_published_binary_decodes_to_its_cells(conformance: Path) -> None:
    directory = conformance / "vespa"
    lines = (directory / "binary_format" / "test_spec.json").read_text().splitlines()
    tests = [test for test in map(json.loads, lines) if "tensor" in test]
    for name in ("documented_vectors.json", "derived_edge_cases.json"):
        tests += json.loads((directory / name).read_text())["tests"]
    for test in tests:
        binaries = test["binary"] if isinstance(test["binary"], list) else [test["binary"]]
        expected = sorted(
            (make_address(c["address"]), float(c["value"])) for c in test["tensor"]["cells"]
        )
        for binary in binaries:
            tensor = vespa.from_hex(binary).tensor
            assert tensor.attrs["vespa_type"] == test["tensor"]["type"]
            assert str(get_cells(tensor)) == str(expected)


def make_address(labels: dict) -> tuple:
    return tuple(sorted((name, str(label)) for name, label in labels.items()))


def get_cells(tensor: xr.DataArray) -> list:
    cells = []
    for index in np.ndindex(tensor.shape):
        position = dict(zip(tensor.dims, index, strict=True))
        labels = {n: c.values[position[c.dims[0]]] for n, c in tensor.coords.items()}
        numbers = {d: i for d, i in position.items() if d != "block" and d not in tensor.coords}
        cells.append((make_address(numbers | labels), float(tensor.values[index])))
    return sorted(cells)


def test_mnist_equals_checkpoint_it_was_made_from(conformance: Path) -> None:
    directory = conformance / "vespa"
    truth = next((directory / "truth").iterdir()).read_bytes()
    weights = np.frombuffer(truth, "<f4", 7840).reshape(784, 10).T
    ds = xr.open_dataset(directory / "tbf" / "mnist_softmax_Variable.tbf")
    np.testing.assert_array_equal(ds.tensor.values.astype("f4"), weights)


@pytest.mark.parametrize("head", SCALARS, ids=SCALARS.values())
def test_scalars_are_recognised_by_their_suffix(head: str, tmp_path: Path) -> None:
    content = bytes.fromhex(head) + bytes(8)
    (tmp_path / "a.tbf").write_bytes(content)
    assert is_recognised(tmp_path / "a.tbf") == (content[0] < 0x80)


def test_cells_of_bfloat16_keep_their_dtype_on_request(tmp_path: Path) -> None:
    values = np.float32([[1, -2.5], [np.nan, np.inf]])
    labels = [("a",), ("b",)]
    for mapped, rows in ((["k"], labels), ([], [()])):
        stored = values if mapped else values[:1]
        content = vf.make_tensor("bfloat16", mapped, {"x": 2}, rows, stored)
        for options in ({}, {"chunks": {}}, {"sparse": "dense"}):
            tensor = open_vespa(content, decode_floats=False, **options).tensor
            assert tensor.dtype == ml_dtypes.bfloat16
            np.testing.assert_array_equal(tensor.values.astype("f4").reshape(-1, 2), stored)
        path = tmp_path / "a.tbf"
        tensor.tensorfmt.to_file(path)
        back = xr.open_dataarray(path, engine="tensorfmt", decode_floats=False)
        assert back.values.tobytes() == tensor.values.tobytes()
    assert open_vespa(content).tensor.dtype == np.float32
