"""Make the pictures of the home page and of the cards from those of the executed tutorials.

Run it after the documentation was built: `.venv/bin/python ci/pictures.py`.
"""

import base64
import io
import json
from pathlib import Path

import matplotlib as mpl
import matplotlib.image
import numpy as np
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
EXECUTED = ROOT / "build" / "jupyter_execute" / "tutorials"
PICTURES = ROOT / "docs" / "_static" / "pictures"

# A picture of each tutorial by number, and the part to show: left, right, top, bottom in percent.
CROPS = {
    "cc4s": (0, (0, 100, 0, 100)),
    "causal_set": (1, (0, 100, 0, 49)),
    "model_weights": (0, (0, 100, 0, 100)),
    "embeddings": (0, (0, 100, 0, 49)),
    "cluster": (0, (0, 100, 0, 100)),
    "object_store": (0, (0, 100, 0, 100)),
}
CARD = (4.5, 3.6)  # inches, at 160 dots per inch


def read_pictures(name: str) -> list[np.ndarray]:
    """Read all pictures of an executed tutorial."""
    notebook = json.loads((EXECUTED / f"{name}.ipynb").read_text(encoding="utf-8"))
    pictures = (
        output["data"]["image/png"]
        for cell in notebook["cells"]
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    )
    return [mpl.image.imread(io.BytesIO(base64.b64decode(picture))) for picture in pictures]


def crop_picture(name: str) -> np.ndarray:
    """Return the part of a picture that represents a tutorial."""
    number, (left, right, top, bottom) = CROPS[name]
    picture = read_pictures(name)[number]
    height, width = picture.shape[:2]
    return picture[
        height * top // 100 : height * bottom // 100, width * left // 100 : width * right // 100
    ]


def save_pictures(images: list[np.ndarray], path: Path, size: tuple[float, float]) -> None:
    """Save images side by side, with a transparent background."""
    figure = Figure(figsize=size, facecolor="none")
    widths = [image.shape[1] / image.shape[0] for image in images]
    grid = figure.add_gridspec(
        1,
        len(images),
        width_ratios=widths,
        left=0.01,
        right=0.99,
        bottom=0.02,
        top=0.98,
        wspace=0.03,
    )
    for column, image in enumerate(images):
        axes = figure.add_subplot(grid[column])
        axes.imshow(image, interpolation="lanczos")
        axes.set_axis_off()
    figure.savefig(path, dpi=160)


def main() -> None:
    """Save the pictures of the cards, and the picture of the fields for the README."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in CROPS:
        save_pictures([crop_picture(name)], PICTURES / f"{name}.png", CARD)
    fields = [crop_picture(name) for name in ("cc4s", "causal_set", "model_weights", "embeddings")]
    save_pictures(fields, PICTURES / "fields.png", (12, 2.55))


if __name__ == "__main__":
    main()
