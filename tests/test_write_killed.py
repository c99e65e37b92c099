"""A process that is killed while it writes, at any moment."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from xr_tensorfmt import TensorFormatError, to_mag

ROUNDS = 50
SHAPE = (8, 1024)

# It has imported all that writing takes when it forks, and has no threads then.
NURSERY = """
import os, signal, sys, time
import dask.array, dask.threaded, numpy, xarray
from xr_tensorfmt import to_mag

def block(values):
    time.sleep(0.004)
    return values

sync = os.fsync

def slow(descriptor):
    time.sleep(0.004)
    sync(descriptor)

os.fsync = slow
def write(value, scheduler):
    array = dask.array.full(%r, value, chunks=(1, 1024), dtype="f4").map_blocks(block, dtype="f4")
    with dask.config.set(scheduler=scheduler, num_workers=2):
        to_mag(xarray.Dataset({"a": (("x", "y"), array)}), sys.argv[1])

write(0, "synchronous")
for line in sys.stdin:
    value, seconds = map(float, line.split())
    child = os.fork()
    if child == 0:
        write(value, "threads")
        os._exit(0)
    if seconds >= 0:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


class Nursery:
    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", NURSERY % (SHAPE,), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def write(self, value: int, seconds: float = -1) -> None:
        """Let a process write, and kill it after some time, if that is not negative."""
        self.process.stdin.write(f"{value} {seconds}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "gone\n"


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    each = Nursery(tmp_path / "a.mag")
    with each.process:
        yield each


def value_of(path: Path) -> int:
    """The one value that the whole file has."""
    values = xr.open_dataset(path, engine="tensorfmt").a.values
    assert values.shape == SHAPE
    (value,) = np.unique(values)
    return int(value)


def test_the_old_file_or_the_new_one_is_there(tmp_path: Path, nursery: Nursery) -> None:
    path = tmp_path / "a.mag"
    nursery.write(1)
    start = time.perf_counter()
    nursery.write(2)
    needed = time.perf_counter() - start
    chance = random.Random(0)
    outcomes, unfinished, value = set(), 0, 2
    for number in range(3, 3 + ROUNDS):
        nursery.write(number, chance.uniform(0, 1.2) * needed)
        found = value_of(path)
        assert found in (value, number)
        outcomes.add(found == number)
        value = found
        unfinished += check_leftovers(tmp_path, number)
    nursery.write(1000, 0)
    assert value_of(path) == value
    check_leftovers(tmp_path, 1000)
    to_mag(xr.Dataset({"a": (("x", "y"), np.full(SHAPE, 1001, "f4"))}), path)
    assert value_of(path) == 1001
    assert os.listdir(tmp_path) == ["a.mag"]
    assert False in outcomes
    assert unfinished


def check_leftovers(folder: Path, value: int) -> int:
    """What is left is of no format, unless nothing is missing but its name; remove it."""
    names = [name for name in os.listdir(folder) if name != "a.mag"]
    for name in names:
        assert name.startswith(".a.mag.")
        assert name.endswith(".part")
        if (folder / name).read_bytes()[:4] == b"MAG!":
            assert value_of(folder / name) == value
        else:
            with pytest.raises(TensorFormatError, match="magic number"):
                value_of(folder / name)
        (folder / name).unlink()
    return len(names)
