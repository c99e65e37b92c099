"""Sphinx configuration."""

import json
import os
import re
import sys
import tomllib
import zlib
from importlib.resources import files
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.ext.autosummary import autosummary_table

import xr_tensorfmt

ROOT = Path(__file__).resolve().parents[1]

# Plots of executed pages have the sizes and colors of this site.
os.environ["MATPLOTLIBRC"] = str(Path(__file__).with_name("matplotlibrc"))

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Issues"].removesuffix("/issues")
IS_PUBLIC = "OWNER" not in REPOSITORY


def build_install_commands() -> str:
    """Return the install commands as Markdown."""
    pip = 'pip install ".[s3,http]"'
    if not IS_PUBLIC:
        return f"In the directory of the source:\n\n```sh\n{pip}\n```"
    name = REPOSITORY.rpartition("/")[2]
    return f"```sh\ngit clone {REPOSITORY}\ncd {name}\n{pip}\n```"


def local_inventory(project: str) -> str:
    """Make an inventory of another project for intersphinx, and return its path.

    `_inventories/<project>.txt` lists what the pages refer to, a line each: the name, its role, and
    its page, where ``$`` stands for the name.
    """
    head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
    head += "# The remainder of this file is compressed using zlib.\n"
    lines = []
    for line in (
        (Path(__file__).with_name("_inventories") / f"{project}.txt")
        .read_text(encoding="utf-8")
        .splitlines()
    ):
        name, role, page = line.split()
        lines.append(f"{name} {role} 1 {page} -\n")
    made = ROOT / "build" / "inventories"
    made.mkdir(parents=True, exist_ok=True)
    path = made / f"{project}.inv"
    path.write_bytes(head.encode() + zlib.compress("".join(lines).encode()))
    return str(path)


# Cells of notebooks call the command, which is installed next to Python.
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")

# Extensions of this site: flowchart.py, notebooks.py, page_metadata.py, search_words.py,
# shell_options.py and themes.py in ci/.
sys.path.insert(0, str(ROOT / "ci"))

project = "xr_tensorfmt"
author = "The xr_tensorfmt developers"
copyright = f"2026, {author}"
version = release = xr_tensorfmt.__version__

extensions = [
    "flowchart",
    "myst_nb",
    "notebooks",
    "numpydoc",
    "page_metadata",
    "search_words",
    "shell_options",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
    "themes",
]
smartquotes_action = "q"  # two hyphens are an option of the command
exclude_patterns = ["_build", "_extra", "_inventories"]
templates_path = ["_templates"]
nitpicky = True
# Names of parameters and attributes in docstrings, and of a project without an inventory.
nitpick_ignore_regex = [("py:obj", r"[^.]+"), ("py:obj", r"virtualizarr\..+")]
# Markdown, and pages whose cells are run when the site is built.
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath", "substitution"]
myst_heading_anchors = 3
myst_substitutions = {
    "install": build_install_commands(),
    "availability": "" if IS_PUBLIC else "There is no public repository or package on PyPI yet.",
    "issues": f"The issue tracker is <{REPOSITORY}/issues>."
    if IS_PUBLIC
    else "Report bugs to the person who gave you the package.",
}
notebooks_repository = REPOSITORY
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True

