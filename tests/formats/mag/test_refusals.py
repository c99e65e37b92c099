"""Errors of invalid MAG files."""

from __future__ import annotations

import contextlib
import re
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import magfiles as mf
from tests.findings import assert_finding_at_error
from tests.magfiles import put
from tests.opening import load
from tests.work import limit_calls, limit_memory
from xr_tensorfmt import TensorFormatError, validate

WEIGHTS = np.arange(12, dtype=np.float32).reshape(3, 4)
TENSORS = {"w": put(WEIGHTS), "b": put(WEIGHTS[0])}


def patch(content: bytes, at: int, layout: str, *values: Any) -> bytes:
    changed = bytearray(content)
    struct.pack_into(layout, changed, at, *values)
    return bytes(changed)


def make_archive(at: int, layout: str, *values: Any, **options: Any) -> bytes:
    """Return an archive of metadata `n` and tensors `w` and `b`, with a changed field."""
    content = patch(mf.make_archive(TENSORS, {"n": 1}, **options), at, layout, *values)
    return mf.add_checksum(content[:115], 8, 12) + content[115:]


def make_snapshot(at: int, layout: str, *values: Any) -> bytes:
    """Return a snapshot 100 with a changed field."""
    content = patch(mf.make_snapshot(TENSORS), at, layout, *values)
    return mf.add_checksum(content[:134], 16, 20) + content[134:]


def make_snapshot_300(**changes: Any) -> bytes:
    """Return a snapshot 300 whose tensor `w` has other members."""

    def change(content: dict[str, Any]) -> None:
        content["tensor_map"]["w"].update(changes)

    return mf.make_document(TENSORS, change=change)


def remove_key(*names: str) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        inner = content
        for name in names[:-1]:
            inner = inner[name]
        del inner[names[-1]]

    return change


def replace_text(document: bytes) -> bytes:
    return mf.parse_document(document, bytes(64))


