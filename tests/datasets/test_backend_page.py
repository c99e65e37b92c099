"""The backend on the page "Write your own backend", with the suite for formats."""

from __future__ import annotations

import sys
from doctest import DocTestParser
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import xarray as xr

from xr_tensorfmt.testing import FormatTests

PAGE = Path(__file__).parents[2] / "docs" / "write_a_backend.md"


@pytest.fixture(autouse=True)
def page(working_directory: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The code of the page, as a module."""
    module = ModuleType("matrix_backend")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for example in DocTestParser().get_examples(PAGE.read_text()):
        exec(compile(example.source, PAGE, "single"), vars(module))  # our own page
    return module


class TestBackendOfPage(FormatTests):
    """Everything in the suite that needs no function of this package."""

    format = "matrix"
    file_name = "example.matrix"
    is_single_file = False
    test_is_recognised = test_opening_reads_no_values = None
    test_validate_reports_no_findings = test_truncated_files_raise = None
    test_opens_from_store = None

    def create_dataset(self) -> xr.Dataset:
        values = np.arange(12_000, dtype="f4").reshape(3000, 4)
        return xr.Dataset({"matrix": (("row", "column"), values)})

    def write(self, dataset: xr.Dataset, path: str) -> None:
        values = dataset.matrix.values
        Path(path).write_bytes(np.array(values.shape, "<u4").tobytes() + values.tobytes())

    def open(self, file: Any, **options: Any) -> xr.Dataset:
        backend = sys.modules["matrix_backend"].MatrixBackend
        return xr.open_dataset(file, engine=backend, chunks=options.get("chunks"))


def test_several_files_open_and_close(tmp_path: Path, page: ModuleType) -> None:
    suite = TestBackendOfPage()
    path = suite.create_file(tmp_path)
    options = {"engine": page.MatrixBackend, "combine": "nested", "concat_dim": "row"}
    with xr.open_mfdataset([path, path], **options) as ds:
        expected = suite.create_dataset().matrix
        np.testing.assert_array_equal(ds.matrix, xr.concat([expected, expected], "row"))