# Docstrings.
default_role = "autolink"
autosummary_generate = True
autosummary_ignore_module_all = False
# Sections that show a function in use, as addresses from generated/.
_GUIDES = {
    "Explanation": ("Estimate the cost of a selection", "howto/read_remote.html#explain"),
    "Finding": ("Check files", "howto/checking.html"),
    "SourceChangedError": ("Replaced objects", "remote_failures.html#objects-that-change"),
    "StoreTimeoutError": ("Timeouts and retries", "remote_failures.html#store-faults"),
    "StoreUnavailableError": ("Timeouts and retries", "remote_failures.html#store-faults"),
    "TensorFormatAccessor": ("Writing files", "writing.html"),
    "TensorFormatBackend": ("Opening files", "guide.html"),
    "TensorFormatError": ("Errors and warnings", "guide.html#errors-and-warnings"),
    "TensorFormatParser": ("Virtual Zarr", "virtual.html"),
    "TensorFormatTreeAccessor": ("Writing trees", "writing.html#trees"),
    "TensorFormatWarning": ("Errors and warnings", "guide.html#errors-and-warnings"),
    "explain": ("Estimate the cost of a selection", "howto/read_remote.html#explain"),
    "get_path": ("Start in five minutes", "get_started/quickstart.html"),
    "open_calculation": ("Calculations of cc4s", "formats/cc4s.html#calculations"),
    "open_dataset": ("Start in five minutes", "get_started/quickstart.html"),
    "popcount": ("Counting bits of PyCauset", "formats/pycauset.html#counting-bits"),
    "to_cc4s": ("Write cc4s", "formats/cc4s.html#writing"),
    "to_calculation": ("Calculations of cc4s", "formats/cc4s.html#calculations"),
    "to_file": ("Writing files", "writing.html"),
    "to_mag": ("Write MAG", "formats/mag.html#writing"),
    "to_npy": ("Write NumPy", "formats/npy.html#writing"),
    "to_pycauset": ("Write PyCauset", "formats/pycauset.html#writing"),
    "to_safetensors": ("Write safetensors", "formats/safetensors.html#writing"),
    "to_tens": ("Write TENS", "formats/tens.html#writing"),
    "to_vespa": ("Write Vespa", "formats/vespa.html#writing"),
    "validate": ("Check files", "howto/checking.html"),
    "from_hex": ("JSON of Vespa", "formats/vespa.html#json"),
    "from_json": ("JSON of Vespa", "formats/vespa.html#json"),
    "from_jsonl": ("Feeds of Vespa", "formats/vespa.html#feeds"),
    "to_json": ("JSON of Vespa", "formats/vespa.html#json"),
    "to_jsonl": ("Feeds of Vespa", "formats/vespa.html#feeds"),
}
autosummary_context = {"guides": _GUIDES}
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say it
numpydoc_show_class_members = False
numpydoc_xref_param_type = True
_TYPES = """
    FileExistsError FileNotFoundError IndexError NotADirectoryError OSError TypeError ValueError
    bytearray bytes complex dask.delayed.Delayed fsspec.core.OpenFile fsspec.spec.AbstractFileSystem
    memoryview numpy.dtype object os.PathLike pathlib.Path slice xarray.DataArray xarray.DataTree
    xarray.Dataset xarray.Variable xr_tensorfmt.Explanation xr_tensorfmt.Finding
    xr_tensorfmt.SourceChangedError xr_tensorfmt.TensorFormatError
"""
numpydoc_xref_aliases = {name.rpartition(".")[2]: f":obj:`~{name}`" for name in _TYPES.split()}
numpydoc_xref_aliases["mapping"] = ":term:`python:mapping`"
numpydoc_xref_ignore = "all"
toc_object_entries_show_parents = "hide"

# Other projects. Their inventories are made of the lists in _inventories and are not fetched, so
# that the site is the same with and without a network; a name that is missing there is a warning.
_PAGES = {
    "python": "https://docs.python.org/3",
    "numpy": "https://numpy.org/doc/stable",
    "xarray": "https://docs.xarray.dev/en/stable",
    "dask": "https://docs.dask.org/en/stable",
    "fsspec": "https://filesystem-spec.readthedocs.io/en/latest",
}
intersphinx_mapping = {name: (url, local_inventory(name)) for name, url in _PAGES.items()}

html_theme = "pydata_sphinx_theme"
html_title = f"xr_tensorfmt {version}"
home_title = "xr_tensorfmt: binary tensor files as xarray Datasets"
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "")
# The site has a copy of MathJax, so formulas need no connection.
html_static_path = ["_static", str(files("sphinx-mathjax-offline") / "static")]
mathjax_path = "mathjax/tex-chtml.js"
html_extra_path = ["_extra"]
html_additional_pages = {"404": "404.html"}
_OWNER, _NAME = REPOSITORY.split("/")[-2:]
html_context = {
    "base_url": html_baseurl or "/",
    "github_user": _OWNER,
    "github_repo": _NAME,
    "github_version": "main",
    "doc_path": "docs",
}
html_favicon = "_static/icon.svg"
html_css_files = ["site.css"]
html_sidebars = {"**": ["sidebar-nav-bs"], "index": [], "404": []}
# The header has the version, or a choice of versions if there are several. If the address of the
# repository is known, there are links to it and to the source of each page.
_VERSIONS = json.loads((ROOT / "docs" / "_extra" / "switcher.json").read_text(encoding="utf-8"))
_NAVBAR_END = ["version-switcher" if len(_VERSIONS) > 1 else "version", "theme-switcher"]
if IS_PUBLIC:
    _NAVBAR_END.append("navbar-icon-links")
