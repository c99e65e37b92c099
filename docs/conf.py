"""Sphinx configuration."""

import os
import re
import sys
import zlib
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from docutils import nodes
from PIL import Image
from sphinx.application import Sphinx

import xr_tensorfmt

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent / "ci"))

from benchmark.chart import write_page_parts  # noqa: E402

write_page_parts(DOCS / "generated")

os.environ["MATPLOTLIBRC"] = str(DOCS / "matplotlibrc")
# Cells of tutorials call the command, which is installed next to Python.
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")

project = "xr_tensorfmt"
author = "The xr_tensorfmt developers"
copyright = f"2026, {author}"
version = release = xr_tensorfmt.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "_inventories", "generated"]
templates_path = ["_templates"]
nitpicky = True
# Names of parameters and attributes in docstrings, and of a project without an inventory.
nitpick_ignore_regex = [("py:obj", r"[^.]+"), ("py:obj", r"virtualizarr\..+")]
smartquotes_action = "q"  # two hyphens are an option of the command

# Markdown, and pages whose cells are run when the site is built.
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True

# Docstrings.
default_role = "autolink"
autodoc_default_options = {"members": True, "exclude-members": "open_dataset"}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True  # DEFAULT_CHUNK_BYTES, not its number
autodoc_typehints = "none"  # the docstrings say it
numpydoc_show_class_members = False
toc_object_entries_show_parents = "hide"


def build_inventory(name: str) -> str:
    """Build an inventory of another project for intersphinx, and return its path.

    `_inventories/<name>.txt` lists what the pages refer to, a line each: the name, its role, and
    its page, where ``$`` stands for the name. The site is the same with and without a network.
    """
    lines = (DOCS / "_inventories" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    entries = (line.split() for line in lines)
    text = "".join(f"{entry} {role} 1 {page} -\n" for entry, role, page in entries)
    head = f"# Sphinx inventory version 2\n# Project: {name}\n# Version: \n# It uses zlib.\n"
    path = DOCS.parent / "build" / "inventories" / f"{name}.inv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head.encode() + zlib.compress(text.encode()))
    return str(path)


intersphinx_mapping = {
    name: (url, build_inventory(name))
    for name, url in {
        "python": "https://docs.python.org/3",
        "numpy": "https://numpy.org/doc/stable",
        "xarray": "https://docs.xarray.dev/en/stable",
        "dask": "https://docs.dask.org/en/stable",
        "fsspec": "https://filesystem-spec.readthedocs.io/en/latest",
    }.items()
}

html_theme = "pydata_sphinx_theme"
html_title = f"xr_tensorfmt {version}"
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "")
html_context = {"base_url": html_baseurl or "/"}
html_additional_pages = {"404": "404.html"}
html_favicon = "_static/icon.svg"
html_css_files = ["site.css"]
# The site has a copy of MathJax, so formulas need no connection.
html_static_path = ["_static", str(files("sphinx-mathjax-offline") / "static")]
mathjax_path = "mathjax/tex-chtml.js"
html_sidebars = {"index": [], "404": []}
html_theme_options = {
    "logo": {
        "text": f"xr_tensorfmt {version}",
        "image_light": "_static/icon.svg",
        "image_dark": "_static/icon.svg",
    },
    "header_links_before_dropdown": 6,
    "search_as_you_type": True,
    "show_toc_level": 2,
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
html_copy_source = False
html_show_sourcelink = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"


def draw_dark(picture: Path) -> Path:
    """Write a copy of a transparent picture for dark pages, with inverted grays."""
    dark = DOCS / "generated" / f"{picture.stem}-dark{picture.suffix}"
    if picture.suffix == ".svg":
        text = picture.read_text(encoding="utf-8")
        grays = re.compile(r"#([\da-f]{2})\1\1\b")
        text = grays.sub(lambda gray: "#" + 3 * f"{255 - int(gray[1], 16):02x}", text)
        dark.write_text(text, encoding="utf-8")
    else:
        pixels = np.array(Image.open(picture).convert("RGBA"))
        is_gray = np.ptp(pixels[..., :3], axis=-1) == 0
        pixels[is_gray, :3] = 255 - pixels[is_gray, :3]
        Image.fromarray(pixels).save(dark)
    return dark


def add_dark_pictures(app: Sphinx, page: nodes.document) -> None:
    """Show another copy of a picture on dark pages, unless the picture is for both."""
    for image in [*page.findall(nodes.image)]:
        if not {"only-light", "only-dark", "dark-light"} & {*image["classes"]}:
            dark = image.deepcopy()
            picture = draw_dark(Path(app.env.relfn2path(image["uri"])[1]))
            dark["uri"] = f"/generated/{picture.name}"
            image["classes"].append("only-light")
            dark["classes"].append("only-dark")
            image.parent.insert(image.parent.index(image) + 1, dark)


DEFAULTS = {
    "<class 'object'>": "object",
    "<factory>": "...",
    "mappingproxy({})": "{}",
    str(31 << 20): "'31MiB'",
}


def shorten_defaults(*arguments: Any) -> tuple[str | None, str | None]:
    """Return a signature and what it returns, with defaults as one would write them."""
    signature, returned = arguments[-2:]
    for default, text in DEFAULTS.items():
        signature = signature and signature.replace(default, text)
    return signature, returned


def skip_field(*arguments: Any) -> bool | None:
    """Omit fields without a text: those of named tuples, and classes that are defaults."""
    *_, member, _, _ = arguments
    text = "Alias for field number"
    return True if isinstance(member, type) or str(member.__doc__).startswith(text) else None


def setup(app: Sphinx) -> None:
    """Shorten the reference, and draw pictures for dark pages."""
    app.connect("autodoc-process-signature", shorten_defaults)
    app.connect("autodoc-skip-member", skip_field)
    app.connect("doctree-read", add_dark_pictures, priority=100)  # before Sphinx lists pictures
