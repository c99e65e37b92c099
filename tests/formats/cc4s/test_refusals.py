"""Errors of invalid cc4s files, which name the file and the key."""

from __future__ import annotations

import os
import random
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests import cc4sfiles as cf
from tests.opening import open_lazily
from tests.paths import DATA as ALL_DATA
from tests.recording import HollowSource
from xr_tensorfmt import TensorFormatError, validate
from xr_tensorfmt.core.file_format import OpenOptions
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.formats.cc4s import read as reading
from xr_tensorfmt.formats.cc4s import yaml_text
from xr_tensorfmt.formats.cc4s.yaml_text import get_list, parse_fields

DATA = ALL_DATA / "cc4s"


def load(path: Path, **options: Any) -> xr.Dataset:
    return xr.open_dataset(path, engine="tensorfmt", format="cc4s", **options).load()


def save(directory: Path) -> Path:
    """Return the YAML of a valid tensor with two dimensions."""
    return cf.save(directory, "a", cf.make_values((3, 2)), ["State", "State"])


def edit(key: str, value: str) -> Callable[[str], str]:
    """Replace the value of a top-level key, or remove its line."""

    def change(content: str) -> str:
        lines = content.splitlines(keepends=True)
        (offset,) = [number for number, item in enumerate(lines) if item.startswith(f"{key}:")]
        lines[offset : offset + 1] = [f"{key}: {value}\n"] if value else []
        return "".join(lines)

    return change


def swap(old: str, new: str) -> Callable[[str], str]:
    return lambda content: content.replace(old, new, 1)


def add(content: str) -> Callable[[str], str]:
    return lambda before: before + content


def redim(value: str) -> Callable[[str], str]:
    """Replace the dimensions."""

    def change(content: str) -> str:
        head, _, tail = content.partition("dimensions:")
        return f"{head}dimensions: {value}\nelements:{tail.partition('elements:')[2]}"

    return change


