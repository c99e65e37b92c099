"""Check an installation without extras: formats, the command, and errors about missing extras.

Run this file in an empty directory, with an environment that contains only the wheel.
"""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xarray as xr

import xr_tensorfmt
from xr_tensorfmt import tutorial

SUFFIXES = ("bin", "mag", "npy", "pycauset", "safetensors", "tbf", "tens", "yaml")
PACKAGES = {
    "s3://bucket/a.mag": "s3fs",
    "gs://bucket/a.mag": "gcsfs",
    "az://container/a.mag": "adlfs",
    "https://localhost/a.mag": "aiohttp",
}


def main() -> None:
    """Run all checks."""
    for name in ("LiH", "causal_set", "circle", "cities", "integrals", "snapshot"):
        tutorial.open_dataset(name).load()
    matrix = xr.DataArray(np.arange(6.0).reshape(2, 3), dims=("x", "y"), name="tensor")
    files = [f"matrix.{suffix}" for suffix in SUFFIXES]
    for file in files:
        encoding = {"tensor": {"dtype": "float32"}} if file.endswith(".mag") else {}
        drop = ["name", "dims"] if file.endswith((".bin", ".npy")) else ["name"]
        xr_tensorfmt.to_file(matrix, file, drop=drop, encoding=encoding)
        (actual,) = xr.open_dataset(file, engine="tensorfmt").data_vars.values()
        np.testing.assert_array_equal(actual.values, matrix.values)
        print("wrote and opened", file)
    run_command("info", ".")
    run_command("validate", *files)
    run_command("convert", "matrix.tbf", "copy.mag", "--dtype", "float32")
    if hasattr(xr_tensorfmt, "testing"):
        raise RuntimeError("pytest is not installed")
    print(len(inspect.getmembers(xr_tensorfmt)), "public names")
    pydoc.render_doc(xr_tensorfmt)
    for url, package in PACKAGES.items():
        check_message(lambda url=url: xr.open_dataset(url, engine="tensorfmt"), package)
    check_message(import_virtual, "pip install 'xr-tensorfmt[virtual]'")


def run_command(*arguments: str) -> None:
    """Run the installed command."""
    command = Path(sys.executable).with_name("xr-tensorfmt")
    subprocess.run([command, *arguments], check=True)


def import_virtual() -> None:
    """Import the module that needs VirtualiZarr."""
    import xr_tensorfmt.virtual  # noqa: F401, PLC0415


def check_message(call: Callable[[], object], words: str) -> None:
    """Check that an error names a missing package, or the command that installs it."""
    message = "no error"
    try:
        call()
    except ImportError as error:
        message = str(error)
    if words not in message:
        raise RuntimeError(f"expected an error with {words}, got: {message}")
    print("named", words)


if __name__ == "__main__":
    main()
