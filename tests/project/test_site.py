"""Links and structure of the documentation."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    "the address of the repository": ("get_started/install.md", "repository"),
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
