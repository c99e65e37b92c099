"""The check before a release."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from check_release import PLACEHOLDER, find_problems

import xr_tensorfmt
from tests.paths import ROOT

FILES = [
    "pyproject.toml", "CHANGELOG.md", "CITATION.cff", "ci/recipe/recipe.yaml",
    "xr_tensorfmt/__init__.py",
]  # fmt: skip
TAG = f"v{xr_tensorfmt.__version__}"


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A copy of the metadata, ready for the release of the current version."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    replace(tmp_path / "pyproject.toml", PLACEHOLDER, "somebody")
    replace(tmp_path / "CHANGELOG.md", "## Unreleased: ", "## ")
    return tmp_path


def replace(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


def test_metadata_of_version_of_tag_are_ready(ready: Path) -> None:
    assert list(find_problems(ready, TAG)) == []


def test_placeholder_raises(ready: Path) -> None:
    replace(ready / "pyproject.toml", "somebody", PLACEHOLDER)
    (problem,) = find_problems(ready, TAG)
    assert PLACEHOLDER in problem


def test_another_version_raises(ready: Path) -> None:
    problems = list(find_problems(ready, "v99.0.0"))
    assert [problem.partition(":")[0] for problem in problems] == [
        "xr_tensorfmt/__init__.py", "CITATION.cff", "ci/recipe/recipe.yaml", "CHANGELOG.md",
    ]  # fmt: skip
