"""Sphinx extension that describes each page for search engines and for previews of links."""

from __future__ import annotations

import re
from html import escape

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

MAX_LENGTH = 200  # characters of a description; search engines show about 160


def find_paragraphs(document: nodes.Node) -> list[str]:
    """Return the text of the paragraphs that are not in lists, tables, cards or outputs."""
    parents = (nodes.document, nodes.section, addnodes.desc_content)
    return [
        " ".join(paragraph.astext().split())
        for paragraph in document.findall(nodes.paragraph)
        if isinstance(paragraph.parent, parents)
    ]


def select_description(paragraphs: list[str]) -> str:
    """Return the sentences that begin the first suitable paragraph, without formulas."""
    for paragraph in paragraphs:
        description = ""
        for sentence in re.split(r"(?<=[.?!])\s+(?=[^a-z])", paragraph):
            longer = f"{description} {sentence}".strip()
            is_suitable = sentence.endswith((".", "?", "!")) and "\\" not in sentence
            if not is_suitable or (description and len(longer) > MAX_LENGTH):
                break
            description = longer
        if description:
            return description
    return ""


def add_metadata(
    app: Sphinx,
    page: str,
    template: str,  # noqa: ARG001
    context: dict,
    doctree: nodes.document | None,
) -> None:
    """Add the description of a page: the one in its front matter, or its first sentences.

    The home page has a title of its own.
    """
    title = re.sub(r"<[^>]*>", "", context.get("title", ""))
    if page == app.config.root_doc:
        title = app.config.home_title
        context.update(title=title, docstitle="")
    if doctree is None:
        return
    description = (context.get("meta") or {}).get("description", "")
    description = " ".join(description.split()) or select_description(find_paragraphs(doctree))
    tags = {"og:title": title, "og:type": "website", "og:site_name": app.config.project}
    if description:
        context["metatags"] += f'<meta name="description" content="{escape(description)}">\n'
        tags["og:description"] = description
    if address := context.get("pageurl"):  # the address of the site is known
        tags["og:url"] = address
        tags["og:image"] = app.config.html_baseurl + "_static/pictures/fields.png"
    for name, value in tags.items():
        text = escape(value.replace("&amp;", "&"))
        context["metatags"] += f'<meta property="{name}" content="{text}">\n'


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the event."""
    app.add_config_value("home_title", "", "html")
    app.connect("html-page-context", add_metadata)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
