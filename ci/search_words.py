"""Sphinx extension that makes sections the first search results for words of users."""

from __future__ import annotations

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

# What users type into the search field, often in the words of other libraries.
SECTIONS = {
    "bfloat16": "writing#dtypes",
    "convert": "cli/convert",
    "float8": "writing#dtypes",
    "fp8": "writing#dtypes",
    "GPU": "get_started/faq#computing",
    "MP2": "tutorials/cc4s_calculation#the-second-order-energy",
    "nearest neighbors": "tutorials/embeddings#nearest-neighbours-of-one-page",
    "neighbors": "tutorials/embeddings#nearest-neighbours-of-one-page",
    "pandas": "howto/libraries#pandas",
    "quantize": "writing#dtypes",
    "PyTorch": "howto/libraries#pytorch",
    "S3": "howto/read_remote",
    "scipy": "howto/libraries#scipy-sparse",
    "SLURM": "howto/hpc#start-a-cluster-with-dask-jobqueue",
    "torch": "howto/libraries#pytorch",
}


def add_words(app: Sphinx, document: nodes.document) -> None:
    """Add entries to the index of a page, which the search prefers to titles and text."""
    entries = []
    for word, section in SECTIONS.items():
        page, _, anchor = section.partition("#")
        if page == app.env.docname:
            entries.append(("single", word, anchor, "main", None))
    if entries:
        document.append(addnodes.index(entries=entries))


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the event."""
    app.connect("doctree-read", add_words)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
