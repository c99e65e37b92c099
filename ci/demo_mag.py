"""MAG: open a file of magnetron, average images by class, and draw the weights of a model.

The images and the weights are random. They are written for magnetron 0.2.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dask
import dask.array
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from demo_output import progress, say
from matplotlib.figure import SubFigure
from numpy.typing import NDArray

from xr_tensorfmt import to_file

# Files that released versions of magnetron wrote.
GENUINE = Path(__file__).resolve().parents[1] / "tests" / "data"

IMAGES, SIDE = 21_845, 32
LAYERS, WIDTH, INNER = 24, 512, 1408
# bfloat16 represents these edges, so neighbouring bins cover equally many of its numbers.
EDGES = np.arange(-122, 123) / 1024

Array = NDArray[Any]


def build_dataset(tensors: Mapping[str, Array], metadata: Mapping[str, Any]) -> xr.Dataset:
    """Build a Dataset with the dimension names of a file opened without `dims`."""
    named = {
        key: ([f"{key}_dim_{axis}" for axis in range(values.ndim)], values)
        for key, values in tensors.items()
    }
    return xr.Dataset(named, attrs=dict(metadata))


def heart(x: Array, y: Array) -> Array:
    """Return a number that is positive inside the shape."""
    return 0.5 - x**2 - (1.15 * y - 0.75 * np.sqrt(abs(x)) + 0.25) ** 2


def moon(x: Array, y: Array) -> Array:
    """Return a number that is positive inside the shape."""
    return np.minimum(0.68 - np.hypot(x, y), np.hypot(x - 0.34, y - 0.2) - 0.5)


def petals(count: int, mean: float, swing: float) -> Callable[[Array, Array], Array]:
    """Return a shape: a disc whose radius has `count` maxima."""
    return lambda x, y: mean + swing * np.cos(count * np.arctan2(x, y)) - np.hypot(x, y)


SHAPES: dict[str, tuple[Callable[[Array, Array], Array], tuple[int, int, int]]] = {
    "sun": (petals(12, 0.58, 0.12), (255, 196, 61)),
    "moon": (moon, (222, 228, 240)),
    "heart": (heart, (232, 76, 97)),
    "flower": (petals(5, 0.5, 0.22), (214, 140, 232)),
    "ring": (lambda x, y: 0.16 - abs(np.hypot(x, y) - 0.52), (92, 190, 232)),
    "clover": (petals(3, 0.48, 0.24), (128, 206, 98)),
}


def make_images(name: str, count: int, random: np.random.Generator) -> Array:
    """Make images (n, channel, y, x) of a class, with random positions, sizes and colours."""
    inside, colour = SHAPES[name]
    axis = np.linspace(-1, 1, SIDE, dtype=np.float32)
    jitter = random.normal(0, 0.09, (4, count, 1, 1)).astype(np.float32)
    size, tint = 1 + jitter[2], 1 + jitter[3][:, np.newaxis]
    level = inside((axis - jitter[0]) / size, (axis[::-1, np.newaxis] - jitter[1]) / size)
    mask = np.clip(8 * level + 0.5, 0, 1)[:, np.newaxis]
    sky = np.array([24, 32, 64], np.float32)[:, np.newaxis, np.newaxis]
    sky = sky * (1.2 - 0.6 * axis[:, np.newaxis])
    values = sky + mask * (np.array(colour, np.float32)[:, np.newaxis, np.newaxis] * tint - sky)
    values += random.standard_normal(values.shape, np.float32) * 32
    return np.clip(values, 0, 255).astype(np.uint8)


def write_images(path: Path) -> None:
    """Write a set of labelled images."""
    random = np.random.default_rng(0)
    labels = random.integers(0, len(SHAPES), IMAGES)
    images = np.empty((IMAGES, 3, SIDE, SIDE), np.uint8)
    for number, name in enumerate(SHAPES):
        members = np.flatnonzero(labels == number)
        images[members] = make_images(name, members.size, random)
    tensors = {"train_images": images, "train_labels": labels}
    to_file(build_dataset(tensors, {"source": "random", "classes": list(SHAPES)}), path, "mag")


def spread(layer: int) -> float:
    """Return the standard deviation of the weights of a layer."""
    depth = layer / (LAYERS - 1)
    return 0.014 + 0.020 * depth + 0.009 * np.sin(2.5 * np.pi * depth) ** 2


def write_model(path: Path) -> None:
    """Write weights of a language model as bfloat16."""
    random = np.random.default_rng(1)
    shapes = {f"self_attn.{name}_proj": (WIDTH, WIDTH) for name in "qkvo"}
    shapes |= {"mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH)}
    shapes |= {"mlp.down_proj": (WIDTH, INNER)}
    tensors = {}
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            scale = spread(layer) * (0.45 if name.endswith(("o_proj", "down_proj")) else 1)
            values = np.float32(scale) * random.standard_normal(shape, np.float32)
            tensors[f"layers.{layer}.{name}.weight"] = values
    config = {"num_hidden_layers": LAYERS, "hidden_size": WIDTH, "intermediate_size": INNER}
    model = build_dataset(tensors, {"architecture": "random", "model_config": config})
    to_file(model, path, "mag", encoding={key: {"dtype": "bfloat16"} for key in tensors})


def show_genuine() -> None:
    """Open a file that magnetron wrote."""
    path = GENUINE / "n300-qwen-like.mag"
    say(f'xr.open_dataset("{path.name}", group="layers.0.self_attn"), written by magnetron 0.2')
    ds = xr.open_dataset(path, engine="tensorfmt", group="layers.0.self_attn")
    print("\n".join(f"{name:15} {dict(array.sizes)}" for name, array in ds.items()))

    say("its metadata are attributes; bfloat16 opens as float32, without loss")
    ds = xr.open_dataset(path, engine="tensorfmt")
    print(f"ds.attrs['hf_config'] = {ds.attrs['hf_config']}")
    weight = ds["layers.0.self_attn.q_proj.weight"]
    print(f"{weight.encoding['dtype']} as {weight.dtype}: {weight[0, :4].values}")


def show_images(path: Path) -> tuple[xr.DataArray, xr.DataArray]:
    """Return an image of each class, and the mean of all images of the class."""
    say('images and labels: dims={"train_images": ("n", "channel", "y", "x"), ...}, chunks={}')
    names = {"train_images": ("n", "channel", "y", "x"), "train_labels": ("n",)}
    ds = xr.open_dataset(path, engine="tensorfmt", dims=names, chunks={}, chunk_bytes="4MiB")
    print(ds)

    say("the mean image of each class, computed by dask")
    classes = xr.DataArray(ds.attrs["classes"], dims="class")
    belongs = ds.train_labels == xr.DataArray(np.arange(classes.size), coords={"class": classes})
    total = xr.dot(belongs.astype("f4"), ds.train_images.astype("f4"), dim="n")
    with progress("images"):
        mean, count = dask.compute(total / belongs.sum("n"), belongs.sum("n"))
    numbers = zip(classes.values, count.values, strict=True)
    print(", ".join(f"{number} of {name}" for name, number in numbers))

    first = belongs.argmax("n").compute()
    return ds.train_images.isel(n=first).load(), mean


def show_model(path: Path) -> Array:
    """Compute a histogram of the weights of each layer."""
    say(f"a model of {path.stat().st_size >> 20} MiB in bfloat16: chunks={{}}")
    start = time.perf_counter()
    ds = xr.open_dataset(path, engine="tensorfmt", chunks={})
    taken = 1e3 * (time.perf_counter() - start)
    print(f"{len(ds)} variables of {ds.nbytes >> 20} MiB as float32, opened in {taken:.0f} ms")
    print('histograms of the layers, group="layers.0" to "layers.23"')
    layers = [
        xr.open_dataset(path, engine="tensorfmt", group=f"layers.{number}", chunks={})
        for number in range(LAYERS)
    ]
    with progress("layers"):
        return np.array(dask.compute(*map(compute_histogram, layers)))


def compute_histogram(layer: xr.Dataset) -> dask.array.Array:
    """Return the lazy histogram of the weights of a layer."""
    return sum(dask.array.histogram(weight.data, EDGES)[0] for weight in layer.values())


def draw_layers(figure: SubFigure, counts: Array) -> None:
    """Draw a ridge per layer, the first one at the bottom."""
    axes = figure.subplots()
    values = (EDGES[1:] + EDGES[:-1]) / 2
    heights = 7 * counts / counts.max()
    deviations = np.sqrt((counts * values**2).sum(1) / counts.sum(1))
    shades = mpl.colors.Normalize(0.9 * deviations.min(), 1.1 * deviations.max())
    colours = mpl.colormaps["plasma"](shades(deviations))
    for number in reversed(range(LAYERS)):
        ridge = number + heights[number]
        order = 2 * (LAYERS - number)
        axes.fill_between(values, number, ridge, color=colours[number], lw=0, zorder=order)
        axes.plot(values, ridge, color="white", lw=0.9, zorder=order + 1)
    axes.set(xlim=(EDGES[0], EDGES[-1]), ylim=(-0.3, None), xlabel="weight", ylabel="layer")
    axes.set_yticks(range(0, LAYERS, 4))
    axes.tick_params(left=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    scale = mpl.cm.ScalarMappable(shades, "plasma")
    figure.colorbar(scale, ax=axes, shrink=0.5, aspect=30, label="standard deviation")
    figure.suptitle("weights of each layer, stored as bfloat16", fontsize=11)


def draw_images(figure: SubFigure, first: xr.DataArray, mean: xr.DataArray) -> None:
    """Draw a row per class: one image, and the mean of all."""
    rows = figure.subplots(mean.sizes["class"], 2)
    for name, row in zip(mean["class"].values, rows, strict=True):
        for axes, images in zip(row, (first, mean), strict=True):
            image = images.sel({"class": name}).transpose("y", "x", "channel")
            axes.imshow(image.astype(np.uint8), interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        row[0].set_ylabel(name)
    rows[0, 0].set_title("one image", fontsize=9)
    rows[0, 1].set_title("mean of its class", fontsize=9)
    figure.suptitle(f"{IMAGES:,} images", fontsize=11)


def main(folder: Path, picture: Path) -> None:
    """Run this part. Files are written to `folder`."""
    show_genuine()
    images, model = folder / "images.mag", folder / "model-bfloat16.mag"
    write_images(images)
    first, mean = show_images(images)
    write_model(model)
    counts = show_model(model)

    figure = plt.figure(figsize=(11, 7), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(3, 1))
    draw_layers(left, counts)
    draw_images(right, first, mean)
    figure.savefig(picture, dpi=150)
