"""Sphinx extension that shows a picture in the version for light or for dark pages.

A page names the version for light pages, ``name-light.png``. A file ``name-dark.png`` must exist.
"""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class DarkPictures(SphinxTransform):
    """Add the version for dark pages to each picture with a version for light pages."""

    default_priority = 400

    def apply(self, **kwargs: object) -> None:
        """Add the pictures."""
        for light in list(self.document.findall(nodes.image)):
            if light["uri"].endswith("-light.png"):
                dark = light.deepcopy()
                dark["uri"] = light["uri"].replace("-light.png", "-dark.png")
                light["classes"].append("only-light")
                dark["classes"].append("only-dark")
                light.parent.insert(light.parent.index(light) + 1, dark)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the transform."""
    app.add_transform(DarkPictures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
