"""Reading matrices of every generation of PyCauset."""

from __future__ import annotations

import io
import json
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given

from tests import pycausetfiles as pf
from tests.opening import open_tensor
from tests.paths import DATA
from tests.pycausetblocks import block_matrix, write_two_blocks
from xr_tensorfmt import TensorFormatWarning
from xr_tensorfmt.core.elements import get_stored_name
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.formats.pycauset import decode_map
from xr_tensorfmt.sources import find_source

RNG = np.random.default_rng(7)


def check(content: bytes, values: np.ndarray, **options: Any) -> xr.DataArray:
    array = open_tensor(content, **options)
    assert array.dims == {1: ("index",), 2: ("row", "col")}[values.ndim]
    np.testing.assert_array_equal(array.values, values, strict=True)
    return array


def make_bits(*shape: int) -> np.ndarray:
    return RNG.random(shape) < 0.5


def make_upper(order: int, dtype: str) -> np.ndarray:
    return np.triu(RNG.integers(1, 100, (order, order)), 1).astype(dtype)


@pytest.mark.parametrize("documented", [False, True])
@pytest.mark.parametrize("order", [1, 2, 3, 64, 67, 130])
def test_v2_matrices(order: int, documented: bool) -> None:
    def file(matrix_type: str, dtype: str, payload: bytes, **fields: Any) -> bytes:
        return pf.v2(
            matrix_type, dtype, order, order, payload or bytes(8), documented=documented, **fields
        )

    causal = np.triu(make_bits(order, order), 1)
    check(file("CAUSAL", "BIT", pf.pack_triangle(causal, dirty=True)), causal)
    check(file("CAUSAL", "BIT", pf.pack_triangle(causal), transposed=1), causal.T)
    check(file("CAUSAL", "BIT", pf.pack_triangle(causal), scalar=2.5), causal * 2.5)
    for dtype, name in (("i4", "INT32"), ("f8", "FLOAT64")):
        values = make_upper(order, dtype)
        array = check(file("TRIANGULAR", name, pf.pack_triangle(values)), values)
        file_info = array.encoding["tensorfmt"]
        assert file_info["matrix_type"] == f"TRIANGULAR_{'INTEGER' if dtype == 'i4' else 'FLOAT'}"
        check(file("DENSE", name, values.tobytes()), values)
        check(file("DENSE", name, values.tobytes(), transposed=1, scalar=0.5), values.T * 0.5)
    dense = make_bits(order, order)
    check(file("DENSE", "BIT", pf.pack_bits(dense, 8, dirty=True)), dense)
    complex_values = make_upper(order, "c16") * (1 + 2j)
    check(file("DENSE", "COMPLEX_FLOAT64", complex_values.tobytes()), complex_values)
    check(file("IDENTITY", "FLOAT64", b"", scalar=3.0), np.eye(order) * 3)


def test_v2_of_two_lengths_keeps_stored_shape_of_transposed_matrix() -> None:
    values = RNG.random((3, 5))
    check(pf.v2("DENSE", "FLOAT64", 3, 5, values.tobytes()), values)
    check(pf.v2("DENSE", "FLOAT64", 3, 5, values.tobytes(), transposed=1), values.T)


@pytest.mark.parametrize("length", [0, 1, 65])
def test_vectors_are_columns_of_one_axis_or_rows_of_two(length: int) -> None:
    numbers, flags = RNG.random(length), make_bits(length)
    for transposed in (0, 1):
        shape = (1, length) if transposed else (length,)
        fields = {"transposed": transposed}
        check(
            pf.v2("VECTOR", "FLOAT64", length, 1, numbers.tobytes(), **fields),
            numbers.reshape(shape),
        )
        packed = pf.pack_bits(flags, 8, dirty=True)
        check(pf.v2("VECTOR", "BIT", length, 1, packed, **fields), flags.reshape(shape))
        info = pf.make_metadata("VECTOR", "FLOAT64", length, 1, transposed=bool(transposed))
        check(pf.r1(info, numbers.tobytes()), numbers.reshape(shape))
        unit = pf.make_metadata("UNIT_VECTOR", "FLOAT64", length, 1, transposed=bool(transposed))
        if length:
            check(pf.r1(unit | {"seed": length - 1}), np.eye(length)[-1].reshape(shape))


