"""Conversion of values between all pairs of dtypes: exact, or an error."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import from_dtype

from xr_tensorfmt.core.elements import FLOAT8_NAMES, Element, build_elements
from xr_tensorfmt.writing.file_plan import Conversion

NUMPY = [
    np.dtype(code)
    for code in [
        "?",
        "i1",
        "i2",
        "i4",
        "i8",
        "u1",
        "u2",
        "u4",
        "u8",
        "f2",
        "f4",
        "f8",
        "c8",
        "c16",
    ]  # the dtypes of all formats
]
ELEMENTS = build_elements(
    ["bfloat16", "float8_e4m3fn", "float8_e5m2", *(dtype.name for dtype in NUMPY)]
)


def list_extremes(dtype: np.dtype[Any]) -> list[Any]:
    """Return the bounds of a dtype, their neighbours, and special values."""
    if dtype.kind == "b":
        return [False, True]
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return [int(info.min), int(info.min) + 1, -1, 0, 1, int(info.max) - 1, int(info.max)]
    floats = np.finfo(dtype)
    limits = [floats.max, floats.smallest_normal, floats.smallest_subnormal, floats.eps]
    return [*(float(sign * limit) for limit in limits for sign in (1, -1)), *SPECIAL]


SPECIAL = [0.0, -0.0, 0.5, float("inf"), float("-inf"), float("nan")]
EXTREMES = sorted({str(v): v for dtype in NUMPY for v in list_extremes(dtype)}.values(), key=str)


def is_same(first: Any, second: Any) -> bool:
    """Compare the values of Python numbers, which are exact. NaN equals NaN."""
    return bool(first == second or (first != first and second != second))


def can_hold(element: Element, value: Any) -> bool:
    """Return whether an element has a value, by arithmetic of Python."""
    dtype = element.dtype
    if dtype.kind in "biu":
        value = value.real if isinstance(value, complex) and not value.imag else value
        if isinstance(value, complex) or value != value or value in (np.inf, -np.inf):
            return False
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return value == int(value) and low <= int(value) <= high
    with np.errstate(all="ignore"):
        stored = element.decode(element.encode(np.array([value]).astype(dtype)))
    return is_same(stored[0].item(), value)


def check(name: str, values: np.ndarray) -> None:
    """Convert each value, and compare what is stored with Python's arithmetic."""
    element = ELEMENTS[name]
    for value in values:
        one = np.array([value])
        try:
            converted = Conversion("v", element, exact=True).apply(one)
        except ValueError:
            assert not can_hold(element, value.item()), (value, name)
            continue
        stored = element.decode(element.encode(converted))
        assert is_same(stored[0].item(), value.item()), (value, name, stored)


PAIRS = [
    (dtype, name)
    for dtype in NUMPY
    for name, element in ELEMENTS.items()
    if dtype.kind != "c" or element.dtype.kind == "c"
]


@pytest.mark.parametrize(("dtype", "name"), PAIRS, ids=str)
def test_extreme_values_are_exact_or_an_error(dtype: np.dtype[Any], name: str) -> None:
    low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else (0, 1)
    is_valid = (
        (lambda v: v == v and v not in (np.inf, -np.inf) and v == int(v) and low <= v <= high)
        if dtype.kind in "biu"
        else (lambda _: True)
    )
    with np.errstate(all="ignore"):
        check(name, np.array([v for v in EXTREMES if is_valid(v)]).astype(dtype))


@given(data=st.data())
def test_any_value_is_exact_or_an_error(data: st.DataObject) -> None:
    dtype, name = data.draw(st.sampled_from(PAIRS))
    check(name, np.array(data.draw(st.lists(from_dtype(dtype), max_size=5)), dtype))
    if dtype.kind not in "iu":
        return
    # Rounding is allowed only to floats: an integer is never rounded.
    values = np.array(data.draw(st.lists(from_dtype(dtype), max_size=5)), dtype)
    for value in values:
        try:
            converted = Conversion("v", ELEMENTS[name], exact=False).apply(np.array([value]))
        except ValueError:
            continue
        assert is_same(converted[0].item(), value.item())


class Float6(Element):
    """A float of 3 bits of exponent and 2 of mantissa, as in GGUF: no infinity and no NaN."""

    def __init__(self) -> None:
        super().__init__("float6_e2m3fn", np.dtype(np.uint8), np.dtype(np.float32))

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Saturate, as converters of models do."""
        return values.astype(ml_dtypes.float6_e2m3fn).view(np.uint8)

    def decode(self, raw: np.ndarray) -> np.ndarray:
        return raw.view(ml_dtypes.float6_e2m3fn).astype(np.float32)


FLOATS = [
    *build_elements(["bfloat16", *FLOAT8_NAMES, "float16", "float32", "float64"]).values(),
    Float6(),
]


@pytest.mark.parametrize("element", FLOATS, ids=lambda element: element.name)
def test_rounded_values_stay_near_or_are_refused(element: Element) -> None:
    """Rounding neither saturates nor changes infinity and NaN."""
    bits = np.arange(1 << min(16, 8 * element.stored.itemsize)).astype(
        f"u{element.stored.itemsize}"
    )
    values = element.decode(bits.view(element.stored)) if bits.itemsize <= 2 else np.zeros(1)
    finite = values[np.isfinite(values)]
    has_inf, has_nan = np.isinf(values).any(), np.isnan(values).any()
    largest = float(finite.max())
    if bits.itemsize > 2:
        largest, has_inf, has_nan = float(np.finfo(element.dtype).max), True, True
    conversion = Conversion("v", element, exact=False)
    for value in (largest, -largest, 1.0):
        if value in finite:
            assert conversion.apply(np.array([value])) == value
    for value, is_valid in (
        (np.inf, has_inf), (-np.inf, has_inf), (np.nan, has_nan),
        (largest * 4, False), (largest * -4, False),
    ):  # fmt: skip
        with np.errstate(over="ignore"):
            given = np.array([value])
        if not np.isinf(given).any() and value in (np.inf, -np.inf):
            continue
        if value != value or np.isinf(value) or element.dtype.itemsize < 8:
            if is_valid or (np.isinf(value) and has_inf):
                assert is_same(conversion.apply(given)[0].item(), value)
            else:
                with pytest.raises(ValueError, match="cannot represent"):
                    conversion.apply(given)
