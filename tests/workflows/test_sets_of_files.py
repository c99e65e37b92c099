"""A set of files is old or new as a whole, whatever fails while it is written or read."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import dask
import pytest
import xarray as xr
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from tests.failing_calls import Faults, catch_message, inject, read_files, restore_files
from tests.workflows.sets import KINDS, SETS, make_dataset, read_set, write_set
from xr_tensorfmt import (
    SourceChangedError,
    TensorFormatError,
    TensorFormatWarning,
    to_file,
    validate,
)
from xr_tensorfmt.sources.local import LocalFile
from xr_tensorfmt.sources.stores import RemoteFile

FAILURES = (errno.ENOSPC, errno.EACCES, errno.EPERM, errno.ENOENT, errno.EBUSY, KeyboardInterrupt)


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
        restore_files(directory, before)
        faults = Faults(at, failure=FAILURES[at % len(FAILURES)])
        with inject(faults, directory):
            message = catch_message(write)
        after = read_files(directory)
        left = {name for name in after if name.endswith(".part")}
        assert not left or faults.hits[0] in ("unlink", "fstat", "lstat")
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
    reason = r"Input/output error, while .*write it again with"
    with pytest.raises(OSError, match=reason) as caught:
        write_set(kind, 2, tmp_path)
    assert not (tmp_path / index).exists()
    kept = [path.name for path in tmp_path.glob(".*") if index in path.name]
    assert len(kept) == 1
    assert f"{index} (before in {tmp_path / kept[0]})" in str(caught.value)


KILLED = """
import os, sys
import dask
from tests.failing_calls import Faults, catch_message, inject, read_files, restore_files
from tests.workflows.sets import write_set

kind, directory = sys.argv[1:]
calls = ("replace", "rename", "link", "unlink")
dask.config.set(scheduler="synchronous")
write_set(kind, 1, directory)
for line in sys.stdin:
    remaining = int(line)
    if not (child := os.fork()):
        def count(call):
            def run(*arguments, **options):
                global remaining
                remaining -= 1
                if remaining < 0:
                    os._exit(9)
                return call(*arguments, **options)
            return run
        for name in calls:
            setattr(os, name, count(getattr(os, name)))
        write_set(kind, 2, directory)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@KINDS
def test_killed_writer(tmp_path: Path, kind: str) -> None:
    outcomes = []
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, kind, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        for number in range(100):
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
            is_complete = process.stdout.readline() == "0\n"
            outcomes.append(read_set(kind, tmp_path))
            if is_complete:
                break
            write_set(kind, 1, tmp_path)
        process.stdin.close()
    assert outcomes[0] == {1}
    assert outcomes[-1] == {2}
    assert all(values in ({1}, {2}, None) for values in outcomes)
    assert read_set(kind, tmp_path) == {2}


class FailingStore(MemoryFileSystem):
    """A store whose requests fail before or after they have an effect."""

    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    faults = Faults()

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        call = getattr(super(), name)
        return self.faults.run(name, lambda: call(*arguments, **options))

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


@pytest.mark.filterwarnings("ignore:orphaned files are not removed")
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
    # New files have fewer ways to fail, so each request of theirs fails in some of the ways.
    requests = range(1, counter.count + 1)
    for at in requests if before else requests[has_effect + lasts :: 3]:
        FailingStore.store.clear()
        FailingStore.store.update(before)
        store.faults = Faults(at, failure=errno.ECONNRESET, has_effect=has_effect, lasts=lasts)
        message = catch_message(write)
        values = read()
        assert message or values == {2}
        assert values in ({2}, None, {1} if before else None)
        if before and (kind == "model" or not lasts):
            assert values is not None
        if "unchanged." in (message or "") and values != {2}:
            assert FailingStore.store.keys() >= before.keys()
            assert values == ({1} if before else None)
        if way == "x" and message and not lasts:  # nothing is in the way
            assert not FailingStore.store or values == {2}
            if values is None:
                store.faults = Faults()
                write()
                assert read() == {2}
    FailingStore.store.clear()
    FailingStore.store.update(before)
    store.faults = Faults()
    write()
    assert read() == {2}