REFUSED = {
    # all containers
    "magic": (b"MAG?" + bytes(60), r"magic and version at byte 0: b'MAG\?' and 0"),
    "version 2": (
        patch(mf.make_archive(TENSORS), 4, "<I", 2),
        r"b'MAG!' and 2, .*1, 100, 200, 300",
    ),
    "newer": (patch(mf.make_document(TENSORS), 4, "<I", 400), r"400, .*newer than this version"),
    "short": (b"MAG!\1\0\0\0", r"the MAG header at byte 0: truncated by the end of the file"),
    # archive
    "aux of the header": (make_archive(20, "<I", 1), "aux at byte 20: 1, expected 0"),
    "type tag": (make_archive(24, "<I", 3), "the type tag of metadata record 0 at byte 24: 3"),
    "type tag of tensors": (make_archive(24, "<I", 0), "expected 1 for int64 or 2 for float64"),
    "key length 0": (
        make_archive(36, "<I", 0),
        r"the key length of metadata record 0 at byte 36: 0",
    ),
    "key length": (make_archive(36, "<I", 65536), r"65536, expected 1 to 65535"),
    "key of metadata": (
        make_archive(40, "B", 0xFF),
        r"the key of metadata record 0 at byte 40: b'\\xff', expected UTF-8",
    ),
    "metadata twice": (
        mf.add_checksum(
            struct.pack("<4sIIIII", b"MAG!", 1, 0, 0, 2, 0) + 2 * mf.pack_metadata("n", 1), 8, 12
        ),
        "the key at byte 57: 'n' twice",
    ),
    "metadata cut off": (make_archive(16, "<I", 10), "metadata record"),
    "many tensors": (make_archive(12, "<I", 2**32 - 1), "tensor record 2"),
    "rank 0": (make_archive(41, "<I", 0), "rank and dtype of tensor record 0 at byte 41: 0x0"),
    "rank 9": (make_archive(41, "<I", 0x900), "0x900, expected a rank of 1 to 8"),
    "dtype of version 1": (make_archive(41, "<I", 0x204), "the dtype of 'w' at byte 41: 4"),
    "dtype": (make_archive(41, "<I", 0x2FF), "0x2ff, .*a dtype below 11"),
    "length": (
        make_archive(45, "<Q", 13),
        "the length of 'w' at byte 41: 13, expected 12 elements",
    ),
    "shape of zeros": (
        make_archive(61, "<q", 0),
        r"the shape of tensor record 0 at byte 61: \(0, 4\)",
    ),
    "negative shape": (make_archive(61, "<q", -3), r"\(-3, 4\), expected lengths of 1 and more"),
    "huge shape": (
        make_archive(61, "<2q", 2**62, 4),
        r"the size of '\w+' at byte 41: 4 bytes for each element of shape \(4611686018427387904",
    ),
    "key of a tensor": (
        make_archive(81, "B", 0xFF),
        r"the key of tensor record 0 at byte 81: b'\\xff', expected UTF-8",
    ),
    "one key twice": (
        mf.add_checksum(make_archive(114, "s", b"w")[:115], 8, 12) + bytes(200),
        "'w' twice",
    ),
    "offset in the header": (
        make_archive(53, "<Q", 64),
        "the data of 'w' at byte 64: bytes 64 to 112",
    ),
    "offset past the end": (
        make_archive(53, "<Q", 10**6),
        r"the end at byte \d+; the file is trunc",
    ),
    "offset of 2^63": (make_archive(53, "<Q", 2**63), "the data of 'w'"),
    "overlap": (
        make_archive(53, "<Q", 160),
        "the data of 'b' at byte 192: .*, expected data from byte 208 on",
    ),
    # the published record
    "too high a rank in a literal record": (
        patch(
            mf.make_archive({"w": put(WEIGHTS)}, records="literal"),
            24 + 5 + 48 + 1 + 16 + 1,
            "B",
            7,
        ),
        "rank and dtype of tensor record 0",
    ),
    # snapshot 100 and 200
    "snapshot 200 without a pool": (
        patch(mf.make_snapshot(TENSORS, version=200), 32, "4s", b"POOL"),
        r"the marker SRP! at byte 32: b'POOL', expected b'SRP!'",
    ),
    "aux of a snapshot": (
        make_snapshot(20, "<I", 1),
        r"aux and the count of metadata at byte 20: \(1, 0",
    ),
    "metadata of a snapshot": (
        make_snapshot(24, "<I", 1),
        r"count of metadata at byte 20: \(0, 1\)",
    ),
    "strings": (make_snapshot(36, "<I", 65535), "the offsets of strings at byte 40: truncated"),
    "first offset": (make_snapshot(40, "<I", 1), r"the offsets of strings at byte 40: \(1, 1, 2\)"),
    "empty string": (make_snapshot(44, "<I", 0), r"\(0, 0, 2\), expected 0 and then ascending"),
    "pool past the end": (make_snapshot(48, "<I", 10**6), "the strings at byte 52: truncated"),
    "pool too large": (make_snapshot(48, "<I", 2**31), f"{2**31}, expected up to {128 << 20}"),
    "marker MDT!": (make_snapshot(54, "4s", b"MDTX"), "the marker MDT! at byte 54: b'MDTX'"),
    "key of a descriptor": (make_snapshot(66, "<I", 2), "key 2, expected .*a key below 2"),
    "descriptor twice": (make_snapshot(106, "<I", 0), "'w' twice"),
    "dtype of a descriptor": (
        make_snapshot(63, "B", 12),
        "the dtype of 'w' at byte 62: 12, expected a number below 12",
    ),
    "rank of a descriptor": (
        make_snapshot(62, "B", 200),
        "the shape of tensor descriptor 0 at byte 86: truncated",
    ),
    "count": (make_snapshot(70, "<Q", 13), r"tensor descriptor 0 at byte 62: 13 elements of shape"),
    "reserved bytes": (make_snapshot(64, "<H", 1), "reserved bytes 0x1"),
    "offset of a descriptor": (make_snapshot(78, "<Q", 65), "the data of 'b' at byte"),
    "more tensors than keys": (
        make_snapshot(28, "<I", 3),
        "the count of tensors at byte 28: 3, expected at most the 2 keys",
    ),
    "bytes after the data": (
        mf.make_snapshot(TENSORS) + b"\0",
        "the data section at byte 202: 1 bytes more than its tensors need, expected up to 0",
    ),
    "padded data": (
        mf.make_snapshot({"w": put(np.arange(1, 5, dtype=np.float32))}) + bytes(6),
        "the data section at byte 109: 6 bytes more than its tensors need, expected up to 0",
    ),
    "cut data of other days": (
        mf.make_snapshot(TENSORS, alignment=16)[:-1],
        "the data",
    ),
    "cut data": (mf.make_snapshot(TENSORS)[:-1], "the data of 'b' at byte 186: bytes 186 to 202"),
    # snapshot 300
    "draft": (
        struct.pack("<4sHHQQQQ", b"MAG!", 300, 0, 40, 2, 4096, 0) + bytes(40),
        "aux at byte 8: 0x28, expected 0 or 1; the header is corrupt, or a draft",
    ),
    "aux of 300": (
        patch(mf.make_document(TENSORS), 8, "<I", 2),
        "aux at byte 8: 0x2, expected 0 or 1",
    ),
    "document in the header": (
        patch(mf.make_document(TENSORS), 12, "<Q", 12),
        "offsets of document",
    ),
    "document past the data": (
        patch(mf.make_document(TENSORS), 20, "<Q", 5000),
        "offsets of document",
    ),
    "document too long": (patch(mf.make_document(TENSORS), 20, "<Q", 2**40), "offsets of document"),
    "data past the end": (
        mf.make_document(TENSORS)[:-1],
        "the data at byte 4096: truncated by the end",
    ),
    "data length": (patch(mf.make_document(TENSORS), 36, "<Q", 2**64 - 1), "the data at byte 4096"),
    "no JSON": (replace_text(b"{not"), r"the document at byte 45: Expecting property name.*'not'"),
    "no UTF-8": (
        replace_text(b'{"a":"\xff"}'),
        "the document at byte 50: bytes that are not UTF-8",
    ),
    "no object": (replace_text(b"[]"), "the document at byte 44: a list, expected a JSON object"),
    "deep nesting": (replace_text(b"[" * 10**6), "nested deeper than 40 levels"),
    "deep nesting of objects": (replace_text(b'{"a":' * 10**6), "nested deeper than 40 levels"),
    "a long integer": (
        replace_text(b'{"a":' + b"1" * 5000 + b"}"),
        "Exceeds the limit .*use sys.set_int_max_str_digits",
    ),
    "no tensors": (
        mf.make_document({}, change=remove_key("tensor_map")),
        "tensor_map at byte 44: no such key",
    ),
    "no metadata": (
        mf.make_document({}, change=remove_key("usr_metadata")),
        "usr_metadata at byte 44",
    ),
    "list of tensors": (
        replace_text(b'{"tensor_map":[],"usr_metadata":{}}'),
        r"tensor_map at byte 44: \[\]",
    ),
    "entry": (
        replace_text(b'{"tensor_map":{"w":3},"usr_metadata":{}}'),
        "the entry of 'w' at byte 44: 3",
    ),
    "entry as text": (
        replace_text(b'{"tensor_map":{"w":"x"},"usr_metadata":{}}'),
        "the entry of 'w'",
    ),
    "no shape": (
        mf.make_document(TENSORS, change=remove_key("tensor_map", "w", "shape")),
        "the entry of 'w'",
    ),
    "shape as a number": (make_snapshot_300(shape=12), "the shape of 'w' at byte 44: 12"),
    "shape of bools": (
        make_snapshot_300(shape=[True, 12]),
        r"the shape of 'w' at byte 44: \[True, 12\]",
    ),
    "shape of floats": (
        make_snapshot_300(shape=[3.0, 4.0]),
        r"\[3.0, 4.0\], expected a list of lengths",
    ),
    "shape with -3": (make_snapshot_300(shape=[-3, -4]), r"\[-3, -4\], expected a list of lengths"),
    "rank 32": (make_snapshot_300(shape=[1] * 32, nbytes=4), "the rank of 'w' at byte 44: 32"),
    "empty, but huge": (
        make_snapshot_300(shape=[0, 2**62], nbytes=0),
        r"element of shape \(0, 4611686018427387904\)",
    ),
    "dtype_id": (
        make_snapshot_300(dtype_id=13),
        "the dtype_id of 'w' at byte 44: 13, expected a number below",
    ),
    "dtype_id as text": (make_snapshot_300(dtype_id="0"), "the dtype_id of 'w' at byte 44: '0'"),
    "nbytes": (
        make_snapshot_300(nbytes=47),
        r"nbytes of 'w' at byte 44: 47, expected 48 for \[3, 4\] of float",
    ),
    "nbytes as a float": (make_snapshot_300(nbytes=48.0), "nbytes of 'w' at byte 44: 48.0"),
    "negative offset": (make_snapshot_300(offset=-1), "the offset of 'w' at byte 44: -1"),
    "offset beyond": (
        make_snapshot_300(offset=4096),
        "the data of 'w' at byte 8192: bytes 8192 to 8240, expected data from byte 4096",
    ),
    "offset of 300": (
        make_snapshot_300(offset=4064),
        "the data of 'w' at byte 8160: bytes 8160 to 8208, expected data from byte 4096 on",
    ),
    "half a pair": (
        replace_text(
            b'{"tensor_map":{"\\ud800":{"shape":[],"dtype":"int8","dtype_id":6,"offset":0,'
            b'"nbytes":1}},"usr_metadata":{}}'
        ),
        r"the key: '\\ud800', expected a string that UTF-8 can encode",
    ),
    "gap of 300": (
        mf.make_document(
            {**TENSORS, "c": put(np.zeros(2000, np.int64))}, change=remove_key("tensor_map", "b")
        ),
        "the data of 'c' at byte 12288: bytes 12288 to 28288, expected data from byte 8192 on",
    ),
    "overlap of 300": (
        mf.make_document(
            {"w": put(np.zeros(1250, np.float32)), "b": put(WEIGHTS[0])},
            change=lambda content: content["tensor_map"]["b"].update(offset=4096),
        ),
        "the data of 'b' at byte 8192: .* data from byte 12288 on, after other",
    ),
    "data of no tensor": (
        mf.make_document(
            TENSORS | {"c": put(np.zeros(2000, np.int64))}, change=remove_key("tensor_map", "c")
        ),
        "the data section at byte 8208: 20080 bytes more than its tensors need",
    ),
    "lengths of 4000 digits": (
        make_snapshot_300(shape=[10**4000] * 2),
        r"the shape of 'w' at byte 44: \[1000.* \.\.\. .*000\], expected a list of lengths",
    ),
    "a long key": (
        mf.make_document(
            {"k" * 10**6: put(WEIGHTS)}, change=lambda c: c["tensor_map"]["k" * 10**6].clear()
        ),
        "the entry of 'kkk.{50,150} ... k{50,150}' at byte 44",
    ),
    "a tensor twice": (
        replace_text(b'{"tensor_map":{"w":{},"w":{}},"usr_metadata":{}}'),
        "the document at byte 44: the key 'w' is repeated",
    ),
    "two maps of tensors": (
        replace_text(b'{"tensor_map":{},"tensor_map":{},"usr_metadata":{}}'),
        "the document at byte 44: the key 'tensor_map' is repeated",
    ),
    # stream
    "version of a stream": (
        patch(mf.make_stream(TENSORS), 4, "<I", 2),
        r"version, count of metadata and aux at byte 4: \(2, 0, 0\), expected 1, 0 and 0",
    ),
    "a shape of a stream": (
        patch(mf.make_stream(TENSORS), 36, "<q", 2),
        "the data at byte 278: 64 bytes, expected 48 bytes for all tensors",
    ),
    "marker THDR": (
        patch(mf.make_stream(TENSORS), 28, "4s", b"TXXX"),
        "the marker THDR at byte 28",
    ),
    "key length of a stream": (
        patch(mf.make_stream(TENSORS), 32, "<I", 65536),
        "tensor record 0 at byte 32: a key of 65536 bytes, .*, expected 1 to 65535 bytes",
    ),
    "rank 7": (patch(mf.make_stream(TENSORS), 84, "<I", 0x700), "rank 7 and dtype 0"),
    "dtype of a stream": (patch(mf.make_stream(TENSORS), 84, "<I", 0x204), "rank 2 and dtype 4"),
    "slot": (
        patch(mf.make_stream(TENSORS), 60, "<q", 2),
        r"tensor record 0 at byte 32: .* lengths \[3, 4, 1, 2, 1, 1\], .* then ones",
    ),
    "zero in a stream": (
        patch(mf.make_stream(TENSORS), 36, "<q", 0),
        r"lengths \[0, 4, 1, 1, 1, 1\], rank 2 .* lengths of 1 and more",
    ),
    "cut stream": (
        mf.make_stream(TENSORS)[:-1],
        "the data at byte 278: 63 bytes, expected 64 bytes",
    ),
}


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_files_raise_named_fault(content: bytes, message: str) -> None:
    with pytest.raises(TensorFormatError, match=message):
        load(content, format="mag")


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_errors_are_findings_at_the_same_offset(name: str) -> None:
    assert_finding_at_error(REFUSED[name][0], "mag")


