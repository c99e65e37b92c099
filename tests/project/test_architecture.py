"""Imports between folders, heavy imports, and format names outside their folders."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np
import pytest

import xr_tensorfmt
from tests import tensfiles as tf
from tests.paths import ROOT
from tests.processes import run_python
from xr_tensorfmt.formats import registry

PACKAGE = Path(xr_tensorfmt.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
LEVELS = (
    {"errors"},
    {"core"},
    {"sources"},
    {"cf", "datasets"},
    {"writing"},
    {"contract"},
    {"formats.*"},
    {"formats"},
    {
        "",
        "accessor",
        "backend",
        "cc4s",
        "opening",
        "testing",
        "validation",
        "vespa",
        "virtual",
        "writers",
    },
    {"cli", "tutorial", "__main__"},
)
"""Folders and modules from the lowest level to the highest. Imports point down."""

USES_XARRAY = ("write", "popcount", "keyed_writing")
"""Prefixes of the modules of a format that may import xarray and dask."""

ARRAYS = {"xarray", "dask", "distributed", "pandas"}


def find_imports(name: str) -> Iterator[str]:
    """Yield the modules that a module imports, except imports for type checkers."""
    tree = ast.parse(MODULES[name].read_text())
    nodes = list(ast.walk(tree))
    for block in [node for node in nodes if isinstance(node, ast.If)]:
        if "TYPE_CHECKING" in ast.unparse(block.test):
            hidden = set(ast.walk(block))
            nodes = [node for node in nodes if node not in hidden]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                yield module if module in MODULES else str(node.module)


def get_folder(name: str) -> str:
    """Return the folder or the module below the package."""
    return [*name.split("."), ""][1]


def get_level(name: str) -> int:
    """Return the level of a module."""
    part = get_folder(name)
    if part == "formats" and len(name.split(".")) > 2 and MODULES[name].parent.name != "formats":
        part = "formats.*"
    return next(number for number, parts in enumerate(LEVELS) if part in parts)


def test_imports_have_no_cycles() -> None:
    graph = {name: {other for other in find_imports(name) if other in MODULES} for name in MODULES}
    # Public functions are imported by the package itself when they are first used.
    graph["xr_tensorfmt"] = set()
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_imports_point_down() -> None:
    wrong = [
        f"{name} -> {other}"
        for name in MODULES
        for other in find_imports(name)
        if other in MODULES and other != "xr_tensorfmt" and get_level(other) > get_level(name)
    ]
    assert not wrong, "\n".join(wrong)


def test_core_and_sources_import_neither_xarray_nor_dask() -> None:
    for name in MODULES:
        if get_folder(name) in ("core", "sources", "contract", "errors"):
            assert not {other.split(".")[0] for other in find_imports(name)} & ARRAYS, name


def test_readers_and_checks_import_neither_xarray_nor_dask() -> None:
    readers = [name for name in MODULES if get_folder(name) == "formats"]
    wrong = [
        f"{name} -> {other}"
        for name in readers
        if not name.split(".")[-1].startswith(USES_XARRAY)
        for other in find_imports(name)
        if other.split(".")[0] in ARRAYS or get_folder(other) in ("datasets", "writing")
    ]
    assert not wrong


def test_formats_import_only_contract_and_shared_modules() -> None:
    wrong = []
    for name in MODULES:
        if get_level(name) != get_level("xr_tensorfmt.formats.mag.read"):
            continue
        own = ".".join(name.split(".")[:3])
        allowed = (own, "xr_tensorfmt.formats._shared", "xr_tensorfmt.contract")
        if own == "xr_tensorfmt.formats._shared":
            allowed = ("xr_tensorfmt",)
        wrong += [
            f"{name} -> {other}"
            for other in find_imports(name)
            if other.startswith("xr_tensorfmt") and not other.startswith(allowed)
        ]
    assert not wrong, "\n".join(wrong)


def test_names_of_formats_are_only_in_their_folders() -> None:
    words = {built_in.name for built_in in registry.BUILT_IN}
    allowed = {
        "xr_tensorfmt",
        "xr_tensorfmt.cc4s",
        "xr_tensorfmt.formats.registry",
        "xr_tensorfmt.tutorial",
        "xr_tensorfmt.vespa",
        "xr_tensorfmt.writers",
    }
    wrong = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for name, path in MODULES.items()
        if name not in allowed and not (get_folder(name) == "formats" and len(name.split(".")) > 2)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        # Functions and files in examples are not names of formats.
        if words & set(re.findall(r"(?<![.\w])[a-z0-9]+", re.sub(r"\bto_[a-z]+", "", line.lower())))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_test_module_imports_another() -> None:
    modules = sorted((ROOT / "tests").rglob("*.py"))
    assert modules
    wrong = [
        f"{path.name}: {ast.unparse(node)}"
        for path in modules
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        and re.search(r"\btest_\w+", ast.unparse(node))
    ]
    assert not wrong, "\n".join(wrong)


def test_engine_imports_no_heavy_package() -> None:
    code = (
        "import sys, xarray; before = set(sys.modules); import xr_tensorfmt.backend; "
        "print(*set(sys.modules) - before)"
    )
    new = set(run_python("-c", code).stdout.split())
    assert not {name.split(".")[0] for name in new} & {"dask", "fsspec", "zarr", "distributed"}
    own = {name for name in new if name.startswith("xr_tensorfmt.")}
    assert {get_folder(name) for name in own} <= {
        "accessor",
        "backend",
        "core",
        "datasets",
        "errors",
    }
    assert len(own) <= 8, own


def test_first_open_imports_reader_of_one_format_and_settings_of_dask(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file.tens"
    path.write_bytes(tf.make_0_9(np.zeros((3, 4))))
    code = (
        "import sys, xarray; xarray.backends.list_engines(); before = set(sys.modules); "
        f"xarray.open_dataset({str(path)!r}, engine='tensorfmt'); "
        "print(*set(sys.modules) - before)"
    )
    new = set(run_python("-c", code, env={**os.environ, "HOME": str(tmp_path)}).stdout.split())
    assert not {name.split(".")[0] for name in new} & {"fsspec", "zarr", "distributed"}
    assert "dask.array" not in new
    readers = {name for name in new if name.endswith(".read")}
    assert readers == {"xr_tensorfmt.formats.tens.read"}
    assert not {get_folder(name) for name in new if name in MODULES} & {
        "writing",
        "cli",
        "validation",
    }


def test_files_in_root_are_small() -> None:
    files = [path for path in PACKAGE.parent.glob("[!.]*") if path.is_file()]
    assert files
    assert not [path.name for path in files if path.stat().st_size > 100_000]
