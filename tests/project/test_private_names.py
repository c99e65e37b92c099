"""Uses of private names of other packages, and their existence."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from inspect import iscoroutinefunction
from pathlib import Path

import fsspec
import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.dirfs import DirFileSystem

import xr_tensorfmt
from tests.processes import run_python

ROOT = Path(xr_tensorfmt.__file__).parent
PACKAGES = ("xarray", "dask", "distributed", "fsspec", "s3fs", "aiohttp", "obstore")

USES = {
    "datasets/lazy_array.py": ("xarray.core.indexing",),
    "writing/blocks.py": ("dask._task_spec",),
}
"""Modules without a stable interface, by the one module that imports from each."""


@cache
def find_modules() -> list[tuple[str, ast.Module]]:
    paths = sorted(ROOT.rglob("*.py"))
    return [(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())) for path in paths]


def is_private(module: str) -> bool:
    package, *parts = module.split(".")
    return package in PACKAGES and (
        module.startswith("xarray.core") or any(part.startswith("_") for part in parts)
    )


def test_modules_without_stable_interface_are_imported_in_one_place_each() -> None:
    actual = {
        (name, node.module)
        for name, tree in find_modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and is_private(node.module)
    }
    assert actual == {(name, module) for name, used in USES.items() for module in used}


@pytest.mark.parametrize("name", USES)
def test_names_that_are_imported_from_them_exist(name: str) -> None:
    tree = dict(find_modules())[name]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in USES[name]:
            module = importlib.import_module(node.module)
            assert [item.name for item in node.names if not hasattr(module, item.name)] == []


def test_private_names_are_used_only_in_listed_modules() -> None:
    actual = {
        (name, node.attr)
        for name, tree in find_modules()
        if not name.startswith("formats/")  # the packages are used only for numbers
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls", "accessor"})
        and not isinstance(node.value, ast.Call)
        and node.attr not in ("_exit", "_replace")  # documented by os and collections
    }
    assert actual == {
        ("datasets/lazy_array.py", "_data"),
        ("sources/locations.py", "_join"),
        ("sources/locations.py", "_strip_protocol"),
    }


def test_xarray_keeps_unread_array_of_variable_in_data() -> None:
    lazy = xr.Variable("x", xr.core.indexing.LazilyIndexedArray(np.arange(3)))
    assert isinstance(lazy._data, xr.core.indexing.ExplicitlyIndexed)


def test_fsspec_has_private_names_that_are_used() -> None:
    fs = fsspec.filesystem("memory")
    assert fs._strip_protocol("memory://bucket/x") == "/bucket/x"
    assert DirFileSystem("/bucket", fs)._join("x") == "/bucket/x"


def test_fsspec_names_coroutines_of_file_system_with_underscore() -> None:
    fs = fsspec.filesystem("http")
    assert iscoroutinefunction(fs._info)
    assert iscoroutinefunction(fs._cat_file)
    assert {"info", "cat_file"} <= set(vars(fs))


def test_python_calls_registered_functions_before_joining_threads() -> None:
    script = """if True:
        import threading
        from concurrent.futures import ThreadPoolExecutor
        from xr_tensorfmt.sources import requests as threads
        pool, started = ThreadPoolExecutor(1), threading.Event()

        def wait():
            started.set()
            try:
                threads.wait_for_result(threads.Future())
            except RuntimeError as error:
                print(error)

        pool.submit(wait)
        started.wait()
    """
    assert "the process is ending" in run_python("-c", script).stdout