def test_document_beyond_limit_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xr_tensorfmt.formats.mag.MAX_DOCUMENT_BYTES", 100)
    with pytest.raises(TensorFormatError, match=r"at byte 44: .* bytes, expected at most 100"):
        load(mf.make_document(TENSORS), format="mag")


def test_tensor_described_twice_raises() -> None:
    part = b'"w":{"shape":[],"dtype":"int8","dtype_id":6,"offset":%d,"nbytes":1}'
    content = replace_text(
        b'{"tensor_map":{' + part % 0 + b"," + part % 8 + b'},"usr_metadata":{}}'
    )
    with pytest.raises(TensorFormatError, match="the document at byte 44: the key 'w' is repeated"):
        load(content)


@pytest.mark.parametrize("dtype", ["int32", "float64", "", 0])
def test_dtype_must_agree_with_its_number(dtype: object) -> None:
    content = make_snapshot_300(dtype=dtype)
    message = re.escape(f"the dtype and dtype_id of 'w' at byte 44: ({dtype!r}, 0)")
    with pytest.raises(TensorFormatError, match=f"{message}.*expected 'float32'"):
        load(content)
    (finding,) = validate(content)
    assert finding.field == "the dtype and dtype_id of 'w'"


def test_corrupt_snapshot_is_no_empty_archive() -> None:
    content = bytearray(mf.make_snapshot({"w": put(np.arange(8, dtype=np.float32))}))
    content[16:20], content[60:64] = bytes(4), b"\xff" * 4
    with pytest.raises(TensorFormatError, match="tensor descriptor 0 at byte 57"):
        load(bytes(content), verify=False)


