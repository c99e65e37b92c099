"""Reading TENS files of both versions, built from the specification."""

from __future__ import annotations

import struct
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from tests import tensfiles as tf
from tests.opening import open_lazily
from tests.tensfiles import make_values
from xr_tensorfmt import TensorFormatError

DTYPES = ["<f4", "<f8", "<c8", "<c16"]
INTEGERS = [f"{order}{kind}{size}" for order in "<>" for kind in "ui" for size in (2, 4, 8)]


def assert_holds(dataset: xr.Dataset, values: np.ndarray) -> None:
    native = values.astype(values.dtype.newbyteorder("="))
    np.testing.assert_array_equal(dataset.tensor.values, native, strict=True)


@pytest.mark.parametrize("dtype", ["<f8", "<c16"])
@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (3, 1, 5), (2, 3, 4, 5), (0, 3)])
@pytest.mark.parametrize("tails", [bytes(3), b"\x7f\x55\x56"])
def test_version_0_9_is_column_major_with_any_uninitialised_bytes(dtype, shape, tails) -> None:
    values = make_values(shape, dtype)
    dataset = open_lazily(tf.make_0_9(values, tails=tails))
    assert dataset.tensor.dims == tuple("abcd"[: len(shape)])
    assert dataset.tensor.attrs == {}
    assert_holds(dataset, values)


@pytest.mark.parametrize("shape", [(), (4, 2, 3), (0, 3)])
def test_complex_files_that_count_16_bytes_per_number(shape) -> None:
    values = make_values(shape, "<c16")
    assert_holds(open_lazily(tf.make_0_9(values, size=16)), values)


@pytest.mark.parametrize("dtype", [*DTYPES, *INTEGERS, "u1", "i1"])
def test_version_1_0_reads_every_number_type_exactly(dtype) -> None:
    values = make_values((3, 5), dtype)
    dataset = open_lazily(tf.make_1_0(values))
    assert_holds(dataset, values)
    assert dataset.tensor.encoding["dtype"] == np.dtype(dtype)


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    # Two IEEE numbers are complex.
    [(2, ">i4"), *((count, dtype) for count in (4, 8) for dtype in ("<f8", ">i4", "<f4"))],
)
def test_elements_of_several_numbers_get_component_axis(numbers, dtype) -> None:
    stored = make_values((numbers, 3, 2), dtype)
    head = tf.pack_header(
        (3, 2), version=tf.V1_0, **{**tf.get_number_fields(stored.dtype), "numbers": numbers}
    )
    dataset = open_lazily(head + tf.pack_chunk(b"DENSDATA", tf.pack_values(stored)))
    assert dataset.tensor.dims == ("a", "b", "component")
    renamed = open_lazily(
        head + tf.pack_chunk(b"DENSDATA", tf.pack_values(stored)), dims=("i", "j")
    )
    assert renamed.tensor.dims == ("i", "j", "component")
    assert_holds(dataset, np.moveaxis(stored, 0, -1))


@pytest.mark.parametrize("drop", [0, 4])
def test_last_dense_data_need_no_padding(drop) -> None:
    values = make_values((3, 5), "<f4")  # 60 bytes
    content = tf.pack_header((3, 5), version=tf.V1_0, size=4)
    size = 16 + 64 - drop
    content += b"DENSDATA" + struct.pack("<Q", size) + tf.pack_values(values) + bytes(4 - drop)
    assert_holds(open_lazily(content), values)


def test_other_chunks_are_skipped_and_named() -> None:
    values = make_values((3, 5), "<f8")
    content = tf.make_1_0(
        values,
        tf.pack_chunk(b"COMMENT ", b"hello"),
        tf.pack_symmetry("conj(x)", "ba"),
        tf.pack_symmetry("x", "ba"),
    )
    dataset = open_lazily(content)
    assert_holds(dataset, values)
    file_info = dataset.tensor.encoding["tensorfmt"]
    assert file_info["symmetries"] == "conj(x) ba, x ba"
    assert file_info["skipped_chunks"] == ["COMMENT "]


@pytest.mark.parametrize("names", ["aa", "a\0", "a\x80", "a ", "\xe4b"])
def test_names_that_repeat_or_do_not_print_fall_back_to_numbers(names) -> None:
    dataset = open_lazily(tf.make_0_9(make_values((3, 5), "<f8"), names=names))
    assert dataset.tensor.dims == ("dim_0", "dim_1")
    assert dataset.tensor.encoding["tensorfmt"]["index_names"] == names


def test_encoding_describes_file() -> None:
    dataset = open_lazily(
        tf.make_1_0(make_values((3, 5), ">i4"), tf.pack_chunk(b"FILLFILL", b""), names="Gq")
    )
    assert dataset.tensor.dims == ("G", "q")
    assert dataset.tensor.encoding["tensorfmt"] == {
        "format": "tens",
        "version": "1.0",
        "shape": (3, 5),
        "storage": "dense",
        "offset": 32 + 16 + 16 + 16,
        "order": "F",
        "byteorder": "big",
        "dtype": "int32",
        "index_names": "Gq",
        "skipped_chunks": ["FILLFILL"],
        "dims": ("G", "q"),
    }


@given(
    st.lists(st.integers(0, 4), max_size=4).map(tuple),
    st.sampled_from([*DTYPES, *INTEGERS]),
    st.booleans(),
)
def test_round_trips_through_specification(shape, dtype, raw) -> None:
    values = make_values(shape, dtype)
    assert_holds(open_lazily((tf.make_0_9 if raw else tf.make_1_0)(values)), values)


def test_files_of_cc4s_have_expected_values(conformance) -> None:
    values = np.arange(24)
    expected = (values + 1) * 0.5 - 1j * np.cos(values) * (values + 1)
    for directory in ("cc4s_0.9", "cc4s_0.9_complex16"):
        dataset = xr.open_dataset(conformance / "tens" / directory / "C3.bin", engine="tensorfmt")
        assert dataset.tensor.dims == ("a", "b", "c")
        np.testing.assert_allclose(
            dataset.tensor.values, expected.reshape((4, 2, 3), order="F"), rtol=1e-14
        )


def test_conformance_files_open_as_described(conformance) -> None:
    """Compare all real files with their known values."""
    tool = conformance.parent / "tools" / "conformance"
    run = subprocess.run(
        [sys.executable, tool, "--family", "tens"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "tens: 29 of 29 hold" in run.stdout


def test_version_1_0_without_chunk_is_refused() -> None:
    content = tf.make_0_9(make_values((3, 5), "<f8"), version=tf.V1_0)
    with pytest.raises(TensorFormatError, match=r"the data at byte 48: missing .* 'DENSDATA'"):
        open_lazily(content)


def test_values_truncated_inside_a_chunk_are_refused() -> None:
    lengths = (24,)
    header = tf.pack_header(lengths, number_type=b"uint", size=1, version=tf.V1_0)
    complete = header + b"XRTFMETA" + (1000).to_bytes(8, "little") + bytes(984)
    truncated = complete[: len(header) + 24]  # as many bytes as the tensor has values
    with pytest.raises(TensorFormatError, match="truncated or corrupt"):
        open_lazily(truncated)
