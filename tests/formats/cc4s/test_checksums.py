"""Elements and YAML files of different writes are never mixed."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import dask.array as da
import google_crc32c
import numpy as np
import pytest
import xarray as xr
import yaml
from fsspec.implementations.memory import MemoryFileSystem

from tests import cc4sfiles as cf
from tests.opening import load, open_lazily
from tests.processes import run_script
from tests.servers import MemoryStore
from xr_tensorfmt import TensorFormatError, TensorFormatWarning, to_cc4s, validate
from xr_tensorfmt.formats.cc4s import read as reading
from xr_tensorfmt.formats.cc4s.checksums import (
    UNKNOWN,
    Checksums,
    find_checksums,
    format_checksums,
)
from xr_tensorfmt.sources import open_source

MIB = 1 << 20


def make_tensor(factor: float, size: int = 50) -> xr.Dataset:
    """Return a tensor whose product with its unit does not depend on `factor`."""
    values = (np.arange(size) + 1.0) * factor
    return xr.Dataset({"a": ("x", values, {"unit": 1 / factor})})


def make_tensor_set(factor: float) -> xr.Dataset:
    values = {name: (("x",), np.arange(1.0, 6) * factor, {"unit": 1 / factor}) for name in "bcd"}
    return xr.Dataset(values)


def replace_elements(tmp_path: Path, factor: float, make: Any = make_tensor) -> None:
    """Replace the elements of ``a.yaml`` by those of another write, and not the YAML file."""
    other = tmp_path / "other"
    other.mkdir()
    to_cc4s(make(factor), other / "a.yaml")
    for path in other.glob("*.elements"):
        path.replace(tmp_path / path.name)


class TestInterruptedWrites:
    @pytest.mark.parametrize("make", [make_tensor, make_tensor_set])
    @pytest.mark.parametrize("io", ["auto", "read"])
    def test_write_that_ends_between_two_renames(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, io: Any
    ) -> None:
        path = tmp_path / "a.yaml"
        to_cc4s(make(1), path)
        rename = os.replace

        def stop_before_the_yaml(source: Any, target: Any) -> None:
            if str(target).endswith(".yaml"):
                raise KeyboardInterrupt
            rename(source, target)

        monkeypatch.setattr(os, "replace", stop_before_the_yaml)
        with pytest.raises(KeyboardInterrupt):
            to_cc4s(make(2), path)
        monkeypatch.undo()
        message = (
            r"elements: the elements.*CRC-32C.*expected.*a\.yaml.*different writes.*write or fetch"
        )
        with pytest.raises(TensorFormatError, match=message):
            open_lazily(path, io=io)
        assert {finding.severity for finding in validate(path)} == {"error"}
        with pytest.warns(TensorFormatWarning, match="different writes"):
            mixed = open_lazily(path, verify=False)
        xr.testing.assert_equal(mixed, make(2))
        to_cc4s(make(4), path)
        xr.testing.assert_identical(load(path), make(4))

    def test_elements_of_another_length(self, tmp_path: Path) -> None:
        to_cc4s(make_tensor(1), tmp_path / "a.yaml")
        with open(tmp_path / "a.elements", "ab") as file:
            file.write(bytes(8))
        with pytest.raises(TensorFormatError, match=r"408 bytes.*400 bytes as in"):
            open_lazily(tmp_path / "a.yaml")

    def test_one_of_several_components(self, tmp_path: Path) -> None:
        to_cc4s(make_tensor_set(1), tmp_path / "a.yaml")
        (tmp_path / "a.components.c.elements").write_bytes(cf.pack_binary(np.ones(5)))
        with pytest.raises(TensorFormatError, match=r"components\.c\.elements"):
            open_lazily(tmp_path / "a.yaml")


class TestConcurrentWrites:
    def test_yaml_file_is_replaced_while_elements_are_compared(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "a.yaml"
        to_cc4s(make_tensor(1), path)
        replace_elements(tmp_path, 2)
        monkeypatch.setattr(
            reading.time, "sleep", lambda _: (tmp_path / "other" / "a.yaml").replace(path)
        )
        xr.testing.assert_identical(load(path), make_tensor(2))

    def test_components_are_removed_while_set_is_opened(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "a.yaml"
        to_cc4s(make_tensor_set(1), path)
        open_sibling = reading.open_sibling

        def replace_files(*arguments: Any) -> Any:
            monkeypatch.undo()
            to_cc4s(make_tensor(2), path)
            return open_sibling(*arguments)

        monkeypatch.setattr(reading, "open_sibling", replace_files)
        xr.testing.assert_identical(open_lazily(path).load(), make_tensor(2))

    @pytest.mark.parametrize("make", [make_tensor, make_tensor_set])
    def test_values_always_have_unit_of_their_write(self, tmp_path: Path, make: Any) -> None:
        path, expected = tmp_path / "a.yaml", make(1)
        to_cc4s(expected, path)
        writes = [2.0**number for number in range(40)]
        writer = threading.Thread(target=lambda: [to_cc4s(make(one), path) for one in writes])
        writer.start()
        while writer.is_alive():
            try:
                actual = xr.open_dataset(path, engine="tensorfmt", apply_unit=True).load()
            except TensorFormatError:
                continue
            xr.testing.assert_equal(actual, expected)
        writer.join()
        xr.testing.assert_identical(load(path), make(writes[-1]))


class TestSamples:
    @pytest.mark.parametrize("position", [0, 600_000, -1])
    def test_changed_element_of_large_file(self, tmp_path: Path, position: int) -> None:
        dataset = make_tensor(1, MIB)
        to_cc4s(dataset.chunk({"x": 100_000}), tmp_path / "a.yaml")
        assert validate(tmp_path / "a.yaml") == []
        elements = np.memmap(tmp_path / "a.elements", "<f8", "r+")
        elements[position] = 0
        elements.flush()
        (finding,) = validate(tmp_path / "a.yaml")
        assert (finding.field, finding.severity) == ("the elements", "error")
        if position == 600_000:  # not in a sample for opening
            assert open_lazily(tmp_path / "a.yaml").a[position] == 0
        else:
            with pytest.raises(TensorFormatError, match="CRC-32C"):
                open_lazily(tmp_path / "a.yaml")

    @pytest.mark.parametrize("position", [0, 5 * MIB + 1, 9 * MIB - 1])
    def test_checksum_of_content_covers_all_bytes(self, tmp_path: Path, position: int) -> None:
        path = tmp_path / "file"
        path.write_bytes(bytes(9 * MIB))
        before = Checksums.compute(open_source(path))
        assert before.content == f"{google_crc32c.value(bytes(9 * MIB)):08x}"
        with open(path, "r+b") as file:
            file.seek(position)
            file.write(b"x")
        after = Checksums.compute(open_source(path))
        assert after.content != before.content
        assert (after.head != before.head) == (position == 0)
        assert (after.samples != before.samples) == (position != 5 * MIB + 1)

    def test_text(self, tmp_path: Path) -> None:
        values = cf.make_values((3,))
        path = cf.save(tmp_path, "a", values, elements=cf.TEXT)
        checksums = {"tensor": Checksums.compute(open_source(tmp_path / "a.elements"))}
        path.write_bytes(path.read_bytes() + format_checksums(checksums) + b"\r\n")
        np.testing.assert_array_equal(load(path).a, values)
        (tmp_path / "a.elements").write_bytes(cf.format_text(values * 2))
        with pytest.raises(TensorFormatError, match="different writes"):
            open_lazily(path)


class TestComments:
    def test_other_programs_drop_checksums(self, tmp_path: Path) -> None:
        path = tmp_path / "a.yaml"
        to_cc4s(make_tensor(1), path)
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text())))
        assert b"CRC-32C" not in path.read_bytes()
        replace_elements(tmp_path, 2)
        xr.testing.assert_equal(load(path), make_tensor(2))

    def test_renamed_and_edited_files_open(self, tmp_path: Path) -> None:
        to_cc4s(make_tensor(1), tmp_path / "a.yaml")
        for suffix in ("yaml", "elements"):
            (tmp_path / f"a.{suffix}").rename(tmp_path / f"b.{suffix}")
        path = tmp_path / "b.yaml"
        path.write_text(path.read_text().replace("unit: 1.0", "unit: 27.0"))
        assert load(path).b.unit == 27

    @pytest.mark.parametrize(
        "line",
        [
            b"# CRC-32C of elements: {}",
            b"# CRC-32C of elements: {",
            b"# CRC-32C of elements: {]}",
            b'# CRC-32C of elements: {"tensor": 1}',
            b'# CRC-32C of elements: {"tensor": [8, "a"]} ]',
            b'# CRC-32C of elements:  {"tensor": [8, "a", "b", "c"]}',
            b'  # CRC-32C of elements: {"tensor": [8, "a", "b", "c"]}',
        ],
    )
    def test_comments_of_another_form_are_ignored(self, tmp_path: Path, line: bytes) -> None:
        assert find_checksums(line) == (0, {})
        path = cf.save(tmp_path, "a", cf.make_values((2,)))
        path.write_bytes(path.read_bytes() + line + b"\n")
        assert load(path).a.size == 2

    @pytest.mark.parametrize("name", ["a b", "a&b", "*a", "ä", "a'\"", "#"])
    def test_any_name_of_component(self, tmp_path: Path, name: str) -> None:
        dataset = xr.Dataset({name: ("x", np.ones(2)), "&*": ("x", np.zeros(2))})
        to_cc4s(dataset, tmp_path / "a.yaml")
        content = (tmp_path / "a.yaml").read_bytes()
        assert set(find_checksums(content)[1]) == {name, "&*"}
        xr.testing.assert_identical(load(tmp_path / "a.yaml"), dataset)


class TestRegions:
    @pytest.mark.parametrize("compute", [True, False])
    @pytest.mark.parametrize("name", ["a.yaml", "a.elements"])
    def test_checksums_follow(self, tmp_path: Path, compute: bool, name: str) -> None:
        to_cc4s(make_tensor(1), tmp_path / "a.yaml")
        before = (tmp_path / "a.yaml").read_bytes()
        part = xr.Dataset({"a": ("x", da.zeros(10))})
        task = to_cc4s(part, tmp_path / name, region={"x": slice(40, 50)}, compute=compute)
        if task is not None:
            task.compute()
        after = (tmp_path / "a.yaml").read_bytes()
        assert len(after) == len(before)
        assert after != before
        assert load(tmp_path / "a.yaml").a.values.tolist() == [*range(1, 41), *[0] * 10]
        assert validate(tmp_path / "a.yaml") == []

    def test_large_file_keeps_samples_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "a.yaml"
        to_cc4s(make_tensor(1, MIB), path)
        monkeypatch.setattr(reading, "MAX_REGION_BYTES", MIB)
        part = xr.Dataset({"a": ("x", np.zeros(10))})
        to_cc4s(part, path, region={"x": slice(10)})
        assert find_checksums(path.read_bytes())[1]["tensor"].content == UNKNOWN
        assert validate(path) == []
        elements = np.memmap(tmp_path / "a.elements", "<f8", "r+")
        elements[-1] = 0
        elements.flush()
        assert [finding.field for finding in validate(path)] == ["the elements"]

    def test_interrupted_region_can_be_written_again(self, tmp_path: Path) -> None:
        path = tmp_path / "a.yaml"
        to_cc4s(make_tensor(1), path)
        replace_elements(tmp_path, 2)
        to_cc4s(make_tensor(4), path, region={})
        xr.testing.assert_equal(load(path), make_tensor(4))

    def test_yaml_file_that_must_not_be_written_to(self, tmp_path: Path) -> None:
        path = tmp_path / "a.yaml"
        to_cc4s(make_tensor(1), path)
        path.chmod(0o444)
        with pytest.raises(PermissionError, match="write-protected"):
            to_cc4s(make_tensor(2), path, region={})
        xr.testing.assert_equal(load(path), make_tensor(1))

    @pytest.mark.slow
    def test_processes_write_regions_concurrently(self, tmp_path: Path) -> None:
        script = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
import numpy as np
import xarray as xr
from xr_tensorfmt import to_cc4s, validate

def write(number):
    for value in range(10):
        part = xr.Dataset({"a": ("x", np.full(10, number * 100.0 + value))})
        to_cc4s(part, "a.yaml", region={"x": slice(10 * number, 10 * number + 10)})

if __name__ == "__main__":
    to_cc4s(xr.Dataset({"a": ("x", np.zeros(40))}), "a.yaml")
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        list(pool.map(write, range(4)))
    values = xr.open_dataset("a.yaml", engine="tensorfmt").a.values
    print(values[::10].tolist() == [9, 109, 209, 309], validate("a.yaml"))
"""
        assert run_script(script, directory=tmp_path).split() == ["True", "[]"]


class TestStores:
    def test_elements_of_another_write(self, memory: MemoryFileSystem) -> None:
        for folder, factor in (("b", 1), ("c", 2)):
            to_cc4s(make_tensor(factor), f"memory://{folder}/a.yaml")
        memory.copy("/c/a.elements", "/b/a.elements")
        with pytest.raises(TensorFormatError, match="different writes"):
            open_lazily("memory://b/a.yaml")
        assert [finding.severity for finding in validate("memory://b/a.yaml")] == ["error"]
        memory.copy("/c/a.yaml", "/b/a.yaml")
        xr.testing.assert_identical(load("memory://b/a.yaml"), make_tensor(2))

    def test_opening_sends_no_more_requests(self) -> None:
        with MemoryStore().running() as store:
            to_cc4s(make_tensor(1, MIB).rename(x="dim_0"), "memory://bucket/a.yaml")
            store.log.clear()
            open_lazily("memory://bucket/a.yaml", chunks={})
            assert (len(store.log.gets), store.log.heads) == (2, 2)
