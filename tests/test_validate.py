"""Findings of `validate`, and their offsets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests import magfiles as mf
from tests import pycausetfiles as pf
from tests import tensfiles as tf
from tests import vespafiles as vf
from tests.commands import run
from tests.families import FILES
from tests.pycausetblocks import block_matrix
from xr_tensorfmt import Finding, SourceChangedError, validate, vespa
from xr_tensorfmt.cli.convert import convert
from xr_tensorfmt.cli.describe import info
from xr_tensorfmt.core.elements import Plain
from xr_tensorfmt.core.file_format import Container, Format, OpenOptions, Tensor
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import Dense

Places = list[tuple[str, int | None]]


def list_places(file: Any, **options: Any) -> Places:
    """Return the severity and the offset of each finding."""
    return [(finding.severity, finding.offset) for finding in validate(file, **options)]


def patch(content: bytes, offset: int, new: bytes) -> bytes:
    return content[:offset] + new + content[offset + len(new) :]


# Whole files


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_valid_files_have_no_findings(name: str) -> None:
    assert validate(FILES[name](), format=name.partition("-")[0]) == []


def test_real_files_have_expected_findings(conformance: Path) -> None:
    bad = {}
    for path in sorted(conformance.rglob("*")):
        if path.suffix in (".mag", ".pycauset", ".tens", ".bin", ".tbf"):
            findings = validate(path)
            if findings:
                bad[path.name] = {finding.severity for finding in findings}
    meant = {name for name, severities in bad.items() if "error" in severities}
    assert set(bad) == meant
    assert {name for name in meant if not name.startswith("bad_")} == {
        "a1-failed-write.mag",
        "r1_050_SymmetricMatrix_n004_untyped.pycauset",
    }
    assert len(meant) == 2 + len(list((conformance / "tens" / "spec_1.0").glob("bad_*.tens")))


def test_encodings_of_vespa_tests_are_valid(conformance: Path) -> None:
    lines = (conformance / "vespa" / "binary_format" / "test_spec.json").read_text().splitlines()
    for line in lines[:-1]:
        for digits in json.loads(line)["binary"]:
            content = bytes.fromhex(digits[2:])
            assert validate(content, format="vespa") == [], digits
            assert vespa.from_hex(digits) is not None


def test_file_is_named_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "a.mag"
    path.write_bytes(mf.make_document({"w": mf.put(np.ones(1, "f4"))}) + b"!")
    (finding,) = validate(path)
    assert (finding.path, finding.offset) == (str(path), 4100)
    assert str(finding).startswith(
        "error at byte 4100: the end of the data: 1 more bytes, expected"
    )


def test_missing_file_raises_instead_of_finding() -> None:
    with pytest.raises(FileNotFoundError):
        validate("missing.mag")


def test_file_that_changes_during_validation_raises(
    raw: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.raw"
    path.write_bytes(raw)

    def changing(
        format: Raw, reader: HeaderReader, container: Container, most: int
    ) -> Iterator[Finding]:
        path.write_bytes(raw + b"!")
        return iter(())

    monkeypatch.setattr(Raw, "check", changing)
    with pytest.raises(SourceChangedError):
        validate(path)


class Raw(Format):
    """A format of another package: bytes after a magic number."""

    name = "raw"
    title = "Raw"
    suffixes = (".raw",)
    magics = (b"RAW!",)

    def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
        layout, path = Dense((3,), Plain(np.dtype("u1")), 4), reader.source.name
        findings = (
            Finding(path, "the first byte", "as the reader sees it", offset=4, severity="warning"),
            Finding(path, "the second byte", "of the reader alone", offset=5, severity="warning"),
        )
        return Container((Tensor("tensor", ("x",), layout),), findings=findings)

    def check(self, reader: HeaderReader, container: Container, most: int) -> Iterator[Finding]:
        path = reader.source.name
        yield Finding(path, "the first byte", "as the check sees it", offset=4)
        yield Finding(path, "the magic number", "of the check alone", offset=4)


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setattr("xr_tensorfmt.formats.registry.BUILT_IN", (Raw(),))
    return b"RAW!\1\2\3"


def test_reader_and_check_report_one_finding_per_offset(raw: bytes) -> None:
    for findings in (validate(raw), validate(raw, format="raw")):
        assert [finding.message for finding in findings] == [
            "of the reader alone",
            "as the check sees it",
            "of the check alone",
        ]


def test_only_registered_formats_are_checked(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"format='tens' is not one of 'raw'"):
        validate(raw, format="tens")


def test_command_accepts_any_registered_format(
    raw: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in (info, convert):  # they list the formats when they are imported
        for parameter in command.params:
            if parameter.opts[0] in ("--from", "--to"):
                monkeypatch.setattr(parameter.type, "choices", ("raw", "zarr"))
    path = tmp_path / "a.bin"
    path.write_bytes(raw)
    output = run("info", "--from", "raw", str(path))
    assert output.stdout.startswith(f"{path}: Raw, 7 B\nVariables:\n")
    assert "tensor  uint8  3 B  (x: 3)" in output.stdout
    checked = run("validate", str(path))
    assert (checked.exit_code, checked.stdout.count("error at byte 4")) == (1, 2)
    refused = run("convert", str(path), "b", "--to", "tens")
    assert (refused.exit_code, "'tens' is not one of 'raw'" in refused.stderr) == (2, True)


# MAG


TENSORS = {"a": mf.put(np.ones(3, "f4")), "b": mf.put(np.ones(5, "f4"))}
ARCHIVE = mf.make_archive(TENSORS, {"epoch": 1})
SNAPSHOT = mf.make_snapshot(TENSORS, version=200)
DOCUMENT = mf.make_document(TENSORS)
TEXT_STOP = 44 + int.from_bytes(DOCUMENT[20:28], "little")


def test_bytes_after_data_of_document() -> None:
    assert list_places(DOCUMENT + b"\0") == [("error", len(DOCUMENT))]


def test_embedded_metadata_that_do_not_fit_warn() -> None:
    content = mf.make_document(
        TENSORS, {"xr_tensorfmt": {"version": 1, "tensors": {"a": {"dims": 3}}}}
    )
    (finding,) = validate(content)
    assert finding.severity == "warning"
    assert "do not fit the file" in finding.message


# TENS


VALUES = np.arange(9.0).reshape(3, 3)
SYMMETRIC = VALUES + VALUES.T


def test_dimension_headers_of_version_0_9_are_not_initialised() -> None:
    assert validate(tf.make_0_9(VALUES, tails=b"\x7f\x55\x56")) == []


def test_trailing_bytes_of_chunks() -> None:
    content = tf.make_1_0(np.ones(3, "f4"), tf.pack_symmetry("x", "a"))
    assert validate(content) == []
    assert list_places(content + bytes(8)) == [("error", len(content))]


def test_symmetries_that_are_not_packed_are_not_checked() -> None:
    for values, code in ((SYMMETRIC, "x"), (VALUES, "-x"), (np.ones((2, 3)), "conj")):
        assert validate(tf.make_1_0(values, tf.pack_symmetry(code, "ba"))) == []


def make_index_value(
    indices: list[int], values: list[float], *before: bytes, **fields: Any
) -> bytes:
    return tf.make_index_value((4, 4), indices, np.array(values), *before, **fields)


@pytest.mark.parametrize(
    ("indices", "wrong"),
    [
        ([3, 5, 9], []),
        ([9, 3, 5], []),
        ([3, 16, 5], [1]),
        ([2**64 - 1, 3, 17], [0, 2]),
        ([3, 3, 5], [1]),
        ([5, 3, 9, 5, 3], [3, 4]),
        ([5, 5, 5], [1, 2]),
        ([3, 99, 3], [1, 2]),
    ],
)
def test_pairs_out_of_range_or_twice(indices: list[int], wrong: list[int]) -> None:
    content = make_index_value(indices, [1.0] * len(indices))
    start = len(content) - 16 * len(indices)
    expected = [("error", start + 16 * number) for number in wrong]
    assert list_places(content, all=True) == expected[:1]
    assert list_places(content) == expected[:1]


def test_similar_findings_are_limited() -> None:
    content = vf.make_tensor("float", ["k"], {}, [("a",)] * 30, np.ones((30, 1), "f4"))
    assert len(validate(content, format="vespa")) == 1
    assert len(validate(content, format="vespa", all=True)) == 20


def test_bytes_after_pairs() -> None:
    content = make_index_value([3, 5], [1.0, 2.0])
    assert list_places(content + b"\0") == [("error", len(content))]


@pytest.mark.parametrize(
    ("code", "indices", "values", "wrong"),
    [
        # 1 and 4 are each other's images, 5 is its own.
        ("x", [1, 4], [2.0, 2.0], []),
        ("x", [1, 4], [2.0, 3.0], [0]),
        ("x", [4, 9, 1], [2.0, 1.0, 3.0], [0]),
        ("x", [1, 4], [float("nan")] * 2, []),
        ("-x", [1, 4], [2.0, -2.0], []),
        ("-x", [1, 4], [2.0, 2.0], [0]),
        ("-x", [9, 5], [1.0, 1.0], [1]),
        ("-x", [5], [1.0], [0]),
        ("-x", [5], [0.0], []),
    ],
)
def test_pairs_that_contradict_their_packing(
    code: str, indices: list[int], values: list[float], wrong: list[int]
) -> None:
    content = make_index_value(indices, values, tf.pack_symmetry(code, "ba", packed=True))
    start = len(content) - 16 * len(indices)
    assert list_places(content) == [("error", start + 16 * number) for number in wrong]


def test_smallest_integer_has_no_negative() -> None:
    content = tf.make_index_value(
        (4, 4), [1], np.array([-128], "i1"), tf.pack_symmetry("-x", "ba", packed=True)
    )
    (finding,) = validate(content)
    assert (
        "another value for an element than a related pair gives, or one without a neg"
        in finding.message
    )


def test_quaternion_pairs_are_compared_componentwise() -> None:
    values = np.arange(8.0).reshape(2, 4)
    content = tf.pack_header((3, 3), version=tf.V1_0, flags=1, numbers=4) + tf.pack_symmetry(
        "x", "ba", packed=True
    )
    content += tf.pack_pairs([1, 3], values)
    assert list_places(content) == [("error", len(content) - 2 * 40)]
    assert validate(content[:-40] + pack("<Q", 3) + values[0].tobytes()) == []


def test_many_elements_do_not_prevent_validation() -> None:
    assert validate(tf.make_index_value((1 << 15,) * 3, [5, 2], np.ones(2))) == []


# PyCauset


R1 = pf.r1(pf.make_metadata("DENSE_FLOAT", "FLOAT64", 3, 3), VALUES.tobytes())
META = 4096 + 80
NEW = pf.make_metadata("DENSE_FLOAT", "FLOAT64", 3, 3, seed=1)


def test_good_container_and_its_updates() -> None:
    once = pf.make_updated(R1, NEW)
    twice = pf.make_updated(once, NEW | {"seed": 2}, "A", 3)
    for content in (R1, once, twice):
        assert validate(content) == []


@pytest.mark.parametrize(
    ("offset", "new", "expected"),
    [
        (144, b"\7", [("error", 144)]),
        (16, b"\7", [("error", 16)]),
    ],
)
def test_slots_of_container(offset: int, new: bytes, expected: Places) -> None:
    assert list_places(patch(R1, offset, new)) == expected


def test_metadata_of_unused_slot() -> None:
    content = pf.make_updated(R1, NEW)
    assert list_places(patch(content, META + 40, b"!")) == [("error", META)]
    newest = content.rindex(b"PCMB")
    assert list_places(patch(content, newest + 40, b"!")) == [("error", newest)]


def test_metadata_of_earlier_generations_are_ignored() -> None:
    content = pf.make_updated(pf.make_updated(R1, NEW), NEW | {"seed": 2}, "A", 3)
    assert validate(patch(content, META + 40, b"!")) == []


def test_bytes_after_metadata() -> None:
    assert list_places(R1 + b"\0") == [("error", len(R1))]
    assert list_places(R1 + bytes(60)) == [("error", len(R1))]


def test_metadata_within_payload() -> None:
    keys = pf.make_metadata("DENSE_FLOAT", "FLOAT64", 3, 3)
    block = pf.block(keys)
    payload = bytearray(pf.block(keys).ljust(len(block) + 100, b"\0"))
    slots = pf.pack_slot(0, len(payload), 4096, len(block))
    full = pf.r1(
        pf.make_metadata("DENSE_FLOAT", "UINT8", 1, 1)
        | {"matrix_type": "VECTOR", "rows": len(payload)},
        bytes(payload),
    )
    assert ("error", 4096) in list_places(patch(full, 144, slots))


def test_headers_of_older_versions() -> None:
    content = pf.v2("DENSE", "FLOAT64", 3, 3, VALUES.tobytes())
    assert validate(content) == []
    assert list_places(content + b"\0") == [("error", len(content))]
    assert validate(pf.v2("IDENTITY", "FLOAT64", 3, 3, bytes(8))) == []


def test_checksums_of_archives() -> None:
    keys = {"rows": 3, "cols": 3, "matrix_type": "DENSE_FLOAT", "data_type": "FLOAT64"}
    content = pf.make_zip(keys, VALUES.tobytes(), ("cache.json", b"{}"))
    assert validate(content) == []
    data = content.index(b"data.bin") - 30
    assert list_places(patch(content, data + 40, b"!")) == [("error", data)]
    assert list_places(content.replace(b'"rows": 3', b'"rows": 2')) == [("error", 0)]


def test_archive_with_truncated_directory() -> None:
    keys = {"rows": 3, "cols": 3, "matrix_type": "DENSE_FLOAT", "data_type": "FLOAT64"}
    content = pf.make_zip(keys, VALUES.tobytes())
    assert validate(content[:-2] + b"\5\0hello") == []
    (finding,) = validate(content[:-1])
    assert (finding.severity, finding.field) == ("error", "the directory of the zip")


@pytest.mark.parametrize(
    "content",
    [
        pf.v2("IDENTITY", "FLOAT64", 10**8, 10**8, bytes(8)),
        pf.v2("DENSE", "BIT", 1 << 38, 0, b""),
        pf.r1(pf.make_metadata("IDENTITY", "FLOAT64", 10**8, 10**8)),
        pf.r1(pf.make_metadata("UNIT_VECTOR", "FLOAT64", 10**15, 1, active_index=3)),
    ],
)
def test_implied_elements_are_validated_quickly(content: bytes) -> None:
    # Filling in any of these would take hours.
    assert xr.open_dataset(content, engine="tensorfmt", format="pycauset", sparse="dense").sizes
    assert validate(content) == []


def test_files_of_blocks_are_checked(tmp_path: Path) -> None:
    path, _ = block_matrix(tmp_path)
    assert validate(path) == []
    child = tmp_path / "m.pycauset.blocks" / "a.pycauset"
    child.write_bytes(patch(child.read_bytes(), 16, b"\7"))
    (finding,) = validate(path)
    assert finding.path.endswith("a.pycauset")
    assert finding.offset == 16


# Vespa


def make_labelled(*addresses: tuple[bytes | str, ...], cells: int = 2) -> bytes:
    names = [f"d{number}" for number in range(len(addresses[0]))]
    return vf.make_tensor("float", names, {"x": cells}, addresses, np.ones((len(addresses), cells)))


def block(content: bytes, number: int, count: int) -> int:
    """Return the offset of a block with a label of one byte and two cells."""
    return len(content) - 10 * (count - number)


def test_labels_that_occur_twice() -> None:
    content = make_labelled(("a",), ("b",), ("a",), ("c",), ("b",), ("a",))
    findings = validate(content, format="vespa", all=True)
    assert [finding.offset for finding in findings] == [
        block(content, number, 6) for number in (2, 4, 5)
    ]
    assert validate(content, format="vespa") == findings[:1]
    assert {finding.severity for finding in findings} == {"warning"}
    assert findings[0].field == "the labels of block 2"
    assert findings[0].message.startswith("'a', which block 0 has too; both are kept")


def test_labels_of_several_dimensions_are_compared_together() -> None:
    content = make_labelled(("a", "b"), ("b", "a"), ("a", "a"))
    assert validate(content, format="vespa") == []
    content = make_labelled(("a", "b"), ("b", "a"), ("a", "b"))
    assert list_places(content, format="vespa") == [("warning", len(content) - 12)]


def test_labels_that_are_not_utf_8_become_surrogates() -> None:
    content = make_labelled((b"a",), (b"\xff",), (b"b",), (b"\xfe",))
    assert validate(content, format="vespa", all=True) == []
    ds = xr.open_dataset(memoryview(content), engine="tensorfmt", format="vespa")
    (labels,) = ds.coords.values()
    assert labels.values.tolist() == ["a", "\udcff", "b", "\udcfe"]


def test_bytes_after_tensor() -> None:
    content = make_labelled(("a",), ("a",))
    findings = list_places(content + b"!", format="vespa")
    assert findings == [("error", len(content)), ("warning", len(content) - 10)]


# All formats


DAMAGES: dict[str, Callable[[], tuple[bytes, str]]] = {
    "mag": lambda: (ARCHIVE, "mag"),
    "document": lambda: (DOCUMENT, "mag"),
    "tens": lambda: (tf.make_1_0(SYMMETRIC, tf.pack_symmetry("x", "ba")), "tens"),
    "pairs": lambda: (
        make_index_value([1, 4], [2.0, 2.0], tf.pack_symmetry("x", "ba", packed=True)),
        "tens",
    ),
    "r1": lambda: (R1, "pycauset"),
    "bits": lambda: (pf.r1(pf.make_metadata("DENSE_FLOAT", "BIT", 2, 70), bytes(128)), "pycauset"),
    "vespa": lambda: (make_labelled(("a",), ("b",)), "vespa"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGES)
def test_validate_never_raises_for_corrupt_files(name: str) -> None:
    content, family = DAMAGES[name]()
    for offset in range(0, len(content), max(1, len(content) // 150)):
        for byte in (1, 0x80, 0xFF):
            damaged = patch(content, offset, bytes([byte]))
            assert all(isinstance(finding, Finding) for finding in validate(damaged, format=family))
    for length in range(0, len(content), max(1, len(content) // 40)):
        # The reserve at the end of an archive may be of any length.
        assert validate(content[:length], format=family) or name == "mag"
