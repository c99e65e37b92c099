"""Errors of invalid typed binary tensors."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from tests import tensfiles as tf
from tests import vespafiles as vf
from tests.findings import assert_finding_at_error
from xr_tensorfmt import TensorFormatError, TensorFormatWarning, vespa

ONE = np.ones((1, 2))
DENSE = vf.make_tensor("double", [], {"x": 2}, [], ONE)
MIXED = vf.make_tensor("float", ["k"], {"x": 2}, [("ab",), ("c",)], np.ones((2, 2)))

REFUSED = {
    "no bytes": (b"", "the tag at byte 0: truncated"),
    "tag 8": (b"\x08" + bytes(9), "the tag at byte 0: 8, expected 1, 2, 3, 5, 6 or 7"),
    "hexadecimal": (b"0x0601", "the tag at byte 0: 48, expected 1, 2"),
    "JSON": (b'{"put": ""}', "the tag at byte 0: 123, .*open it in Python with xr_tensorfmt.vespa"),
    "tag 0": (bytes(10), "the tag at byte 0: 0, expected"),
    "tag 4": (b"\4" + bytes(10), "the tag at byte 0: 4, expected"),
    "cell type 4": (
        b"\6\4\1\1x\1" + bytes(8),
        r"the cell type at byte 1: 4, expected one of 0 \(double\)",
    ),
    "size 0": (
        vf.pack_header(indexed={"x": 0}),
        "the size of dimension 'x' at byte 4: 0, expected at least 1",
    ),
    "same name": (
        vf.pack_header(indexed=[("x", 1), ("x", 1)]),
        "the name of dimension 1 at byte 6: 'x', expected a unique name",
    ),
    "same mapped name": (
        vf.pack_header(None, ["x", "x"], None, 0),
        "'x', expected a unique name",
    ),
    "same name in both": (
        vf.pack_header(None, ["x"], {"x": 1}, 0),
        "'x', expected a unique name",
    ),
    "unsorted": (
        vf.pack_header(indexed={"y": 1, "x": 1}) + bytes(8),
        "dimension 1 at byte 6: 'x', expected a name after 'y'",
    ),
    "unsorted mapped": (
        vf.pack_header(None, ["y", "x"], None, 0),
        "'x', expected a name after 'y'",
    ),
    "empty name": (
        vf.pack_header(indexed={"": 1}) + bytes(8),
        "the size of the name of dimension 0 at byte 2: 0, expected 1",
    ),
    "long name": (
        vf.pack_header(indexed={"n" * 5000: 1}) + bytes(8),
        "5000, expected 1 to 4096 bytes",
    ),
    "name not UTF-8": (
        b"\2\1\2\xff\xfe\1" + bytes(8),
        "the name of dimension 0 at byte 3: .*, expected UTF-8",
    ),
    "two cells of a scalar": (
        b"\1\0\2" + bytes(16),
        "the number of cells of a scalar at byte 3: 2, expected 0 or 1",
    ),
    "too many dimensions": (
        vf.pack_header(indexed={f"{n:02}": 1 for n in range(32)}) + bytes(8),
        "the number of indexed dimensions at byte 1: 32, expected at most 31",
    ),
    "too many dimensions of both kinds": (
        vf.pack_header(None, [f"{n:02}" for n in range(16)], {f"{n}": 1 for n in range(20, 36)}, 0),
        "the number of indexed dimensions at byte 50: 16, expected at most 15",
    ),
    "blocks beyond the file": (
        b"\1\1\1k\xff\xff\xff\xff",
        "the cells of tensor.* at byte 8: 0 bytes left in the file, expected at least",
    ),
    "cells beyond the file": (
        b"\2\2\1x\x80\0\1\x2c\1y\x80\0\0\xc8" + bytes(16),
        "16 bytes left in the file, expected at least 480000",
    ),
    "cells beyond any computer": (
        b"\2\2\1x\xff\xff\xff\xff\1y\xff\xff\xff\xff" + bytes(8),
        "the size of the tensor",
    ),
    "cells that wrap around": (
        b"\2\3\1x\xc0\0\0\0\1y\xc0\0\0\0\1z\x10" + bytes(8),
        "the size of the tensor",
    ),
    "bytes after cells": (
        DENSE + b"\0",
        r"the end of tensor\(x\[2\]\) at byte 23: 1 more bytes, expected the end",
    ),
    "bytes after blocks": (MIXED + b"\0\0", "2 more bytes, expected the end of the file"),
    "bytes after a scalar": (
        b"\2\0" + bytes(9),
        "the end of double at byte 10: 1 more bytes",
    ),
    "label beyond the file": (
        b"\1\1\1k\1\x64a" + bytes(8),
        "block 0 at byte 5: truncated by the end of the file",
    ),
    "later label beyond the file": (
        MIXED[:-10] + b"\x7f" + MIXED[-9:],
        "block 1 at byte .*: truncated",
    ),
    "long label beyond the file": (
        b"\1\1\1k\1\xff\xff\xff\xff" + bytes(8),
        "block 0 at byte 5: truncated",
    ),
    "cells of the last block": (
        b"\1\1\1k\2" + b"\1a" + bytes(8) + b"\7" + bytes(9),
        "block 1 at byte .*: truncated",
    ),
}


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_errors_are_one_sentence(content: bytes, message: str) -> None:
    with pytest.raises(TensorFormatError, match=message):
        vespa.from_hex(content.hex())


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_errors_are_findings_at_the_same_offset(name: str) -> None:
    assert_finding_at_error(REFUSED[name][0], "vespa")


def test_trailing_bytes_are_ignored_without_verify() -> None:
    for content in (DENSE, MIXED):
        with pytest.warns(TensorFormatWarning, match="3 more bytes"):
            tensor = vespa.from_hex((content + b"abc").hex(), verify=False).tensor
        assert (tensor.values == 1).all()


def test_published_invalid_tensors_raise(conformance: Path) -> None:
    tests = json.loads((conformance / "vespa" / "rejects.json").read_text())["tests"]
    to_reject = [
        test["binary"]
        for test in tests
        if test["recommend"].startswith("reject") and "or keep" not in test["recommend"]
    ]
    assert to_reject
    for binary in to_reject:
        with pytest.raises(TensorFormatError):
            vespa.from_hex(binary)


@given(vf.tensors())
def test_every_proper_prefix_raises(created) -> None:
    content = created[0]
    for length in range(len(content)):
        with pytest.raises(TensorFormatError):
            vespa.from_hex(content[:length].hex())


@pytest.mark.filterwarnings("ignore::xr_tensorfmt.TensorFormatWarning")
@given(vf.tensors(), st.data())
def test_changed_bytes_open_or_raise(created, data) -> None:
    content = bytearray(created[0])
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(TensorFormatError):
        ds = vespa.from_hex(content.hex()).load()
        assert ds.tensor.size * np.dtype(ds.tensor.dtype).itemsize <= 2 * len(content) + 8


def test_unsuitable_keywords_raise() -> None:
    with pytest.raises(ValueError, match="sparse='stored' does not apply to this file"):
        vespa.from_hex(DENSE.hex(), sparse="stored")
    with pytest.raises(TypeError, match="fill_value='0' must be of type Real"):
        vespa.from_hex(MIXED.hex(), sparse="dense", fill_value="0")
    with pytest.raises(ValueError, match="fill_value=0 requires sparse='dense'"):
        vespa.from_hex(MIXED.hex(), fill_value=0)


def test_int8_without_holes_needs_no_fill_value() -> None:
    content = vf.make_tensor("int8", ["k"], {"x": 1}, [("a",), ("b",)], np.array([[1], [2]]))
    assert vespa.from_hex(content.hex(), sparse="dense").tensor.sel(k="b").values.tolist() == [2]


@pytest.mark.parametrize("fill_value", [None, 128, -129, 0.5, float("nan"), float("inf")])
def test_int8_needs_fill_value_that_it_has(fill_value) -> None:
    content = vf.make_tensor("int8", ["k", "l"], {}, [("a", "b"), ("c", "d")], np.array([1, 2]))
    with pytest.raises(ValueError, match="pass an integer from -128 to 127"):
        vespa.from_hex(content.hex(), sparse="dense", fill_value=fill_value)
    filled = vespa.from_hex(content.hex(), sparse="dense", fill_value=-5).tensor
    assert (filled.dtype, filled.values.tolist()) == ("int8", [[1, -5], [-5, 2]])


def test_very_large_outer_product_is_opened_lazily() -> None:
    labels = [(f"{n}", f"{n}", f"{n}") for n in range(2000)]
    content = vf.make_tensor("float", ["i", "j", "k"], {}, labels, np.arange(2000))
    opened = vespa.from_hex(content.hex(), sparse="dense", chunks={})
    assert opened.tensor.shape == (2000,) * 3
    assert opened.tensor.sel(i="7", j="7").sum().values == 7


def test_fill_value_is_refused_if_the_format_defines_one(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tens"
    path.write_bytes(tf.make_index_value((3,), [1], np.array([2.0])))
    with pytest.raises(ValueError, match="fill_value=1 does not apply to format 'tens'"):
        xr.open_dataset(path, engine="tensorfmt", fill_value=1)
