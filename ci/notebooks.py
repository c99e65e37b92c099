"""Sphinx extension that offers the tutorials as notebooks: to download, and on Binder."""

from __future__ import annotations

import shutil
from html import escape
from pathlib import Path

from sphinx.application import Sphinx

NOTEBOOKS = "_notebooks"


def build_binder_url(repository: str | None, page: str) -> str:
    """Return the address that runs a page on Binder, or an empty str without a repository."""
    name = (repository or "").removesuffix(".git").partition("github.com/")[2]
    if not name or "OWNER" in name:
        return ""
    return f"https://mybinder.org/v2/gh/{name.rstrip('/')}/HEAD?urlpath=lab/tree/docs/{page}.ipynb"


def add_links(app: Sphinx, page: str, template: str, context: dict, doctree: object) -> None:  # noqa: ARG001
    """Add links to the notebook below the title of a tutorial."""
    if page in app.env.metadata and app.env.metadata[page].get("file_format") == "mystnb":
        notebook = context["pathto"](f"{NOTEBOOKS}/{Path(page).name}.ipynb", 1)
        button = 'class="sd-btn sd-btn-outline-primary"'
        icon = '<i class="fa-solid fa-download" aria-hidden="true"></i>'
        links = f'<a {button} href="{escape(notebook)}" download>{icon} Download as a notebook</a>'
        if binder := build_binder_url(app.config.notebooks_repository, page):
            links += f' <a {button} href="{escape(binder)}">Run on Binder</a>'
        title, end, rest = context["body"].partition("</h1>")
        context["body"] = f'{title}{end}\n<p class="notebook-links">{links}</p>{rest}'


def copy_notebooks(app: Sphinx, exception: Exception | None) -> None:
    """Copy the executed tutorials into the site."""
    if exception is None and app.builder.format == "html":
        executed = Path(app.outdir).parent / "jupyter_execute" / "tutorials"
        target = Path(app.outdir) / NOTEBOOKS
        target.mkdir(exist_ok=True)
        for path in executed.glob("*.ipynb"):
            shutil.copy(path, target)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the events."""
    app.add_config_value("notebooks_repository", None, "html")
    app.connect("html-page-context", add_links)
    app.connect("build-finished", copy_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
