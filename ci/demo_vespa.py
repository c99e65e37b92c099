"""Vespa: open a table of labelled embeddings, and draw the nearest neighbors of one of them.

The embeddings are random: 10,000 pages of an encyclopaedia, clustered by subject and by field.
"""

import sys
import tempfile
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np
import xarray as xr
from demo_output import say

import xr_tensorfmt

mpl.use("Agg")
import matplotlib.pyplot as plt

FIELDS = ("music", "physics", "rivers", "sport")
SUBJECTS, PAGES, WIDTH = 25, 100, 64
NEAREST = 12


def write_embeddings(path: Path) -> None:
    """Write a tensor<float>(page{},x[64]) with a label for each page."""
    random = np.random.default_rng(7)
    fields = random.normal(size=(len(FIELDS), 1, 1, WIDTH))
    subjects = fields + 0.8 * random.normal(size=(len(FIELDS), SUBJECTS, 1, WIDTH))
    pages = subjects + 0.6 * random.normal(size=(len(FIELDS), SUBJECTS, PAGES, WIDTH))
    labels = [f"{FIELDS[field]}/{i}/{j}" for field, i, j in np.ndindex(pages.shape[:3])]
    values = pages.reshape(-1, WIDTH).astype("f4")
    xr_tensorfmt.to_file(xr.DataArray(values, {"page": labels}, ("page", "x")), path, "vespa")


def cosine(embeddings: xr.DataArray, one: xr.DataArray) -> xr.DataArray:
    """Compute the similarity of each embedding to one of them."""
    norms = np.sqrt((embeddings**2).sum("x"))
    return (embeddings @ one) / (norms * np.sqrt((one**2).sum()))


def draw(embeddings: xr.DataArray, similarity: xr.DataArray, label: str, picture: Path) -> None:
    """Draw all pages in the plane of the first principal axes, and the nearest neighbors of one."""
    nearest = similarity.sortby(similarity, ascending=False)[: NEAREST + 1].page.values
    centred = (embeddings - embeddings.mean("page")).compute()
    _, _, axes = np.linalg.svd(centred.values, full_matrices=False)
    plane = centred.values @ axes[:2].T
    at = dict(zip(embeddings.page.values, plane, strict=True))

    figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 4.8), layout="constrained")
    colours = mpl.colormaps["viridis"](np.linspace(0.05, 0.9, len(FIELDS)))
    of_page = np.array([page.partition("/")[0] for page in embeddings.page.values])
    for field, colour in zip(FIELDS, colours, strict=True):
        x, y = plane[of_page == field].T
        left.plot(x, y, ".", ms=1.5, color=colour, alpha=0.5, label=field, rasterized=True)
    x, y = np.array([at[page] for page in nearest[1:]]).T
    left.plot(x, y, "o", mfc="none", mec="crimson", ms=7)
    left.plot(*at[label], "*", color="crimson", ms=14, label=f"{label}, {NEAREST} neighbors")
    legend = left.legend(loc="best", frameon=False)
    for handle in legend.legend_handles[:-1]:
        handle.set(markersize=8, alpha=1)
    left.set(
        title=f"{embeddings.sizes['page']:,} embeddings of length {WIDTH}", xticks=[], yticks=[]
    )
    left.set(xlabel="first principal axis", ylabel="second principal axis")

    bins = np.linspace(float(similarity.min()), 1, 80)
    for field, colour in zip(FIELDS, colours, strict=True):
        right.hist(similarity[of_page == field], bins, color=colour, alpha=0.7, label=field)
    right.axvline(float(similarity.sel(page=nearest[-1])), color="crimson", lw=1, ls="--")
    right.set(yscale="log", xlabel=f"cosine similarity to {label}", ylabel="pages")
    right.set_title(f"the {NEAREST} nearest are right of the dashed line")
    right.legend(frameon=False)
    right.spines[["top", "right"]].set_visible(False)
    picture.parent.mkdir(exist_ok=True, parents=True)
    figure.savefig(picture, dpi=150)
    plt.close(figure)


def main(folder: Path, figure_path: Path) -> None:
    """Run this part. Files are written to `folder`."""
    path = folder / "embeddings.tbf"
    write_embeddings(path)

    say('xr.open_dataset("embeddings.tbf", engine="tensorfmt", chunks={}, chunk_bytes="512KiB")')
    start = time.perf_counter()
    ds = xr.open_dataset(path, engine="tensorfmt", chunks={}, chunk_bytes="512KiB")
    print(f"{ds}\nopened in {1e3 * (time.perf_counter() - start):.0f} ms")

    label = "rivers/3/14"
    say(f'nearest neighbors of ds.tensor.sel(page="{label}"), computed by dask')
    similarity = cosine(ds.tensor, ds.tensor.sel(page=label)).compute()
    for page in similarity.sortby(similarity, ascending=False)[1:4]:
        print(f"  {float(page):.3f}  {page.page.item()}")

    say("xr_tensorfmt.vespa.from_hex opens the digits that Vespa's tools print")
    digits = "0x050102046974656D0475736572020269310275314000000002693202753240800000"
    print(xr_tensorfmt.vespa.from_hex(digits, sparse="dense").tensor.to_pandas())

    draw(ds.tensor, similarity, label, figure_path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name), Path(sys.argv[1] if len(sys.argv) > 1 else "build/demo_vespa.png"))
