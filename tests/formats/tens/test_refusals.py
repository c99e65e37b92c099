"""Errors of invalid TENS files, which name the offset."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from tests import tensfiles as tf
from tests.findings import assert_finding_at_error
from tests.work import limit_calls, limit_memory
from xr_tensorfmt import TensorFormatError

VALUES = np.arange(15, dtype="<f8").reshape(3, 5)


def load(content: bytes, **options) -> xr.Dataset:
    return xr.open_dataset(content, engine="tensorfmt", format="tens", **options).load()


def make_dense(size: int | None = None, *before: bytes, **fields: object) -> bytes:
    """Return a 1.0 file whose DENSDATA chunk claims `size` bytes."""
    content = bytearray(tf.make_1_0(VALUES, *before, **fields))
    if size is not None:
        offset = content.index(b"DENSDATA") + 8
        content[offset : offset + 8] = struct.pack("<Q", size)
    return bytes(content)


def make_other_chunk(size: int) -> bytes:
    content = bytearray(tf.make_1_0(VALUES, tf.pack_chunk(b"COMMENT ", b"hello...")))
    content[56:64] = struct.pack("<Q", size)
    return bytes(content)


def make_pairs(indices, count: int | None = None, *before: bytes, **fields: object) -> bytes:
    content = bytearray(
        tf.make_index_value((3, 4), indices, np.ones(len(indices)), *before, **fields)
    )
    if count is not None:
        offset = len(content) - 16 * len(indices) - 8
        content[offset : offset + 8] = struct.pack("<Q", count)
    return bytes(content)


REFUSED = {
    "31 bytes": (tf.pack_header(())[:31], r"the TENS header at byte 0: truncated"),
    "empty file": (b"", r"the TENS header at byte 0: truncated by the end of the file at byte 0"),
    "magic": (tf.make_0_9(VALUES, magic=b"TENZ"), r"magic number at byte 0: b'TENZ'"),
    "version 2": (tf.make_1_0(VALUES, version=0x20000), r"version at byte 4: 0x00020000"),
    "records of Fortran after the header": (
        tf.make_0_9(VALUES)[:48] + struct.pack("<i15di", 120, *range(15), 120),
        r"at byte 48: 128 bytes, expected 120 bytes; the values are records of Fortran",
    ),
    "big-endian header": (
        tf.make_0_9(VALUES, version=0x00900000),
        r"version at byte 4: 0x00900000, expected 0x00009000",
    ),
    "big-endian header of 1.0": (
        tf.make_0_9(VALUES, version=0x00000100),
        r"version at byte 4: 0x00000100, expected 0x00009000",
    ),
    "lengths beside a length of 0": (
        tf.pack_header((2**32 - 1, 2**32 - 1, 0)),
        r"of the tensor at byte 32: 8 bytes for each element of shape \(4294967295, 4294967295",
    ),
    "unknown version": (
        tf.make_0_9(VALUES, version=0x8000)[:-1],
        r"version at byte 4: 0x00008000, expected 0x00009000 \(0.9\) or 0x00010000 \(1.0\)",
    ),
    "1.0 without a chunk, other size": (
        tf.make_0_9(VALUES, version=tf.V1_0)[:-8],
        r"data at byte 48: missing \(112 bytes remain\), expected a chunk 'DENSDATA'",
    ),
    "number type": (tf.make_0_9(VALUES, number_type=b"ieee"), r"number type at byte 8: b'ieee'"),
    "mixed case": (tf.make_0_9(VALUES, number_type=b"Sint"), r"number type at byte 8: b'Sint'"),
    "bytes per number": (tf.make_1_0(VALUES, size=3), r"bytes per number at byte 12: 3"),
    "one-byte float": (tf.make_1_0(VALUES, size=1), r": 1, expected one of 4, 8 for"),
    "quadruple precision": (tf.make_1_0(VALUES, size=16), r"bytes per number at byte 12: 16"),
    "numbers per element": (
        tf.make_1_0(VALUES, numbers=3),
        r"numbers per element at byte 16: 3, expected 1, 2, 4 or 8",
    ),
    "order": (
        tf.pack_header((1,) * 32),
        r"the rank of the tensor at byte 20: 32, expected at most 31",
    ),
    "dimensions cut off": (tf.pack_header((3, 5))[:40], r"dimension headers at byte 32: truncated"),
    "reserved flag": (make_dense(flags=2), r"tensor flags at byte 24: 0x00000002"),
    "flags in 0.9": (
        tf.make_0_9(VALUES, flags=1),
        r"tensor flags at byte 24: 0x00000001, expected 0 in a version below 1.0",
    ),
    "0.9 short by one": (tf.make_0_9(VALUES)[:-1], r": 119 bytes, expected 120 bytes"),
    "0.9 long by one": (tf.make_0_9(VALUES) + b"\0", r": 121 bytes, expected 120 bytes"),
    "complex of neither size": (
        tf.pack_header((3,), size=16, numbers=2) + bytes(72),
        r": 72 bytes, expected 48 bytes",
    ),
    "no data": (tf.pack_header((3, 5), version=tf.V1_0), r"data at byte 48: missing \(0 bytes"),
    "no data after chunks": (
        tf.pack_header((3, 5), version=tf.V1_0) + tf.pack_chunk(b"COMMENT ", b"hello"),
        r"data at byte 72: missing",
    ),
    "dense size too small": (
        make_dense(128),
        r"size of chunk 'DENSDATA' at byte 56: 128, expected 136",
    ),
    "dense size too large": (
        make_dense(144),
        r"size of chunk 'DENSDATA' at byte 56: 144, expected 136",
    ),
    "dense size 0": (make_dense(0), r"size of chunk 'DENSDATA' at byte 56: 0"),
    "dense size 2^63": (make_dense(1 << 63), r": 9223372036854775808, expected 136"),
    "dense cut off": (make_dense()[:-1], r"the data at byte 48: truncated by the end"),
    "dense and index-value": (
        make_dense(flags=1),
        r"in a file whose flags say index-value storage",
    ),
    "packed dense": (
        make_dense(None, tf.pack_symmetry("x", "ab", packed=True)),
        r"symmetry 'x ab' at byte 48: packed in a file of sequential values",
    ),
    "symmetry of other names": (
        make_dense(None, tf.pack_symmetry("x", "ac")),
        r"index map of a symmetry at byte 67: 'ac', expected a permutation of .* 'ab'",
    ),
    "symmetry too short": (
        make_dense(None, b"SYMMETRY" + struct.pack("<Q", 24) + b"\0\x63x" + bytes(5)),
        r"size of chunk 'SYMMETRY' at byte 56: 24, expected at least 119",
    ),
    "too many chunks": (
        make_dense(None, *[tf.pack_chunk(b"COMMENT ", b"")] * 4096),
        r"number of chunks before the data at byte 48: more than 4096",
    ),
    **{
        f"chunk size {size}": (
            make_other_chunk(size),
            rf"size of chunk 'COMMENT ' at byte 56: {size}, expected a multiple of 8",
        )
        for size in (0, 8, 17, 4096, 1 << 63, (1 << 64) - 8)
    },
    "product over the file": (
        tf.pack_header((2**32 - 1, 2**32 - 1)) + bytes(80),
        r": 80 bytes, expected \d{21} bytes",
    ),
    "product over 2^64 in 1.0": (
        tf.pack_header((2**32 - 1,) * 3, version=tf.V1_0) + tf.pack_chunk(b"DENSDATA", bytes(64)),
        r"size of chunk 'DENSDATA' at byte 64: 80",
    ),
    "product over 2^62 of pairs": (
        tf.make_index_value((2**32 - 1,) * 2, [0], np.ones(1)),
        r"of the tensor at byte 32: 8 bytes for each element of shape \(4294967295, 4294967295",
    ),
    "no pair count": (
        tf.pack_header((3, 4), version=tf.V1_0, flags=1) + bytes(7),
        r"number of pairs at byte 48: truncated",
    ),
    "more pairs than room": (make_pairs([1, 2], 3), r": 3, expected at most the 2 pairs"),
    "count of 2^63": (make_pairs([1, 2], 1 << 63), r": 9223372036854775808, expected"),
    "more pairs than elements": (
        tf.make_index_value((2,), [0, 1, 0], np.ones(3)),
        r"number of pairs at byte 40: 3, expected at most the 2 elements",
    ),
    "index out of range": (
        make_pairs([1, 12]),
        r"index of pair 1 at byte 72: 12, expected .* below 12",
    ),
    "index 2^64 - 1": (
        make_pairs([2**64 - 1]),
        r"index of pair 0 at byte 56: 18446744073709551615",
    ),
    "neighbours twice": (
        make_pairs([1, 5, 5]),
        r"index of pair 2 at byte 88: 5, as in another pair",
    ),
    "far twice": (make_pairs([5, 1, 5]), r"index of pair 2 at byte 88: 5, as in another pair"),
    "packed by an unknown operation": (
        tf.make_index_value((3, 3), [1], np.ones(1), tf.pack_symmetry("conj", "ba", packed=True)),
        r"symmetry 'conj ba' at byte 48: packed, .* expected 'x', or '-x' of signed",
    ),
    "packed by names that repeat": (
        tf.make_index_value(
            (3, 3), [1], np.ones(1), tf.pack_symmetry("x", "aa", packed=True), names="aa"
        ),
        r"packed, with the index names 'aa', .* over different indices of equal lengths",
    ),
    "packed over other lengths": (
        tf.make_index_value((3, 4), [1], np.ones(1), tf.pack_symmetry("x", "ba", packed=True)),
        r"packed, .* lengths \(3, 4\) .* over different indices of equal lengths",
    ),
    "antisymmetric unsigned": (
        tf.make_index_value(
            (3, 3), [1], np.ones(1, "<u2"), tf.pack_symmetry("-x", "ba", packed=True)
        ),
        r"packed, .* dtype uint16, expected 'x', or '-x' of signed numbers",
    ),
    "stored against the symmetry": (
        tf.make_index_value(
            (3, 3), [1, 3], np.array([1.0, 2.0]), tf.pack_symmetry("x", "ba", packed=True)
        ),
        r"pair [01] at byte \d+: another value for an element",
    ),
    "antisymmetric diagonal": (
        tf.make_index_value(
            (3, 3), [4], np.array([1.0]), tf.pack_symmetry("-x", "ba", packed=True)
        ),
        r"pair 0 at byte \d+: another value for an element",
    ),
    "antisymmetric smallest integer": (
        tf.make_index_value(
            (3, 3), [1], np.array([-128], "i1"), tf.pack_symmetry("-x", "ba", packed=True)
        ),
        r"pair 0 at byte 80: another value for an element than a related pair gives, or one wi",
    ),
    "group too large": (
        tf.make_index_value(
            (2,) * 8,
            [1],
            np.ones(1),
            tf.pack_symmetry("x", "bcdefgha", packed=True),
            tf.pack_symmetry("x", "bacdefgh", packed=True),
        ),
        r"group of the packed symmetries at byte 96: more than 5040",
    ),
    "wide integer": (
        tf.pack_header((2,), version=tf.V1_0, number_type=b"SINT", size=16)
        + tf.pack_chunk(b"DENSDATA", bytes(32)),
        r"bytes per number at byte 12: 16, expected one of 1, 2, 4, 8 for numbers of type SINT",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_files_raise_with_offset(case: str) -> None:
    content, words = REFUSED[case]
    with pytest.raises(TensorFormatError, match=words) as caught:
        load(content)
    assert str(caught.value).startswith(f"<{len(content)} bytes in memory>: ")
    assert "; " in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_errors_are_findings_at_the_same_offset(name: str) -> None:
    assert_finding_at_error(REFUSED[name][0], "tens")


GOOD = {
    "0.9": tf.make_0_9(VALUES),
    "complex 0.9": tf.make_0_9(VALUES + 1j, size=16),
    "1.0": tf.make_1_0(
        VALUES.astype("<f4"), tf.pack_symmetry("x", "ab"), tf.pack_chunk(b"COMMENT ", b"hi")
    ),
    "pairs": make_pairs([1, 7, 3]),
    "packed": tf.make_index_value(
        (3, 3), [3, 7], np.array([1.0, 2.0]), tf.pack_symmetry("-x", "ba", packed=True)
    ),
}


@pytest.mark.parametrize("case", GOOD)
def test_file_truncated_at_any_byte_raises(case: str) -> None:
    content = GOOD[case]
    load(content)
    for length in range(len(content)):
        with pytest.raises(TensorFormatError):
            load(content[:length])


@pytest.mark.parametrize("case", GOOD)
@given(data=st.data())
def test_corrupt_bytes_open_or_raise(case: str, data: st.DataObject) -> None:
    content = bytearray(GOOD[case])
    for _ in range(data.draw(st.integers(1, 4))):
        offset = data.draw(st.integers(0, len(content) - 1))
        content[offset] = data.draw(st.integers(0, 255))
    with limit_memory(100 << 20), limit_calls(1_000_000):
        try:
            tensor = xr.open_dataset(bytes(content), engine="tensorfmt", format="tens").tensor
            # A damaged length may describe a tensor that exceeds memory, so read a corner.
            tensor.isel(dict.fromkeys(tensor.dims, slice(0, 3))).load()
        except TensorFormatError:
            pass
        except ValueError as error:
            if "open it with sparse=" not in str(error):
                raise


def test_error_of_too_large_sparse_tensor_has_a_hint() -> None:
    content = tf.make_index_value((2**21, 2**20), [5], np.ones(1))
    with pytest.raises(ValueError, match=r"open it with sparse='dense' .*to fill in"):
        load(content)
    filled = xr.open_dataset(content, engine="tensorfmt", sparse="dense")
    assert filled.tensor[4:7, 0].values.tolist() == [0.0, 1.0, 0.0]


def test_stored_elements_cannot_be_opened_alone() -> None:
    with pytest.raises(ValueError, match="sparse='stored' does not apply to this file; omit it"):
        load(GOOD["0.9"], sparse="stored")


@pytest.mark.parametrize("dtype", ["<f8", "<c16", "<f4", "<i2", "u1"])
@pytest.mark.parametrize("before", [(), (tf.pack_symmetry("x", ""),)])
def test_scalar_that_was_truncated_is_no_letters_of_chunk(dtype: str, before) -> None:
    content = tf.make_1_0(np.array(3, dtype), *before)
    load(content)
    for length in range(len(content) - 8):  # the last 8 are the value, and padding
        with pytest.raises(TensorFormatError):
            load(content[:length])
