"""Draw figures and pictures of cards, for light and dark pages, and the picture of the README.

`.venv/bin/python ci/pictures.py` runs the code of the pages below and draws their figures again,
which takes about a minute. Figures of pages are SVG files with axes, and cards show no axes.
"""

import os
import pickle
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import numpy as np
from IPython.core.interactiveshell import InteractiveShell
from matplotlib import pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PICTURES = DOCS / "_static" / "pictures"

# The page that draws each picture, the number of its figure, the axes to show, and the uses.
FIGURES = {
    "lih": ("fields/chemistry", 0, (0, 1), "card, figure"),
    "circle": ("tutorials/circle", 0, (0, 1), "card, figure"),
    "cities": ("fields/search", 0, (0, 1), "figure"),
    "cc4s": ("tutorials/cc4s", 0, (0, 1), "card"),
    "pairs": ("tutorials/cc4s", 1, (0, 1), "figure"),
    "causal_set": ("tutorials/causal_set", 1, (0, 1), "card"),
    "futures": ("fields/causal_sets", 0, (0, 1), "figure"),
    "matrix": ("formats/pycauset", 0, (0,), "figure"),
    "model_weights": ("tutorials/model_weights", 0, (0,), "card"),
    "embeddings": ("tutorials/embeddings", 0, (0,), "card"),
    "cluster": ("tutorials/cluster", 0, (0,), "card with legend"),
    "object_store": ("tutorials/object_store", 0, (0,), "card"),
}
FIELDS = {
    "lih": "quantum chemistry",
    "causal_set": "causal sets",
    "model_weights": "models",
    "embeddings": "embeddings",
}
SIZE = (3.6, 2.9)  # inches, at 200 dots per inch; a card is 320 to 400 pixels wide
MAX_TICKS = 4

# The color of text, of axes, of the card, and the part of a colormap that shows on it as points.
THEMES = {
    "light": ("#222222", "#666666", "#ffffff", (0.0, 0.92)),
    "dark": ("#dddddd", "#9a9a9a", "#222832", (0.3, 1.0)),
}


def read_cells(page: str) -> Iterator[str]:
    """Yield the code of the cells or examples of a page, except blocks of ``py``."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    options = r"(?:---\n.*?---\n)?"
    pattern = rf"```(?:\{{code-cell\}} ipython3|pycon|python)\n{options}(.*?)```"
    for cell in re.findall(pattern, text, flags=re.DOTALL):
        if ">>>" in cell:
            yield "\n".join(re.findall(r"^(?:>>>|\.\.\.) ?(.*)$", cell, flags=re.MULTILINE))
        else:
            yield cell


def draw_figure(page: str, number: int) -> Figure:
    """Run the code of a page in an empty directory until it has drawn a figure."""
    plt.close("all")
    main = sys.modules["__main__"]
    shell = InteractiveShell.instance()
    sys.modules["__main__"] = main  # the processes of a cluster import it
    shell.reset()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        for cell in read_cells(page):
            shell.run_cell(cell, silent=True).raise_error()
            if len(plt.get_fignums()) > number:
                break
        os.chdir(ROOT)
    return plt.figure(number + 1)


def reduce_ticks(axes: Axes) -> None:
    """Leave a few ticks on the numeric axes."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        low, high = axis.get_view_interval()
        if axis.get_scale() == "log":
            steps = (1,) if high > 100 * low else (1, 3)
            axis.set_major_locator(LogLocator(subs=steps, numticks=MAX_TICKS))
        elif isinstance(axis.get_major_locator(), mpl.ticker.AutoLocator):
            ticks = MaxNLocator(MAX_TICKS, steps=(1, 2, 4, 5, 10), integer=high - low > MAX_TICKS)
            axis.set_major_locator(ticks)


def style_legend(axes: Axes, text: str) -> list[Artist]:
    """Use the color of the text and opaque markers in a legend, and return the markers."""
    legend = axes.get_legend()
    if legend is None:
        return []
    legend.get_frame().set_alpha(0)
    for label in legend.get_texts():
        label.set(color=text, fontsize=11)
    for handle in legend.legend_handles:
        handle.set_alpha(1)
    return legend.legend_handles


def lighten(color: tuple[float, float, float]) -> np.ndarray:
    """Mix a color with white."""
    return 0.7 * np.array(color) + 0.3


def reverse_colormap(image: QuadMesh) -> None:
    """Begin a colormap that begins with white with its darkest color instead."""
    colormap = image.get_cmap()
    if min(colormap(0.0)) > 0.9:
        colors = colormap.reversed()(np.linspace(0.1, 0.7, 256))
        image.set_cmap(ListedColormap(colors, f"{colormap.name}-dark"))


def style_axes(axes: Axes, theme: str) -> None:
    """Use the colors of a theme, and sizes for a card."""
    text, line, card, (low, high) = THEMES[theme]
    axes.set_title("")
    axes.set_facecolor("none")
    axes.tick_params(which="both", colors=text, labelsize=11, color=line)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=text, fontsize=12)
    for spine in axes.spines.values():
        spine.set_edgecolor(line)
    handles = style_legend(axes, text)
    for curve in [*axes.lines, *handles] if theme == "dark" else []:
        if isinstance(curve, Line2D):
            edge = to_rgb(curve.get_markeredgecolor())
            curve.set_color(lighten(to_rgb(curve.get_color())))
            curve.set(mec=lighten(edge), mew=1.5 * curve.get_markeredgewidth())
    is_image = any(isinstance(part, QuadMesh) for part in axes.figure.axes[0].collections)
    for collection in axes.collections if is_image and theme == "dark" else []:
        if isinstance(collection, QuadMesh):
            reverse_colormap(collection)
    for collection in [] if is_image else axes.collections:
        if collection.get_array() is not None:
            name = collection.get_cmap().name.partition("-")[0]
            colors = plt.colormaps[name](np.linspace(low, high, 256))
            collection.set_cmap(ListedColormap(colors, f"{name}-{theme}"))
        elif collection.get_linewidth()[0]:  # the lines between filled areas
            collection.set_edgecolor(card)


