"""Links and structure of the documentation."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import ROOT

DOCS = ROOT / "docs"
SITE = "https://xr-tensorfmt.readthedocs.io/en/latest/"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "generated" not in page.parts)

# Questions of new users, the page with the answer, and words of the answer.
QUESTIONS = {
    "many files as one": ("howto/many_files.md", "open_mfdataset"),
    "chunks of columns": ("howto/chunks.md", "columns"),
    "SLURM": ("howto/hpc.md", "SLURMCluster"),
    "Google Cloud Storage": ("howto/object_storage.md", "gs://"),
    "what a conversion loses": ("cli/convert.md", "by `drop=`"),
    "thread-safe": ("howto/hpc.md", "thread-safe"),
    "how to cite": ("howto/checking.md", "@software"),
    "the address of the repository": ("get_started/install.md", "repository"),
    "back to cc4s": ("tutorials/cc4s.md", "Write for cc4s"),
    "scipy.sparse": ("howto/libraries.md", "coo_array"),
    "contractions": ("howto/chunks.md", "optimize=True"),
    "write a tree": ("writing.md", "DataTree"),
    "check a file": ("howto/checking.md", "validate"),
    "NFS": ("howto/hpc.md", "NFS"),
    "which Python and systems": ("get_started/install.md", "macOS"),
    "exchange integrals in hartree": ("formats/cc4s.md", "apply_unit=True"),
    "an MP2 energy with a frozen core": ("tutorials/cc4s.md", "second_order_energy"),
    "relations of a causal set": ("formats/pycauset.md", "popcount"),
    "dimension of a causal set": ("tutorials/causal_set.md", "Myrheim"),
    "one layer of a model": ("howto/models.md", "group="),
    "weights in torch": ("howto/libraries.md", "torch.from_numpy"),
    "nearest vectors by label": ("formats/vespa.md", "sortby"),
    "a feed for Vespa": ("formats/vespa.md", "to_jsonl"),
    "more data than memory": ("howto/hpc.md", "LocalCluster"),
    "progress bar": ("howto/hpc.md", "ProgressBar"),
    "quantized weights": ("howto/models.md", "int8"),
    "Hugging Face": ("howto/models.md", "Hugging Face"),
    "S3 credentials": ("howto/object_storage.md", "credentials"),
    "a store that does not respond": ("howto/object_storage.md", "StoreTimeoutError"),
}


def find_listed_pages(page: Path) -> Iterator[str]:
    """Yield the names in the tables of contents of a page, which the site shows in its menus."""
    for text in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL):
        lines = (line for line in text.splitlines() if line and not line.startswith(":"))
        yield from (re.sub(r".* <(.*)>", r"\1", line) for line in lines)


def find_links(page: Path) -> Iterator[Path]:
    """Yield the pages that a page links to, in its text, on cards and in menus."""
    text = page.read_text(encoding="utf-8")
    matches = re.findall(r"\]\(([^)#:]+\.md)[^)]*\)", text)
    names = re.findall(r"^:link: (\S+)$", text, flags=re.MULTILINE)
    matches += [f"{name}.md" for name in (*names, *find_listed_pages(page))]
    return (Path(os.path.normpath(page.parent / name)) for name in matches)


@pytest.mark.parametrize("question", QUESTIONS)
def test_question_is_answered_within_two_clicks_from_home(question: str) -> None:
    name, words = QUESTIONS[question]
    once = set(find_links(DOCS / "index.md"))
    twice = {page for item in once for page in find_links(item)}
    assert DOCS / name in once | twice
    assert words in (DOCS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "README.md"])
def test_links_lead_to_files(name: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / name).read_text("utf-8"))
    relative = [target for target in targets if "://" not in target]
    assert [target for target in relative if not (ROOT / target).exists()] == []
    assert not [target for target in targets if target.startswith(SITE)], "the site is not public"


def test_code_of_picture_sets_its_labels() -> None:
    code = (DOCS / "get_started" / "quickstart.md").read_text(encoding="utf-8")
    picture = (DOCS / "_static" / "pictures" / "lih.svg").read_text(encoding="utf-8")
    labels = {*re.findall(r"<!-- ([a-z ]+) -->", picture)}
    assert labels == {*re.findall(r'label"?[=:] ?"([a-z ]+)"', code)}


def test_every_page_is_in_sidebar() -> None:
    pages = {page.relative_to(DOCS).with_suffix("") for page in PAGES}
    listed = set()
    for page in PAGES:
        directory = page.parent.relative_to(DOCS)
        listed |= {Path(os.path.normpath(directory / name)) for name in find_listed_pages(page)}
    assert pages - listed == {Path("index")}
