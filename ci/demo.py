"""Show what the package does, one format after the other, and draw a picture of each."""

import tempfile
from importlib import import_module
from pathlib import Path

import matplotlib as mpl

PICTURES = Path(__file__).resolve().parents[1] / "build"
# Each is a module demo_<format> beside this one, with main(directory, path of the picture).
FORMATS = (
    "tens",
    "cc4s",
    "mag",
    "pycauset",
    "vespa",
    "write",
)


def main() -> None:
    """Run all of them."""
    mpl.use("Agg")
    PICTURES.mkdir(exist_ok=True)
    for name in FORMATS:
        print(f"\n{f' {name.upper()} ':=^100}")
        picture = PICTURES / f"demo_{name}.png"
        with tempfile.TemporaryDirectory() as directory:
            import_module(f"demo_{name}").main(Path(directory), picture)
        print(f"\n--- a picture: {picture}")


if __name__ == "__main__":
    main()
