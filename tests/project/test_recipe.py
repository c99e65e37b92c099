"""The conda-forge recipe has the requirements of pyproject.toml."""

from __future__ import annotations

import re
import tomllib

import xr_tensorfmt
from tests.paths import ROOT

RECIPE = (ROOT / "ci" / "recipe" / "recipe.yaml").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Packages with other names on conda-forge than on PyPI.
NAMES = {"dask": "dask-core"}


def test_recipe_has_lower_bounds_of_project() -> None:
    run = RECIPE.partition("  run:\n")[2].partition("\n\n")[0]
    recipe = dict(re.findall(r"- ([a-z0-9-]+) >=([0-9.]+)$", run, re.MULTILINE))
    bounds = [re.fullmatch(r"([a-z0-9-]+)>=([0-9.]+)", item) for item in PROJECT["dependencies"]]
    assert recipe == {NAMES.get(bound[1], bound[1]): bound[2] for bound in bounds if bound}
    assert len(recipe) == len(PROJECT["dependencies"])


def test_recipe_has_version_python_and_command_of_project() -> None:
    assert f'version: "{xr_tensorfmt.__version__}"' in RECIPE
    (command,) = PROJECT["scripts"].items()
    assert f"- {' = '.join(command)}\n" in RECIPE
    assert f'python_min: "{PROJECT["requires-python"].removeprefix(">=")}"' in RECIPE
