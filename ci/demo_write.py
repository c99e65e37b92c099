"""Writing: count the elements of causal intervals, and convert and check the file.

A causal set consists of random points of a diamond. The number of elements between two of them
measures the volume of their interval. dask computes and writes the numbers chunk by chunk.
"""

import subprocess
import sys
from pathlib import Path

import dask.array as da
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from demo_output import progress, say

import xr_tensorfmt

ELEMENTS = 3000
ROWS = 250


def make_causal_set(count: int) -> xr.DataArray:
    """Return the causal matrix of random points of a diamond, sorted by time, with coordinates."""
    u, v = np.random.default_rng(2).random((2, count))
    order = np.argsort(u + v)
    u, v = u[order], v[order]
    causal = (u[:, np.newaxis] < u) & (v[:, np.newaxis] < v)
    return xr.DataArray(
        causal,
        {"time": ("row", (u + v) / 2), "place": ("row", (u - v) / 2)},
        ("row", "col"),
        "causal",
        {"density": count, "spacetime": "diamond of two dimensions"},
    )


def count_between(causal: xr.DataArray) -> xr.DataArray:
    """Count the elements between each pair, lazily, in chunks of rows."""
    numbers = da.from_array(causal.values.astype("f4"), chunks=(ROWS, -1))
    counts = da.matmul(numbers, numbers.rechunk((-1, -1))).astype("i4")
    return causal.copy(data=counts).rename("between")


def run_command(folder: Path, *arguments: str) -> None:
    """Run the command xr-tensorfmt, and show its output."""
    print(f"$ xr-tensorfmt {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "xr_tensorfmt", *arguments], check=True, cwd=folder)


def draw(counts: xr.Dataset, picture: Path) -> None:
    """Draw the counted volumes of intervals next to the exact ones."""
    past = 20
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 4.8), layout="constrained")
    after = counts.between.isel(row=past).values
    points = left.scatter(counts.place, counts.time, c=after, s=7, cmap="magma", linewidths=0)
    left.plot(counts.place[past], counts.time[past], "o", mfc="none", mec="tab:blue", ms=9)
    left.set(xlabel="place", ylabel="time", aspect="equal")
    left.set_title("elements between one event (ring) and the others", fontsize=11)
    figure.colorbar(points, ax=left, label="elements between")

    u, v = (counts.time + counts.place).values, (counts.time - counts.place).values
    rows = np.sort(np.random.default_rng(0).choice(ELEMENTS, 400, replace=False))
    found = counts.between.isel(row=rows)
    volumes = (u - u[rows, np.newaxis]) * (v - v[rows, np.newaxis])
    chosen = found.values > 0
    right.hexbin(
        volumes[chosen] * ELEMENTS,
        found.values[chosen],
        gridsize=70,
        bins="log",
        cmap="Blues",
        mincnt=1,
    )
    right.axline((0, 0), slope=1, color="tab:red", lw=1)
    right.set(xlabel="volume of the interval times density", ylabel="elements counted")
    right.set_title("counted and exact volume", fontsize=11)
    figure.savefig(picture, dpi=150)


def main(folder: Path, picture: Path) -> None:
    """Run this part. Files are written to `folder`."""
    mpl.use("Agg")
    causal = make_causal_set(ELEMENTS)
    matrix, counted = folder / "causal.pycauset", folder / "between.pycauset"

    say(f'causal.tensorfmt.to_file("{matrix.name}") packs the bits above the diagonal')
    causal.tensorfmt.to_file(matrix)
    print(f"{causal.nbytes:,} bytes in memory, {matrix.stat().st_size:,} in the file")

    say(f'to_pycauset(count_between(causal), "{counted.name}") computes and writes in parallel')
    with progress("between"):
        xr_tensorfmt.to_file(
            count_between(causal), counted, "pycauset", matrix_type="TRIANGULAR_INTEGER"
        )
    print(f"{counted.stat().st_size / 1e6:.0f} MB written")

    say("the command xr-tensorfmt converts the file to MAG, and checks all files")
    converted = folder / "between.mag"
    run_command(folder, "convert", counted.name, converted.name)
    run_command(folder, "validate", matrix.name, counted.name, converted.name)
    run_command(folder, "info", converted.name)

    back = xr.open_dataset(converted, engine="tensorfmt")
    xr.testing.assert_identical(back, xr.open_dataset(counted, engine="tensorfmt"))
    print("The converted Dataset is identical: values, names, labels and attributes.")
    draw(back, picture)