REFUSED: dict[str, tuple[Callable[[str], str], str]] = {
    "no version": (edit("version", ""), "version: None, expected 100; another program or"),
    "another version": (edit("version", "101"), "version: 101, expected 100"),
    "the version as a str": (edit("version", "'100'"), "version: '100', expected 100"),
    "the older form": (edit("version", "v1.0"), "'v1.0', expected 100; .*numpy.fromfile.*to_file"),
    "no type": (edit("type", ""), "type: no such key, expected a str; correct"),
    "another type": (edit("type", "Matrix"), "type: 'Matrix', expected Tensor or TensorSet"),
    "the type as a list": (edit("type", "[Tensor]"), r"type: \['Tensor'\], expected a str"),
    "a set without components": (edit("type", "TensorSet"), "components: no such key"),
    "no scalar type": (edit("scalarType", ""), "scalarType: no such key"),
    "float32": (edit("scalarType", "Real32"), "'Real32', expected Real64 or Complex64; cc4s"),
    "no unit": (edit("unit", ""), "unit: no such key, expected a number; correct"),
    "a unit in words": (edit("unit", "eV"), "unit: 'eV', expected a number"),
    "a truth value as unit": (edit("unit", "true"), "unit: True, expected a number"),
    "an infinite unit": (edit("unit", ".inf"), "unit: inf, expected a finite number"),
    "a unit of no size": (edit("unit", ".nan"), "unit: nan, expected a finite number"),
    "no elements": (swap("elements:\n  type: IeeeBinaryFile\n", ""), "elements: no such key"),
    "elements of no type": (swap("  type: IeeeBinaryFile\n", ""), "elements: None, expected a map"),
    "elements elsewhere": (swap("IeeeBinaryFile", "Hdf5"), r"elements\.type: 'Hdf5', expected I"),
    "no dimensions": (redim(""), "dimensions: None, expected a list"),
    "dimensions as a str": (redim("ab"), "dimensions: 'ab', expected a list"),
    "a dimension without length": (redim("[{type: A}]"), r"dimensions\.0\.length: no such key"),
    "a dimension as a number": (redim("[3]"), r"dimensions\.0: 3, expected a mapping"),
    "a length in words": (redim("[{length: x}]"), r"dimensions\.0\.length: 'x', expected an int"),
    "half a length": (redim("[{length: 1.5}]"), "1.5, expected an integer"),
    "a true length": (redim("[{length: true}]"), "True, expected an integer"),
    "a negative length": (redim("[{length: -3}]"), r"dimensions\.0\.length: -3, expected 0 or"),
    "a length of 20 digits": (redim("[{length: 99999999999999999999}]"), "1e.20, expected an inte"),
    "a huge length": (redim("[{length: 4611686018427387904}]"), "of the tensor at byte 0: 8 b"),
    "huge lengths": (
        redim("[{length: 4294967296}, {length: 4294967296}]"),
        "bytes for each element of shape",
    ),
    "huge lengths beside an empty one": (
        redim("[{length: 0}, {length: 4294967296}, {length: 4294967296}]"),
        "bytes for each element of shape",
    ),
    "too long for the elements": (redim("[{length: 7}]"), r"a\.elements: the elements at byte 48"),
    "a huge rank": (
        redim(f"[{', '.join(['{length: 1}'] * 32)}]"),
        "dimensions: 32, expected at most 31 dimensions",
    ),
    "keys that miss 0": (redim("{1: {length: 1}}"), r"dimensions: the keys 1, expected 0, 1, 2,"),
    "keys that are words": (redim("{a: {length: 1}}"), r"the keys a, expected 0, 1, 2"),
    "keys that are floats": (redim("{0.5: {length: 1}}"), r"the keys 0\.5, expected 0"),
    "keys that are infinite": (redim("{.inf: {length: 1}}"), "the keys inf, expected 0"),
    "keys that are truths": (redim("{false: {length: 1}}"), "the keys False, expected 0"),
    "keys that are nothing": (redim("{~: {length: 1}}"), "the keys None, expected 0"),
    "a Python tag": (
        edit("unit", "!!python/name:os.system 1"),
        "unit at byte 158: the tag .*os.system, expected a value without a tag",
    ),
    "a tag among the metadata": (
        add("metaData: {a: !x 1}\n"),
        r"metaData\.a at byte 174: the tag !x, expected a value without a tag",
    ),
    "metadata as a list": (add("metaData: [1]\n"), r"metaData: \[1\], expected a mapping"),
    "no mapping": (lambda _: "[1, 2]\n", r"the file: \[1, 2\], expected a mapping"),
    "nothing": (lambda _: "", "the file: None, expected a mapping"),
    "no YAML": (add("]\n"), r"a\.yaml: the YAML at byte 160: did not find expected key.*corrupt"),
    "tabs": (swap("  type:", "\ttype:"), "the YAML at byte 74: found a tab"),
    "NUL": (add("# \0\n"), "the YAML at byte 162: control characters are not allowed"),
    "an alias": (add("a: &x [1]\nb: *x\n"), "b at byte 173: an alias, expected plain values"),
    "an alias in a list": (add("a: [[1],&x [1],*x]\n"), "an alias, expected"),
    "an alias of a key": (add("? &x a\n: *x\n"), "an alias, expected"),
    "an alias after a tag": (add("a: !!text &x 1\nb: *x\n"), "an alias, expected"),
    "an alias of everything": (lambda _: "&x {a: *x}\n", "an alias, expected"),
    "an alias after a byte order mark": (lambda _: "\ufeff&x {a: *x}\n", "an alias, expected"),
    "an alias of nothing": (add("a: *x\n"), "byte 163: an alias, expected"),
    "lists in lists in a line": (add("a: " + "[" * 100 + "]" * 100), "nested deeply"),
    "too many lists in lists": (add("a: " + "[" * 10**6), "exceeded maximum nesting|nested deeply"),
    "lists by dashes": (add("a:\n " + "- " * 10**5 + "1\n"), "nested deeply"),
    "few lists by dashes": (add("a:\n " + "- " * 70 + "1\n"), "at most 40 within each other"),
    "keys of keys": (add("? " * 10 + "1\n"), "a list or mapping as a key"),
    "lists by indentation": (
        add("a:\n" + "".join(f"{' ' * depth}-\n" for depth in range(3000))),
        "nested deeply",
    ),
    "two units": (
        add("unit: 27.2\n"),
        "a.yaml: unit at byte 160: this key twice, expected each key once",
    ),
    "two units in a line": (
        add("metaData: {a: [{b: 1, 'b': 2}]}\n"),
        r"metaData\.a\.b at byte 182: this key",
    ),
    "two equal lengths": (
        swap("- length:", "- length: 3\n  length:"),
        r"dimensions\.length at byte 71: this key",
    ),
    "two keys as numbers": (
        add("metaData:\n  energies:\n    1: 2\n    1: 3\n"),
        r"s\.1 at byte 195: th",
    ),
    "two keys after lists": (
        add("m:\n  a: [1,\n    2]\n  b:\n  - 1\n  - - 2\n  a: 1\n"),
        r"m\.a at byte 200: this",
    ),
    "a control character": (
        add("a: \x80\n"),
        "byte 163: control characters are not allowed, expected valid YAML",
    ),
    "conditions of no form": (add("nonZeroCondition: 3\n"), "nonZeroCondition: 3, expected a map"),
    "conditions without all": (add("nonZeroCondition: {}\n"), r"nonZeroCondition\.all: no such"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_yaml(tmp_path: Path, change: Callable[[str], str], message: str) -> None:
    path = save(tmp_path)
    path.write_bytes(change(path.read_text()).encode())
    with pytest.raises(TensorFormatError, match=message) as caught:
        load(path)
    assert str(tmp_path) in str(caught.value)
    assert [finding.severity for finding in validate(path, format="cc4s")] == ["error"]


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = save(tmp_path)
    path.write_bytes(path.read_bytes() + b"# caf\xe9\n")
    with pytest.raises(TensorFormatError, match=r"'utf-8' codec can't decode byte 0xe9.*UTF-8"):
        load(path)


def condition(value: str) -> str:
    return f"nonZeroCondition:\n  all:\n  - {value}\n"


ONE = "properties: [{property: P, dimension: 0}]"

CONDITIONS = {
    "no properties": ("nonZeros: []", r"all\.0\.properties: no such key"),
    "no tuples": (f"{{{ONE}}}", r"all\.0\.nonZeros: no such key"),
    "a dimension beyond the last": (
        "{properties: [{property: P, dimension: 2}], nonZeros: []}",
        r"all\.0\.properties\.0\.dimension: 2, expected 0 to 1",
    ),
    "a negative dimension": (
        "{properties: [{property: P, dimension: -1}], nonZeros: []}",
        r"dimension: -1, expected 0 to 1",
    ),
    "tuples of another length": (
        f"{{{ONE}, nonZeros: [[0, 1]]}}",
        r"nonZeros: \[0, 1\], expected lists of 1, one for",
    ),
    "tuples of several lengths": (
        f"{{{ONE}, nonZeros: [[0], [1, 2]]}}",
        r"nonZeros: \[1, 2\], expected lists of 1",
    ),
    "words": (f"{{{ONE}, nonZeros: [[a]]}}", "nonZeros: 'a', expected integers of at most"),
    "large numbers": (
        f"{{{ONE}, nonZeros: [[9999999999999999999]]}}",
        "nonZeros: 1e.19, expected in",
    ),
    "a block twice": (f"{{{ONE}, nonZeros: [[0], [0]]}}", "a block twice, expected different"),
    "an unknown property": (
        "{properties: [{property: R, dimension: 1}], nonZeros: [[0], [1]]}",
        r"the property 'R' of dimension 1, which is missing, expected .* for 2 indices in B\.yaml",
    ),
    "a property of another length": (
        "{properties: [{property: Q, dimension: 0}], nonZeros: [[0]]}",
        "the property 'Q' of dimension 0, which is given for 2 indices, expected .* for 3",
    ),
}


@pytest.mark.parametrize(("value", "message"), CONDITIONS.values(), ids=CONDITIONS)
@pytest.mark.filterwarnings("ignore:.*expected 3 as the dim:xr_tensorfmt.TensorFormatWarning")
def test_bad_conditions(tmp_path: Path, value: str, message: str) -> None:
    properties = {"P": [0, 1, 1], "Q": [0, 1]}
    (tmp_path / "A.yaml").write_text(cf.format_properties("A", properties))
    (tmp_path / "B.yaml").write_text(cf.format_properties("B", {"P": [0, 1]}))
    path = cf.save(tmp_path, "a", cf.make_values((3, 2)), ["A", "B"], more=condition(value))
    with pytest.raises(TensorFormatError, match=message) as caught:
        load(path)
    assert "a.yaml: nonZeroCondition" in str(caught.value)


def test_more_blocks_than_limit(tmp_path: Path) -> None:
    tuples = ", ".join(f"[{number}]" for number in range(1000))
    other = "{properties: [{property: P, dimension: 1}], nonZeros: [" + tuples + "]}"
    value = f"{{{ONE}, nonZeros: [{tuples}]}}\n" + f"  - {other}\n" * 4
    path = cf.save(tmp_path, "a", cf.make_values((3, 2)), ["A", "A"], more=condition(value))
    with pytest.raises(TensorFormatError, match=r"1000000000000000 blocks, expected at most"):
        load(path)


def test_blocks_of_tensor_with_too_long_dimensions(tmp_path: Path) -> None:
    (tmp_path / "A.yaml").write_text(cf.format_properties("A", {"P": [0]}))
    more = condition(f"{{{ONE}, nonZeros: [[1]]}}")
    path = cf.save(tmp_path, "a", np.zeros(0), ["A"])
    path.write_text(cf.format_yaml((1, 1 << 40), ["A", "B"], more=more))
    with pytest.raises(TensorFormatError, match="expected lengths up to 16777216"):
        load(path)


def test_blocks_that_need_more_elements_than_there_are(tmp_path: Path) -> None:
    path, _ = cf.save_blocks(
        tmp_path, cf.make_values((4,)), ["A"], {"A": {"P": [0, 1, 0, 1]}}, [([("P", 0)], [(1,)])]
    )
    (tmp_path / "Blocks.elements").write_bytes(bytes(15))
    with pytest.raises(TensorFormatError, match=r"Blocks\.elements: the elements.*15 bytes, expec"):
        load(path)


TEXTS = {
    "a word": (b"1\n2\nx\n4\n5\n6\n", "a line of the elements at byte 4: b'x', expected one value"),
    "two numbers and a word": (
        b"1 2\n3\n4\nx\n6\n",
        "at byte 8: b'x', expected one value, a num",
    ),
    "a complex value": (b"(1,2)\n" * 6, r"at byte 0: b'\(1,2\)', expected one value, a number"),
    "too few": (b"1\n2\n3\n4\n5\n  ", r"5 values, expected 6 for a tensor of shape \(3, 2\)"),
    "too many": (b"1\n" * 7, "at byte 0: 7 values, expected 6"),
    "nothing": (b"", "0 bytes, expected 11 for Real64"),
    "blanks": (b" \n" * 20, "0 values, expected 6"),
    "bytes": (np.arange(6.0).tobytes(), "values, expected 6|a line of the elements"),
    "digits grouped as in Python": (b"1_0\n" * 6, "at byte 0: b'1_0'"),
    "an exponent of Fortran": (b"1.0D+00\n" * 6, "b'1.0D.00', expected one value"),
    "a number in hexadecimal": (b"0x1p3\n" * 6, "b'0x1p3'"),
}


@pytest.mark.parametrize(("content", "message"), TEXTS.values(), ids=TEXTS)
def test_bad_texts(tmp_path: Path, content: bytes, message: str) -> None:
    path = cf.save(tmp_path, "a", cf.make_values((3, 2)), elements=cf.TEXT)
    (tmp_path / "a.elements").write_bytes(content)
    with pytest.raises(TensorFormatError, match=message) as caught:
        load(path)
    assert "a.elements" in str(caught.value)
    assert "YAML file" in caught.value.hint
    assert [finding.severity for finding in validate(path)] == ["error"]


COMPLEX_TEXTS = {
    "real values": (b"1\n2\n", r"at byte 0: b'1', expected one value, \(re,im\)"),
    "one part": (b"(1)\n(2)\n", r"at byte 0: b'\(1\)', expected one value, \(re,im\)"),
    "three parts": (b"(1,2)\n(1,2,3)\n", r"at byte 6: b'\(1,2,3\)'"),
    "no end": (b"(1,2)\n(1,2\n", r"at byte 6: b'\(1,2'"),
    "a word": (b"(1,2)\n(1,i)\n", r"at byte 6: b'\(1,i\)'"),
    "numbers outside of the parentheses": (b"0.0(,-0.0)\n(1,2)\n", r"at byte 0: b'0\.0\(,-0\.0\)'"),
    "parentheses turned around": (b")1.0,-1.0(\n(1,2)\n", r"at byte 0: b'\)1\.0,-1\.0\('"),
    "a value on two lines": (b"(1,2)\n(1,\n2)\n", r"at byte 6: b'\(1,'"),
    "parentheses in parentheses": (b"(1,2)\n((1,2))\n", r"at byte 6: b'\(\(1,2\)\)'"),
    "a word before the first": (b"x\n(1,2)\n(1,2)\n", r"at byte 0: b'x'"),
    "a word after the last": (b"(1,2)\n(1,2)\nx\n", r"at byte 12: b'x'"),
}


@pytest.mark.parametrize(("content", "message"), COMPLEX_TEXTS.values(), ids=COMPLEX_TEXTS)
def test_bad_complex_texts(tmp_path: Path, content: bytes, message: str) -> None:
    path = cf.save(tmp_path, "a", np.zeros(2, complex), elements=cf.TEXT)
    (tmp_path / "a.elements").write_bytes(content)
    with pytest.raises(TensorFormatError, match=message):
        load(path)


@pytest.mark.slow
@pytest.mark.parametrize("is_complex", [False, True])
def test_much_white_space_before_values(tmp_path: Path, is_complex: bool) -> None:
    values = np.ones(3, complex if is_complex else float)
    path = cf.save(tmp_path, "a", values, elements=cf.TEXT)
    content = b" " * (5 << 20) + b"\n" + cf.format_text(values) + b" " * (5 << 20)
    (tmp_path / "a.elements").write_bytes(content)
    np.testing.assert_array_equal(load(path).a.values, values)


@pytest.mark.slow
@pytest.mark.parametrize("is_complex", [False, True])
def test_value_of_any_length_is_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_complex: bool
) -> None:
    monkeypatch.setattr("xr_tensorfmt.core.gathered.PIECE_BYTES", 40)
    values = np.ones(9, complex if is_complex else float)
    path = cf.save(tmp_path, "a", values, elements=cf.TEXT)
    for digits in range(1, 80):
        number = b"1." + b"0" * digits + b"5"
        short, word = (b"(1,2)", b"(1," + number + b")") if is_complex else (b"1", number)
        (tmp_path / "a.elements").write_bytes(b"\n".join([short] * 5 + [word] + [short] * 3))
        actual = open_lazily(path, format="cc4s").a[5].values
        assert (actual.imag if is_complex else actual) == float(number)


@pytest.mark.slow
def test_one_enormous_word_needs_little_memory(tmp_path: Path) -> None:
    path = cf.save(tmp_path, "a", np.zeros(100_001), elements=cf.TEXT)
    # An array of strings of that length would take 300 GB.
    (tmp_path / "a.elements").write_bytes(b"1\n" * 100_000 + b"1" * 3_000_000)
    assert np.isinf(load(path).a.values[-1])


class TestFilesBeside:
    def test_missing_elements(self, tmp_path: Path) -> None:
        path = save(tmp_path)
        (tmp_path / "a.elements").unlink()
        with pytest.raises(FileNotFoundError) as caught:
            load(path)
        assert caught.value.filename == str(tmp_path / "a.elements")
        assert (
            caught.value.strerror == f"no such file; it has the elements of {path}, so fetch it too"
        )

    def test_missing_elements_of_component(self, tmp_path: Path) -> None:
        path = cf.save_set(tmp_path, "s", {"x": (np.ones(1), ["A"]), "y": (np.ones(1), ["A"])})
        (tmp_path / "s.components.y.elements").unlink()
        with pytest.raises(FileNotFoundError, match=r"s\.components\.y\.elements"):
            load(path)

    def test_elements_without_their_yaml(self, tmp_path: Path) -> None:
        save(tmp_path).unlink()
        with pytest.raises(FileNotFoundError, match=r"a\.yaml"):
            load(tmp_path / "a.elements")

    @pytest.mark.parametrize("name", ["a.elements", "a.yaml"])
    def test_directory_instead_of_file(self, tmp_path: Path, name: str) -> None:
        path = save(tmp_path)
        (tmp_path / name).unlink()
        (tmp_path / name).mkdir()
        with pytest.raises(OSError, match=name):
            load(path)

    def test_links_in_circles(self, tmp_path: Path) -> None:
        path = save(tmp_path)
        (tmp_path / "a.elements").unlink()
        os.symlink("a.elements", tmp_path / "a.elements")
        with pytest.raises(OSError, match=r"a\.elements"):
            load(path)

    @pytest.mark.parametrize("key", ["../x", "a/b", "", "C:x", "'\\0'", "a\\b"])
    def test_components_cannot_leave_directory(self, tmp_path: Path, key: str) -> None:
        path = cf.save_set(tmp_path, "s", {"x": (np.ones(1), ["A"])})
        written = key if key.startswith("'") else f"'{key}'"
        written = '"\\0"' if "0" in key else written
        path.write_text(path.read_text().replace("  x:", f"  {written}:"))
        with pytest.raises(TensorFormatError, match="expected a part of a file name"):
            load(path)

    def test_components_of_one_name(self, tmp_path: Path) -> None:
        path = cf.save_set(tmp_path, "s", {"1": (np.ones(1), ["A"])})
        component = path.read_text().partition("components:\n")[2]
        path.write_text(path.read_text() + component.replace("  1:", "  '1':"))
        with pytest.raises(TensorFormatError, match=r"components\.1 at byte 209: .*twice"):
            load(path)

    def test_component_that_is_no_tensor(self, tmp_path: Path) -> None:
        path = cf.save_set(tmp_path, "s", {"x": (np.ones(1), ["A"])})
        path.write_text(path.read_text().replace("    type: Tensor", "    type: TensorSet"))
        with pytest.raises(
            TensorFormatError, match=r"components\.x\.type: 'TensorSet', expected T"
        ):
            load(path)


class TestOptions:
    def test_stored_elements_of_tensor_that_has_all(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="sparse='stored'"):
            load(save(tmp_path), sparse="stored")

    def test_one_name_for_set(self) -> None:
        with pytest.raises(ValueError, match="name="):
            load(DATA / "set" / "CoulombIntegrals.yaml", name="v")

    @pytest.mark.parametrize("names", [("a",), ("a", "a"), ("a", "")])
    def test_mismatched_dims(self, tmp_path: Path, names: tuple[str, ...]) -> None:
        with pytest.raises((ValueError, TypeError), match="dims="):
            load(save(tmp_path), dims=names)

    def test_units_of_other_formats(self, tmp_path: Path) -> None:
        (tmp_path / "a.tens").write_bytes(b"TENS")
        with pytest.raises(ValueError, match="apply_unit=True does not apply to format 'tens'"):
            xr.open_dataset(tmp_path / "a.tens", engine="tensorfmt", apply_unit=True)

    @pytest.mark.slow
    def test_tensors_of_blocks_that_no_memory_could_hold(self, tmp_path: Path) -> None:
        (tmp_path / "A.yaml").write_text(cf.format_properties("A", {"P": [0]}))
        more = condition("{properties: [{property: P, dimension: 3}], nonZeros: [[1]]}")
        path = cf.save(tmp_path, "a", np.zeros(0), ["A"])
        path.write_text(cf.format_yaml((1 << 15,) * 3 + (1,), ["B", "B", "B", "A"], more=more))
        with pytest.raises(ValueError, match="35184372088832 elements, of which 0 are stored"):
            load(path)
        part = open_lazily(path, sparse="dense").a[:2, 0, 0, 0]
        assert part.values.tolist() == [0, 0]


HOSTILE = {
    "dimensions": redim("[" + "{length: 1, type: S}, " * 5_000 + "]"),
    "components": lambda _: (
        "version: 100\ntype: TensorSet\ncomponents:\n"
        + "".join(f"  c{number}: {{}}\n" for number in range(5_000))
    ),
    "a list in a message": edit("unit", "[" + "1, " * 5_000 + "]"),
    "a str in a message": edit("unit", "x" * 2_000_000),
    "a str among integers": add(
        "nonZeroCondition: {all: [{properties: [{property: P, dimension: 0}], nonZeros: ["
        + "[1], " * 5_000
        + f"[{'x' * 200_000}]]}}]}}\n"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_large_counts_need_little_memory(tmp_path: Path, change: Callable[[str], str]) -> None:
    path = save(tmp_path)
    path.write_text(change(path.read_text()))
    tracemalloc.start()
    try:
        with pytest.raises(TensorFormatError) as caught:
            load(path)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 1000


@pytest.mark.slow
def test_text_is_validated_without_keeping_values(tmp_path: Path) -> None:
    values = xr.DataArray(np.zeros(4 << 20), dims="x", name="t")
    values.tensorfmt.to_file(tmp_path / "t.yaml", elements="text")
    tracemalloc.start()
    try:
        assert validate(tmp_path / "t.yaml") == []
        assert tracemalloc.get_traced_memory()[1] < values.nbytes
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("end", [b"\n", b"x"])
def test_long_blanks_are_looked_at_without_memory(end: bytes) -> None:
    content = b"a: 1\n" + b" " * (8 << 20) + end
    tracemalloc.start()
    try:
        with suppress(TensorFormatError):
            parse_fields("a.yaml", content)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_components_of_thousand_lengths(tmp_path: Path) -> None:
    components = {f"c{n}": (np.zeros((0, n, n)), ["S"] * 3) for n in range(1, 1001)}
    path = cf.save_set(tmp_path, "s", components)
    dataset = load(path)
    assert len(dataset.data_vars) == 1000
    assert dataset.c1000.shape == (0, 1000, 1000)
    assert len(dataset.sizes) == 2001


def test_yaml_that_is_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    source = HollowSource(b"version: 100\n", (64 << 20) + 1)
    with pytest.raises(TensorFormatError, match="the size of the YAML at byte 67108864: 67108865"):
        reading.read(HeaderReader(source), OpenOptions(format_options={"sparse": "auto"}))
    assert not source.requests


def test_yaml_of_too_many_values_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_text, "MAX_VALUES", 1000)
    with pytest.raises(
        TensorFormatError, match="the YAML: 1001 lines and commas, expected at most 1000"
    ):
        parse_fields("a.yaml", b"a: [" + b"1," * 1001 + b"]")


@pytest.mark.parametrize("form", [b"%d: 1\n", b"%d: \n", b"- - %d\n", b"- {}\r#%d\r"])
def test_every_value_counts(monkeypatch: pytest.MonkeyPatch, form: bytes) -> None:
    monkeypatch.setattr(yaml_text, "MAX_VALUES", 1000)
    content = b"".join(form % number for number in range(1001))
    with pytest.raises(TensorFormatError, match="lines and commas, expected at most 1000"):
        parse_fields("a.yaml", content)


def test_integers_of_any_notation_have_64_bits() -> None:
    texts = ["9223372036854775807", "-9223372036854775808", "0x7fffffffffffffff", "0o17"]
    parsed = parse_fields("a.yaml", f"a: [{', '.join(texts)}]".encode()).values["a"]
    assert parsed == [(1 << 63) - 1, -(1 << 63), (1 << 63) - 1, 15]
    assert set(map(type, parsed)) == {int}
    large = parse_fields("a.yaml", b"a: [9223372036854775808, 0xffffffffffffffff]").values["a"]
    assert list(map(type, large)) == [float, float]


@pytest.mark.parametrize("number", ["0x" + "f" * 4000, "0o" + "7" * 6000, "9" * 6000])
@pytest.mark.parametrize("key", ["unit", "scalarType", "version"])
def test_integers_of_thousands_of_digits(tmp_path: Path, number: str, key: str) -> None:
    path = save(tmp_path)
    path.write_text(edit(key, number)(path.read_text()))
    with pytest.raises(TensorFormatError) as caught:
        load(path)
    assert len(str(caught.value)) < 1000
    assert [finding.severity for finding in validate(path, format="cc4s")] == ["error"]


@pytest.mark.slow
def test_keys_of_equal_hashes_are_not_quadratic() -> None:
    keys = "".join(f"  0x{number * ((1 << 61) - 1):x}: 1\n" for number in range(1, 20_000))
    start = time.process_time()
    fields = parse_fields("a.yaml", f"metaData:\n{keys}".encode())
    assert len(fields.get("metaData", dict)) == 19_999
    assert time.process_time() - start < 10  # minutes if each key is compared with all others


@pytest.mark.nightly
def test_yaml_of_two_properties_of_many_states_is_not_too_much() -> None:
    spins = b"".join(b"  %d: 1\n" % number for number in range(400_000))
    fields = parse_fields("State.yaml", b"Spin:\n" + spins + b"Momentum:\n" + spins)
    assert len(get_list(fields, "Momentum")) == 400_000


BITS = [
    "1e400", "-1", "0", "99999999999999999999", "4611686018427387904", "9223372036854775808", "1.5",
    ".nan", "~", "true", "[]", "{}", "[1,[2]]", "{0: 1}", "!!text x", "!x [1]", "!!binary aGk=",
    "&a 1", "*a", "'", '"', "\0", "\t", "\r\n", "\n", "- ", "? ", ": ", "#", "|\n  x\n", "---\n",
    "%TAG ! x\n",
    "\N{LATIN SMALL LETTER E WITH ACUTE}", "\u2028", "\ufeff", "../x", "State", "..",
    "x" * 300, "Real64", "Complex64", "TextFile", "IeeeBinaryFile", "TensorSet", "100",
    "<<: {a: 1}",
    "[9223372036854775808]", "[[0,0],[1]]", "length", "dimension", "nonZeros", "\x85",
]  # fmt: skip


def mutate(content: bytes, dice: random.Random) -> bytes:
    """Change, remove or repeat some bytes, words or lines of a file."""
    for _ in range(dice.choice([1, 1, 2, 4])):
        offset = dice.randrange(len(content) + 1)
        stop = offset + dice.choice([1, 2, 5, 20])
        bit = dice.choice(BITS).encode()
        lines = content.split(b"\n")
        number = dice.randrange(len(lines))
        match dice.randrange(7):
            case 0:
                content = content[:offset] + bytes([dice.randrange(256)]) + content[offset + 1 :]
            case 1:
                content = content[:offset] + content[stop:]
            case 2:
                content = content[:offset] + bit + content[offset:]
            case 3:
                lines[number] = lines[number].partition(b":")[0] + b": " + bit
                content = b"\n".join(lines)
            case 4:
                content = b"\n".join([*lines[:number], *lines[number + 1 :]])
            case 5:
                lines.insert(dice.randrange(len(lines)), lines[number])
                content = b"\n".join(lines)
            case 6:
                content = (
                    content[:offset]
                    + content[offset:stop] * dice.choice([2, 50, 2000])
                    + content[stop:]
                )
    return content


MUTATED = ["vasp/CoulombVertex", "vasp/EigenEnergies", "blocks/Blocks", "set/CoulombIntegrals"]


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATED)
@pytest.mark.filterwarnings("ignore::xr_tensorfmt.TensorFormatWarning")
def test_files_that_are_changed_at_random_open_or_raise(tmp_path: Path, name: str) -> None:
    folder, outcomes = DATA / Path(name).parent, set()
    files = sorted(path for path in folder.iterdir() if path.suffix == ".yaml")
    files.append(min(folder.glob(f"{Path(name).name}*.elements")))
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    for seed in range(60):
        dice = random.Random(f"{name} {seed}")
        changed = dice.choice(files)
        (tmp_path / changed.name).write_bytes(mutate(changed.read_bytes(), dice))
        try:
            dataset = xr.open_dataset(
                tmp_path / f"{Path(name).name}.yaml", engine="tensorfmt", format="cc4s"
            )
            outcomes.add("opened")
            if dataset.nbytes < 1 << 20:
                dataset.load()
        except (ValueError, OSError):
            outcomes.add("refused")
        (tmp_path / changed.name).write_bytes(changed.read_bytes())
    assert outcomes == {"opened", "refused"}


def test_file_of_properties_is_not_tensor(tmp_path: Path) -> None:
    path = tmp_path / "State.yaml"
    path.write_text(cf.format_properties("State", {"Spin": [0, 1]}))
    words = "type: properties of a dimension, expected Tensor or TensorSet; open a tensor of"
    with pytest.raises(TensorFormatError, match=words):
        open_lazily(path)
