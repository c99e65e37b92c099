"""Show what the package does with each format, and draw pictures."""

import tempfile
import time
from importlib import import_module
from pathlib import Path

import matplotlib as mpl

PICTURES = Path(__file__).resolve().parents[1] / "build"
# A part is a module demo_<name> with main(directory, path of the picture).
PARTS = {
    "tens": "exchange integrals of electrons in a box, from a Coulomb vertex",
    "cc4s": "second-order energies of pairs of states",
    "mag": "the weights of a model by layer, and the mean image of each class",
    "pycauset": "a causal matrix, and the sizes of futures and pasts",
    "vespa": "embeddings in a plane, and the nearest neighbors of one",
    "write": "volumes of causal intervals, counted and converted",
}
NEXT = """Try your own files:
  .venv/bin/xr-tensorfmt info FILE               list the variables
  .venv/bin/xr-tensorfmt validate FILE           check the file
  .venv/bin/xr-tensorfmt convert FILE copy.mag   convert it
  .venv/bin/python -c 'import xarray; print(xarray.open_dataset("FILE", engine="tensorfmt"))'
Then read docs/guide.md and docs/writing.md."""


def main() -> None:
    """Run all parts."""
    mpl.use("Agg")
    PICTURES.mkdir(exist_ok=True)
    start = time.perf_counter()
    print(
        f"This demo has {len(PARTS)} parts and takes about a minute. It needs up to 600 MB in "
        f"{tempfile.gettempdir()}, which it removes."
    )
    for name in PARTS:
        print(f"\n{f' {name.upper()} ':=^100}", flush=True)
        with tempfile.TemporaryDirectory() as directory:
            import_module(f"demo_{name}").main(Path(directory), PICTURES / f"demo_{name}.png")
    print(f"\n{' DONE ':=^100}\nFinished after {time.perf_counter() - start:.0f} s. The pictures:")
    for name, shows in PARTS.items():
        print(f"  build/{f'demo_{name}.png':18} {shows}")
    print(f"\n{NEXT}")


if __name__ == "__main__":
    main()
