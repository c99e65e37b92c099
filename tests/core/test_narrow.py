"""Every bit pattern of bfloat16, float8 and one-byte bools, compared with ml_dtypes."""

from __future__ import annotations

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest

from xr_tensorfmt.core.elements import (
    FLOAT8_NAMES,
    Boolean,
    Narrow,
    build_file_dtype,
    get_stored_name,
)

ALL_BYTES = np.arange(256, dtype=np.uint8)
ALL_PAIRS = np.arange(1 << 16, dtype=np.uint16)


@pytest.mark.parametrize("order", ["<", ">"])
def test_every_bfloat16_decodes_exactly(order: str) -> None:
    element = Narrow("bfloat16", order)
    values = element.decode(ALL_PAIRS.astype(f"{order}u2"))
    expected = ALL_PAIRS.view(ml_dtypes.bfloat16).astype(np.float32)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, expected)
    # Compare bits, also of NaN; astype would make signalling NaN quiet.
    np.testing.assert_array_equal(values.view(np.uint32), ALL_PAIRS.astype(np.uint32) << 16)


@pytest.mark.parametrize("name", FLOAT8_NAMES)
def test_every_float8_decodes_exactly(name: str) -> None:
    values = Narrow(name).decode(ALL_BYTES)
    expected = ALL_BYTES.view(getattr(ml_dtypes, name)).astype(np.float32)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(np.signbit(values), np.signbit(expected))


@pytest.mark.parametrize("element", [Narrow("bfloat16"), *map(Narrow, FLOAT8_NAMES)], ids=str)
def test_float32_rounds_like_ml_dtypes(element) -> None:
    upper = ALL_PAIRS.astype(np.uint32)[:, np.newaxis] << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x1234], np.uint32)
    values = (upper | lower).view(np.float32)
    with np.errstate(all="ignore"):
        expected = values.astype(getattr(ml_dtypes, element.name))
    actual = element.encode(values).view(expected.dtype)
    np.testing.assert_array_equal(actual.astype("f4"), expected.astype("f4"))
    number = ~np.isnan(values)
    np.testing.assert_array_equal(np.signbit(actual[number]), np.signbit(expected[number]))
    np.testing.assert_array_equal(
        element.encode(values[::-3, 1::2]), element.encode(values)[::-3, 1::2]
    )


@pytest.mark.parametrize("order", ["<", ">"])
def test_every_bfloat16_is_encoded_again_with_its_bits(order: str) -> None:
    element = Narrow("bfloat16", order)
    numbers = np.flatnonzero(ALL_PAIRS & 0x7FFF <= 0x7F80)
    stored = ALL_PAIRS[numbers].astype(f"{order}u2")
    np.testing.assert_array_equal(element.encode(element.decode(stored)), stored)
    nan = element.decode(np.delete(ALL_PAIRS, numbers).astype(f"{order}u2"))
    assert np.isnan(element.decode(element.encode(nan))).all()


def test_nonzero_bytes_are_true() -> None:
    values = Boolean().decode(ALL_BYTES)
    assert values.dtype == np.bool_
    assert values.sum() == 255
    assert set(values.view(np.uint8).tolist()) == {0, 1}


@pytest.mark.parametrize("element", [Narrow("bfloat16"), Narrow("float8_e4m3fn"), Boolean()])
def test_strided_and_longer_arrays_are_decoded(element) -> None:
    raw = np.resize(np.arange(251), (300, 401)).astype(element.stored)
    expected = element.decode(np.ascontiguousarray(raw[::2, ::-3]))
    np.testing.assert_array_equal(element.decode(raw[::2, ::-3]), expected)
    odd = np.frombuffer(b"\0" + raw.tobytes(), np.uint8)[1:].view(element.stored)
    np.testing.assert_array_equal(element.decode(odd), element.decode(raw.ravel()))


@pytest.mark.parametrize("element", [Narrow("bfloat16"), Narrow("float8_e4m3fn"), Boolean()])
def test_dtype_of_file_is_that_of_values_and_keeps_its_name(element) -> None:
    dtype = element.encoding
    for copied in (
        dtype,
        copy.copy(dtype),
        copy.deepcopy(dtype),
        pickle.loads(pickle.dumps(dtype)),
    ):
        assert copied == element.dtype
        assert get_stored_name(copied) == element.name
    assert get_stored_name(element.dtype) is None
    assert build_file_dtype("bfloat16", np.dtype("f4")) == np.float32
