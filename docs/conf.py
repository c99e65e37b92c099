"""Sphinx configuration."""

import xr_tensorfmt

project = "xr_tensorfmt"
author = "The xr_tensorfmt developers"
copyright = f"2026, {author}"
version = release = xr_tensorfmt.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3

html_theme = "pydata_sphinx_theme"
html_title = f"xr_tensorfmt {version}"
html_theme_options = {"show_toc_level": 2, "navbar_align": "left"}
html_sidebars: dict[str, list[str]] = {"**": []}

toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say it
numpydoc_show_class_members = False
