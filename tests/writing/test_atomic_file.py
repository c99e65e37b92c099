"""A failed write leaves the old file or the new file, complete."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from dask.delayed import Delayed

from tests.opening import open_lazily
from xr_tensorfmt import SourceChangedError, to_file
from xr_tensorfmt.writing.atomic_file import AtomicFile, build_atomic_file
from xr_tensorfmt.writing.file_plan import Piece

FSYNC = os.fsync  # before other tests replace it


@pytest.fixture(autouse=True)
def synchronized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the disk, unlike other tests."""
    monkeypatch.setattr(os, "fsync", FSYNC)


def make_dataset(value: int = 1, chunks: int | None = None) -> xr.Dataset:
    values = xr.Dataset({"a": (("x", "y"), np.full((4, 256), value, "f4"))})
    return values if chunks is None else values.chunk(x=chunks)


def make_failing(error: BaseException) -> xr.Dataset:
    """Return a Dataset whose third chunk fails."""

    def block(values, block_id=None):
        if block_id[0] == 2:
            raise error
        return values

    array = da.from_array(np.zeros((4, 256), "f4"), chunks=(1, 256))
    return xr.Dataset({"a": (("x", "y"), array.map_blocks(block, dtype="f4"))})


def list_leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".part"))


class PeculiarError(Exception):
    """An error of the user's code."""


@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
@pytest.mark.parametrize("error", [PeculiarError("odd"), MemoryError("much"), KeyboardInterrupt()])
def test_failing_chunk_leaves_old_file(tmp_path: Path, error, scheduler: str) -> None:
    path = tmp_path / "a.mag"
    to_file(make_dataset(), path, "mag")
    with dask.config.set(scheduler=scheduler), pytest.raises(type(error)) as caught:
        to_file(make_failing(error), path, "mag")
    assert f"{path} was not written; the target is unchanged." in caught.value.__notes__
    xr.testing.assert_identical(open_lazily(path).load(), make_dataset())
    assert os.listdir(tmp_path) == ["a.mag"]


@pytest.mark.slow
def test_failing_chunk_leaves_no_new_file(tmp_path: Path) -> None:
    for _ in range(20):  # the first task
        with pytest.raises(PeculiarError):
            to_file(make_failing(PeculiarError()), tmp_path / "a.mag")
        assert os.listdir(tmp_path) == []


def test_failing_chunk_of_delayed_write_leaves_no_readable_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.mag"
    to_file(make_dataset(), path, "mag")
    task = to_file(make_failing(PeculiarError()), path, "mag", compute=False)
    with pytest.raises(PeculiarError):
        task.compute(scheduler="synchronous")  # other threads would continue to write
    xr.testing.assert_identical(open_lazily(path).load(), make_dataset())
    assert list_leftovers(tmp_path)
    for name in list_leftovers(tmp_path):
        with pytest.raises(ValueError, match="magic number"):
            open_lazily(tmp_path / name)
    to_file(make_dataset(2), path, "mag")
    xr.testing.assert_identical(open_lazily(path).load(), make_dataset(2))


def test_delayed_write_writes_on_every_compute(tmp_path: Path) -> None:
    path = tmp_path / "a.mag"
    task = to_file(make_dataset(3, chunks=1), path, "mag", compute=False)
    assert os.listdir(tmp_path) == []
    for _ in range(2):
        assert task.compute() is None
        xr.testing.assert_identical(open_lazily(path).load(), make_dataset(3))
        assert os.listdir(tmp_path) == ["a.mag"]


def test_relative_path_keeps_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    task = to_file(make_dataset(), "a.mag", compute=False)
    monkeypatch.chdir(tmp_path / "elsewhere")
    task.compute()
    assert sorted(os.listdir(tmp_path)) == ["a.mag", "elsewhere"]


def test_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    to_file(make_dataset(), "~/a.mag")
    assert open_lazily("~/a.mag").a.shape == (4, 256)
    assert (tmp_path / "a.mag").exists()


