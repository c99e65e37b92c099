"""Open the files of the package, compute with dask, convert, and draw pictures into build/."""

import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np
import xarray as xr
from tqdm.dask import TqdmCallback

import xr_tensorfmt
from xr_tensorfmt import cc4s, pycauset, tutorial

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.ticker import MultipleLocator
from matplotlib.transforms import Bbox

PICTURE = Path(__file__).resolve().parents[1] / "build" / "demo.png"
HARTREE = 27.211386  # eV
EVENTS = 4000
FILES = {
    "LiH": "cc4s: the Coulomb vertex of lithium hydride, computed in a basis of ten Gaussians",
    "integrals": "TENS 0.9: its integrals of two particles and two holes, as sisi4s names them",
    "causal_set": "PyCauset: the order of 64 random events, with their positions",
    "circle": "safetensors: a network trained to recognise points inside a circle",
    "snapshot": "MAG: the same network, written by magnetron 0.2.2",
    "cities": "Vespa: positions of 26 cities on the unit sphere",
}


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n--- {text}", flush=True)


def progress(name: str) -> TqdmCallback:
    """Return a progress bar for dask."""
    return TqdmCallback(desc=name, unit=" tasks", mininterval=1)


def run_command(directory: Path, *arguments: str) -> None:
    """Run the command xr-tensorfmt, and show its output."""
    print(f"$ xr-tensorfmt {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "xr_tensorfmt", *arguments], check=True, cwd=directory)


def open_files() -> None:
    """Print the Dataset of each file of the package."""
    for name, text in FILES.items():
        say(text)
        print(f"xr.open_dataset({tutorial.get_path(name).name!r}, engine='tensorfmt')")
        print(tutorial.open_dataset(name))
    say("safetensors: the command describes a language model in two files")
    run_command(tutorial.get_path("model").parent, "info", "model")


def compute_molecule() -> tuple[xr.DataArray, xr.DataArray]:
    """Compute the exchange integrals of the molecule, and its second-order energy, in eV."""
    say("cc4s and TENS: the second-order (MP2) energy from the integrals and the state energies")
    ds = cc4s.open_calculation(tutorial.get_path("LiH").parent)
    v = tutorial.open_dataset("integrals", dims=("a", "b", "i", "j")).tensor
    states = ds.EigenEnergies.drop_vars("occupied")
    e_i, e_a = states[ds.occupied.values], states[~ds.occupied.values]
    gap = e_i.rename(State="i") + e_i.rename(State="j")
    gap = gap - e_a.rename(State="a") - e_a.rename(State="b")
    pairs = (v * (2 * v - v.rename(a="b", b="a")) / gap).sum(("i", "j"))
    print(f"{float(pairs.sum()):.6f} hartree")
    exchange = (abs(ds.CoulombVertex) ** 2).sum("AuxiliaryField")
    return exchange * HARTREE, pairs.transpose("a", "b") * HARTREE


def apply_network() -> xr.DataArray:
    """Compute the output of the network for points of a plane, from the file of magnetron."""
    say("MAG: the output of the network for 40,000 points")
    ds = tutorial.open_dataset("snapshot")
    axis = np.linspace(-1, 1, 200)
    points = xr.DataArray(
        np.stack(np.meshgrid(axis, axis)), {"y": axis, "x": axis}, ("hidden.weight_dim_1", "y", "x")
    )
    shared = {
        "hidden.weight_dim_0": "node",
        "hidden.bias_dim_0": "node",
        "out.weight_dim_0": "node",
    }
    hidden, bias, out = (
        array.rename({name: shared[name] for name in array.dims if name in shared})
        for array in (ds["hidden.weight"], ds["hidden.bias"], ds["out.weight"])
    )
    output = np.tanh(xr.dot(hidden, points) + bias)
    inside = 1 / (1 + np.exp(-(xr.dot(out, output) + ds["out.bias"])))
    print(
        f"{float((inside > 0.5).mean()):.1%} of the square, the circle has {math.pi * 0.49 / 4:.1%}"
    )
    return inside


def find_neighbors() -> xr.DataArray:
    """Print the nearest neighbors of a city. Return positions in degrees, and distances in km."""
    say("Vespa: the cities nearest to Nairobi, by the scalar product of their vectors")
    vectors = tutorial.open_dataset("cities").tensor.load()
    distance = 6371 * np.arccos((vectors @ vectors.sel(city="Nairobi")).clip(-1, 1))
    distance = distance.sortby(distance)
    for city in distance[1:4]:
        print(f"  {city.city.item():10} {float(city):6.0f} km")
    x, y, z = vectors.transpose("x", "city")
    angles = {"longitude": np.arctan2(y, x), "latitude": np.arcsin(z)}
    return distance.assign_coords({name: angles[name] * 180 / np.pi for name in angles})


def count_events(directory: Path) -> tuple[xr.DataArray, xr.DataArray]:
    """Write a large causal set, and return the events between all pairs, and their histogram."""
    say(f"PyCauset: write the order of {EVENTS:,} events as packed bits, and open it with dask")
    u, v = np.random.default_rng(2).random((2, EVENTS))
    order = np.argsort(u + v)
    u, v = u[order], v[order]
    causal = xr.DataArray(
        (u[:, np.newaxis] < u) & (v[:, np.newaxis] < v),
        {"time": ("row", (u + v) / 2), "place": ("row", (u - v) / 2)},
        ("row", "col"),
        "causal",
    )
    path, counted = directory / "causal.pycauset", directory / "between.tens"
    causal.tensorfmt.to_file(path)
    print(f"{causal.nbytes:,} bytes in memory, {path.stat().st_size:,} in the file")
    causal = xr.open_dataarray(path, engine="tensorfmt", chunks={})
    print(causal.tensorfmt.explain(row=slice(10)))

    say("count the events between all pairs in parallel, and write them chunk by chunk as TENS")
    between = pycauset.count_between(causal).rename("between")
    with progress("count_between"):
        xr_tensorfmt.to_file(between, counted, version="1.0", drop=["attrs"])
    with progress("interval_sizes"):
        sizes = pycauset.interval_sizes(causal).compute()
    between = xr.open_dataarray(counted, engine="tensorfmt", chunks={})
    with progress("check"):
        total = int(between.sum(dtype="i8"))
    weighted = int((sizes.values * np.arange(sizes.size)).sum())
    print(f"{total:,} events in {int(sizes.sum()):,} intervals; {weighted:,} by the histogram")

    say("NumPy: write the histogram of the intervals, and open it with xarray")
    sizes.tensorfmt.to_file(directory / "sizes.npy", drop=["name", "dims", "coords", "attrs"])
    sizes = xr.load_dataarray(directory / "sizes.npy", engine="tensorfmt")
    print(sizes)

    say("the command converts the matrix to safetensors, and checks the files")
    run_command(directory, "convert", path.name, "causal.safetensors", "--drop", "coords")
    run_command(directory, "validate", path.name, counted.name, "causal.safetensors")
    run_command(directory, "info", counted.name)
    copy = xr.open_dataset(directory / "causal.safetensors", engine="tensorfmt")
    np.testing.assert_array_equal(copy.causal.values, causal.values)
    return between, sizes


def draw_molecule(figure: Figure, axes: list[Axes], values: tuple[xr.DataArray, ...]) -> None:
    """Draw the exchange integrals, and what each pair of virtual states adds to the energy."""
    exchange, pairs = values
    mesh = axes[0].imshow(exchange, norm=LogNorm(), cmap="magma", origin="lower")
    axes[0].set(xlabel="state $r$", ylabel="state $q$", title="cc4s: exchange integrals of LiH")
    figure.colorbar(mesh, ax=axes[0], label="$K_{qr}$ in eV")
    first = len(exchange) - len(pairs)
    extent = (first - 0.5, len(exchange) - 0.5) * 2
    mesh = axes[1].imshow(-pairs, norm=LogNorm(1e-4), cmap="magma", origin="lower", extent=extent)
    axes[1].set(xlabel="virtual state $b$", ylabel="virtual state $a$")
    axes[1].set_title("TENS: correlation energy by pairs of states")
    figure.colorbar(mesh, ax=axes[1], label="$-E_{ab}$ in eV", extend="min")
    for panel in axes:
        panel.xaxis.set_major_locator(MultipleLocator(2))
        panel.yaxis.set_major_locator(MultipleLocator(2))


def draw_network(figure: Figure, axes: Axes, inside: xr.DataArray) -> None:
    """Draw the output of the network, and the line where each hidden node changes its sign."""
    mesh = axes.pcolormesh(inside.x, inside.y, inside.transpose("y", "x"), cmap="viridis")
    circle = Circle((0, 0), 0.7, fill=False, color="white", ls="--", label="circle")
    axes.add_patch(circle)
    ds = tutorial.open_dataset("circle").load()
    for weight, bias in zip(ds["hidden.weight"].values, ds["hidden.bias"].values, strict=True):
        point = -bias * weight / (weight @ weight)
        axes.axline(point, point + weight[::-1] * (-1, 1), color="tab:red", lw=0.7)
    axes.plot([], [], color="tab:red", lw=0.7, label="hidden nodes (safetensors)")
    axes.set(xlabel="x", ylabel="y", aspect="equal", xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    axes.set(xlim=(-1, 1), ylim=(-1, 1), title="MAG and safetensors: a network")
    axes.legend(loc="upper right", fontsize=8)
    figure.colorbar(mesh, ax=axes, label="probability of being inside the circle (MAG)")


def draw_events(figure: Figure, axes: list[Axes], values: tuple[xr.DataArray, ...]) -> None:
    """Draw the events between one event and others, and the histogram of all intervals."""
    between, sizes = values
    past = 20
    counts = between.isel(row=past).values
    later = counts > 0
    place, time = between.place, between.time
    axes[0].scatter(place[~later], time[~later], c="0.8", s=6, label="no event between")
    mesh = axes[0].scatter(place[later], time[later], c=counts[later], s=6, linewidths=0)
    ring = {"mfc": "none", "mec": "tab:red", "ms": 10, "label": "first event"}
    axes[0].plot(place[past], time[past], "o", **ring)
    axes[0].set(xlabel="position", ylabel="time", aspect="equal")
    axes[0].set_title("PyCauset: events between one event and others")
    axes[0].legend(loc="upper right", fontsize=8)
    figure.colorbar(mesh, ax=axes[0], label="events between")
    axes[1].loglog(1 + np.arange(sizes.size), sizes, ".", ms=3)
    axes[1].set(xlabel="1 + events between", ylabel="pairs of events")
    axes[1].set_title("NumPy: pairs by the events between them")
    axes[1].grid(color="0.9")


def draw_cities(figure: Figure, axes: Axes, distance: xr.DataArray) -> None:
    """Draw the cities by their distance, with lines to the nearest, and names that have room."""
    places = np.stack([distance.longitude, distance.latitude], axis=1)
    for place in places[1:4]:
        axes.plot(*np.stack([places[0], place]).T, color="tab:red", lw=1.5)
    mesh = axes.scatter(*places.T, c=distance / 1000, cmap="viridis_r", s=28, zorder=3)
    axes.set(xlabel="longitude", ylabel="latitude", title="Vespa: cities nearest to Nairobi")
    axes.plot(*places[0], "*", color="tab:red", ms=14, zorder=4)
    axes.set(xlim=(-180, 200), ylim=(-55, 75))
    axes.grid(color="0.9")
    figure.colorbar(mesh, ax=axes, label="distance from Nairobi in 1000 km")
    figure.canvas.draw()  # places the axes, so that labels have positions
    taken = [Bbox.from_bounds(*(point - 4), 8, 8) for point in axes.transData.transform(places)]
    sides = {(7, -3): "left", (-7, -3): "right", (0, 7): "center", (0, -13): "center"}
    sides |= {(6, 2): "left", (-6, 2): "right", (6, -8): "left", (-6, -8): "right"}
    for number, city in enumerate(distance.city.values):
        weight = "bold" if number < 4 else "normal"
        for shift, side in sides.items():
            label = axes.annotate(
                city, places[number], shift, textcoords="offset points", fontsize=8, ha=side
            )
            label.set_weight(weight)
            box = label.get_window_extent()
            in_axes = axes.bbox.contains(*box.min) and axes.bbox.contains(*box.max)
            if in_axes and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            label.remove()


def draw(
    molecule: tuple[xr.DataArray, ...],
    inside: xr.DataArray,
    distance: xr.DataArray,
    events: tuple[xr.DataArray, ...],
) -> None:
    """Draw a picture of each format."""
    figure, axes = plt.subplots(2, 3, figsize=(18, 10), dpi=110, layout="constrained")
    draw_molecule(figure, axes[0, :2], molecule)
    draw_network(figure, axes[0, 2], inside)
    draw_events(figure, axes[1, :2], events)
    draw_cities(figure, axes[1, 2], distance)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, bbox_inches="tight", pad_inches=0.15)


def main() -> None:
    """Run all parts."""
    start = time.perf_counter()
    open_files()
    molecule, inside, distance = compute_molecule(), apply_network(), find_neighbors()
    with tempfile.TemporaryDirectory() as directory:
        draw(molecule, inside, distance, count_events(Path(directory)))
    print(f"\nFinished after {time.perf_counter() - start:.0f} s. The picture: {PICTURE}")
    print("Your own file: .venv/bin/xr-tensorfmt info FILE; then read docs/guide.md")


if __name__ == "__main__":
    main()
