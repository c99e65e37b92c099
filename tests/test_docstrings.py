"""The examples in the docstrings of the public functions run, and print what they say."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path
from typing import Any

import pytest

import xr_tensorfmt

FUNCTIONS = {
    name: getattr(xr_tensorfmt, name)
    for name in xr_tensorfmt.__all__
    if inspect.isfunction(getattr(xr_tensorfmt, name))
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_of_a_public_function_runs(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    function = FUNCTIONS[name]
    finder = doctest.DocTestFinder(recurse=False)
    tests = finder.find(function, name, globs={name: function})
    assert any(test.examples for test in tests)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    for test in tests:
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)