NAMES = [
    "a" * 251 + ".mag",
    "\N{CYRILLIC SMALL LETTER ZHE}" * 125 + ".mag",
    "\N{SNOWMAN} name with\nall sorts.mag",
    "\udcff\udcfe.mag",
    ".mag",
    "-rf",
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_that_file_can_have(tmp_path: Path, name: str) -> None:
    assert len(os.fsencode(name)) <= 255
    for number in (1, 2):
        to_file(make_dataset(number), tmp_path / name, "mag")
    assert os.listdir(tmp_path) == [name]
    xr.testing.assert_identical(open_lazily(tmp_path / name).load(), make_dataset(2))


def test_paths_of_bytes_raise() -> None:
    with pytest.raises(TypeError, match="neither a path nor a URL"):
        to_file(make_dataset(), b"a.mag")


def test_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no directory .*missing; create it first"):
        to_file(make_dataset(), tmp_path / "missing" / "a.mag")


def test_directory_is_not_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a directory, expected a file; append a name"):
        to_file(make_dataset(), tmp_path, "mag")


def test_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.mag")
    with pytest.raises(OSError, match="not a regular file"):
        to_file(make_dataset(), tmp_path / "a.mag")
    assert stat.S_ISFIFO((tmp_path / "a.mag").stat().st_mode)
    assert os.listdir(tmp_path) == ["a.mag"]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664])
