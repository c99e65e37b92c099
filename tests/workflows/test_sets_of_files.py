"""A set of files is old or new as a whole, whatever fails while it is written or read."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import dask
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.workflows.sets import KINDS, SETS, read_set, write_set

CALLS = (
    "open", "pwrite", "ftruncate", "fsync", "replace", "rename", "link", "unlink", "chmod", "chown",
    "close", "stat", "lstat", "access",
)  # fmt: skip
FAILURES = (errno.ENOSPC, errno.EACCES, errno.EPERM, errno.ENOENT, errno.EBUSY, KeyboardInterrupt)


class Faults:
    """Counts calls, and lets one of them fail."""

    def __init__(self, at: int = 0, failure: Any = None) -> None:
        self.at, self.failure = at, failure
        self.count, self.hit = 0, ""

    def check(self, name: str) -> None:
        self.count += 1
        if self.count == self.at:
            self.hit = name
            if isinstance(self.failure, int):
                raise OSError(self.failure, os.strerror(self.failure))
            raise self.failure


@contextmanager
def inject(faults: Faults, directory: Path) -> Iterator[None]:
    """Let a system call fail that concerns a directory."""
    opened: set[int] = set()

    def wrap(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            first = arguments[0]
            is_open = isinstance(first, int) and first in opened
            if not is_open and not str(first).startswith(str(directory)):
                return call(*arguments, **options)
            if name == "close":
                opened.discard(first)
                call(first)
            faults.check(name)
            if name == "close":
                return None
            result = call(*arguments, **options)
            if name == "open":
                opened.add(result)
            return result

        return run

    with pytest.MonkeyPatch.context() as patch, dask.config.set(scheduler="synchronous"):
        for name in CALLS:
            patch.setattr(os, name, wrap(name, getattr(os, name)))
        yield
    assert not opened


def read_files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def catch_message(call: Callable[[], Any]) -> str | None:
    """Return the message of the error that a failing write raises."""
    try:
        call()
    except (OSError, KeyboardInterrupt) as error:
        return " ".join([str(error), *getattr(error, "__notes__", ())])
    return None


WAYS: dict[str, dict[str, Any]] = {"over": {}, "new": {}, "x": {"mode": "x"}}


@pytest.mark.parametrize("way", WAYS)
@KINDS
def test_failing_system_call(tmp_path: Path, kind: str, way: str) -> None:
    directory, before = tmp_path / "d", {}
    directory.mkdir()

    def write() -> None:
        write_set(kind, 2, directory, **WAYS[way])

    if way == "over":
        write_set(kind, 1, directory)
        before = read_files(directory)
    with inject(counter := Faults(), directory):
        write()
    assert counter.count > 20
    # New files have fewer ways to fail.
    for at in range(1, counter.count + 1, 1 if before else 5):
        for path in directory.iterdir():
            path.unlink()
        for name, content in before.items():
            (directory / name).write_bytes(content)
        faults = Faults(at, FAILURES[at % len(FAILURES)])
        with inject(faults, directory):
            message = catch_message(write)
        after = read_files(directory)
        left = {name for name in after if name.endswith(".part")}
        assert not left or faults.hit == "unlink"
        if message is None or after.keys() - left != before.keys():
            assert read_set(kind, directory) == {2}
        else:
            assert read_set(kind, directory) in ({2}, {1} if before else None)
        if message and "unchanged" in message:
            assert {name: after[name] for name in after.keys() - left} == before


@KINDS
def test_restoration_that_fails_is_reported(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_set(kind, 1, tmp_path)
    index = SETS[kind][0]

    def replace(source: str, target: str) -> None:
        raise OSError(errno.EIO, "Input/output error", source, None, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match=r"Input/output error, while writing .* cannot be read until"):
        write_set(kind, 2, tmp_path)
    assert not (tmp_path / index).exists()


class FailingStore(MemoryFileSystem):
    """A store whose requests fail before or after they have an effect."""

    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    faults = Faults()
    has_effect = False

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        if not self.has_effect:
            self.faults.check(name)
        result = getattr(super(), name)(*arguments, **options)
        if self.has_effect:
            self.faults.check(name)
        return result

    def info(self, *arguments: Any, **options: Any) -> Any:
        return self.call("info", *arguments, **options)

    def cat_file(self, *arguments: Any, **options: Any) -> Any:
        return self.call("cat_file", *arguments, **options)

    def put_file(self, *arguments: Any, **options: Any) -> Any:
        return self.call("put_file", *arguments, **options)

    def pipe_file(self, *arguments: Any, **options: Any) -> Any:
        return self.call("pipe_file", *arguments, **options)

    def cp_file(self, *arguments: Any, **options: Any) -> Any:
        return self.call("cp_file", *arguments, **options)

    def rm_file(self, *arguments: Any, **options: Any) -> Any:
        return self.call("rm_file", *arguments, **options)


@pytest.fixture
def store() -> FailingStore:
    FailingStore.store.clear()
    return FailingStore()


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("has_effect", [False, True])
@pytest.mark.parametrize("way", WAYS)
@KINDS
def test_failing_request(
    store: FailingStore, kind: str, way: str, has_effect: bool, lasts: bool
) -> None:
    def write() -> None:
        write_set(kind, 2, "/b", fs=store, **WAYS[way])

    def read() -> set[float] | None:
        store.faults = Faults()
        return read_set(kind, "/b", fs=store)

    if way == "over":
        write_set(kind, 1, "/b", fs=store)
    before = dict(FailingStore.store)
    store.faults = counter = Faults()
    write()
    assert counter.count > 5
    store.has_effect = has_effect
    for at in range(1, counter.count + 1):
        FailingStore.store.clear()
        FailingStore.store.update(before)
        store.faults = faults = Faults(at, errno.ECONNRESET)
        if lasts:
            faults.check = lambda name, faults=faults: fail_from(faults, name)  # type: ignore[method-assign]
        message = catch_message(write)
        values = read()
        assert message or values == {2}
        assert values in ({2}, None, {1} if before else None)
        if "unchanged." in (message or "") and values != {2}:
            assert FailingStore.store.keys() >= before.keys()
            assert values == ({1} if before else None)
    FailingStore.store.clear()
    FailingStore.store.update(before)
    store.faults, store.has_effect = Faults(), False
    write()
    assert read() == {2}


def fail_from(faults: Faults, name: str) -> None:
    """Let all requests from a position on fail."""
    faults.count += 1
    if faults.count >= faults.at:
        raise OSError(faults.failure, os.strerror(faults.failure))