def test_size_determines_meaning_of_type_2_in_v2() -> None:
    values = make_upper(5, "i4")
    dense = RNG.integers(0, 9, (5, 5)).astype("i4")
    for payload, expected in ((pf.pack_triangle(values), values), (dense.tobytes(), dense)):
        check(pf.v2("INTEGER", "INT32", 5, 5, payload), expected)


def test_v1_pads_only_rows_of_bits() -> None:
    causal, integers = np.triu(make_bits(70, 70), 1), make_upper(5, "i4")
    check(pf.v2("CAUSAL", "BIT", 70, 70, pf.pack_triangle(causal), version=1), causal)
    packed = pf.pack_triangle(integers, multiple=4)
    array = check(pf.v2("INTEGER", "INT32", 5, 5, packed, version=1, seed=9), integers)
    assert array.encoding["tensorfmt"]["seed"] == 9
    assert array.encoding["tensorfmt"]["version"] == "v1"


def make_counted(order: int, dtype: str, *, diagonal: bool) -> np.ndarray:
    """Return an upper triangle of 1, 2, ... row by row."""
    values = np.zeros((order, order), dtype)
    stored = np.triu_indices(order, not diagonal)
    values[stored] = np.arange(1, stored[0].size + 1)
    return values


@pytest.mark.slow
@pytest.mark.parametrize("excess", [0, 64])
@pytest.mark.parametrize("updates", [0, 1, 2])
@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("order", [0, 2, 3, 4, 7, 8, 9, 14, 15, 16, 17])
def test_payload_length_determines_diagonal_of_triangle(
    order: int, diagonal: bool, updates: int, excess: int
) -> None:
    # 0.5.0 writes 64 bytes too many, as large as a float64 diagonal of order 8, 15 or 16.
    for dtype, matrix_type, name in (
        ("f8", "TRIANGULAR_FLOAT", "FLOAT64"),
        ("i4", "TRIANGULAR_INTEGER", "INT32"),
    ):
        values = make_counted(order, dtype, diagonal=diagonal)
        fields = pf.make_metadata(matrix_type, name, order, order)
        payload = pf.pack_triangle(values, diagonal=diagonal) or bytes(8)
        content = pf.r1(fields, payload, length=len(payload) + excess)
        for slot, generation in (("B", 2), ("A", 3))[:updates]:
            content = pf.make_updated(content, fields, slot, generation)
        array = check(content, values)
        stored = array.encoding["tensorfmt"].get("has_diagonal", 0)
        assert stored == int(diagonal and order > 0)


@pytest.mark.parametrize("excess", [0, 64])
@pytest.mark.parametrize("value", [0.0, 5.0])
def test_diagonal_of_order_1_is_found_unless_it_is_zero(value: float, excess: int) -> None:
    # PyCauset always stores 8 bytes. They are zero without a diagonal.
    fields = pf.make_metadata("TRIANGULAR_FLOAT", "FLOAT64", 1, 1)
    payload = np.array([[value]])
    array = check(pf.r1(fields, payload.tobytes(), length=8 + excess), payload)
    assert array.encoding["tensorfmt"].get("has_diagonal", 0) == int(value != 0)
    check(pf.r1(fields), np.zeros((1, 1)))


@pytest.mark.parametrize("diagonal", [False, True])
def test_triangles_of_release_that_counts_64_bytes_too_many(diagonal: bool) -> None:
    name = f"triangle-8{'-diagonal' * diagonal}-050.pycauset"
    values = make_counted(8, "f8", diagonal=diagonal)
    check(DATA / name, values)


