"""PyCauset: open a file, count the relations of causal sets, and draw a causal matrix."""

from __future__ import annotations

import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np
import xarray as xr
from demo_output import say

from xr_tensorfmt import to_file
from xr_tensorfmt.pycauset import popcount

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
# A file that PyCauset 0.6.1 wrote, and its values.
GENUINE = ROOT / "tests" / "data" / "golden" / "pycauset" / "0.6.1-CausalSet_MinkowskiBox_n030"
PICTURE = ROOT / "build" / "demo_pycauset.png"
SPRINKLED = 4000


def make_causal_set(count: int) -> np.ndarray:
    """Return the causal matrix of random points of a causal diamond, sorted by time."""
    u, v = np.random.default_rng(1).random((2, count))
    order = np.argsort(u + v)
    u, v = u[order], v[order]
    return (u[:, np.newaxis] < u) & (v[:, np.newaxis] < v)


def write_causal(path: Path, causal: np.ndarray) -> None:
    """Write a Boolean matrix."""
    to_file(xr.DataArray(causal, dims=("row", "col")), path, "pycauset")


def draw(small: xr.DataArray, futures: xr.DataArray, pasts: xr.DataArray, picture: Path) -> None:
    """Draw a causal matrix, and the sizes of futures and pasts of a larger set."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.8), layout="constrained")
    left.imshow(small, cmap="Greys", interpolation="nearest")
    left.set(xlabel="col: the later element", ylabel="row: the earlier element")
    left.set_title(f"a causal matrix, N = {small.sizes['row']}", fontsize=11)
    right.plot(futures, ".", ms=2, color="#33608c", label="future (row sums)")
    right.plot(pasts, ".", ms=2, color="#c2543c", label="past (column sums)")
    right.set(xlabel="element, sorted by time", ylabel="related elements")
    right.set_title(f"futures and pasts, N = {futures.size}", fontsize=11)
    right.legend(frameon=False, markerscale=5)
    right.spines[["top", "right"]].set_visible(False)
    picture.parent.mkdir(exist_ok=True)
    figure.savefig(picture, dpi=150)


def main(folder: Path, figure_path: Path) -> None:
    """Run this part. Files are written to `folder`."""
    (path,) = GENUINE.glob("*.pycauset")
    say(f'xr.open_dataset("{path.name}", engine="tensorfmt"), written by PyCauset 0.6.1')
    causal = xr.open_dataset(path, engine="tensorfmt").tensor
    matrix_type = causal.encoding["tensorfmt"]["matrix_type"]
    print(f"{causal.shape} {causal.dtype}, {matrix_type}")
    futures = popcount(causal, dim="col")
    print(f"sizes of the futures (row sums): {futures.values[:12]} ...")
    relations = causal.size - causal.sizes["row"]
    print(f"ordering fraction: {2 * int(popcount(causal)) / relations:.3f}")
    expected = np.load(GENUINE / "values.npz")["v0"]
    assert np.array_equal(futures, expected.sum(1))
    print("The row sums equal those of PyCauset.")

    larger = folder / "sprinkled.pycauset"
    write_causal(larger, make_causal_set(SPRINKLED))
    array = xr.open_dataset(larger, engine="tensorfmt", chunks={}).tensor
    sizes = f"{larger.stat().st_size / 1e6:.0f} MB in the file, {array.nbytes / 1e6:.0f} MB as bool"
    say(f"{SPRINKLED} elements: {sizes}; popcount sums the packed bits with dask")
    futures, pasts = popcount(array, "col").compute(), popcount(array, "row").compute()
    print(f"relations: {int(futures.sum())} (sum of rows), {int(pasts.sum())} (sum of columns)")
    draw(causal, futures, pasts, figure_path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch), PICTURE)
