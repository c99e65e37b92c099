"""Examples in docstrings run with the printed output."""

from __future__ import annotations

import doctest
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

import xr_tensorfmt
from xr_tensorfmt import TensorFormatBackend, tutorial
from xr_tensorfmt.accessor import TensorFormatAccessor, TensorFormatTreeAccessor
from xr_tensorfmt.core.extents import Extents
from xr_tensorfmt.core.indexing import OuterPlan, PointPlan
from xr_tensorfmt.core.selection import Selection

FUNCTIONS = {
    name: getattr(xr_tensorfmt, name)
    for name in xr_tensorfmt.__all__
    if inspect.isfunction(getattr(xr_tensorfmt, name))
} | {name: getattr(tutorial, name) for name in tutorial.__all__}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_example_of_public_function_runs(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(FUNCTIONS[name], {name: FUNCTIONS[name]})


@pytest.mark.parametrize(
    "class_", [TensorFormatAccessor, TensorFormatBackend, TensorFormatTreeAccessor]
)
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
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    for test in tests:
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)
