"""Sphinx extension that keeps the generated pages of names out of the sidebar.

The pages of the reference list these names in tables. "Previous" and "next" skip them.
"""

from __future__ import annotations

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

GENERATED = "generated/"


def find_parents(env: BuildEnvironment) -> dict[str, str]:
    """Return the page with the table of each generated page."""
    return {
        child: page
        for page, children in env.toctree_includes.items()
        for child in children
        if child.startswith(GENERATED)
    }


def remove_node(node: nodes.Element) -> None:
    """Remove a node, and the lists that become empty."""
    parent = node.parent
    parent.remove(node)
    if isinstance(parent, nodes.bullet_list) and not parent.children:
        remove_node(parent)


def remove_from_sidebar(app: Sphinx, env: BuildEnvironment) -> None:  # noqa: ARG001
    """Remove the generated pages from the lists of pages, and remember their parents."""
    env.parents_of_generated = find_parents(env) | getattr(env, "parents_of_generated", {})
    for toc in env.tocs.values():
        for toctree in list(toc.findall(addnodes.toctree)):
            if all(str(page).startswith(GENERATED) for _, page in toctree["entries"]):
                remove_node(toctree)
    for page, children in env.toctree_includes.items():
        env.toctree_includes[page] = [
            child for child in children if not child.startswith(GENERATED)
        ]


def add_parents(
    app: Sphinx,
    page: str,
    template: str,  # noqa: ARG001
    context: dict,
    doctree: nodes.document | None,  # noqa: ARG001
) -> None:
    """Give a generated page the path to its table, for the links above its title."""
    parent = app.env.parents_of_generated.get(page)
    parents: list[dict[str, str]] = []
    while parent and parent != app.config.root_doc:
        link = app.builder.get_relative_uri(page, parent)
        parents.insert(0, {"link": link, "title": app.env.titles[parent].astext()})
        parent = (app.builder.relations.get(parent) or [None])[0]
    if parents:
        context["parents"] = parents


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the events."""
    app.connect("env-updated", remove_from_sidebar)
    app.connect("html-page-context", add_parents, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