def test_longer_integers_open_once_python_may_read_them() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(6000)
    try:
        content = mf.make_document({}, {"n": 10**5000})
        assert load(content).attrs["n"] == 10**5000
    finally:
        sys.set_int_max_str_digits(before)


WHOLE = {
    "archive": mf.make_archive(TENSORS, {"n": 1, "x": 0.5}),
    "literal": mf.make_archive(TENSORS, {"n": 1}, records="literal", lengths="bytes"),
    "snapshot 100": mf.make_snapshot(TENSORS),
    "snapshot 200": mf.make_snapshot(TENSORS, version=200),
    "stream": mf.make_stream(TENSORS),
}


@pytest.mark.filterwarnings("ignore::xr_tensorfmt.TensorFormatWarning")
class TestDamage:
    @pytest.mark.slow
    @pytest.mark.parametrize("content", WHOLE.values(), ids=WHOLE)
    def test_truncated_files_open_or_raise(self, content: bytes) -> None:
        for stop in range(len(content)):
            try:
                dataset = load(content[:stop], format="mag")
            except TensorFormatError:
                continue
            # Archives end with meaningless bytes.
            np.testing.assert_array_equal(dataset["w"].values, WEIGHTS)

    @pytest.mark.parametrize("content", WHOLE.values(), ids=WHOLE)
    @given(offset=st.integers(0, 255), value=st.integers(0, 255))
    def test_changed_bytes_open_or_raise(self, content: bytes, offset: int, value: int) -> None:
        changed = bytearray(content)
        changed[offset % len(content)] = value
        with contextlib.suppress(TensorFormatError):
            load(bytes(changed), format="mag", verify=False)

    @given(offset=st.integers(0, 700), value=st.integers(0, 255))
    def test_changed_bytes_of_document_open_or_raise(self, offset: int, value: int) -> None:
        changed = bytearray(mf.make_document(TENSORS, {"n": [1, {"x": None}]}))
        changed[offset] = value
        with contextlib.suppress(TensorFormatError):
            load(bytes(changed), format="mag")


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        patch(mf.make_archive(TENSORS), 12, "<2I", 2**32 - 1, 2**32 - 1),
        patch(mf.make_snapshot(TENSORS), 28, "<I", 2**32 - 1),
        patch(mf.make_stream(TENSORS), 12, "<I", 2**32 - 1),
        replace_text(b'{"tensor_map":{' + b'"":{},' * 10**5 + b'"":{}},"usr_metadata":{}}'),
    ],
    ids=["archive", "snapshot", "stream", "document"],
)
def test_wrong_counts_are_refused_quickly(content: bytes) -> None:
    with (
        limit_memory(100 << 20),
        limit_calls(1_000_000),
        pytest.raises(TensorFormatError),
    ):
        load(content, format="mag")
