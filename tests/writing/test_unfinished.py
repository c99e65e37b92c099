"""Unfinished files: when they are removed, and when they are kept."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from xr_tensorfmt.writing.unfinished import get_unfinished_path

from tests.commands import load_any, run, run_failing, run_ok, save
from tests.opening import open_lazily
from tests.processes import run_python, run_script
from xr_tensorfmt import to_cc4s, to_mag
from xr_tensorfmt.cli.convert import raise_exit_on_sigterm
from xr_tensorfmt.writing import unfinished

pytestmark = pytest.mark.usefixtures("working_directory")

WRITES_FOR_EVER = """
import sys, time
import dask.array, xarray
from xr_tensorfmt import to_mag

def wait(values):
    time.sleep(600)
    return values

zeros = dask.array.zeros((4, 256), chunks=(1, 256), dtype="f4")
array = zeros.map_blocks(wait, meta=zeros._meta)
to_mag(xarray.Dataset({"a": (("x", "y"), array)}), sys.argv[1])
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


def leave_unfinished_file(path: str = "a.mag") -> str:
    with run_writer(WRITES_FOR_EVER, path) as process:
        process.kill()
        process.wait()
    return list_leftovers()[-1]


def make(path: str, host: str | None = None, process: int | None = None) -> str:
    """Create an unfinished file with the name of another host or process."""
    stem, _, mark = get_unfinished_path(path).removesuffix(".part").rpartition(".")
    own_host, own_process, token = mark.split("-")
    name = f"{stem}.{host or own_host}-{process or own_process}-{token}.part"
    Path(name).write_bytes(bytes(1000))
    return name


def end_process() -> int:
    return int(run_python("-c", "import os; print(os.getpid())").stdout)


# The next write


def test_next_write_removes_orphaned_files() -> None:
    left = leave_unfinished_file()
    assert left.startswith(".a.mag.")
    to_mag(make_dataset(2), "a.mag")
    assert os.listdir() == ["a.mag"]
    xr.testing.assert_identical(open_lazily("a.mag").load(), make_dataset(2))


def test_write_to_another_path_removes_nothing() -> None:
    left = leave_unfinished_file()
    for path in ("b.mag", "a.mag.mag", ".mag"):
        to_mag(make_dataset(), path)
    assert list_leftovers() == [left]


def test_orphaned_sibling_files_are_removed() -> None:
    gone = end_process()
    make("a.yaml", process=gone)
    make("a.elements", process=gone)
    to_cc4s(xr.DataArray(np.zeros((2, 2)), dims=("State", "State_2"), name="a"), "a.yaml")
    assert list_leftovers() == []


def test_file_of_process_that_runs_is_kept() -> None:
    with run_writer(WRITES_FOR_EVER, "a.mag") as process:
        own = list_leftovers()
        to_mag(make_dataset(), "a.mag")
        assert list_leftovers() == own
        assert process.poll() is None
        assert f"process {process.pid} is running" in run_ok("clean", ".")
        assert list_leftovers() == own


def test_files_of_other_hosts_of_clusters_and_of_unknown_origin_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = end_process()
    expected = [make("a.mag", host="0123456789ab", process=gone)]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "distributed", SimpleNamespace(get_worker=lambda: None))
        expected.append(make("a.mag"))
    with monkeypatch.context() as patch:
        patch.setattr(unfinished.sys, "platform", "win32")
        own = [make("a.mag", process=gone)]
        to_mag(make_dataset(), "a.mag")
        assert "is running" in run_ok("clean", ".")
    to_mag(make_dataset(), "a.mag")
    assert list_leftovers() == sorted([*expected, *own])
    output = run_ok("clean", ".")
    assert "kept ./" + expected[0] + ", 1000 B: process" in output
    assert "of another host or container" in output
    assert "processes of a cluster write it" in output
    assert list_leftovers() == sorted([*expected, *own])


def test_unknown_host_prevents_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(unfinished.sys, "platform", "linux")
    monkeypatch.setattr(unfinished.os, "stat", missing)
    name = make("a.mag", process=end_process())
    (file,) = unfinished.find_unfinished(".")
    assert file.path == f"./{name}"
    assert "of another host" in file.reason_to_keep


@pytest.mark.skipif(sys.platform != "linux", reason="its namespaces are Linux's")
def test_container_of_same_name_is_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    make("a.mag", process=end_process())
    (file,) = unfinished.find_unfinished(".")
    assert not file.reason_to_keep
    monkeypatch.setattr(unfinished.os, "stat", lambda _: SimpleNamespace(st_ino=1))
    assert file.reason_to_keep


@pytest.mark.parametrize("name", ["a" * 251 + ".mag", "\N{SNOWMAN}" * 83 + ".mag", ".a.mag"])
def test_names_of_any_length_are_found_again(name: str) -> None:
    make(name, process=end_process())
    to_mag(make_dataset(), name)
    assert os.listdir() == [name]


def test_files_of_cluster_workers_are_marked(tmp_path: Path) -> None:
    script = """
from distributed import Client
from xr_tensorfmt.writing.unfinished import get_unfinished_path
if __name__ == "__main__":
    with Client(n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
        print(client.submit(get_unfinished_path, "a").result(), get_unfinished_path("a"))
"""
    worker, own = run_script(script, directory=tmp_path).split()[-2:]
    assert worker.split("-")[1] == "0"
    assert own.split("-")[1] != "0"