UPPER = np.triu(RNG.integers(0, 3, (9, 9)).astype("f8"))
WITH_ZEROS: dict[str, tuple[str, bytes, np.ndarray]] = {
    "CAUSAL": ("BIT", pf.pack_triangle(np.triu(UPPER > 0, 1)), np.triu(UPPER > 0, 1)),
    "TRIANGULAR_FLOAT": ("FLOAT64", pf.pack_triangle(np.triu(UPPER, 1)), np.triu(UPPER, 1)),
    "TRIANGULAR_INTEGER": (
        "INT32",
        pf.pack_triangle(np.triu(UPPER, 1).astype("i4")),
        np.triu(UPPER, 1),
    ),
    "SYMMETRIC": ("FLOAT64", pf.pack_triangle(UPPER, diagonal=True), UPPER + np.triu(UPPER, 1).T),
    "ANTISYMMETRIC": (
        "FLOAT64",
        pf.pack_triangle(np.triu(UPPER, 1), diagonal=True),
        np.triu(UPPER, 1) - np.triu(UPPER, 1).T,
    ),
    "DIAGONAL": ("FLOAT64", np.arange(9.0).tobytes(), np.diag(np.arange(9.0))),
    "IDENTITY": ("FLOAT64", b"", np.eye(9)),
    "UNIT_VECTOR": ("FLOAT64", b"", np.eye(9)[0]),
    "DENSE_FLOAT": ("FLOAT64", UPPER.tobytes(), UPPER),
}


@pytest.mark.slow
@pytest.mark.parametrize("conjugated", [False, True])
@pytest.mark.parametrize(
    "scalar", [1, -0.0, -1.5, 2 - 1j, -2 + 1j, -2 - 1j, -np.inf, complex(np.nan, -1)]
)
@pytest.mark.parametrize("matrix_type", WITH_ZEROS)
def test_zeros_are_positive_for_any_scalar(
    matrix_type: str, scalar: complex, conjugated: bool
) -> None:
    data_type, payload, values = WITH_ZEROS[matrix_type]
    parts = {"real": scalar.real, "imag": float(scalar.imag)}
    columns = 9 if values.ndim == 2 else 1
    fields = pf.make_metadata(
        matrix_type, data_type, 9, columns, scalar=parts, conjugated=conjugated
    )
    content, zero = pf.r1(fields, payload), values == 0
    points = xr.DataArray(np.argwhere(zero), dims=("point", "axis"))
    array = open_tensor(content)
    picked = array.isel({dim: points[:, axis] for axis, dim in enumerate(array.dims)})
    for zeros in (array.values[zero], picked.values):
        assert zeros.size
        assert not zeros.any()
        assert not (np.signbit(zeros.real) | np.signbit(zeros.imag)).any()
    with np.errstate(invalid="ignore"):
        expected = (values * scalar)[~zero]
    expected = np.conj(expected) if conjugated else expected
    np.testing.assert_array_equal(array.values[~zero], expected)


def test_stored_zip_member_is_read_in_place() -> None:
    dense = make_bits(3, 3)
    fields = {"rows": 3, "cols": 3, "seed": 1, "scalar": 1.0, "is_transposed": True}
    fields |= {"matrix_type": "DENSE_FLOAT", "data_type": "BIT"}
    content = pf.make_zip(fields, pf.pack_bits(dense, 8), ("cache.json", b"{}"))
    array = check(content, dense.T)
    assert array.encoding["tensorfmt"]["version"] == "zip"
    # No known program writes such a zip, so the format must be named.
    check(pf.pack_entry("other", b"x") + content, dense.T, format="pycauset")
    # Sizes of 8 bytes, as for entries of more than 4 GiB.
    payload = pf.pack_bits(dense, 8)
    long = bytearray(pf.pack_entry("data.bin", b""))
    long[18:26] = b"\xff" * 8
    long[28:30] = (20).to_bytes(2, "little")
    extra = b"\1\0\x10\0" + len(payload).to_bytes(8, "little") * 2
    first = pf.pack_entry("metadata.json", json.dumps(fields).encode())
    check(pf.pack_archive(first, bytes(long) + extra + payload), dense.T)


