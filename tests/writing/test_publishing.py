"""Locks of sets of files, and what is decided when files are published."""

from __future__ import annotations

import errno
import multiprocessing
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr

from tests.opening import load
from tests.workflows.sets import KINDS, SETS, read_set, write_set
from xr_tensorfmt import to_file
from xr_tensorfmt.writing import atomic_file

fcntl = pytest.importorskip("fcntl", reason="this system cannot lock files")


@KINDS
@pytest.mark.parametrize("locked", ["directory", "index"])
def test_locks_that_others_can_hold_block_no_writer(
    tmp_path: Path, kind: str, locked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_file, "MAX_LOCK_WAIT", 0.1)
    write_set(kind, 1, tmp_path)
    path = tmp_path if locked == "directory" else tmp_path / SETS[kind][0]
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    write_set(kind, 2, tmp_path)
    os.close(descriptor)
    assert read_set(kind, tmp_path) == {2}


@pytest.mark.parametrize("is_own", [True, False])
def test_writer_that_keeps_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_own: bool
) -> None:
    write_set("model", 1, tmp_path)
    monkeypatch.setattr(atomic_file, "MAX_LOCK_WAIT", 0.1)
    index = str(tmp_path / SETS["model"][0])
    with atomic_file.lock_set(index):
        if is_own:
            with pytest.raises(TimeoutError, match=r"same files; .*; the target is unch") as caught:
                write_set("model", 2, tmp_path)
            assert caught.value.filename == index
            assert read_set("model", tmp_path) == {1}
            to_file(xr.Dataset({"a": ("x", np.ones(3))}), tmp_path / "single.safetensors")
            write_set("tensor", 2, tmp_path)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: 12345)
            write_set("model", 2, tmp_path)
            assert read_set("model", tmp_path) == {2}
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_system_without_locks_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    write_set("model", 1, tmp_path)
    assert read_set("model", tmp_path) == {1}
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_children_forked_while_a_thread_writes_keep_no_lock(tmp_path: Path) -> None:
    stop, problems = threading.Event(), list[BaseException]()

    def write() -> None:
        try:
            while not stop.is_set():
                write_set("model", 1, tmp_path)
        except BaseException as error:  # noqa: BLE001  # the test raises it
            problems.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=time.sleep, args=(60,)) for _ in range(10)]
    for child in children:
        child.start()
        time.sleep(0.01)
    stop.set()
    writer.join(30)
    is_blocked = writer.is_alive()
    write_set("model", 2, tmp_path)
    for child in children:
        child.kill()
        child.join()
    assert not is_blocked
    assert not problems
    assert read_set("model", tmp_path) == {2}


def test_lock_is_released_although_a_child_inherits_it(tmp_path: Path) -> None:
    index = str(tmp_path / "index")
    with atomic_file.lock_set(index):
        (path,) = tmp_path.glob(".*.lock.part")
        inode = path.stat().st_ino
        opened = (int(number) for number in os.listdir("/dev/fd"))
        (descriptor,) = (number for number in opened if get_inode(number) == inode)
        copy = os.dup(descriptor)  # as in a child
    with atomic_file.lock_set(index):
        assert list(tmp_path.glob(".*.lock.part"))
    os.close(copy)


def get_inode(descriptor: int) -> int | None:
    with suppress(OSError):
        return os.fstat(descriptor).st_ino
    return None


SUFFIXES = ("mag", "safetensors", "tens", "npy", "yaml", "pycauset")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_values_in_memory_at_the_call_are_written(tmp_path: Path, suffix: str) -> None:
    buffer, tasks = np.zeros((4, 4)), []
    dims = ("row", "col") if suffix == "pycauset" else ("dim_0", "dim_1")
    for number in range(3):
        buffer[:] = number
        array = xr.DataArray(buffer, dims=dims, name="tensor")
        options = {"encoding": {"tensor": {"dtype": "float32"}}} if suffix == "mag" else {}
        path = tmp_path / f"{number}.{suffix}"
        tasks.append(to_file(array, path, compute=False, **options))
    dask.compute(*tasks)
    for number in range(3):
        values = next(iter(load(tmp_path / f"{number}.{suffix}").data_vars.values()))
        assert (values == number).all()