def test_requests_about_orphaned_files_are_repeated(store: FailingStore) -> None:
    write_set("model", 1, "/b", fs=store)
    store.faults = counter = Faults()
    write_set("model", 2, "/b", fs=store)
    names = FailingStore.store.keys()
    for at in range(1, counter.count + 1):
        store.faults = faults = Faults(at, failure=errno.ECONNRESET)
        write_set("model", 3, "/b", fs=store)
        assert faults.hits
        assert len(FailingStore.store) == len(names) == 4


def test_files_that_an_unreadable_index_lists_may_remain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / SETS["model"][0]
    read = LocalFileSystem.cat_file

    def refuse(fs: Any, path: str, **bounds: Any) -> bytes:
        if path == str(index):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return read(fs, path, **bounds)

    write_set("model", 1, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "cat_file", refuse)
        with pytest.warns(TensorFormatWarning, match=r"json cannot be read .*denied.* may remain"):
            to_file(make_dataset("model", 2), index)
    assert read_set("model", tmp_path) == {2}
    assert (tmp_path / "m-00003-of-00003.safetensors").exists()


def test_files_of_different_writes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / SETS["model"][0]
    write_set("model", 1, tmp_path)
    old = (tmp_path / "m-00002-of-00003.safetensors").read_bytes()
    to_file(make_dataset("model", 2, size=60), path, max_shard_bytes=1)
    (tmp_path / "m-00002-of-00003.safetensors").write_bytes(old)
    with pytest.raises(TensorFormatError, match="the files are from different writes") as caught:
        xr.open_dataset(path, engine="tensorfmt")
    assert str(caught.value).startswith(f"{path}: the header of 'm-00002-of-00003.safetensors'")
    assert [finding.severity for finding in validate(path)] == ["error"]
    # An index of another program has no checksums.
    index = json.loads(path.read_text())
    del index["metadata"]["header_crc32"]
    path.write_text(json.dumps(index))
    assert xr.open_dataset(path, engine="tensorfmt").sizes == {"t0_x": 60, "t1_x": 50, "t2_x": 60}


def test_checksums_are_no_attributes(tmp_path: Path) -> None:
    write_set("model", 1, tmp_path)
    ds = xr.open_dataset(tmp_path / SETS["model"][0], engine="tensorfmt")
    assert "header_crc32" not in ds.attrs


@KINDS
@pytest.mark.parametrize("protocol", ["", "memory://"])
def test_index_that_is_replaced_while_siblings_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, protocol: str
) -> None:
    directory = f"{protocol}{tmp_path}"
    write_set(kind, 1, directory)
    source_type = RemoteFile if protocol else LocalFile
    open_sibling, opened = source_type.sibling, []

    def sibling(source: Any, path: str) -> Any:
        opened.append(path)
        if len(opened) == 1:
            write_set(kind, 2, directory)
        return open_sibling(source, path)

    monkeypatch.setattr(source_type, "sibling", sibling)
    with pytest.raises(SourceChangedError):
        xr.open_dataset(f"{directory}/{SETS[kind][0]}", engine="tensorfmt")
    assert read_set(kind, directory) == {2}


@pytest.mark.skipif(not hasattr(os, "chown"), reason="this system has no groups")
def test_replaced_files_keep_mode_and_group(tmp_path: Path) -> None:
    write_set("model", 1, tmp_path)
    groups = {*os.getgroups(), os.getegid()} | ({12345} if os.geteuid() == 0 else set())
    for path in tmp_path.iterdir():
        os.chown(path, -1, max(groups))
        path.chmod(0o640)
    write_set("model", 2, tmp_path)
    for path in tmp_path.iterdir():
        assert (path.stat().st_gid, path.stat().st_mode & 0o777) == (max(groups), 0o640)


def test_group_that_cannot_be_kept_gets_rights_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    write_set("tensor", 1, tmp_path)
    for path in tmp_path.iterdir():
        path.chmod(0o664)
    monkeypatch.setattr(os, "chown", refuse)
    write_set("tensor", 2, tmp_path)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}


def test_temporary_files_of_uploads_are_private(tmp_path: Path, store: FailingStore) -> None:
    modes = set()

    def look(values: Any) -> Any:
        modes.update(path.stat().st_mode & 0o777 for path in tmp_path.iterdir())
        return values

    ds = make_dataset("model", 1).chunk()
    ds["t0"] = ds.t0.copy(data=ds.t0.data.map_blocks(look, dtype="f8"))
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        to_file(ds, "/b/a.safetensors", fs=store)
    assert modes == {0o600}
    assert not list(tmp_path.iterdir())