def fit_colorbar(axes: Axes, bar: Axes) -> None:
    """Make a colorbar as tall as its axes, which may have a fixed aspect."""
    box = axes.get_position()
    bar.set_box_aspect(None)
    bar.set_position((box.x1 + 0.04, box.y0, 0.05, box.height))


def arrange_figure(figure: Figure, shown: tuple[int, ...]) -> None:
    """Leave some axes of a figure, and fix their positions for all themes."""
    axes = figure.axes
    for number, part in enumerate(axes):
        if number not in shown:
            part.remove()
    axes[shown[0]].set_subplotspec(GridSpec(1, 1, figure)[0])
    figure.set_size_inches(SIZE)
    figure.set_layout_engine("constrained", w_pad=0.1)
    figure.patch.set_alpha(0)
    style_figure(figure, "light")
    figure.draw_without_rendering()  # the layout of equal axes needs a second pass
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for bar in figure.axes[1:]:
        fit_colorbar(figure.axes[0], bar)


def style_figure(figure: Figure, theme: str) -> None:
    """Use the colors of a theme, and few ticks."""
    for axes in figure.axes:
        style_axes(axes, theme)
        reduce_ticks(axes)
        dots = [line for line in axes.lines if line.get_linestyle() == "None"]
        for artist in (*axes.collections, *dots):
            artist.set_rasterized(True)


def hide_axes(figure: Figure, *, has_legend: bool) -> None:
    """Leave only the data of the first axes, which then fill the figure, and maybe the legend."""
    axes, *bars = figure.axes
    for bar in bars:
        bar.remove()
    legend = axes.get_legend()
    if legend and not has_legend:
        legend.remove()
    axes.set_axis_off()
    axes.set_anchor("C")
    axes.set_position((0, 0, 1, 1))


def save_figure(figure: Figure, name: str, uses: str) -> None:
    """Save a figure, or its data for a card, for light and dark pages."""
    original = pickle.dumps(figure)
    for theme in THEMES:
        themed = pickle.loads(original)
        style_figure(themed, theme)
        if "figure" in uses:
            path = PICTURES / f"{name}-{theme}.svg"
            themed.savefig(path, dpi=300, bbox_inches="tight", metadata={"Date": None})
        if "card" in uses:
            hide_axes(themed, has_legend="legend" in uses)
            themed.savefig(PICTURES / f"{name}-card-{theme}.png", dpi=200)


def save_format(theme: str) -> None:
    """Draw the bytes of a format, and the array that they become."""
    text, line, _, _ = THEMES[theme]
    figure = Figure(figsize=SIZE, facecolor="none", layout="none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 360), ylim=(0, 290))
    axes.set_axis_off()
    blue, gold = "#4c8fd6", "#d99a2b"
    parts = [("GRID", 62, blue), ("1", 30, blue), ("3", 30, blue), ("4", 30, blue)]
    parts += [("values", 156, gold)]
    left = 26.0
    for label, width, color in parts:
        axes.add_patch(plt.Rectangle((left, 210), width, 40, fc=color + "55", ec=color, lw=1.5))
        axes.text(left + width / 2, 229, label, color=text, size=12, ha="center", va="center")
        left += width
    axes.text(102, 262, "header", color=text, size=11, ha="center")
    arrow = {"arrowstyle": "-|>", "color": line, "lw": 1.5, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (200, 160), (256, 204), arrowprops=arrow)
    for row in range(3):
        for column in range(4):
            corner = (128 + 32 * column, 122 - 32 * row)
            axes.add_patch(plt.Rectangle(corner, 32, 32, fc=gold + "55", ec=gold, lw=1.5))
    axes.text(114, 106, "y", color=text, size=13, ha="right", va="center", style="italic")
    axes.text(192, 30, "x", color=text, size=13, ha="center", va="center", style="italic")
    figure.savefig(PICTURES / f"format-{theme}.png", dpi=200)


def save_fields() -> None:
    """Save the pictures of the fields in a row on white, for the README."""
    figure, row = plt.subplots(1, len(FIELDS), figsize=(12, 2.75), layout="constrained")
    figure.patch.set_facecolor("white")
    for axes, (name, title) in zip(row, FIELDS.items(), strict=True):
        axes.imshow(plt.imread(PICTURES / f"{name}-card-light.png"), interpolation="lanczos")
        axes.set_title(title, color=THEMES["light"][0], size=12)
        axes.set_axis_off()
    figure.savefig(PICTURES / "fields.png", dpi=160)


def main() -> None:
    """Save all pictures."""
    mpl.use("agg")
    mpl.rcParams.update(mpl.rc_params_from_file(DOCS / "matplotlibrc", use_default_template=False))
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")
    mpl.rcParams["svg.hashsalt"] = "xr_tensorfmt"  # the same names in each run
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, (page, number, shown, uses) in FIGURES.items():
        figure = draw_figure(page, number)
        arrange_figure(figure, shown)
        save_figure(figure, name, uses)
    for theme in THEMES:
        save_format(theme)
    save_fields()


if __name__ == "__main__":
    main()
