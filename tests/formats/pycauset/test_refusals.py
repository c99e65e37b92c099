"""Errors of invalid PyCauset files, which name the offset."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from tests import pycausetfiles as pf
from tests.findings import assert_finding_at_error
from tests.pycausetblocks import block_matrix, make_manifest, make_metadata
from xr_tensorfmt import TensorFormatError, TensorFormatWarning

VALUES = np.arange(9.0).reshape(3, 3)
GOOD_V2 = pf.v2("DENSE", "FLOAT64", 3, 3, VALUES.tobytes())
GOOD_R1 = pf.r1(pf.make_metadata("DENSE_FLOAT", "FLOAT64", 3, 3), VALUES.tobytes())


def load(content: bytes | Path, **options: Any) -> xr.Dataset:
    return xr.open_dataset(content, engine="tensorfmt", format="pycauset", **options).load()


def patch(content: bytes, offset: int, new: bytes) -> bytes:
    return content[:offset] + new + content[offset + len(new) :]


def make_container(payload: bytes = bytes(72), without: str = "", **changes: Any) -> bytes:
    """Return the container of a dense matrix, with some changed keys."""
    keys = pf.make_metadata("DENSE_FLOAT", "FLOAT64", 3, 3) | changes
    keys.pop(without, None)
    return pf.r1(keys, payload)


def replace_slots(first: bytes, second: bytes) -> bytes:
    return patch(patch(GOOD_R1, 16, first), 144, second)


def replace_block(raw: bytes) -> bytes:
    offset = 4096 + 80
    one = pf.pack_slot(1, 72, offset, len(raw))
    return patch(GOOD_R1[:offset], 16, one + one) + raw


def zip_entries(payload: bytes = bytes(72), **changes: Any) -> bytes:
    keys = {"rows": 3, "cols": 3, "matrix_type": "DENSE_FLOAT", "data_type": "FLOAT64"} | changes
    return pf.make_zip(keys, payload)


FACTS = pf.make_metadata("DENSE_FLOAT", "FLOAT64", 3, 3, seed=7)
BLOCK = pf.block(pf.make_metadata("DENSE_FLOAT", "FLOAT64", 3, 3))
ZIP_TEXT = b'{"rows": 3}'
DEEP = b"\x07\x01\x00\x00\x00" * 40 + b"\x01\x01"

REFUSED = {
    "empty": (b"", r"magic number at byte 0: b''"),
    "magic": (b"PYCAUSES" + bytes(5000), r"magic number at byte 0: b'PYCAUSES'"),
    "magic alone": (b"PYCAUSET", r"the version at byte 8: truncated"),
    "header cut off": (GOOD_V2[:4000], r"the header at byte 0: truncated by the end"),
    "container header cut off": (GOOD_R1[:4000], r"the header at byte 0: truncated by the end"),
    "version 3": (
        patch(GOOD_V2, 8, b"\3"),
        r"version at byte 8: 3, then bytes 04 00 00 00, expected 2, or 1 and then",
    ),
    "version 1, neither": (patch(GOOD_V2, 8, b"\1\0\0\0\x09"), r"1, then bytes 09 00 00 00"),
    "session store": (
        b"PYCAUSET\1" + bytes(200),
        r"the version at byte 8: 1, .*the backing store of a PyCauset session, .*pycauset\.save",
    ),
    "matrix type": (patch(GOOD_V2, 12, b"\7"), r"matrix type at byte 12: 7, expected 1 \(CAUSAL"),
    "data type": (patch(GOOD_V2, 16, b"\5"), r"data type at byte 16: 5, expected 1 \(BIT\)"),
    "pair of types": (
        pf.v2("CAUSAL", "FLOAT64", 3, 3, bytes(72)),
        r"data type of a CAUSAL matrix at byte 12: 'FLOAT64', expected one of BIT",
    ),
    "payload cut off": (
        GOOD_V2[:-1],
        r"payload of 3 x 3 DENSE_FLOAT values of type FLOAT64 at byte 4096: 71 bytes, expected 72",
    ),
    "triangle cut off": (
        pf.v2("CAUSAL", "BIT", 100, 100, bytes(1071)),
        r"payload of 100 x 100 CAUSAL values of type BIT at byte 4096: 1071 bytes, expected 1072",
    ),
    "not square": (
        pf.v2("CAUSAL", "BIT", 3, 4, bytes(72)),
        r"shape of a CAUSAL at byte 12: 3 rows and 4 columns, expected a square matrix",
    ),
    "vector of two columns": (
        pf.v2("VECTOR", "BIT", 3, 2, bytes(72)),
        r"shape of a VECTOR .*expected one dimension",
    ),
    "larger than any memory": (
        pf.v2("IDENTITY", "FLOAT64", 2**62, 2**62, b""),
        r"of the tensor at byte 12: 16 bytes for each element of shape .*, expected at most 461168",
    ),
    "a length of 0 beside a large one": (
        pf.v2("DENSE", "FLOAT64", 2**63, 0, b""),
        r"of the tensor at byte 12",
    ),
    "large triangle in a small file": (
        pf.v2("CAUSAL", "BIT", 2**28, 2**28, bytes(8)),
        r"CAUSAL values of type BIT at byte 4096: 8 bytes, expected 4503600667557888 bytes",
    ),
    "type 2 of no known size": (
        pf.v2("INTEGER", "INT32", 5, 5, bytes(44)),
        r"payload of 5 x 5 TRIANGULAR_INTEGER .* at byte 4096: 44 bytes, expected 48 bytes",
    ),
    "both slots damaged": (
        replace_slots(bytes(128), patch(pf.pack_slot(1, 72, 4176, 9), 0, b"\2")),
        r"slot A at byte 16: checksum 0x00000000, expected 0x.* as computed",
    ),
    "payload offset": (
        replace_slots(*[pf.pack_slot(1, 72, 4176, 9, offset=4100)] * 2),
        r"payload offset 4100, .*, expected multiples of 4096",
    ),
    "metadata offset": (
        replace_slots(*[pf.pack_slot(1, 72, 4177, 9)] * 2),
        r"metadata offset 4177, .* expected multiples of 4096 and 16",
    ),
    "slot past the end": (
        replace_slots(*[pf.pack_slot(1, 72, 4176, 2**63)] * 2),
        r"ranges up to byte 9223372036854779984, expected .*, up to \d{4}",
    ),
    "metadata magic": (
        replace_block(b"PCMX" + BLOCK[4:]),
        r"metadata block of slot A at byte 4176: b'PCMX', .*, expected b'PCMB'",
    ),
    "metadata version": (
        replace_block(patch(BLOCK, 4, b"\2")),
        r": b'PCMB', versions \[2, 1\] .*, expected b'PCMB', versions \[1, 1\]",
    ),
    "metadata checksum": (replace_block(patch(BLOCK, 40, b"!")), r": checksum 0x.* as computed"),
    "metadata length": (
        replace_block(patch(BLOCK, 16, struct.pack("<Q", 2**40))),
        r"a map of 1099511627776 bytes, expected .* at most",
    ),
    "metadata too short": (
        replace_block(b"PCMB"),
        r": 4 bytes, expected from 32 to 67108864 bytes",
    ),
    "no map": (
        replace_block(pf.block(b"\1\1")),
        r"the metadata at byte 4209: a value of type bool up to byte 4210, expected a map",
    ),
    "more than a map": (
        replace_block(pf.block(pf.encode({}) + b"\0")),
        r"the metadata at byte .*: a value of type dict up to byte 4213, expected .* byte 4214",
    ),
    "unknown tag": (
        replace_block(pf.block(b"\x09")),
        r"a value of type 9, expected 1 to 8",
    ),
    "empty map": (
        replace_block(pf.block(b"")),
        r"the metadata at byte 4208: truncated",
    ),
    "many entries": (
        replace_block(pf.block(b"\x08\xff\xff\xff\xff")),
        r"a length of 4294967295, expected at most 0",
    ),
    "no text": (
        replace_block(pf.block(b"\x08\1\0\0\0\1\0\xff\1\1")),
        r"b'\\xff', expected UTF-8",
    ),
    "deep": (
        replace_block(pf.block(DEEP)),
        r"more values or levels, expected at most 524288 values in 32 levels",
    ),
    "a key twice": (
        replace_block(pf.block(pf.encode(FACTS).replace(b"\4\0seed", b"\4\0rows"))),
        r"metadata at byte \d+: the key 'rows' twice, expected unique keys",
    ),
    "a key twice in a map within": (
        replace_block(
            pf.block(pf.encode(FACTS | {"view": {"a": 1, "b": 2}}).replace(b"\1\0b", b"\1\0a"))
        ),
        r"metadata at byte \d+: the key 'a' twice, expected unique keys",
    ),
    "no type": (
        make_container(without="matrix_type"),
        r"metadata.matrix_type at byte 4176: no such key, .*fetch it again",
    ),
    "no data type": (make_container(without="data_type"), r"metadata.data_type .*no such key"),
    "no uuid": (make_container(without="payload_uuid"), r"metadata.payload_uuid .*no such key"),
    "rows of another type": (
        make_container(rows=3.0),
        r"metadata.rows .*3\.0, expected an integer",
    ),
    "rows that are a bool": (
        make_container(rows=True),
        r"metadata.rows .*True, expected an integer",
    ),
    "rows below 0": (
        make_container(rows=-3),
        r"metadata.rows .*-3, expected a non-negative integer",
    ),
    "unknown matrix type": (
        make_container(matrix_type="SPARSE"),
        r"matrix type .*'SPARSE', expected one",
    ),
    "unknown data type": (
        make_container(data_type="MIXED"),
        r"data type of a DENSE_FLOAT matrix .*'MIXED', expected one of BIT",
    ),
    "scalar": (
        make_container(view={"scalar": {"real": 1.0}}),
        r"scalar at .*a number, or its real",
    ),
    "payload into metadata": (
        make_container(rows=4),
        r"payload of 4 x 3 DENSE_FLOAT values of type FLOAT64 at byte 4096: 80 bytes, expected 96",
    ),
    "active index": (
        pf.r1(pf.make_metadata("UNIT_VECTOR", "FLOAT64", 3, 1, seed=3)),
        r"shape of a UNIT_VECTOR .*more rows than the active index 3",
    ),
    "other zip": (
        pf.pack_archive(pf.pack_entry("a.txt", b"x")),
        r"'metadata.json' at byte 0: missing among 'a.txt'",
    ),
    "zip without data": (
        pf.pack_archive(pf.pack_entry("metadata.json", ZIP_TEXT)),
        r"the entry 'data.bin' at byte 0: missing among 'metadata.json'",
    ),
    "compressed": (
        pf.pack_archive(pf.pack_entry("metadata.json", ZIP_TEXT, method=8)),
        r"the entry 'metadata.json' at byte 0: compressed, .*unzip 'matrix.bin'",
    ),
    "zip cut off": (
        zip_entries().partition(b"PK\1\2")[0][:-1],
        r"the directory of the zip at byte 0: not readable \(File is not a zip file\)",
    ),
    "zip entry that ends behind the file": (
        zip_entries().replace(struct.pack("<2I", 72, 72), struct.pack("<2I", 999, 999)),
        r"the entry 'data.bin' at byte \d+: 999 bytes from byte \d+ on, expected .* end within",
    ),
    "zip entry without a header": (
        zip_entries().replace(b"PK\3\4", b"PK\3\5").replace(b"PK\3\5", b"PK\3\4", 1),
        r"the entry 'data.bin' at byte \d+: .*, expected a header",
    ),
    "zip payload too short": (
        zip_entries(bytes(71)),
        r"payload of 3 x 3 .*: 71 bytes, expected 72",
    ),
    "zip entry twice": (
        pf.make_zip({}, bytes(72), ("data.bin", bytes(72))),
        r"the directory of the zip at byte \d+: 'data.bin' twice, expected each name once",
    ),
    "zip metadata with a key twice": (
        zip_entries(seed=1).replace(b'"seed"', b'"rows"'),
        "metadata.json at byte 43: the key 'rows' is repeated",
    ),
    "zip metadata with a key twice within": (
        zip_entries(view={"a": 1, "b": 2}).replace(b'"b"', b'"a"'),
        "metadata.json at byte 43: the key 'a' is repeated",
    ),
    "zip text": (
        pf.make_zip(b"[", b""),
        r"metadata.json at byte 44: Expecting value: '', expected a JSON object",
    ),
    "zip list": (pf.make_zip(b"[1]", b""), "metadata.json at byte 43: a list, expected a JSON obj"),
    "zip deep": (
        pf.make_zip(b"[" * 10**6, b""),
        "metadata.json at byte 43: lists or objects that a",
    ),
    "zip metadata too large": (
        pf.make_zip(bytes((1 << 20) + 1), b""),
        r": 1048577 bytes, expected at",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_error_messages(name: str) -> None:
    content, message = REFUSED[name]
    with pytest.raises(TensorFormatError, match=message) as caught:
        load(content)
    assert caught.value.offset is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_errors_are_findings_at_the_same_offset(name: str) -> None:
    assert_finding_at_error(REFUSED[name][0], "pycauset")


BLOCKS = {
    "separator": (lambda m: m["children"][0][0].update(path="../a.pycauset"), "a bare file name"),
    "backslash": (lambda m: m["children"][0][0].update(path="x\\a"), "a bare file name"),
    "drive": (lambda m: m["children"][0][0].update(path="C:a"), "a bare file name"),
    "directory above": (lambda m: m["children"][0][0].update(path=".."), "a bare file name"),
    "no name": (lambda m: m["children"][0][0].update(path=""), "a bare file name"),
    "no map": (lambda m: m["children"][0].__setitem__(0, 3), "path at byte .*no such key"),
    "other block": (
        lambda m: m["children"][0][0].update(payload_uuid="z"),
        "payload_uuid.*'a'|a, ",
    ),
    "version": (lambda m: m.update(version=2), r"manifest.version at byte \d+: 2, expected 1"),
    "edges": (lambda m: m.update(row_partitions=[0, 4]), "integers that ascend from 0 to 5"),
    "edges that fall": (
        lambda m: m.update(col_partitions=[0, 5, 4]),
        "integers that ascend from 0 to 4",
    ),
    "edges of text": (
        lambda m: m.update(col_partitions=["0", 4]),
        "integers that ascend from 0 to 4",
    ),
    "grid": (lambda m: m.update(children=[]), "another grid, expected 1 x 2 blocks"),
    "shape": (
        lambda m: m.update(col_partitions=[0, 2, 4]),
        r"the shape of a block at byte \d+: \('a', \(5, 3\)\), expected \('a', \(5, 2\)\) as in",
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_block_errors(name: str, tmp_path: Path) -> None:
    path, _ = block_matrix(tmp_path)
    change, message = BLOCKS[name]
    keys = make_manifest([0, 5], [0, 3, 4], [["a", "c"]], "m")
    change(keys["block_manifest"])  # type: ignore[no-untyped-call]
    path.write_bytes(pf.r1(keys))
    with pytest.raises(TensorFormatError, match=message):
        load(path)


def test_block_that_is_missing_is_named(tmp_path: Path) -> None:
    path, _ = block_matrix(tmp_path)
    (tmp_path / "m.pycauset.blocks" / "a.pycauset").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"no such file; it is a block of .*m\.pycauset, so fetch"
    ) as caught:
        load(path)
    assert caught.value.filename == str(tmp_path / "m.pycauset.blocks" / "a.pycauset")


def test_blocks_without_directory_raise(tmp_path: Path) -> None:
    path, _ = block_matrix(tmp_path)
    with pytest.raises(ValueError, match=r"no directory .*; open it by its path or URL"):
        load(path.read_bytes())


def test_recursive_blocks_raise(tmp_path: Path) -> None:
    directory = tmp_path
    for _ in range(10):
        (directory / "a.pycauset").write_bytes(pf.r1(make_manifest([0, 1], [0, 1], [["a"]], "a")))
        directory = directory / "a.pycauset.blocks"
        directory.mkdir()
    with pytest.raises(TensorFormatError, match="more than 8 levels"):
        load(tmp_path / "a.pycauset")


def test_number_of_blocks_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = block_matrix(tmp_path)
    monkeypatch.setattr("xr_tensorfmt.formats.pycauset.read.MAX_BLOCKS", 2)
    with pytest.raises(TensorFormatError, match="more than 2, or"):
        load(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("r1_050_SymmetricMatrix_n004_untyped.pycauset", "matrix_type at byte"),
        ("r1_061_backing_store_FloatMatrix_3x5.tmp", "the backing store"),
    ],
)
def test_real_files_without_description(name: str, message: str, conformance: Path) -> None:
    with pytest.raises(TensorFormatError, match=message):
        load(conformance / "pycauset" / "unreadable" / name)


SEEDS = [GOOD_V2, GOOD_R1, pf.v2("CAUSAL", "BIT", 70, 70, bytes(8 * 75)), zip_entries(),
         pf.r1(make_metadata("SYMMETRIC", "FLOAT64", 4, 4, "u"), bytes(80))]  # fmt: skip


@given(st.sampled_from(SEEDS), st.data())
def test_corrupt_bytes_open_or_raise(seed: bytes, data: st.DataObject) -> None:
    content = bytearray(seed)
    for _ in range(data.draw(st.integers(1, 4))):
        offset = data.draw(st.integers(0, min(300, len(content)) - 1))
        content[offset] = data.draw(st.sampled_from([0, 1, 2, 3, 127, 128, 255]))
    length = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    try:
        lazy = xr.open_dataset(bytes(content[:length]), engine="tensorfmt", format="pycauset")
        if lazy.tensor.size < 1 << 20:
            lazy.load()
    except (TensorFormatError, TensorFormatWarning):
        pass  # the warning says that a slot fell back to the other
