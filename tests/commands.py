"""Run the command ``xr-tensorfmt`` on files in the working directory."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from click.testing import CliRunner, Result

from tests import tensfiles as tf
from xr_tensorfmt import to_file
from xr_tensorfmt.cli import main

GAMMA = np.arange(24.0).reshape(4, 3, 2)


def run(*arguments: str, **options: Any) -> Result:
    """Run the command, and return its output and exit code."""
    return CliRunner().invoke(main, arguments, catch_exceptions=False, **options)


def run_ok(*arguments: str) -> str:
    """Return the output of a command that succeeds."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def run_failing(*arguments: str, code: int = 1) -> str:
    """Return the line on stderr of a command that fails."""
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert not result.stdout
    assert result.stderr.count("\n") == 1 or code == 2
    return result.stderr


def make_dataset() -> xr.Dataset:
    """Return a Dataset that MAG, zarr and netCDF support."""
    values = np.random.default_rng(0).random((20, 30)).astype("f4")
    return xr.Dataset(
        {
            "w": (("row", "col"), values, {"units": "m"}),
            "n": ("row", np.arange(20, dtype="i8")),
            "flag": ("row", np.arange(20) % 2 == 0),
        },
        {"row": np.arange(20) * 2},
        {"title": "x", "epoch": 3, "rate": 0.5},
    )


def save(name: str = "a.mag", ds: xr.Dataset | None = None, **options: Any) -> str:
    """Write a Dataset, and return the name of its file."""
    to_file(make_dataset() if ds is None else ds, name, **options)
    return name


def load_any(name: str, **options: Any) -> xr.Dataset:
    """Load a zarr store, a netCDF file, or a tensor file."""
    engine = {".zarr": "zarr", ".nc": "netcdf4"}.get(Path(name).suffix, "tensorfmt")
    with xr.open_dataset(name, engine=engine, **options) as ds:
        return ds.load()


def write_vertex(name: str = "vertex.bin") -> str:
    """Write a TENS file of `GAMMA`, and return its name."""
    Path(name).write_bytes(tf.make_0_9(GAMMA))
    return name


def run_line(line: str) -> str:
    """Run a line of a shell with one command of this package at most, and return its output."""
    if "xr-tensorfmt" not in line:
        return subprocess.run(["sh", "-c", line], check=True, capture_output=True, text=True).stdout
    before, _, command = line.rpartition(" | ")
    command, _, target = command.partition(" > ")
    content = subprocess.run(["sh", "-c", before], check=True, capture_output=True).stdout
    result = run(*shlex.split(command)[1:], input=content)
    if target:
        Path(target).write_bytes(result.stdout_bytes)
        return result.stderr
    return result.stdout + result.stderr


def run_console_blocks(page: str) -> None:
    """Run the blocks of a page in the shell, and compare what they print."""
    for block in re.findall(r"```console\n(.*?)```", page, flags=re.DOTALL):
        for example in re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
            line, _, expected = example.partition("\n")
            if line.startswith("cd "):
                os.chdir(line.removeprefix("cd "))
                continue
            assert run_line(line) == expected, line
