"""Open genuine PyCauset files, count the relations of a causal set, and draw its causal matrix."""

from __future__ import annotations

import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np
import xarray as xr
from demo_output import say

from xr_tensorfmt import popcount, to_pycauset

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
# Saved by PyCauset 0.6.1, with its values, which were compared with those PyCauset was given.
GENUINE = ROOT / "tests" / "data" / "golden" / "pycauset" / "0.6.1-CausalSet_MinkowskiBox_n030"
PICTURE = ROOT / "build" / "demo_pycauset.png"
SPRINKLED = 4000


def sprinkled(count: int) -> np.ndarray:
    """The causal matrix of random points of a causal diamond, sorted by time."""
    u, v = np.random.default_rng(1).random((2, count))
    order = np.argsort(u + v)
    u, v = u[order], v[order]
    return (u[:, np.newaxis] < u) & (v[:, np.newaxis] < v)


def write_causal(path: Path, causal: np.ndarray) -> None:
    """Write a Boolean matrix, which has bits above the diagonal only."""
    to_pycauset(xr.DataArray(causal, dims=("row", "col")), path)


def draw(small: xr.DataArray, futures: xr.DataArray, pasts: xr.DataArray, picture: Path) -> None:
    """The causal matrix as a picture, and how futures and pasts of a larger set are distributed."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.8), layout="constrained")
    left.imshow(small, cmap="Greys", interpolation="nearest")
    left.set(xlabel="col: the later element", ylabel="row: the earlier element")
    left.set_title(f"a causal matrix, N = {small.sizes['row']}", fontsize=11)
    right.plot(futures, ".", ms=2, color="#33608c", label="future (row sums)")
    right.plot(pasts, ".", ms=2, color="#c2543c", label="past (column sums)")
    right.set(xlabel="element, in the order of time", ylabel="related elements")
    right.set_title(f"futures and pasts, N = {futures.size}", fontsize=11)
    right.legend(frameon=False, markerscale=5)
    right.spines[["top", "right"]].set_visible(False)
    picture.parent.mkdir(exist_ok=True)
    figure.savefig(picture, dpi=150)


def main(folder: Path, figure_path: Path) -> None:
    """Show what a user of causal sets would want to see."""
    (path,) = GENUINE.glob("*.pycauset")
    say(f'xr.open_dataset("{path.name}", engine="tensorfmt"), saved by PyCauset 0.6.1')
    causal = xr.open_dataset(path, engine="tensorfmt").tensor
    print(f"{causal.shape} {causal.dtype}, {causal.matrix_type}")
    futures = popcount(causal, dim="col")
    print(f"row sums, the sizes of the futures: {futures.values[:12]} ...")
    relations = causal.size - causal.sizes["row"]
    print(f"ordering fraction: {2 * int(popcount(causal)) / relations:.3f}")
    expected = np.load(GENUINE / "values.npz")["v0"]
    assert np.array_equal(futures, expected.sum(1))
    print("The values recorded with the file have the same row sums.")

    larger = folder / "sprinkled.pycauset"
    write_causal(larger, sprinkled(SPRINKLED))
    array = xr.open_dataset(larger, engine="tensorfmt", chunks={}).tensor
    sizes = f"{larger.stat().st_size / 1e6:.0f} MB in the file, {array.nbytes / 1e6:.0f} MB as bool"
    say(f"{SPRINKLED} elements: {sizes}; sums are counted in the packed bytes, by dask")
    futures, pasts = popcount(array, "col").compute(), popcount(array, "row").compute()
    print(f"relations: {int(futures.sum())} by rows, {int(pasts.sum())} by columns")
    draw(causal, futures, pasts, figure_path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch), PICTURE)