def test_permissions_are_kept(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a.mag"
    to_file(make_dataset(), path, "mag")
    path.chmod(mode)
    seen = set()

    def look(values):
        seen.update(path.stat().st_mode & 0o077 for path in tmp_path.glob(".*"))
        return values

    array = da.zeros((4, 256), chunks=(1, 256), dtype="f4").map_blocks(look, dtype="f4")
    to_file(xr.Dataset({"a": (("x", "y"), array)}), path, "mag")
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert seen == {0}


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_new_file_has_mode_that_new_files_have(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        to_file(make_dataset(), tmp_path / "a.mag")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.mag").stat().st_mode) == 0o666 & ~umask
    assert os.listdir(tmp_path) == ["a.mag"]


def test_file_whose_target_is_removed_meanwhile_has_the_mode_of_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "a.mag"
    path.write_bytes(b"previous")
    atomic_file = build_atomic_file(str(path), 4, overwrite=True)
    atomic_file.create()
    path.unlink()
    atomic_file.complete([Piece(0, b"head")])
    atomic_file.publish()
    (tmp_path / "new").touch()
    assert path.stat().st_mode == (tmp_path / "new").stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["a.mag", "new"]


@pytest.mark.parametrize("compute", [True, False])
def test_write_protected_file_is_not_replaced(tmp_path: Path, compute: bool) -> None:
    path = tmp_path / "a.mag"
    to_file(make_dataset(), path, "mag")
    path.chmod(0o444)
    with pytest.raises(PermissionError, match=r"\(mode 0444\) .* is write-protected") as caught:
        to_file(make_failing(PeculiarError()), path, "mag", compute=compute)
    assert caught.value.filename == str(path)
    with pytest.raises(PermissionError):
        to_file(make_dataset(2).isel(x=[0]), path, "mag", region={"x": slice(1)})
    xr.testing.assert_identical(open_lazily(path).load(), make_dataset())
    assert os.listdir(tmp_path) == ["a.mag"]
    path.chmod(0o644)


@pytest.mark.parametrize("compute", [True, False])
def test_file_on_read_only_file_system_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compute: bool
) -> None:
    path = tmp_path / "a.mag"
    to_file(make_dataset(), path, "mag")
    open_file = os.open

    def refuse(path: str, flags: int, mode: int = 0o777, **options: Any) -> int:
        if path == str(tmp_path / "a.mag") and flags & os.O_WRONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return open_file(path, flags, mode, **options)

    monkeypatch.setattr(os, "open", refuse)
    for options in ({"compute": compute}, {"region": {}}):
        with pytest.raises(PermissionError, match="or its file system is write-pro") as caught:
            to_file(make_dataset(2), path, "mag", **options)
        assert caught.value.filename == str(path)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_another_writer_moves_the_target_aside_during_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    path = tmp_path / "a.mag"
    path.write_bytes(b"previous")
    read_status = os.stat
    calls: list[str] = []

    def read_status_and_move(name: Any, **options: Any) -> os.stat_result:
        status = read_status(name, **options)
        calls.extend([name] * (name == str(path)))
        if len(calls) == count:
            path.rename(tmp_path / "aside")
        return status

    monkeypatch.setattr(os, "stat", read_status_and_move)
    assert build_atomic_file(str(path), 1, overwrite=True).target == str(path)


def test_write_protected_part_of_several_files_is_not_replaced(tmp_path: Path) -> None:
    values = xr.Dataset({"w": (("p", "q"), np.ones((2, 2)))})
    to_file(values, tmp_path / "w.yaml")
    (tmp_path / "w.elements").chmod(0o444)
    with pytest.raises(PermissionError, match=r"w\.elements"):
        to_file(values * 2, tmp_path / "w.yaml")
    assert open_lazily(tmp_path / "w.yaml").w.values.sum() == 4


@contextmanager
def limit_files(size: int):
    resource = pytest.importorskip("resource", reason="this system does not limit files")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_file_that_is_too_large_for_system_leaves_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.mag"
    to_file(make_dataset(), path, "mag")
    with (
        limit_files(5000),
        pytest.raises(OSError, match="while writing") as caught,
    ):
        to_file(make_dataset(2), path, "mag")
    assert caught.value.errno == errno.EFBIG
    assert caught.value.filename == str(path)
    assert "the target is unchanged" in str(caught.value)
    xr.testing.assert_identical(open_lazily(path).load(), make_dataset())
    assert os.listdir(tmp_path) == ["a.mag"]


@pytest.mark.parametrize("call", ["ftruncate", "pwrite", "fsync", "replace"])
def test_full_disk_leaves_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "a.mag"
    to_file(make_dataset(), path, "mag")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(OSError, match="No space left on device, while writing") as caught:
            to_file(make_dataset(2, chunks=1), path, "mag")
    assert caught.value.errno == errno.ENOSPC
    xr.testing.assert_identical(open_lazily(path).load(), make_dataset())
    assert os.listdir(tmp_path) == ["a.mag"]


def set_free_space(monkeypatch: pytest.MonkeyPatch, total: int, free: int) -> None:
    """Set the free space of the disk."""
    usage = shutil._ntuple_diskusage(total, total - free, free)
    monkeypatch.setattr(shutil, "disk_usage", lambda directory: usage)


def test_too_small_disk_raises_before_computing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.mag"
    to_file(make_dataset(), path, "mag")
    set_free_space(monkeypatch, 1 << 20, 8191)
    words = r"No space .* \(8191 of 8192 bytes are free\), while writing .*; the target is unch"
    with pytest.raises(OSError, match=words) as caught:
        to_file(make_failing(PeculiarError()), path, "mag")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    xr.testing.assert_identical(open_lazily(path).load(), make_dataset())
    assert os.listdir(tmp_path) == ["a.mag"]


@pytest.mark.parametrize(("total", "space"), [(1 << 20, 8192), (0, 0)])
def test_disk_that_is_large_enough_or_of_unknown_size_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: int, space: int
) -> None:
    set_free_space(monkeypatch, total, space)
    to_file(make_dataset(), tmp_path / "a.mag")
    xr.testing.assert_identical(open_lazily(tmp_path / "a.mag").load(), make_dataset())


def test_threads_write_without_pwrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pwrite")
    expected = make_dataset().assign(a=(("x", "y"), np.arange(1024, dtype="f4").reshape(4, 256)))
    to_file(expected.chunk(x=1), tmp_path / "a.mag")
    xr.testing.assert_identical(open_lazily(tmp_path / "a.mag").load(), expected)


def test_short_writes_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset: full(file, data[:1000], offset))
    to_file(make_dataset(), tmp_path / "a.mag")
    xr.testing.assert_identical(open_lazily(tmp_path / "a.mag").load(), make_dataset())


def compute_write(task: Delayed | None) -> None:
    if task is not None:
        task.compute()


