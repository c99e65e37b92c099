"""The examples of the README and of the user guide run, and print what they say."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import xr_tensorfmt
from xr_tensorfmt import contract

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def examples(page: Path) -> str:
    blocks = re.findall(r"```(?:python|pycon)\n(.*?)```", page.read_text(), flags=re.DOTALL)
    return "\n".join(block for block in blocks if ">>>" in block)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if examples(page)], ids=lambda page: page.name
)
def test_examples_run_and_print_what_they_say(page: Path, tmp_path: Path, monkeypatch) -> None:
    if "virtualizarr" in examples(page):
        pytest.importorskip("virtualizarr", reason="VirtualiZarr is not installed")
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(examples(page), {}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)


def test_the_readme_has_an_example() -> None:
    assert ">>>" in examples(PAGES[0])


def test_the_reference_lists_the_public_api_alone() -> None:
    reference = (ROOT / "docs" / "api.md").read_text()
    listed = set(re.findall(r"auto(?:class|function|exception):: (?:[\w.]+\.)?(\w+)", reference))
    assert {*xr_tensorfmt.__all__, *contract.__all__} - {"__version__"} <= listed
    assert len(listed) <= 52
