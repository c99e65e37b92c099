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

# Of each tutorial: which of its pictures, and the part of it that is shown, in hundredths.
CHOSEN = {
    "cc4s": (0, (0, 100, 0, 100)),
    "causal_set": (1, (0, 100, 0, 49)),
    "model_weights": (0, (0, 100, 0, 100)),
    "embeddings": (0, (0, 100, 0, 49)),
    "cluster": (0, (0, 100, 0, 100)),
    "object_store": (0, (0, 100, 0, 100)),
}
CARD = (4.5, 3.6)  # inches, at 160 dots each


def pictures(name: str) -> list[np.ndarray]:
    """All pictures of an executed tutorial."""
    notebook = json.loads((EXECUTED / f"{name}.ipynb").read_text(encoding="utf-8"))
    found = (
        output["data"]["image/png"]
        for cell in notebook["cells"]
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    )
    return [mpl.image.imread(io.BytesIO(base64.b64decode(each))) for each in found]


def chosen(name: str) -> np.ndarray:
    """The part of a picture that stands for a tutorial."""
    number, (left, right, top, bottom) = CHOSEN[name]
    whole = pictures(name)[number]
    height, width = whole.shape[:2]
    return whole[
        height * top // 100 : height * bottom // 100, width * left // 100 : width * right // 100
    ]


def save(images: list[np.ndarray], path: Path, size: tuple[float, float]) -> None:
    """Save images side by side on white."""
    figure = Figure(figsize=size, facecolor="white")
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
    for place, image in enumerate(images):
        axes = figure.add_subplot(grid[place])
        axes.imshow(image, interpolation="lanczos")
        axes.set_axis_off()
    figure.savefig(path, dpi=160)


def main() -> None:
    """Make all of them."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in CHOSEN:
        save([chosen(name)], PICTURES / f"{name}.png", CARD)
    fields = [chosen(name) for name in ("cc4s", "causal_set", "model_weights", "embeddings")]
    save(fields, PICTURES / "fields.png", (12, 2.55))


if __name__ == "__main__":
    main()