def test_values_that_xarray_has_kept_are_written_as_at_the_call(tmp_path: Path) -> None:
    to_file(xr.Dataset({"a": ("x", np.zeros(9, "f4"))}), tmp_path / "a.mag")
    ds = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt")
    kept = ds.a.values
    task = to_file(ds, tmp_path / "b.mag", compute=False)
    kept[:] = 7
    task.compute()
    assert not load(tmp_path / "b.mag").a.any()


def test_values_of_a_region_in_memory_at_the_call_are_written(tmp_path: Path) -> None:
    path, buffer = tmp_path / "a.mag", np.zeros(2, "f4")
    to_file(xr.Dataset({"a": ("x", np.zeros(6, "f4"))}), path)
    tasks = []
    for number in range(3):
        buffer[:] = number
        region = {"x": slice(2 * number, 2 * number + 2)}
        tasks.append(to_file(xr.Dataset({"a": ("x", buffer)}), path, region=region, compute=False))
    dask.compute(*tasks)
    assert load(path).a.values.tolist() == [0, 0, 1, 1, 2, 2]


def test_repeated_tasks_continue_in_the_same_unfinished_file(tmp_path: Path) -> None:
    """As after the loss of a worker."""
    values = np.arange(32.0).reshape(4, 8)
    array = xr.DataArray(values, dims=("x", "y"), name="tensor").chunk(x=1)
    graph = dict(to_file(array, tmp_path / "a.safetensors", compute=False).dask)
    blocks = [key for key in graph if key[0].startswith("write-")]
    for block in (*blocks[:3], *blocks):
        dask.get(graph, block)
        assert len(os.listdir(tmp_path)) == 1
    dask.get(graph, next(key for key in graph if str(key).startswith("finish-")))
    np.testing.assert_array_equal(load(tmp_path / "a.safetensors").tensor, values)
    assert os.listdir(tmp_path) == ["a.safetensors"]


@pytest.mark.slow
@pytest.mark.parametrize("compute", [True, False])
def test_threads_write_large_and_small_files(tmp_path: Path, compute: bool) -> None:
    large = xr.Dataset({"w": ("x", np.ones(17 << 18, "f4"))})
    problems: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for _ in range(3 if number < 2 else 20):
                data = large if number < 2 else large.isel(x=slice(10))
                task = to_file(data, tmp_path / f"{number}.mag", compute=compute)
                if task is not None:
                    task.compute()
        except BaseException as error:  # noqa: BLE001  # the test raises it
            problems.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert len(os.listdir(tmp_path)) == 4


@pytest.mark.parametrize("suffix", ["mag", "safetensors.index.json"])
def test_second_compute_at_the_same_time_breaks_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    path = tmp_path / f"a.{suffix}"
    ds = xr.Dataset({"a": ("x", np.arange(1000, dtype="f4"))}).chunk(x=100)
    task = to_file(ds, path, compute=False)
    complete, completed = atomic_file.AtomicFile.complete, []

    def complete_later(file: atomic_file.AtomicFile, pieces: Any) -> None:
        completed.append(file)
        if len(completed) == 1:
            task.compute(scheduler="synchronous")
        complete(file, pieces)

    monkeypatch.setattr(atomic_file.AtomicFile, "complete", complete_later)
    with pytest.raises(OSError, match=r"twice at the same time; compute it again"):
        task.compute(scheduler="synchronous")
    xr.testing.assert_equal(load(path), ds.compute())
    assert not list(tmp_path.glob(".*"))
    task.compute()
    xr.testing.assert_equal(load(path), ds.compute())