html_theme_options = {
    "logo": {
        "text": "xr_tensorfmt",
        "image_light": "_static/icon.svg",
        "image_dark": "_static/icon.svg",
    },
    "navbar_align": "left",
    "navbar_center": ["navbar-nav"],
    "header_links_before_dropdown": 6,
    "navbar_end": _NAVBAR_END,
    "github_url": REPOSITORY if IS_PUBLIC else "",
    # Add each released version to _extra/switcher.json.
    "switcher": {
        "json_url": "https://xr-tensorfmt.readthedocs.io/en/latest/switcher.json",
        "version_match": os.environ.get("READTHEDOCS_VERSION", "latest"),
    },
    "check_switcher": False,  # the site is built without a network
    "use_edit_page_button": IS_PUBLIC,
    "secondary_sidebar_items": ["page-toc", "edit-this-page"] if IS_PUBLIC else ["page-toc"],
    "search_as_you_type": True,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": ["footer-links"],
    "pygments_light_style": "a11y-light",
    "pygments_dark_style": "a11y-dark",
}
html_copy_source = False
html_search_scorer = str(Path(__file__).with_name("search_scorer.js"))
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"


def omit_lines(app: object, command: object, lines: list[str]) -> None:  # noqa: ARG001
    """Omit a part of ``--help`` that the page of the command describes."""
    lines.clear()


def join_sections(app: Sphinx, document: nodes.document) -> None:
    """Add the usage and options of a command to the section above, without their titles."""
    if not app.env.docname.startswith("cli/"):
        return
    for section in list(document.findall(nodes.section)):
        if section["ids"][0].startswith("xr-tensorfmt-"):
            section.parent.replace(section, section.children[2:])


def build_section(title: str) -> nodes.section:
    """Return a section without text."""
    return nodes.section("", nodes.title("", title), ids=[nodes.make_id(title)])


def divide_function(app: Sphinx, document: nodes.document) -> None:
    """Show the summary of a function before its signature, and its parts as sections."""
    page = document.next_node(nodes.section)
    function = document.next_node(addnodes.desc)
    if not app.env.docname.startswith("generated/") or function["objtype"] != "function":
        return
    content = function[-1]
    summary, *parts = content.children
    function.remove(content)
    function["no-contents-entry"] = True
    page.insert(1, summary)
    section = page
    for part in parts:
        if isinstance(part, nodes.rubric):
            section = build_section(part.astext())
            page += section
        elif isinstance(part, nodes.field_list):
            for field in part:
                section = build_section(field[0].astext())
                section.extend(field[1].children)
                page += section
        else:
            section += part


def add_header_rows(app: object, document: nodes.document) -> None:  # noqa: ARG001
    """Give the tables of names the header row of other tables, and signatures that wrap."""
    for table in document.findall(autosummary_table):
        for text in list(table.findall(nodes.Text)):
            if text.startswith("("):
                plain = text.replace(", *[", "[")
                text.parent.replace(text, nodes.inline("", plain, classes=["signature"]))
        for group in table.findall(nodes.tgroup):
            titles = (nodes.paragraph("", title) for title in ("Name", "Purpose"))
            row = nodes.row("", *(nodes.entry("", title) for title in titles))
            group.insert(-1, nodes.thead("", row))


def straighten_quotes(app: object, document: nodes.document) -> None:  # noqa: ARG001
    """Keep the quotes in types of parameters straight, because they are code."""
    for types in document.findall(nodes.classifier):
        for text in list(types.findall(nodes.Text)):
            straight = text.replace("\u201c", '"').replace("\u201d", '"')
            text.parent.replace(text, nodes.Text(straight))


def omit_back_links(app: object, page: str, template: str, context: dict, doctree: object) -> None:  # noqa: ARG001
    """Omit the links from the source of a name to its page, which lack the name of its module."""
    if page.startswith("_modules/"):
        context["body"] = re.sub(r'<a class="viewcode-back".*?</a>', "", context["body"])


def setup(app: object) -> None:
    """Connect the events."""
    app.connect("doctree-read", straighten_quotes)
    app.connect("doctree-read", add_header_rows)
    app.connect("html-page-context", omit_back_links)
    for change in (join_sections, divide_function):
        app.connect("doctree-read", change, priority=0)  # before the contents are collected
    for part in ("description", "arguments", "epilog"):
        app.connect(f"sphinx-click-process-{part}", omit_lines)
