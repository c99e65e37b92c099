"""16-byte floats, compared with exact fractions."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from xr_tensorfmt.formats.tens.wide import Binary128


def pack_quad(sign: int, exponent: int, fraction: int) -> bytes:
    return ((sign << 127) | (exponent << 112) | fraction).to_bytes(16, "little")


def convert_exactly(sign: int, exponent: int, fraction: int) -> float:
    """Return the nearest double of a binary128, by integer division."""
    if exponent == 0x7FFF:
        value = math.nan if fraction else math.inf
    else:
        significand = fraction + (1 << 112 if exponent else 0)
        scaled = Fraction(significand) * Fraction(2) ** (max(exponent, 1) - 16383 - 112)
        try:
            value = scaled.numerator / scaled.denominator
        except OverflowError:
            value = math.inf
    return -value if sign else value


exponents = st.one_of(
    st.integers(0, 0x7FFF),
    st.integers(15300, 15375),  # around the smallest doubles, subnormal and normal
    st.integers(17400, 17410),  # around the largest
)
# Fractions near the middle between two doubles, where rounding matters.
ties = st.builds(
    lambda kept, shift, nudge: ((kept << 60 | 1 << 59) << shift) + nudge & (1 << 112) - 1,
    st.integers(0, (1 << 52) - 1),
    st.integers(0, 52),
    st.integers(-1, 1),
)


@given(st.integers(0, 1), exponents, st.one_of(st.integers(0, (1 << 112) - 1), ties))
@example(0, 0, 0)
@example(1, 0, 1)
@example(0, 17406, (1 << 112) - 1)
@example(0, 15308, 0)
@example(0, 15308, 1)
@example(1, 0x7FFF, 0)
@example(0, 0x7FFF, 1)
def test_binary128_is_rounded_to_nearest_double(sign: int, exponent: int, fraction: int) -> None:
    raw = np.frombuffer(pack_quad(sign, exponent, fraction), dtype="V16")
    (value,) = Binary128().decode(raw)
    expected = convert_exactly(sign, exponent, fraction)
    if math.isnan(expected):
        assert math.isnan(value)
    else:
        assert struct.pack("d", value) == struct.pack("d", expected)


def test_complex_binary128_keeps_its_parts_apart() -> None:
    numbers = [
        pack_quad(0, 16383, 0),
        pack_quad(1, 16384, 0),
        pack_quad(0, 16385, 0),
        pack_quad(0, 16382, 0),
    ]
    raw = np.frombuffer(b"".join(numbers), dtype="V32").reshape(2, 1)
    assert Binary128(is_complex=True).decode(raw).tolist() == [[1 - 2j], [4 + 0.5j]]


def test_decoding_keeps_shape_of_strided_and_scalar_arrays() -> None:
    raw = np.frombuffer(b"".join(pack_quad(0, 16383 + i, 0) for i in range(12)), "V16").reshape(
        3, 4
    )
    expected = 2.0 ** np.arange(12).reshape(3, 4)
    assert np.array_equal(Binary128().decode(raw[::2, ::-1]), expected[::2, ::-1])
    assert Binary128().decode(raw[1, 1]).shape == ()
