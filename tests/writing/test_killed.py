"""A process killed before any system call of a write."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from xr_tensorfmt import TensorFormatError, to_file
from xr_tensorfmt.writing import atomic_file

SHAPE = (8, 1024)
CALLS = ("open", "ftruncate", "pwrite", "fsync", "chmod", "replace", "link", "unlink")

# It imports everything before it forks, and has no threads then.
NURSERY = """
import os, signal, sys
import dask.array, numpy, xarray
from xr_tensorfmt import to_file

calls, path = %r, sys.argv[1]

def write(value):
    array = dask.array.full(%r, value, chunks=(1, 1024), dtype="f4")
    with dask.config.set(scheduler="synchronous"):
        to_file(xarray.Dataset({"a": (("x", "y"), array)}), path)

def die_before(number):
    remaining = number
    def counted(call):
        def run(*arguments, **options):
            nonlocal remaining
            remaining -= 1
            if remaining < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)
        return run
    for name in calls:
        setattr(os, name, counted(getattr(os, name)))

write(0)
for line in sys.stdin:
    value, number = map(int, line.split())
    child = os.fork()
    if child == 0:
        die_before(number)
        write(value)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@contextmanager
def run_nursery(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process whose children write a value, and are killed before a call."""
    with subprocess.Popen(
        [sys.executable, "-c", NURSERY % (CALLS, SHAPE), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process


def read_value(path: Path) -> int:
    """Return the only value of the file."""
    values = xr.open_dataset(path, engine="tensorfmt").a.values
    assert values.shape == SHAPE
    (value,) = np.unique(values)
    return int(value)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_killed_write_leaves_old_or_new_file(tmp_path: Path) -> None:
    path = tmp_path / "a.mag"
    outcomes, unfinished, before = [], 0, 0
    with run_nursery(path) as process:
        for number in range(200):
            value = number + 1
            process.stdin.write(f"{value} {number}\n")
            process.stdin.flush()
            is_complete = process.stdout.readline() == "0\n"
            actual = read_value(path)
            assert actual in (before, value)
            outcomes.append(actual == value)
            before = actual
            unfinished += check_leftovers(tmp_path, value)
            if is_complete:
                break
        process.stdin.close()
    # One of the last calls replaces the file.
    assert is_complete
    assert outcomes == sorted(outcomes)
    assert outcomes.index(True) > SHAPE[0]
    assert unfinished
    to_file(xr.Dataset({"a": (("x", "y"), np.full(SHAPE, 1001, "f4"))}), path, "mag")
    assert read_value(path) == 1001
    assert os.listdir(tmp_path) == ["a.mag"]


def check_leftovers(folder: Path, value: int) -> int:
    """Check that a leftover is incomplete, or lacks only its name, and remove it."""
    names = [name for name in os.listdir(folder) if name != "a.mag"]
    for name in names:
        assert name.startswith(".a.mag.")
        assert name.endswith(".part")
        if (folder / name).read_bytes()[:4] == b"MAG!":
            assert read_value(folder / name) == value
        else:
            with pytest.raises(TensorFormatError, match=r"magic number|empty|header"):
                read_value(folder / name)
        (folder / name).unlink()
    return len(names)


@pytest.mark.parametrize("count", range(6))
def test_hidden_files_of_a_killed_set_are_restored_by_their_times(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "m.safetensors.index.json"
    old, new = (xr.Dataset({k: ("x", np.full(10, v)) for k in "ab"}) for v in (1.0, 2.0))
    to_file(old, index, max_shard_bytes=80)
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    moves = 0

    def move_or_die(move: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: str) -> None:
            nonlocal moves
            moves += 1
            if moves > count:
                raise KeyboardInterrupt
            move(*arguments)

        return run

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", move_or_die(os.rename))
        patch.setattr(os, "replace", move_or_die(os.replace))
        patch.setattr(atomic_file, "_settle", lambda *_: "it was killed")
        patch.setattr(atomic_file.AtomicFile, "discard", lambda _: False)
        with pytest.raises(KeyboardInterrupt):
            to_file(new, index, max_shard_bytes=80)
    if not index.exists():
        with pytest.raises(OSError, match=r"index|is a directory"):
            xr.open_dataset(tmp_path, engine="tensorfmt")
        for path in tmp_path.glob(".*.part"):
            if path.stat().st_mtime == 1:
                path.rename(path.with_name(path.name[1:].rpartition(".")[0].rpartition(".")[0]))
    for path in tmp_path.glob(".*.part"):
        path.unlink()
    xr.testing.assert_identical(xr.load_dataset(tmp_path, engine="tensorfmt"), old)
