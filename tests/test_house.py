"""The rooms of the house know only those below them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import xr_tensorfmt

PACKAGE = Path(xr_tensorfmt.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
ABOVE = {
    "__init__.py",
    "accessor.py",
    "backend.py",
    "cli/converting.py",
    "cli/decoding.py",
    "cli/dtypenotes.py",
    "cli/ending.py",
    "cli/fitting.py",
    "cli/foreign.py",
    "cli/netcdf.py",
    "cli/integers.py",
    "cli/opening.py",
    "cli/rounding.py",
    "counting.py",
    "daskreads.py",
    "dataset.py",
    "hexdigits.py",
    "lazyarray.py",
    "reads.py",
}
# Of the writers, those that plan and those that move bytes.
WRITE_BELOW = {
    f"write/{name}.py"
    for name in (
        "absent",
        "conversion",
        "draft",
        "grid",
        "stores/multipart",
        "packing_blocks",
        "placing",
        "pycauset/container",
        "reserving",
        "stores/segments",
        "stores/spool",
        "stores/store",
        "stores/stream",
        "stores/upload",
        "vespa/header",
        "vespa/labels",
        "stores/waiting",
        "targets",
        "tens/header",
        "tens/pairing",
    )
}


def is_lower(path: Path) -> bool:
    place = path.relative_to(PACKAGE).as_posix()
    return place in WRITE_BELOW or not (place in ABOVE or place.startswith("write/"))


LOWER = [path for path in MODULES if is_lower(path)]


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def identifier(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", LOWER, ids=identifier)
def test_lower_rooms_import_neither_xarray_nor_dask(path: Path) -> None:
    roots = {name.split(".")[0] for name in imported(path)}
    assert not roots & {"xarray", "dask", "distributed"}


@pytest.mark.parametrize("path", MODULES, ids=identifier)
def test_only_the_lazy_array_imports_xarray_internals(path: Path) -> None:
    internals = {name for name in imported(path) if name.startswith("xarray.core")}
    assert not internals or path.name == "lazyarray.py"


ROOMS = ("errors", "extents", "elements", "chunks", "once", "sources", "selection", "layouts")


@pytest.mark.parametrize("path", LOWER, ids=identifier)
def test_sources_and_layouts_do_not_know_the_formats(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room in ROOMS:
        assert not any(name.startswith("xr_tensorfmt.formats") for name in imported(path))


def test_importing_the_entry_point_imports_no_heavy_package() -> None:
    code = (
        "import sys, xarray; before = set(sys.modules); import xr_tensorfmt.backend; "
        "print(*set(sys.modules) - before)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new = set(run.stdout.split())
    heavy = {"dask", "fsspec", "zarr", "ml_dtypes", "distributed"}
    assert not {name.split(".")[0] for name in new} & heavy
    house = {name for name in new if name.startswith("xr_tensorfmt.")}
    light = ("accessor", "backend", "chunks", "errors", "hexdigits")
    assert house == {f"xr_tensorfmt.{name}" for name in light}


def test_nothing_large_lies_about() -> None:
    files = [each for each in PACKAGE.parent.glob("[!.]*") if each.is_file()]
    assert files
    assert not [each.name for each in files if each.stat().st_size > 100_000]


@pytest.mark.parametrize("path", MODULES, ids=identifier)
def test_modules_stay_one_idea_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 250