@pytest.mark.parametrize("compute", [True, False])
def test_directory_without_permission_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compute: bool
) -> None:
    path = tmp_path / "a.mag"
    to_file(make_dataset(), path, "mag")
    tmp_path.chmod(0o500)
    if os.geteuid() == 0:  # root may write everywhere
        plain = os.open

        def refused(name, flags, *rest, **options):
            if flags & os.O_CREAT:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
            return plain(name, flags, *rest, **options)

        monkeypatch.setattr(os, "open", refused)
    with pytest.raises(PermissionError, match="Permission denied, while writing") as caught:
        compute_write(to_file(make_dataset(2), path, "mag", compute=compute))
    assert caught.value.filename == str(path)
    tmp_path.chmod(0o700)
    xr.testing.assert_identical(open_lazily(path).load(), make_dataset())


def test_mode_x_refuses_existing_file_before_computing(tmp_path: Path) -> None:
    path = tmp_path / "a.mag"
    to_file(make_dataset(), path, "mag", mode="x")
    with pytest.raises(
        FileExistsError, match="exists already; pass mode='w' or --overwrite to replace it"
    ):
        to_file(make_failing(PeculiarError()), path, "mag", mode="x")
    xr.testing.assert_identical(open_lazily(path).load(), make_dataset())


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("compute", [True, False])
def test_mode_x_does_not_replace_a_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compute: bool, links: bool
) -> None:
    path = tmp_path / "a.mag"

    def appear(values):
        path.write_bytes(b"of another program")
        return values

    def unable(*_):
        raise OSError(errno.EPERM, "no links here")

    if not links:
        monkeypatch.setattr(os, "link", unable)
    array = da.zeros((4, 256), chunks=-1, dtype="f4").map_blocks(appear, dtype="f4")
    meanwhile = xr.Dataset({"a": (("x", "y"), array)})
    with pytest.raises(
        FileExistsError, match="exists already; pass mode='w' or --overwrite to replace it"
    ):
        compute_write(to_file(meanwhile, path, "mag", mode="x", compute=compute))
    assert path.read_bytes() == b"of another program"
    assert os.listdir(tmp_path) == ["a.mag"]
    path.unlink()


def test_mode_x_succeeds_if_the_unfinished_file_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unable(path: str) -> None:
        raise OSError(errno.EACCES, "no removing here", path)

    monkeypatch.setattr(os, "unlink", unable)
    to_file(make_dataset(), tmp_path / "a.mag", mode="x")
    xr.testing.assert_identical(open_lazily(tmp_path / "a.mag").load(), make_dataset())


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP])
def test_mode_x_works_without_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def unable(*_):
        raise OSError(number, "no links here")

    monkeypatch.setattr(os, "link", unable)
    to_file(make_dataset(), tmp_path / "a.mag", mode="x")
    assert os.listdir(tmp_path) == ["a.mag"]


@pytest.mark.parametrize("chunks", [None, {}, {"x": 1}])
@pytest.mark.parametrize("way", ["auto", "mmap", "read"])
def test_file_can_replace_its_own_source(tmp_path: Path, chunks, way: str) -> None:
    path = tmp_path / "a.mag"
    to_file(make_dataset(2), path, "mag")
    lazy = open_lazily(path, io=way)
    if chunks is not None:
        lazy = lazy.chunk(chunks)
    to_file((lazy if chunks is None else lazy * np.float32(3)), path, "mag")
    expected = make_dataset(2 if chunks is None else 6)
    xr.testing.assert_identical(open_lazily(path).load(), expected)
    with pytest.raises(SourceChangedError):
        lazy.load()


def test_concurrent_writers_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "a.mag"
    both = threading.Barrier(2, timeout=30)

    def meet(values):
        both.wait()
        return values

    def write(value: int) -> None:
        array = da.full((4, 256), value, chunks=-1, dtype="f4").map_blocks(meet, dtype="f4")
        to_file(xr.Dataset({"a": (("x", "y"), array)}), path, "mag")

    threads = [threading.Thread(target=write, args=(value,)) for value in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(np.unique(open_lazily(path).a)) == 1
    assert os.listdir(tmp_path) == ["a.mag"]


def test_header_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "a")
    atomic_file = build_atomic_file(path, 100, overwrite=True)
    atomic_file.create()
    log = []
    write, sync = os.pwrite, os.fsync
    monkeypatch.setattr(
        os, "pwrite", lambda file, data, offset: (log.append(offset), write(file, data, offset))[1]
    )
    monkeypatch.setattr(os, "fsync", lambda file: (log.append("sync"), sync(file))[1])
    atomic_file.complete([Piece(0, b"head"), Piece(50, b"mid"), Piece(90, b"end")])
    atomic_file.publish()
    assert log == [90, 50, 0, "sync", "sync"]
    assert Path(path).read_bytes() == b"head" + bytes(46) + b"mid" + bytes(37) + b"end" + bytes(7)


