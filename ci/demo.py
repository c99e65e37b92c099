"""Show what the package does, one family of files after the other, and draw a picture of each."""

import tempfile
from importlib import import_module
from pathlib import Path

import matplotlib as mpl

PICTURES = Path(__file__).resolve().parents[1] / "build"
# Each is a module demo_<family> beside this one, with main(folder for files, path of the picture).
FAMILIES = (
    "tens",
    "mag",
    "pycauset",
    "vespa",
    "write",
)


def main() -> None:
    """Run all of them."""
    mpl.use("Agg")
    PICTURES.mkdir(exist_ok=True)
    for family in FAMILIES:
        print(f"\n{f' {family.upper()} ':=^100}")
        picture = PICTURES / f"demo_{family}.png"
        with tempfile.TemporaryDirectory() as folder:
            import_module(f"demo_{family}").main(Path(folder), picture)
        print(f"\n--- a picture: {picture}")


if __name__ == "__main__":
    main()
