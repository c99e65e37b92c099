"""Sphinx extension that shows pictures in a version for light and a version for dark pages.

A page names the version of a picture for light pages, such as ``name-light.svg``. The version for
dark pages, ``name-dark.svg``, must exist. The plots of tutorials have a transparent background
(docs/matplotlibrc); their version for dark pages has the same colors, except that dark grey becomes
light grey.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from docutils import nodes
from matplotlib import image
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

# Grey levels on light pages, and what replaces them: text, lines of axes, the white of the page.
LIGHT_LEVELS = (0x00, 0x33, 0x66, 0xFF)
DARK_LEVELS = (0xEE, 0xDD, 0x9A, 0x14)
MAX_CHROMA = 2  # difference between the channels of a grey pixel; colormaps begin with (0, 0, 4)


def convert_to_dark(pixels: np.ndarray) -> np.ndarray:
    """Replace the grey levels of RGBA pixels, uint8 with the shape (height, width, 4)."""
    dark = pixels.copy()
    colors = pixels[..., :3].astype(int)
    is_grey = np.ptp(colors, axis=-1) <= MAX_CHROMA
    levels = np.interp(colors[is_grey].mean(axis=-1), LIGHT_LEVELS, DARK_LEVELS)
    dark[is_grey, :3] = levels.round().astype(np.uint8)[:, None]
    return dark


class DarkPictures(SphinxTransform):
    """Add the version for dark pages to each picture with a version for light pages."""

    default_priority = 400

    def apply(self, **kwargs: object) -> None:
        """Add the pictures."""
        for light in list(self.document.findall(nodes.image)):
            if "-light." in light["uri"]:
                uri = light["uri"].replace("-light.", "-dark.")
            elif light.parent.get("mime_type") == "image/png":
                uri = self.save_dark_plot(light["uri"])
                light.setdefault("alt", "Plot of the code above")
            else:
                continue
            dark = light.deepcopy()
            dark["uri"] = uri
            light["classes"].append("only-light")
            dark["classes"].append("only-dark")
            light.parent.insert(light.parent.index(light) + 1, dark)

    def save_dark_plot(self, uri: str) -> str:
        """Save the version of a plot for dark pages, and return its address."""
        path = Path(self.env.relfn2path(uri, self.env.docname)[1])
        pixels = np.round(image.imread(path) * 255).astype(np.uint8)
        image.imsave(path.with_stem(f"{path.stem}-dark"), convert_to_dark(pixels))
        return uri.removesuffix(".png") + "-dark.png"


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the transform."""
    app.add_transform(DarkPictures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
