"""Examples of the README and the documentation run with the printed output."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import xr_tensorfmt
from tests.paths import ROOT
from xr_tensorfmt import cc4s, contract, pycauset, testing, vespa

PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "generated" not in page.parts),
]


def find_examples(page: Path) -> str:
    blocks = re.findall(r"```(?:python|pycon)\n(.*?)```", page.read_text(), flags=re.DOTALL)
    return "\n".join(block for block in blocks if ">>>" in block)


# Their examples need files of the reader.
PAGES_WITH_FILES = (ROOT / "README.md", ROOT / "docs" / "index.md")


def write_files_of_a_reader() -> None:
    """Write the files that README and home page open."""
    vertex = xr.DataArray(
        np.ones((5, 3, 3), complex),
        dims=("AuxiliaryField", "State", "State_2"),
        name="CoulombVertex",
        attrs={"unit": 0.5},
    )
    xr_tensorfmt.to_file(vertex, "CoulombVertex.yaml")
    order = xr.DataArray(np.triu(np.ones((9, 9), bool), 1), dims=("row", "col"))
    xr_tensorfmt.to_file(order, "causet.pycauset")
    weight = xr.Dataset({"layers.0.attention.weight": (("out", "in"), np.ones((16, 16), "f4"))})
    xr_tensorfmt.to_file(weight, "model.safetensors")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if find_examples(page)], ids=lambda page: page.name
)
def test_examples_print_their_output(page: Path, tmp_path: Path, monkeypatch) -> None:
    if "virtualizarr" in find_examples(page):
        pytest.importorskip("virtualizarr", reason="VirtualiZarr is not installed")
    monkeypatch.chdir(tmp_path)
    if page in PAGES_WITH_FILES:
        write_files_of_a_reader()
    test = doctest.DocTestParser().get_doctest(find_examples(page), {}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)


def test_readme_has_example() -> None:
    assert ">>>" in find_examples(PAGES[0])


ELSEWHERE = {"TensorFormatAccessor", "TensorFormatParser", "get_path", "open_dataset"}
"""Names in the reference that neither the package nor the contract exports."""


def find_listed_names(page: str) -> set[str]:
    reference = (ROOT / "docs" / page).read_text(encoding="utf-8")
    lists = re.findall(r"\.\. autosummary::\n(.*?)```", reference, flags=re.DOTALL)
    names = re.findall(r"^   ~?(\w.*)$", "".join(lists), flags=re.MULTILINE)
    names += re.findall(r"^\.\. auto[a-z]+:: (\S+)$", reference, flags=re.MULTILINE)
    return {name.split(".")[-1] for name in names}


def test_reference_lists_the_public_api() -> None:
    api, of_formats = find_listed_names("api.md"), find_listed_names("reference/contract.md")
    public = {*xr_tensorfmt.__all__} - {"__version__"}
    public |= {*cc4s.__all__, *pycauset.__all__, *vespa.__all__}
    assert public <= api
    assert {*contract.__all__, *testing.__all__} <= of_formats | public
    listed = api | of_formats
    assert listed - public - {*contract.__all__, *testing.__all__} == ELSEWHERE
