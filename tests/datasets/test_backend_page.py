"""The backend on the page "Write your own backend", with the suite for formats on this page."""

from __future__ import annotations

import re
import sys
from doctest import DocTestParser, DocTestRunner
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests.paths import DOCS

PAGE = DOCS / "write_a_backend.md"
*BACKEND, SUITE = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
(EXAMPLES,) = re.findall(r"```pycon\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
names: dict[str, Any] = {}
exec(compile(SUITE.replace("from my_package import MatrixBackend\n", ""), PAGE, "exec"), names)
TestMatrix = names["TestMatrix"]


@pytest.fixture(autouse=True)
def page(working_directory: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The code of the page, as a module."""
    module = ModuleType("matrix_backend")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile("\n".join(BACKEND), PAGE, "exec"), vars(module))  # our own page
    examples = DocTestParser().get_doctest(EXAMPLES, vars(module), PAGE.name, str(PAGE), 0)
    assert DocTestRunner().run(examples) == (0, len(examples.examples))
    monkeypatch.setitem(names, "MatrixBackend", module.MatrixBackend)
    return module


def test_several_files_open_and_close(tmp_path: Path, page: ModuleType) -> None:
    suite = TestMatrix()
    path = suite.create_file(tmp_path)
    options = {"engine": page.MatrixBackend, "combine": "nested", "concat_dim": "row"}
    with xr.open_mfdataset([path, path], **options) as ds:
        expected = suite.create_dataset().matrix
        np.testing.assert_array_equal(ds.matrix, xr.concat([expected, expected], "row"))


def test_page_says_what_the_minimal_backend_lacks(page: ModuleType) -> None:
    options = {"filename_or_obj": "a.matrix", "engine": page.MatrixBackend}
    with pytest.raises(TypeError, match="decode_times"):
        xr.open_dataset(**options, decode_times=False)
    with pytest.raises(NotImplementedError):
        xr.open_datatree(**options)
    with pytest.raises(NotImplementedError):
        xr.open_groups(**options)
    assert "matrix" in xr.open_dataset(**options, decode_cf=False)
