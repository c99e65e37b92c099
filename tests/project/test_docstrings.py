"""Docstrings follow numpydoc, and their examples run with the printed output."""

from __future__ import annotations

import doctest
import inspect
import re
import sys
import tomllib
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from numpydoc.validate import validate

import xr_tensorfmt
from tests.paths import ROOT
from xr_tensorfmt import TensorFormatBackend, cc4s, contract, pycauset, testing, tutorial, vespa
from xr_tensorfmt.backend import TensorFormatAccessor
from xr_tensorfmt.core.extents import Extents
from xr_tensorfmt.core.selection import Selection

PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (xr_tensorfmt, cc4s, pycauset, tutorial, vespa)
    for name in module.__all__
}

CHECKS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "numpydoc_validation"
]["checks"]


def find_members(thing: Any) -> list[str]:
    """Return the name of a function or class, and of the public members of a class."""
    name = f"{thing.__module__}.{thing.__qualname__}"
    members = vars(thing).items() if inspect.isclass(thing) else ()
    kinds = (FunctionType, classmethod, staticmethod, property, cached_property)
    return [
        name,
        *(
            f"{name}.{member}"
            for member, value in members
            if isinstance(value, kinds) and not member.startswith("_")
        ),
    ]


DOCUMENTED = [
    thing
    for module in (xr_tensorfmt, cc4s, contract, pycauset, testing, vespa)
    for thing in (getattr(module, name) for name in module.__all__)
    if inspect.isclass(thing) or inspect.isfunction(thing)
]


@pytest.mark.parametrize(
    "thing", [*DOCUMENTED, TensorFormatAccessor], ids=lambda thing: thing.__name__
)
def test_docstrings_follow_numpydoc(thing: Any) -> None:
    for name in find_members(thing):
        result = validate(name)
        faults = [f"{name}: {code} {text}" for code, text in result["errors"] if code in CHECKS]
        if "\n\n" not in result["docstring"].strip():  # one line needs no sections
            faults = [fault for fault in faults if not re.search("PR01|RT01|YD01", fault)]
        if "Yields\n" in result["docstring"]:
            faults = [fault for fault in faults if "RT01" not in fault]
        assert not faults, f"{result['file']}:{result['file_line']}"


@pytest.mark.parametrize("thing", DOCUMENTED, ids=lambda thing: thing.__name__)
def test_public_properties_do_not_show_the_docstring_of_their_getter(thing: Any) -> None:
    for name, member in inspect.getmembers(thing, lambda value: isinstance(value, property)):
        assert member.__doc__ or name.startswith("_"), name
        assert inspect.getdoc(member) != inspect.getdoc(type(member.fget)), name


@pytest.mark.parametrize(
    "name", [name for name, thing in PUBLIC.items() if inspect.isfunction(thing)]
)
def test_public_functions_have_an_example(name: str) -> None:
    assert "Examples\n" in inspect.getdoc(PUBLIC[name])


@pytest.mark.parametrize(
    "name", [name for name, thing in PUBLIC.items() if ">>>" in (thing.__doc__ or "")]
)
def test_example_of_public_name_runs_as_pasted(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(PUBLIC[name], {})


def test_examples_of_methods_run(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for name, method in vars(TensorFormatBackend).items():
        if inspect.isfunction(method) and ">>>" in (method.__doc__ or ""):
            run_examples(method, {})
            assert "SKIP" not in str(method.__doc__), name


@pytest.mark.parametrize("class_", [Extents, Selection])
def test_examples_of_core_run(class_: Any) -> None:
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
