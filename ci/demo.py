"""Show what the package does, one format after the other, and draw a picture of each."""

import tempfile
import time
from importlib import import_module
from pathlib import Path

import matplotlib as mpl

PICTURES = Path(__file__).resolve().parents[1] / "build"
# Each is a module demo_<name> beside this one, with main(directory, path of the picture).
PARTS = {
    "tens": "exchange integrals of a box, from a Coulomb vertex",
    "cc4s": "energies of pairs of states, from integrals in today's form",
    "mag": "the weights of a model by layer, and the mean of classes of images",
    "pycauset": "a causal matrix, and the sizes of futures and pasts",
    "vespa": "embeddings in a plane, and the nearest to one of them",
    "write": "the volumes of intervals, counted, written and converted",
}
NEXT = """What to try next, on a file of your own:
  .venv/bin/xr-tensorfmt info FILE               what it holds
  .venv/bin/xr-tensorfmt validate FILE           whether it is whole
  .venv/bin/xr-tensorfmt convert FILE copy.mag   the same in another format
  .venv/bin/python -c 'import xarray; print(xarray.open_dataset("FILE", engine="tensorfmt"))'
docs/guide.md goes on from there, docs/writing.md is about the way back."""


def main() -> None:
    """Run all of them."""
    mpl.use("Agg")
    PICTURES.mkdir(exist_ok=True)
    start = time.perf_counter()
    print(
        f"{len(PARTS)} parts with a picture each. Together they take about a minute, and up to "
        f"600 MB in {tempfile.gettempdir()}, which are removed."
    )
    for name in PARTS:
        print(f"\n{f' {name.upper()} ':=^100}", flush=True)
        with tempfile.TemporaryDirectory() as directory:
            import_module(f"demo_{name}").main(Path(directory), PICTURES / f"demo_{name}.png")
    print(f"\n{' DONE ':=^100}\nThe pictures, after {time.perf_counter() - start:.0f} s:")
    for name, shows in PARTS.items():
        print(f"  build/{f'demo_{name}.png':18} {shows}")
    print(f"\n{NEXT}")


if __name__ == "__main__":
    main()
