"""Links and structure of the documentation."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from check_pages import (
    find_empty_blocks,
    find_lazy_values,
    find_missing_options,
    find_missing_sections,
    find_missing_words,
)
from flowchart import draw_flowchart
from notebooks import build_binder_url
from page_metadata import select_description
from search_words import SECTIONS

from tests.paths import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "generated" not in page.parts)

# Questions of new users, the page with the answer, and words of the answer.
QUESTIONS = {
    "many files as one": ("howto/many_files.md", "open_mfdataset"),
    "chunks of columns": ("howto/chunks.md", "columns"),
    "SLURM": ("howto/hpc.md", "SLURMCluster"),
    "Google Cloud Storage": ("howto/read_remote.md", "gs://"),
    "what a conversion loses": ("howto/conversions.md", "without"),
    "thread-safe": ("howto/threads.md", "thread-safe"),
    "how to cite": ("howto/citing.md", "@software"),
    "the address of the repository": ("get_started/install.md", "{{ install }}"),
    "back to cc4s": ("tutorials/cc4s.md", "Write the integrals for cc4s"),
    "scipy.sparse": ("howto/libraries.md", "coo_array"),
    "contractions": ("howto/contractions.md", "optimize=True"),
    "write a tree": ("writing.md", "DataTree"),
    "check a file": ("howto/checking.md", "validate"),
    "NFS": ("howto/hpc.md", "NFS"),
    "which Python and systems": ("get_started/install.md", "macOS"),
}


def find_links(page: Path) -> Iterator[Path]:
    """Yield the pages that a page links to, in its text and on cards."""
    text = page.read_text(encoding="utf-8")
    matches = re.findall(r"\]\(([^)#:]+\.md)[^)]*\)", text)
    matches += [f"{name}.md" for name in re.findall(r"^:link: (\S+)$", text, flags=re.MULTILINE)]
    return (Path(os.path.normpath(page.parent / name)) for name in matches)


@pytest.mark.parametrize("question", QUESTIONS)
def test_question_is_answered_within_two_clicks_from_home(question: str) -> None:
    name, words = QUESTIONS[question]
    once = set(find_links(DOCS / "index.md"))
    twice = {page for item in once for page in find_links(item)}
    assert DOCS / name in once | twice
    assert words in (DOCS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_of_pages_outside_of_site_lead_to_files(name: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / name).read_text(encoding="utf-8"))
    assert [
        target for target in targets if "://" not in target and not (ROOT / target).exists()
    ] == []


def test_every_page_is_in_sidebar() -> None:
    pages = {page.relative_to(DOCS).with_suffix("") for page in PAGES}
    listed = set()
    for page in PAGES:
        directory = page.parent.relative_to(DOCS)
        for text in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), flags=re.DOTALL):
            names = [line for line in text.splitlines() if line and not line.startswith(":")]
            listed |= {Path(os.path.normpath(directory / name)) for name in names}
    assert pages - listed == {Path("index")}


def test_options_that_are_missing_on_built_page_are_named() -> None:
    page = '<dt id="cmdoption-xr-tensorfmt-diff-json">'
    missing = [fault.partition(":")[0] for fault in find_missing_options(page)]
    assert "info --json" in missing
    assert "convert --overwrite" in missing
    assert "diff --json" not in missing


@pytest.mark.parametrize(
    ("output", "count"),
    [
        ("<table> <td>Array</td> Chunk Bytes 1 B 1 B Shape () () </table>", 1),
        ("<pre>dask.array&lt;all, shape=(), dtype=bool&gt;</pre>", 1),
        ("<pre>True</pre>", 0),
        ("<table> Array Chunk Bytes 8 B 8 B Shape (1,) (1,) </table>", 0),
    ],
)
def test_lazy_array_of_one_element_is_a_fault(output: str, count: int) -> None:
    page = f'<div class="cell_output docutils">{output}</div>'
    assert len(list(find_lazy_values(page))) == count


def test_block_of_code_without_text_is_a_fault() -> None:
    page = "<pre><span></span>\n</pre> <pre><span></span>a = 1\n</pre>"
    assert len(list(find_empty_blocks(page))) == 1


def test_flowchart_omits_arrows_that_longer_path_implies() -> None:
    source = ["  top[The <b>] --> middle", "  middle --> low", "  top --> low"]
    drawing = draw_flowchart(source, "three boxes")
    assert drawing.count("<line ") == 2
    assert "The &lt;b&gt;" in drawing
    assert 'aria-label="three boxes"' in drawing


def test_words_that_the_search_does_not_lead_to_their_section_are_named() -> None:
    entries = {"fp8": [[0, "trees", True]], "bfloat16": [[0, "dtypes", True]]}
    index = {"docnames": ["writing"], "indexentries": entries}
    missing = list(find_missing_words(index))
    assert "fp8: the search does not lead to writing#dtypes" in missing
    assert "GPU: the search does not lead to get_started/faq#computing" in missing
    assert not any(fault.startswith("bfloat16") for fault in missing)


def test_sections_of_the_search_that_the_pages_lack_are_named(tmp_path: Path) -> None:
    for section in SECTIONS.values():
        page = tmp_path / f"{section.partition('#')[0]}.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text('<section id="dtypes">', encoding="utf-8")
    missing = list(find_missing_sections(tmp_path))
    assert "pandas: the page has no section howto/libraries#pandas" in missing
    assert not any(fault.startswith(("fp8", "S3")) for fault in missing)


@pytest.mark.parametrize(
    ("repository", "url"),
    [
        (None, ""),
        ("https://github.com/OWNER/xr-tensorfmt", ""),
        (
            "https://github.com/someone/xr-tensorfmt.git",
            "https://mybinder.org/v2/gh/someone/xr-tensorfmt/HEAD?urlpath=lab/tree/docs/tutorials/cc4s.ipynb",
        ),
    ],
)
def test_a_tutorial_runs_on_binder_if_the_repository_has_an_address(
    repository: str | None, url: str
) -> None:
    assert build_binder_url(repository, "tutorials/cc4s") == url


@pytest.mark.parametrize(
    ("paragraphs", "expected"),
    [
        (["Open a URL like a path:", "It reads a range. Then:"], "It reads a range."),
        (["The integrals \\Gamma are small.", "A file opens."], "A file opens."),
        (["Pass e.g. a path. " + "Long. " * 60], "Pass e.g. a path. " + ("Long. " * 30).strip()),
        (["Bases: ValueError"], ""),
    ],
)
def test_description_is_full_sentences(paragraphs: list[str], expected: str) -> None:
    assert select_description(paragraphs) == expected


def test_plot_of_dark_page_has_light_text_and_same_colors() -> None:
    themes = pytest.importorskip("themes", exc_type=ImportError, reason="matplotlib is missing")
    text, background, red = (0x33, 0x33, 0x33, 200), (0xFF, 0xFF, 0xFF, 0), (200, 10, 10, 255)
    pixels = np.array([[text, background, red]], dtype=np.uint8)
    dark = themes.convert_to_dark(pixels)
    assert dark[0, 0].tolist() == [0xDD, 0xDD, 0xDD, 200]
    assert dark[0, 1, 3] == 0
    assert dark[0, 2].tolist() == list(red)