@pytest.mark.parametrize("name", pf.NUMPY_DTYPES)
@pytest.mark.parametrize("transposed", [False, True])
def test_r1_dense_of_every_type(name: str, transposed: bool) -> None:
    values = (RNG.random((3, 5)) * 100).astype(pf.NUMPY_DTYPES[name])
    logical = values.T if transposed else values
    matrix_type = "INTEGER" if "INT" in name else "DENSE_FLOAT"

    def file(**view: Any) -> bytes:
        fields = pf.make_metadata(matrix_type, name, *logical.shape, transposed=transposed, **view)
        return pf.r1(fields, values.tobytes())

    array = check(file(), logical)
    assert array.encoding["dtype"] == np.dtype(pf.NUMPY_DTYPES[name]).newbyteorder("<")
    wide = logical.astype("c16" if "COMPLEX" in name else "f8")
    scaled = check(file(scalar=-2.0), wide * -2)
    assert scaled.encoding["dtype"] == wide.dtype
    if wide.dtype != values.dtype:
        assert get_stored_name(scaled.encoding["dtype"]) == name.lower()
    number = {"real": 0.5, "imag": -1.5}
    product = open_tensor(file(scalar=number, conjugated=True)).values
    np.testing.assert_allclose(product, np.conj(wide * (0.5 - 1.5j)), rtol=1e-14)
    check(file(conjugated=True), np.conj(logical) if "COMPLEX" in name else logical)


@pytest.mark.parametrize("shape", [(3, 5), (4, 513), (2, 512)])
def test_r1_pads_dense_rows_of_bits_to_64_bytes(shape: tuple[int, int]) -> None:
    values = make_bits(*shape)
    fields = pf.make_metadata("DENSE_FLOAT", "BIT", *shape)
    check(pf.r1(fields, pf.pack_bits(values, 64, dirty=True)), values)


@pytest.mark.parametrize("order", [0, 1, 2, 9])
def test_r1_triangles_diagonals_and_mirror_images(order: int) -> None:
    values = np.triu(RNG.random((order, order)))
    raw = pf.pack_triangle(values, diagonal=True)
    mirror = np.triu(values, 1).T
    check(pf.r1(pf.make_metadata("SYMMETRIC", "FLOAT64", order, order), raw), values + mirror)
    check(pf.r1(pf.make_metadata("ANTISYMMETRIC", "FLOAT64", order, order), raw), values - mirror)
    line = np.ascontiguousarray(values.diagonal())
    check(
        pf.r1(pf.make_metadata("DIAGONAL", "FLOAT64", order, order), line.tobytes()), np.diag(line)
    )
    strict = np.triu(values, 1)
    fields = pf.make_metadata("TRIANGULAR_FLOAT", "FLOAT64", order, order, transposed=True)
    check(pf.r1(fields, pf.pack_triangle(strict)), strict.T)


def test_r1_identity_that_is_not_square_and_transposed() -> None:
    fields = pf.make_metadata("IDENTITY", "FLOAT64", 3, 5, transposed=True, scalar=2.0)
    check(pf.r1(fields), 2 * np.eye(3, 5))


def test_r1_half_precision_complex_has_two_planes() -> None:
    halves = RNG.random((2, 2, 3)).astype("<f2")
    fields = pf.make_metadata("DENSE_FLOAT", "COMPLEX_FLOAT16", 2, 3)
    values = (halves[0] + 1j * halves[1]).astype("c8")
    dtype = check(pf.r1(fields, halves.tobytes()), values).encoding["dtype"]
    assert get_stored_name(dtype) == "complex_float16"


