"""Several writers of one path: one of the files, or one of the sets, is there as a whole."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.workflows.formats import WRITABLE, make_array, open_array, write
from tests.workflows.sets import KINDS, read_set, write_set

COUNT = 16


def write_concurrently(write: Callable[[int], Any]) -> list[OSError]:
    """Write in 16 threads that start at the same time, and return the errors of writers."""
    start = threading.Barrier(COUNT, timeout=60)
    errors: list[OSError] = []
    unexpected: list[BaseException] = []

    def run(number: int) -> None:
        start.wait()
        try:
            write(number)
        except OSError as error:
            errors.append(error)
        except BaseException as error:  # noqa: BLE001  # the test raises it
            unexpected.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not unexpected
    return errors


@pytest.mark.parametrize("name", WRITABLE)
def test_files(tmp_path: Path, name: str) -> None:
    shape = (30, 50)
    assert not write_concurrently(lambda number: write(make_array(number, shape), tmp_path, name))
    path = write_path(tmp_path, name)
    difference = open_array(path).values - make_array(0, shape).values
    assert len(np.unique(difference)) == 1
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]


def write_path(directory: Path, name: str) -> Path:
    (path,) = (path for path in directory.iterdir() if path.suffix != ".elements")
    return path


@KINDS
def test_sets_of_files(tmp_path: Path, kind: str) -> None:
    for _ in range(3):
        assert not write_concurrently(lambda number: write_set(kind, number, tmp_path))
        assert len(read_set(kind, tmp_path)) == 1


@KINDS
def test_sets_of_files_with_readers(tmp_path: Path, kind: str) -> None:
    write_set(kind, 0, tmp_path)
    seen: list[set[float] | None] = []
    write_concurrently(
        lambda number: (
            write_set(kind, number, tmp_path)
            if number % 4 == 0
            else seen.extend(read_set(kind, tmp_path) for _ in range(5))
        )
    )
    assert all(values is None or len(values) == 1 for values in seen)


class Store(MemoryFileSystem):
    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]


@pytest.mark.parametrize("mode", ["w", "x"])
@KINDS
def test_sets_in_store(kind: str, mode: str) -> None:
    for _ in range(3):
        Store.store.clear()
        errors = write_concurrently(
            lambda number: write_set(kind, number, "/b", fs=Store(), mode=mode)
        )
        values = read_set(kind, "/b", fs=Store())
        assert values is None or len(values) == 1
        assert values or errors


FIRST_WRITES = """
import sys, threading
import numpy, xarray
import xr_tensorfmt

start, errors = threading.Barrier(16), []
sys.setswitchinterval(1e-6)

def write(number):
    start.wait()
    try:
        if number % 2:
            import distributed
        array = xarray.DataArray(numpy.ones((4, 4), "f4"), dims=("x", "y"), name="tensor")
        path = f"{sys.argv[1]}/{number}.mag"
        array.to_dataset().tensorfmt.to_file(path)
        array.to_dataset().tensorfmt.to_file(path, region={"x": slice(0, 4)})
        xarray.open_dataset(path, engine="tensorfmt").load()
    except BaseException as error:
        errors.append(error)

threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not errors, errors
"""


def test_first_writes_of_process_from_several_threads(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FIRST_WRITES, str(tmp_path)], check=True, timeout=120)
    assert len(list(tmp_path.iterdir())) == COUNT
