"""Examples of the README and the documentation run with the printed output."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import xr_tensorfmt
from tests.commands import run_console_blocks
from tests.paths import ROOT
from xr_tensorfmt import cc4s, contract, pycauset, testing, vespa

PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "generated" not in page.parts),
]
PAGES.remove(ROOT / "docs" / "write_a_backend.md")  # a module: tests/datasets/test_backend_page.py


def find_examples(page: Path) -> str:
    blocks = re.findall(r"```(?:python|pycon)\n(.*?)```", page.read_text(), flags=re.DOTALL)
    if find_spec("matplotlib") is None:
        blocks = [block for block in blocks if "matplotlib" not in block]
    return "\n".join(block for block in blocks if ">>>" in block)


def has_examples(page: Path) -> bool:
    return bool(find_examples(page)) or "```console" in page.read_text()


@pytest.mark.parametrize("page", [*filter(has_examples, PAGES)], ids=lambda page: page.name)
def test_examples_print_their_output(page: Path, tmp_path: Path, monkeypatch) -> None:
    if "virtualizarr" in find_examples(page):
        pytest.importorskip("virtualizarr", reason="VirtualiZarr is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    test = doctest.DocTestParser().get_doctest(find_examples(page), {}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
    run_console_blocks(page.read_text())


def test_readme_has_example() -> None:
    assert ">>>" in find_examples(PAGES[0])


@pytest.mark.parametrize("script", ["ci/demo", "ci/test"])
def test_readme_begins_with_commands_that_exist(script: str) -> None:
    readme = PAGES[0].read_text(encoding="utf-8")
    (line,) = re.findall(rf"^- \*\*`sh {script}`\*\*", readme, flags=re.MULTILINE)
    assert readme[: readme.index(line)].count("\n") < 20
    assert (ROOT / script).is_file()
    assert subprocess.run(["sh", "-n", ROOT / script], check=False).returncode == 0


def test_hook_runs_commands_of_readme() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert "sh ci/test" in lines
    assert any(line.strip() == "sh ci/demo" for line in lines)


ELSEWHERE = {"TensorFormatAccessor", "TensorFormatParser", "get_path", "open_dataset"}
"""Names in the reference that neither the package nor the contract exports."""


def find_listed_names(page: str) -> set[str]:
    reference = (ROOT / "docs" / page).read_text(encoding="utf-8")
    names = re.findall(r"^\.\. (?:auto[a-z]+|py:data):: ([\w.]+)", reference, flags=re.MULTILINE)
    return {name.split(".")[-1] for name in names}


def test_reference_lists_the_public_api() -> None:
    pages = ("api.md", "api_formats.md", "reference/to_file.md")
    api = {name for page in pages for name in find_listed_names(page)}
    of_formats = find_listed_names("reference/contract.md")
    public = {*xr_tensorfmt.__all__} - {"__version__"}
    public |= {*cc4s.__all__, *pycauset.__all__, *vespa.__all__}
    assert public <= api
    for_formats = {*contract.__all__, *contract.PROVISIONAL, *testing.__all__}
    assert for_formats <= of_formats | public
    assert (api | of_formats) - public - for_formats == ELSEWHERE


def test_first_table_of_contract_lists_stable_names() -> None:
    page = (ROOT / "docs" / "reference" / "contract.md").read_text(encoding="utf-8")
    names = re.findall(
        r"`(?:~[\w.]+\.)?(\w+)`", page[: page.index("```python")].split("Purpose")[1]
    )
    assert {*names} >= {*contract.__all__}
    assert not {*names} & {*contract.PROVISIONAL}
