"""Signals that end a process that writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from tests.commands import load_any, run_ok, save
from tests.processes import run_python

pytestmark = pytest.mark.usefixtures("working_directory")

WRITES_FOR_EVER = """
import sys, time
import dask.array, xarray
from xr_tensorfmt import to_file

def wait(values):
    time.sleep(600)
    return values

zeros = dask.array.zeros((4, 256), chunks=(1, 256), dtype="f4")
array = zeros.map_blocks(wait, meta=zeros._meta)
to_file(xarray.Dataset({"a": (("x", "y"), array)}), sys.argv[1])
"""

CONVERTS_SLOWLY = """
import sys, time
from xr_tensorfmt.cli import main
from xr_tensorfmt.writing import atomic_file

write = atomic_file.write_batches

def slow(path, batches):
    write(path, batches)
    time.sleep(2)

atomic_file.write_batches = slow
main(["convert", *sys.argv[1:]])
"""


def make_dataset(value: int = 1) -> xr.Dataset:
    return xr.Dataset({"a": (("x", "y"), np.full((4, 256), value, "f4"))})


def list_leftovers(folder: Path | str = ".") -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir() if path.name.endswith(".part"))


@contextmanager
def run_writer(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that is writing a file in the working directory."""
    before = list_leftovers()
    with subprocess.Popen([sys.executable, "-c", *arguments], stderr=subprocess.PIPE) as process:
        try:
            while list_leftovers() == before:
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.01)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("target", ["b.mag", "b.nc"])
def test_sigterm_ends_conversion_and_leaves_old_file_alone(target: str) -> None:
    save()
    run_ok("convert", "a.mag", target)
    before = sorted(os.listdir())
    script = CONVERTS_SLOWLY
    if target == "b.nc":
        script = script.replace("atomic_file.write_batches = slow", NETCDF)
    with run_writer(script, "a.mag", target, "--overwrite") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert sorted(os.listdir()) == before
    xr.testing.assert_identical(load_any(target), load_any("a.mag"))


NETCDF = """
import xarray
plain = xarray.Dataset.to_netcdf

def to_netcdf(*arguments, **options):
    plain(*arguments, **options)
    time.sleep(600)

xarray.Dataset.to_netcdf = to_netcdf
"""


def test_library_leaves_sigterm_to_program() -> None:
    script = """
import os, signal, sys
import numpy, xarray
from xr_tensorfmt import to_file
seen = set()

def look(values):
    seen.add(signal.getsignal(signal.SIGTERM))
    return values

array = xarray.DataArray(numpy.zeros(4, "f4"), dims="x").chunk(x=1)
to_file(array.copy(data=array.data.map_blocks(look, dtype="f4")).rename("a"), "a.mag")
assert seen == {signal.SIG_DFL}
"""
    run_python("-c", script)
    with run_writer(WRITES_FOR_EVER, "b.mag") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
    (left,) = list_leftovers()
    assert left.startswith(".b.mag.")


@pytest.mark.parametrize("own", [signal.SIG_IGN, lambda *_: None])
def test_command_keeps_existing_sigterm_handler(own) -> None:
    before = signal.signal(signal.SIGTERM, own)
    try:
        run_ok("info", save())
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_program_with_sigterm_handler_leaves_no_file() -> None:
    handler = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
    script = handler + WRITES_FOR_EVER.replace("600", "2")
    with run_writer(script, "a.mag") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    assert os.listdir() == []