def test_file_that_is_complete_is_not_discarded(tmp_path: Path) -> None:
    atomic_file = build_atomic_file(str(tmp_path / "a"), 4, overwrite=True)
    assert not atomic_file.discard()
    atomic_file.create()
    atomic_file.complete([Piece(0, b"head")])
    atomic_file.publish()
    assert not atomic_file.discard()
    assert (tmp_path / "a").read_bytes() == b"head"


def test_errors_of_system_name_file_that_is_written(tmp_path: Path) -> None:
    target, path = str(tmp_path / "a"), str(tmp_path / "gone.part")
    atomic_file = AtomicFile(target=target, path=path, size=4, overwrite=True)
    with pytest.raises(FileNotFoundError) as caught:
        atomic_file.complete([Piece(0, b"head")])
    assert str(caught.value) == (
        f"[Errno 2] No such file or directory, while writing {tmp_path / 'gone.part'}; the target "
        f"is unchanged: '{tmp_path / 'a'}'"
    )


def test_parts_of_two_unfinished_files_do_not_become_one(tmp_path: Path) -> None:
    path = tmp_path / "a.mag"
    to_file(make_dataset(), path, "mag")
    graph = dict(to_file(make_dataset(2, chunks=1), path, "mag", compute=False).dask)
    (finish,) = (key for key in graph if str(key).startswith("finish-"))
    blocks = [key for key in graph if key[0].startswith("write-")]
    assert len(blocks) == 4
    # As on a cluster whose workers do not share the directory, or that lost one after the end.
    dask.get(graph, blocks[0])
    for name in list_leftovers(tmp_path):
        (tmp_path / name).unlink()
    inodes = [dask.get(graph, block) for block in blocks]
    assert len(set(inodes)) == 1
    graph[blocks[0]] = 0
    with pytest.raises(OSError, match=r"do not share .* compute it again") as caught:
        dask.get(graph, finish)
    assert caught.value.errno == errno.ESTALE
    assert caught.value.filename == str(path)
    xr.testing.assert_identical(open_lazily(path).load(), make_dataset())
    assert os.listdir(tmp_path) == ["a.mag"]


def test_complete_file_appears_when_it_is_published(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"old")
    atomic_file = build_atomic_file(str(target), 6, overwrite=True)
    atomic_file.create()
    atomic_file.complete([Piece(0, b"new"), Piece(3, b"er!")])
    assert target.read_bytes() == b"old"
    atomic_file.publish()
    assert target.read_bytes() == b"newer!"
    assert os.listdir(tmp_path) == ["a"]
    assert not atomic_file.discard()


@pytest.mark.parametrize("call", ["ftruncate", "fsync", "link"])
def test_interrupt_in_system_call_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, call, interrupt)
    with pytest.raises(KeyboardInterrupt):
        to_file(make_dataset(), tmp_path / "a.mag", mode="x")
    assert os.listdir(tmp_path) == []


def test_complete_file_can_still_be_discarded(tmp_path: Path) -> None:
    atomic_file = build_atomic_file(str(tmp_path / "a"), 3, overwrite=False)
    atomic_file.create()
    atomic_file.complete([Piece(0, b"new")])
    assert atomic_file.discard()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", range(1, 4))
def test_files_appear_after_all_are_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    path = tmp_path / "s.yaml"
    both = xr.Dataset({"a": ("x", np.ones(3)), "b": ("x", np.ones(3) * 2)})
    to_file(both, path, "cc4s")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    calls = 0
    fsync = os.fsync

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device.*unchanged"):
        to_file(both * 3, path, "cc4s")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