def test_newest_metadata_count_and_old_payload_lengths_may_be_too_long() -> None:
    values = RNG.random((2, 2))
    first = pf.r1(pf.make_metadata("DENSE_FLOAT", "FLOAT64", 2, 2), values.tobytes())
    second = pf.make_updated(first, pf.make_metadata("DENSE_FLOAT", "FLOAT64", 2, 2, scalar=2.0))
    third = pf.make_updated(
        second, pf.make_metadata("DENSE_FLOAT", "FLOAT64", 2, 2, scalar=4.0), "A", 3
    )
    for content, factor, slot in ((first, 1, "A"), (second, 2, "B"), (third, 4, "A")):
        assert check(content, values * factor).encoding["tensorfmt"]["slot"] == slot
    long = bytearray(first)
    long[16:144] = pf.pack_slot(1, 32 + 64, 4096 + 32, len(first) - 4096 - 32)
    check(bytes(long), values)


@pytest.mark.parametrize("damage", ["slot", "metadata", "range"])
def test_corrupt_slot_falls_back_to_other_with_warning(damage: str) -> None:
    values = RNG.random((2, 2))
    first = pf.r1(pf.make_metadata("DENSE_FLOAT", "FLOAT64", 2, 2), values.tobytes())
    content = bytearray(
        pf.make_updated(first, pf.make_metadata("DENSE_FLOAT", "FLOAT64", 2, 2, scalar=2.0))
    )
    if damage == "slot":
        content[144] ^= 1
    elif damage == "metadata":
        content[-1] ^= 1
    else:
        content = content[:-1]
    with pytest.warns(TensorFormatWarning, match="slot B.*; slot A, generation 1, is read instead"):
        array = open_tensor(bytes(content))
    np.testing.assert_array_equal(array, values)


def test_metadata_become_attributes() -> None:
    fields = pf.make_metadata(
        "CAUSAL", "BIT", 2, 2, seed=2**64 - 1,
        properties={"is_zero": False, "more": [1, b"x"]}, object_type="CausalSet", n=2,
        spacetime={"type": "MinkowskiDiamond", "args": {"dimension": 2}}, unknown={"a": -1},
    )  # fmt: skip
    array = open_tensor(pf.r1(fields, bytes(8)))
    assert array.attrs == {"spacetime": "MinkowskiDiamond", "spacetime_dimension": 2}
    file_info = array.encoding["tensorfmt"]
    expected = {
        "matrix_type": "CAUSAL", "data_type": "BIT", "seed": 2**64 - 1, "scalar": [1.0, 0.0],
        "is_transposed": False, "is_conjugated": False, "is_temporary": False,
        "properties": {"is_zero": False},
        "payload_uuid": "u" * 32, "object_type": "CausalSet", "n": 2,
    }  # fmt: skip
    assert {**file_info, **expected} == file_info
    assert get_stored_name(array.encoding["dtype"]) == "bit"
    lists = {"shape": [2, 2], "dims": ["row", "col"]}
    assert json.loads(json.dumps(file_info)) == {**file_info, **lists}


def test_seed_of_v2_is_in_the_encoding() -> None:
    content = pf.v2("CAUSAL", "BIT", 2, 2, bytes(8), temporary=1, seed=5, transposed=1)
    array = open_tensor(content)
    file_info = array.encoding["tensorfmt"]
    assert (file_info["is_temporary"], file_info["is_transposed"]) == (True, True)
    assert (array.attrs, file_info["seed"]) == ({}, 5)


def test_open_options() -> None:
    content = pf.v2("IDENTITY", "FLOAT64", 2, 2, b"")
    array = xr.open_dataset(content, engine="tensorfmt", dims=("i", "j"), name="C").C
    assert array.dims == ("i", "j")
    assert open_tensor(content, format="pycauset", sparse="dense").shape == (2, 2)
    with pytest.raises(ValueError, match="sparse='stored' does not apply to this file"):
        open_tensor(content, sparse="stored")


def test_files_are_recognised_by_content(tmp_path: Path) -> None:
    for number, content in enumerate(
        [
            pf.v2("IDENTITY", "FLOAT64", 2, 2, b""),
            pf.r1(pf.make_metadata("IDENTITY", "FLOAT64", 2, 2)),
            pf.make_zip(
                {"rows": 2, "cols": 2, "matrix_type": "IDENTITY", "data_type": "FLOAT64"}, b""
            ),
        ]
    ):
        path = tmp_path / str(number)
        path.write_bytes(content)
        np.testing.assert_array_equal(xr.open_dataset(path).tensor, np.eye(2))


