"""The built-in formats pass the test suite for formats, and are in the tables of all tests."""

from __future__ import annotations

from typing import Any

import pytest
import xarray as xr

from tests.families import FILES
from tests.fuzz.structure import STRUCTURES
from tests.goldenfiles import GENERATED
from tests.samples import SAMPLES, Sample
from xr_tensorfmt import testing
from xr_tensorfmt.formats.registry import BUILT_IN
from xr_tensorfmt.testing import FormatTests, WritableFormatTests

WRITABLE = {built_in.name for built_in in BUILT_IN if built_in.can_write}


def build_suite(name: str, sample: Sample) -> type[FormatTests]:
    """Return the suite of a sample, as a subclass of the suite for formats would be written."""

    def create_dataset(self: Any) -> xr.Dataset:
        return sample.make()

    def write(self: Any, dataset: xr.Dataset, path: str) -> None:
        assert sample.write is not None
        sample.write(dataset, path)

    content = {"format": sample.format, "file_name": sample.file_name, **sample.suite}
    content |= {"create_dataset": create_dataset} | ({"write": write} if sample.write else {})
    base = WritableFormatTests if sample.format in WRITABLE else FormatTests
    return type(f"Test{name.title().replace(' ', '')}", (base,), content)


globals().update({suite.__name__: suite for suite in map(build_suite, SAMPLES, SAMPLES.values())})


@pytest.mark.parametrize("name", [built_in.name for built_in in BUILT_IN])
def test_every_format_is_in_each_table_of_tests(name: str) -> None:
    assert name in {sample.format for sample in SAMPLES.values()}, "tests/samples.py"
    assert name in {file.partition("/")[0] for file in GENERATED}, "tests/goldenfiles.py"
    assert name == "cc4s" or any(file.startswith(f"{name}-") for file in FILES), "tests/families.py"
    assert name in STRUCTURES or name == "npz", "tests/fuzz/structure.py"  # npz is a zip


def test_bug_of_reader_fails_in_suite(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = build_suite("npy", SAMPLES["npy"])()
    monkeypatch.setattr(type(suite), "open", lambda *_, **__: {}["a bug"])
    with pytest.raises(KeyError) as caught:
        suite.test_mutated_files_raise_only_documented_errors(tmp_path)
    assert caught.value.__notes__[0].startswith("mutation 0 of ")


def test_failed_assertions_print_values() -> None:
    """Other packages get the plain assertions of the suite rewritten by pytest."""
    assert "@pytest_ar" in vars(testing)
