"""Examples in docstrings run with the printed output."""

from __future__ import annotations

import doctest
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

import xr_tensorfmt
from xr_tensorfmt import TensorFormatBackend, cc4s, pycauset, tutorial, vespa
from xr_tensorfmt.accessor import TensorFormatAccessor
from xr_tensorfmt.core.extents import Extents
from xr_tensorfmt.core.indexing import OuterPlan, PointPlan
from xr_tensorfmt.core.selection import Selection

PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (xr_tensorfmt, cc4s, pycauset, tutorial, vespa)
    for name in module.__all__
}


@pytest.mark.parametrize(
    "name", [name for name, thing in PUBLIC.items() if ">>>" in (thing.__doc__ or "")]
)
def test_example_of_public_name_runs_as_pasted(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(PUBLIC[name], {})


@pytest.mark.parametrize("class_", [TensorFormatAccessor, TensorFormatBackend])
def test_examples_of_methods_run(class_: type, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for name, method in vars(class_).items():
        if inspect.isfunction(method) and ">>>" in (method.__doc__ or ""):
            run_examples(method, {})
            assert "SKIP" not in str(method.__doc__), name


@pytest.mark.parametrize("class_", [Extents, OuterPlan, PointPlan, Selection])
def test_example_of_class_of_core_runs(class_: type) -> None:
    run_examples(class_, vars(sys.modules[class_.__module__]))


def run_examples(documented: Any, names: dict[str, Any]) -> None:
    finder = doctest.DocTestFinder(recurse=False)
    tests = finder.find(documented, documented.__name__, globs=dict(names))
    assert any(test.examples for test in tests)
    for test in tests:
        if ".tensorfmt." in test.docstring:  # the import registers the accessor
            assert ">>> import xr_tensorfmt" in test.docstring
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    for test in tests:
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)