# The command


def test_clean_removes_only_orphaned_files() -> None:
    gone = end_process()
    left = [make("a.mag", process=gone), make("b.tens", process=gone)]
    others = [".a.part", ".a.mag.1f0c2ab4.part", "a.mag", left[0][1:], f"{left[0]}.part"]
    for name in others:
        Path(name).write_bytes(b"mine")
    directory, link = make("d.mag", process=gone), make("l.mag", process=gone)
    Path(directory).unlink()
    Path(directory).mkdir()
    Path(link).unlink()
    Path(link).symlink_to("a.mag")
    before = sorted(os.listdir())
    output = run_ok("clean", ".", "--dry-run")
    assert output.splitlines() == [
        *(f"would remove ./{name}, 1000 B" for name in sorted(left)),
        "2 files would be removed, 2.0 KiB",
    ]
    assert sorted(os.listdir()) == before
    assert run_ok("clean", ".").count("removed ./") == 2
    assert sorted(os.listdir()) == sorted(set(before) - set(left))
    assert run_ok("clean", ".") == "0 files removed, 0 B\n"


def test_clean_is_recursive_on_request_and_skips_links() -> None:
    gone = end_process()
    for folder in ("top/one/two", "elsewhere"):
        Path(folder).mkdir(parents=True)
        Path(make("a.mag", process=gone)).rename(Path(folder, list_leftovers()[0]))
    Path("top/link").symlink_to("../elsewhere")
    assert run_ok("clean", "top") == "0 files removed, 0 B\n"
    assert run_ok("clean", "-r", "top").endswith("1 file removed, 1000 B\n")
    assert list_leftovers("top/one/two") == []
    assert len(list_leftovers("elsewhere")) == 1


def test_clean_continues_after_missing_directory() -> None:
    make("a.mag", process=end_process())
    result = run("clean", "missing", ".")
    assert result.exit_code == 1
    assert result.stderr == "Error: missing: No such file or directory\n"
    assert result.stdout.endswith("1 file removed, 1000 B\n")
    assert "Missing argument" in run_failing("clean", code=2)


def test_clean_continues_after_failed_removal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone, unlink = end_process(), os.unlink
    for directory in ("top/one", "top/two"):
        Path(directory).mkdir(parents=True)
        Path(make("a.mag", process=gone)).rename(Path(directory, list_leftovers()[0]))

    def refused_in_one(path: str) -> None:
        if "one" in path:
            raise PermissionError(errno.EPERM, "Operation not permitted", path)
        unlink(path)

    monkeypatch.setattr(os, "unlink", refused_in_one)
    result = run("clean", "-r", "top")
    assert result.exit_code == 1
    assert result.stderr.endswith(": Operation not permitted\n")
    assert result.stdout.endswith("1 file removed, 1000 B\n")
    assert (len(list_leftovers("top/one")), list_leftovers("top/two")) == (1, [])


def test_old_files_of_other_hosts_are_removed_if_requested() -> None:
    young, old = (Path(f".a.mag.0123456789ab-7-0123456{n}.part") for n in (1, 2))
    mine = Path(make("a.mag"))
    for path in (young, old):
        path.write_bytes(bytes(10))
    for path in (old, mine):
        os.utime(path, (0, 10**9))
    output = run_ok("clean", ".")
    assert "of another host or container" in output
    assert "(last written to 2001-09-09 01:46:40 UTC; remove it with --older-than)" in output
    run_ok("clean", ".", "--older-than", "7d")
    assert list_leftovers() == sorted([str(young), str(mine)])
    assert "not a duration such as 36h or 7d" in run_failing(
        "clean", ".", "--older-than", "x", code=2
    )


def test_clean_refuses_url() -> None:
    printed = run("clean", "s3://user:hunter2@bucket")
    assert printed.exit_code == 1
    assert "lifecycle rule" in printed.stderr
    assert "hunter2" not in printed.output


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
from xr_tensorfmt import to_mag
seen = set()

def look(values):
    seen.add(signal.getsignal(signal.SIGTERM))
    return values

array = xarray.DataArray(numpy.zeros(4, "f4"), dims="x").chunk(x=1)
to_mag(array.copy(data=array.data.map_blocks(look, dtype="f4")).rename("a"), "a.mag")
assert seen == {signal.SIG_DFL}
"""
    run_python("-c", script)
    with run_writer(WRITES_FOR_EVER, "b.mag") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
    assert len(list_leftovers()) == 1
    assert run_ok("clean", ".").endswith("1 file removed, 8.0 KiB\n")


@pytest.mark.parametrize("own", [signal.SIG_IGN, lambda *_: None])
def test_existing_sigterm_handler_is_kept(own) -> None:
    before = signal.signal(signal.SIGTERM, own)
    try:
        with raise_exit_on_sigterm("."):
            assert signal.getsignal(signal.SIGTERM) is own
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with raise_exit_on_sigterm("."):
            assert callable(signal.getsignal(signal.SIGTERM))
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_program_with_sigterm_handler_leaves_no_file() -> None:
    handler = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
    script = handler + WRITES_FOR_EVER.replace("600", "2")
    with run_writer(script, "a.mag") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    assert os.listdir() == []
