"""A forked process does not wait for locks that threads of its parent hold."""

from __future__ import annotations

import os
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from io import BytesIO
from pathlib import Path

import fsspec.asyn
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import xr_tensorfmt
from tests import tensfiles as tf
from tests.opening import open_lazily
from tests.processes import run_in_child, run_python
from tests.servers import HttpStore
from xr_tensorfmt.core.locks import CachedValue
from xr_tensorfmt.core.source import read_into
from xr_tensorfmt.sources import find_source
from xr_tensorfmt.sources.local import FileObject

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]

_LONGEST = 30


def make_npy(values: np.ndarray) -> bytes:
    file = BytesIO()
    np.save(file, values)
    return file.getvalue()


@contextmanager
def hold_in_thread(call: Callable[[Callable[[], None]], object]) -> Iterator[None]:
    """Let a thread wait inside a call."""
    reached, go_on = threading.Event(), threading.Event()

    def pause() -> None:
        reached.set()
        go_on.wait(_LONGEST)

    thread = threading.Thread(target=call, args=(pause,))
    thread.start()
    try:
        assert reached.wait(_LONGEST)
        yield
    finally:
        go_on.set()
        thread.join()


def test_fork_while_thread_computes_cached_value() -> None:
    cached: CachedValue[int] = CachedValue()

    def compute(pause: Callable[[], None]) -> int:
        pause()
        return 1

    with hold_in_thread(lambda pause: cached.get(lambda: compute(pause))):
        assert run_in_child(lambda: cached.get(lambda: 2) == 2)
    assert cached.get(lambda: 3) == 1


def test_fork_while_a_thread_builds_index_of_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.tens"
    path.write_bytes(tf.make_index_value((2,), [1, 0], np.array([1.0, 2.0])))
    tensor = open_lazily(path).tensor
    parent = os.getpid()

    def pausing(pause: Callable[[], None]) -> None:
        from xr_tensorfmt.formats.tens.pairs import Pairs  # noqa: PLC0415

        parse = Pairs.parse

        def paused(*arguments: object) -> object:
            if os.getpid() == parent:
                pause()
            return parse(*arguments)

        monkeypatch.setattr(Pairs, "parse", paused)
        assert tensor.values.tolist() == [2.0, 1.0]

    with hold_in_thread(pausing):
        assert run_in_child(lambda: tensor.values.tolist() == [2.0, 1.0])


def test_fork_while_thread_reads_file_object() -> None:
    source = FileObject(BytesIO(bytes(8)))

    def reading(pause: Callable[[], None]) -> None:
        with source.open():
            pause()

    def read() -> bool:
        buffer = np.empty(8, np.uint8)
        with source.open() as file:
            return read_into(file, 0, buffer.data) == 8

    with hold_in_thread(reading):
        assert run_in_child(read)


@pytest.mark.parametrize("chunks", [None, {}], ids=str)
def test_open_file_is_refused_in_child_as_when_pickled(tmp_path: Path, chunks: object) -> None:
    (tmp_path / "a.npy").write_bytes(make_npy(np.arange(9.0)))
    with open(tmp_path / "a.npy", "rb") as file:
        tensor = open_lazily(file, chunks=chunks).tensor
        with pytest.raises(TypeError, match="cannot pickle") as pickling:
            pickle.dumps(tensor)

        def refuse() -> bool:
            with pytest.raises(TypeError) as reading:
                tensor.load(scheduler="synchronous")
            return str(reading.value) == str(pickling.value)

        assert run_in_child(refuse)
        np.testing.assert_array_equal(tensor, np.arange(9.0))


@pytest.mark.slow
def test_file_that_can_be_pickled_is_read_in_child(memory: MemoryFileSystem) -> None:
    memory.pipe_file("/a.npy", make_npy(np.arange(9.0)))
    for file in (BytesIO(make_npy(np.arange(9.0))), memory.open("/a.npy")):
        tensor = open_lazily(file).tensor
        assert run_in_child(lambda: tensor.values.tolist() == [*range(9)])  # noqa: B023


def test_package_has_no_property_with_a_lock() -> None:
    # Before Python 3.12, threads share a lock per property.
    package = Path(xr_tensorfmt.__file__).parent
    modules = [path for path in package.rglob("*.py") if "functools" in path.read_text()]
    users = [m.name for m in modules if re.search(r"import .*cached_property", m.read_text())]
    assert users == []


def test_fork_while_thread_fills_cache_of_files(
    memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe_file("/a.npy", make_npy(np.arange(3.0)))
    get_file, parent = MemoryFileSystem.get_file, os.getpid()

    def values() -> list[float]:
        return open_lazily("simplecache::memory://a.npy").tensor.values.tolist()

    def pausing(pause: Callable[[], None]) -> None:
        def paused(*arguments: object, **options: object) -> object:
            if os.getpid() == parent:
                pause()
            return get_file(*arguments, **options)

        monkeypatch.setattr(MemoryFileSystem, "get_file", paused)
        assert values() == [0, 1, 2]

    with hold_in_thread(pausing):
        assert run_in_child(lambda: values() == [0, 1, 2])


def test_fork_after_file_system_of_urls_was_made(http: HttpStore) -> None:
    url = http.put("a.npy", make_npy(np.arange(3.0)))
    http.put("b.npy", make_npy(np.arange(4.0)))
    fs = fsspec.filesystem("http")
    assert open_lazily(url, fs=fs).tensor.values.tolist() == [0, 1, 2]
    source, _ = find_source(url, fs=fs)
    assert run_in_child(lambda: open_lazily(url, fs=fs).tensor.values.tolist() == [0, 1, 2])
    assert run_in_child(lambda: source.sibling("b.npy")[0].size == 128 + 32)


def test_fork_while_thread_starts_loop_of_fsspec() -> None:
    import_module("xr_tensorfmt.sources.stores")

    def start(pause: Callable[[], None]) -> None:
        with fsspec.asyn.get_lock():
            pause()

    with hold_in_thread(start):
        assert run_in_child(lambda: fsspec.asyn.get_loop().is_running() is not None)


IMPORT_IN_THREAD = """
import importlib, os, signal, sys, threading
import xr_tensorfmt

name = sys.argv[1]
thread = threading.Thread(target=importlib.import_module, args=[name])
thread.start()
while name not in sys.modules:
    pass
child = os.fork()
if not child:
    signal.alarm(20)
    importlib.import_module(name)
    os._exit(0)
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


SLOW_IMPORTS = [
    pytest.param(name, marks=pytest.mark.slow) for name in ("opening", "vespa", "sources.stores")
]


@pytest.mark.parametrize("name", ["saving", *SLOW_IMPORTS])
def test_child_imports_module_that_a_thread_was_importing(name: str) -> None:
    run = run_python("-W", "ignore", "-c", IMPORT_IN_THREAD, f"xr_tensorfmt.{name}")
    assert run.stdout == "0\n"
