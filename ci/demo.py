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
    "model": "safetensors: a language model of random bfloat16 numbers in two files",
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


def compute_molecule() -> xr.DataArray:
    """Compute the second-order energy of the molecule, and return its exchange integrals in eV."""
    say("cc4s and TENS: the second-order (MP2) energy from the integrals and the state energies")
    ds = cc4s.open_calculation(tutorial.get_path("LiH").parent)
    v = tutorial.open_dataset("integrals", dims=("a", "b", "i", "j")).tensor
    states = ds.EigenEnergies.drop_vars("occupied")
    e_i, e_a = states[ds.occupied.values], states[~ds.occupied.values]
    gap = e_i.rename(State="i") + e_i.rename(State="j")
    gap = gap - e_a.rename(State="a") - e_a.rename(State="b")
    energy = (v * (2 * v - v.rename(a="b", b="a")) / gap).sum()
    print(f"{float(energy):.6f} hartree")
    return (abs(ds.CoulombVertex) ** 2).sum("AuxiliaryField") * HARTREE


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
    """Print the nearest neighbors of a city, and return the positions in degrees."""
    say("Vespa: the cities nearest to Nairobi, by the scalar product of their vectors")
    vectors = tutorial.open_dataset("cities").tensor.load()
    cosine = vectors @ vectors.sel(city="Nairobi")
    for city in cosine.sortby(cosine, ascending=False)[1:4]:
        print(f"  {city.city.item():10} {6371 * math.acos(float(city)):6.0f} km")
    x, y, z = vectors.transpose("x", "city")
    return xr.concat([np.arctan2(y, x), np.arcsin(z)], "angle") * 180 / np.pi


def count_events(directory: Path) -> xr.DataArray:
    """Write a large causal set, count the events of all intervals, and convert the counts."""
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

    say("the command converts the matrix to safetensors, and checks the files")
    run_command(directory, "convert", path.name, "causal.safetensors", "--drop", "coords")
    run_command(directory, "validate", path.name, counted.name, "causal.safetensors")
    run_command(directory, "info", counted.name)
    copy = xr.open_dataset(directory / "causal.safetensors", engine="tensorfmt")
    np.testing.assert_array_equal(copy.causal.values, causal.values)
    return between


def draw(
    exchange: xr.DataArray, inside: xr.DataArray, cities: xr.DataArray, between: xr.DataArray
) -> None:
    """Draw a picture of each field."""
    figure, axes = plt.subplots(2, 2, figsize=(12, 9), layout="constrained")
    (molecule, network), (events, globe) = axes
    mesh = molecule.imshow(exchange, norm=mpl.colors.LogNorm(), cmap="magma", origin="lower")
    molecule.set(xlabel="state $r$", ylabel="state $q$")
    molecule.set(xticks=range(0, len(exchange), 2), yticks=range(0, len(exchange), 2))
    molecule.set_title("cc4s: exchange integrals of LiH")
    figure.colorbar(mesh, ax=molecule, label="$K_{qr}$ in eV")

    mesh = network.pcolormesh(inside.x, inside.y, inside.transpose("y", "x"), cmap="viridis")
    network.add_patch(mpl.patches.Circle((0, 0), 0.7, fill=False, color="white", ls="--"))
    network.set(xlabel="x", ylabel="y", aspect="equal", xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    network.set_title("MAG and safetensors: output of a network")
    figure.colorbar(mesh, ax=network, label="probability of being inside")

    past = 20
    counts = between.isel(row=past).values
    counts = np.ma.masked_equal(counts, 0)
    events.scatter(between.place, between.time, c="0.8", s=6, linewidths=0)
    mesh = events.scatter(between.place, between.time, c=counts, s=6, cmap="viridis", linewidths=0)
    events.plot(between.place[past], between.time[past], "o", mfc="none", mec="tab:red", ms=10)
    events.set(xlabel="place", ylabel="time", aspect="equal")
    events.set_title("PyCauset: events between one event (ring) and others")
    figure.colorbar(mesh, ax=events, label="events")

    globe.plot(*cities.transpose("angle", "city").values, "o", color="0.7", ms=4)
    labelled: list[np.ndarray] = []
    for city in cities.transpose("city", "angle"):
        distances = [abs((city.values - place) / (36, 7)).max() for place in labelled]
        if min(distances, default=1) >= 1:  # labels would overlap otherwise
            labelled.append(city.values)
            longitude, latitude = city.values
            side, shift = ("left", 5) if -100 < longitude < 120 else ("right", -5)
            place = (shift, 3 if latitude > 0 else -11)
            globe.plot(longitude, latitude, "o", color="tab:red", ms=4)
            globe.annotate(
                city.city.item(),
                city.values,
                place,
                textcoords="offset points",
                fontsize=8,
                ha=side,
            )
    globe.set(xlabel="longitude", ylabel="latitude", title="Vespa: unit vectors of cities")
    globe.set(xlim=(-200, 190), ylim=(-60, 75))
    globe.grid(color="0.9")

    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    """Run all parts."""
    start = time.perf_counter()
    open_files()
    exchange, inside, cities = compute_molecule(), apply_network(), find_neighbors()
    with tempfile.TemporaryDirectory() as directory:
        draw(exchange, inside, cities, count_events(Path(directory)))
    print(f"\nFinished after {time.perf_counter() - start:.0f} s. The picture: {PICTURE}")
    print("Your own file: .venv/bin/xr-tensorfmt info FILE; then read docs/guide.md")


if __name__ == "__main__":
    main()