def test_block_that_is_rewritten_has_another_name_in_dask(
    tmp_path: Path,
) -> None:
    ones, twos = np.ones((1, 1)), np.full((1, 1), 2.0)
    block_type = ("DENSE_FLOAT", "FLOAT64")
    before = xr.open_dataset(
        write_two_blocks(tmp_path, (*block_type, ones), (*block_type, ones))
    ).tensor.chunk()
    block = tmp_path / "two.pycauset.blocks" / "b.pycauset"
    os.utime(write_two_blocks(tmp_path, (*block_type, ones), (*block_type, twos)), ns=(0, 0))
    os.utime(block, ns=(1, 1))
    path = tmp_path / "two.pycauset"
    first = xr.open_dataset(path).tensor.chunk()
    os.utime(block, ns=(2, 2))
    second = xr.open_dataset(path).tensor.chunk()
    assert len({before.data.name, first.data.name, second.data.name}) == 3
    assert second.values.tolist() == [[1, 2]]
    second = xr.open_dataset(path, chunks={}).tensor
    os.utime(block, ns=(1, 1))
    assert xr.open_dataset(path, chunks={}).tensor.data.name != second.data.name


@pytest.mark.skipif(os.name == "nt", reason="Windows has no files of such names")
@pytest.mark.parametrize("name", ["a\\b.pycauset", "matrix:1.pycauset"])
def test_blocks_are_siblings_for_any_file_name(tmp_path: Path, name: str) -> None:
    path, values = block_matrix(tmp_path)
    path.with_name("m.pycauset.blocks").rename(tmp_path / f"{name}.blocks")
    np.testing.assert_array_equal(open_tensor(path.rename(tmp_path / name)), values)


@pytest.mark.parametrize("way", ["mmap", "read"])
def test_nested_blocks(tmp_path: Path, way: str) -> None:
    path, values = block_matrix(tmp_path)
    array = open_tensor(path, io=way)
    np.testing.assert_array_equal(array, values)
    np.testing.assert_array_equal(array[1:4, [0, 3]], values[1:4, [0, 3]])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(array.chunk())).compute(), values)


def decode(raw: bytes) -> dict[str, Any]:
    return decode_map(HeaderReader(find_source(raw)[0]), 0, len(raw))


@given(pf.metadata_values)
def test_metadata_of_any_form_are_decoded(value: Any) -> None:
    assert decode(pf.encode({"key": value})) == {"key": value}


def compute_expected(record: dict[str, Any]) -> np.ndarray:
    shape, data = record["shape"], record["data"]
    if record["encoding"] == "bitrows":
        return np.array([digit == "1" for row in data for digit in row], dtype=bool).reshape(shape)
    if record["encoding"] == "complex":
        values = np.array(data["re"], dtype="f8") + 1j * np.array(data["im"], dtype="f8")
        return values.reshape(shape).astype(record["dtype"])
    return np.array(data, dtype=record["dtype"]).reshape(shape)


def test_real_files_by_every_source_and_chunked(conformance: Path) -> None:
    root = conformance / "pycauset"
    for record in json.loads((root / "manifest.json").read_text())["files"]:
        if record.get("expect") == "error":
            continue
        path = root / record["file"]
        values = compute_expected(json.loads((root / record["expected"]).read_text())["values"])
        tolerance = 1e-12 if values.dtype.kind == "c" else 0
        chunks = {"chunks": {}, "chunk_bytes": 1000}
        sources = {"read": (path, {"io": "read"}), "chunked": (path, chunks)}
        if record["matrix_type"] != "BLOCK":
            sources["file object"] = (io.BytesIO(path.read_bytes()), {})
        for file, options in sources.values():
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                array = open_tensor(file, **options)
            assert array.dtype == values.dtype
            np.testing.assert_allclose(array.values, values, rtol=tolerance, err_msg=str(path))
