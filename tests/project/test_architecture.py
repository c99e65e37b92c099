"""Heavy imports, and format names outside their folders. import-linter checks the levels."""

from __future__ import annotations

import ast
import os
import re
import subprocess
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


def get_folder(name: str) -> str:
    """Return the folder or the module below the package."""
    return [*name.split("."), ""][1]


def test_names_of_formats_are_only_in_their_folders() -> None:
    words = {built_in.name for built_in in registry.BUILT_IN}
    folders = tuple({type(built_in).__module__ for built_in in registry.BUILT_IN})
    allowed = {
        "xr_tensorfmt",
        "xr_tensorfmt.cc4s",
        "xr_tensorfmt.formats.registry",
        "xr_tensorfmt.pycauset",
        "xr_tensorfmt.tutorial",
        "xr_tensorfmt.vespa",
    }
    wrong = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for name, path in MODULES.items()
        if name not in allowed and not name.startswith(folders)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        # Suffixes of files and public modules, such as xr_tensorfmt.cc4s, are allowed.
        if words & set(re.findall(r"(?<![.\w])[a-z0-9]+", line.lower()))
    ]
    assert not wrong, "\n".join(wrong)


def test_loop_variables_say_what_they_hold() -> None:
    """One letter is enough only for an index in a comprehension."""
    loops = [
        (path, name)
        for path in MODULES.values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.For | ast.AsyncFor)
        for name in ast.walk(node.target)
        if isinstance(name, ast.Name)
    ]
    assert loops
    short = [f"{path}:{x.lineno}: {x.id}" for path, x in loops if len(x.id) == 1 and x.id != "_"]
    assert not short, "\n".join(short)


def test_no_test_module_imports_another() -> None:
    modules = sorted((ROOT / "tests").rglob("*.py"))
    assert modules
    imports = re.compile(r"^\s*(?:from|import) .*\btest_\w+.*", re.MULTILINE)
    wrong = [
        f"{path.name}: {line}"
        for path in modules
        for line in imports.findall(path.read_text(encoding="utf-8"))
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
    folders = {get_folder(name) for name in own}
    assert folders <= {"backend", "core", "datasets", "errors"}
    assert len(own) <= 8, own


def test_first_open_imports_reader_of_one_format_and_settings_of_dask(tmp_path: Path) -> None:
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
    unused = "indexing", "vespa.spec", "mag.earlier", "pycauset.matrices"
    assert not [name for name in new if name.endswith(unused)]
    folders = {get_folder(name) for name in new if name in MODULES}
    assert not folders & {"writing", "cli"}


ROOT_FILES = {
    ".gitattributes", ".gitignore", ".pre-commit-config.yaml", ".readthedocs.yaml", "CHANGELOG.md",
    "CITATION.cff", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md",
    "pyproject.toml",
}  # fmt: skip
ROOT_DIRECTORIES = {".binder", ".ci", ".github", "ci", "docs", "tests", "xr_tensorfmt"}


def test_root_has_only_these_files() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("the tests run outside of a repository")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert {name for name in listed if "/" not in name} == ROOT_FILES
    assert {name.partition("/")[0] for name in listed if "/" in name} == ROOT_DIRECTORIES
