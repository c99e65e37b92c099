"""What killed writers leave in stores: found, kept while it may be written, removed when old."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import s3fs
import xarray as xr
from fsspec.implementations.memory import MemoryFileSystem

from tests.commands import done, failed, run
from tests.opening import opened
from tests.processes import run_python
from tests.servers import S3Store
from xr_tensorfmt import to_mag
from xr_tensorfmt.sources.places import Place, locate
from xr_tensorfmt.writing.sending import LocalCopy
from xr_tensorfmt.writing.unfinished import suffix_of_unfinished
from xr_tensorfmt.writing.upload import unfinished_at

WRITES = """
import sys, json
import dask, dask.array, numpy, xarray
from xr_tensorfmt import to_mag
from xr_tensorfmt.writing import upload

upload.SMALLEST_PART = 5 << 20
way, url, options, folder, source = json.loads(sys.argv[1])
dask.config.set({"temporary-directory": folder})
if way == "convert":
    from xr_tensorfmt.cli import main
    stored = [f"--storage-option={key}={value}" for key, value in options.items()]
    main(["convert", "--overwrite", source, url, *stored])
array = dask.array.full((8, 1 << 20), 9, chunks=(1, -1), dtype="f4")
if way == "disk":
    array = array.rechunk((8, 1 << 18))  # across the order of the file
data = xarray.Dataset({"a": (("x", "y"), array)})
if way == "later":
    to_mag(data, url, storage_options=options, compute=False).compute()
else:
    to_mag(data, url, storage_options=options)
"""


@pytest.fixture
def bucket(s3: S3Store) -> Iterator[s3fs.S3FileSystem]:
    """An empty bucket."""
    fs = s3fs.S3FileSystem(**s3.options)
    s3.put("first", b"")
    fs.rm(fs.find("bucket"))
    yield fs
    s3.fault = lambda environ, answer: answer()
    fs.clear_multipart_uploads("bucket")


def options_of(s3: S3Store) -> list[str]:
    return [f"--storage-option={key}={value}" for key, value in s3.options.items()]


@contextmanager
def writer_in_the_middle(
    s3: S3Store, way: str, folder: Path
) -> Iterator[tuple[subprocess.Popen[bytes], Event]]:
    """A process whose third part has arrived, and an event before which it has no answer."""
    begun, go_on = Event(), Event()

    def slow(environ: dict, answer: Any) -> Any:
        if "partNumber=3" in environ["QUERY_STRING"]:
            begun.set()
            go_on.wait(60)
        return answer()

    source = folder / "source.mag"
    to_mag(xr.Dataset({"a": (("x", "y"), np.full((8, 1 << 20), 9, "f4"))}), source)
    s3.fault = slow
    arguments = json.dumps([way, "s3://bucket/x.mag", s3.options, str(folder), str(source)])
    with subprocess.Popen(
        [sys.executable, "-c", WRITES, arguments], stderr=subprocess.PIPE, cwd=folder
    ) as process:
        try:
            while not begun.wait(0.05):
                assert process.poll() is None, process.stderr.read()
            yield process, go_on
        finally:
            go_on.set()
            process.kill()


def parts_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith(".part")]


@pytest.mark.parametrize("way", ["now", "later"])
def test_a_killed_writer_leaves_the_old_object_and_what_clean_finds(
    s3: S3Store, bucket: Any, tmp_path: Path, way: str
) -> None:
    url = s3.put("x.mag", b"old")
    with writer_in_the_middle(s3, way, tmp_path) as (process, _):
        shown = done("clean", "s3://bucket", *options_of(s3))
        assert f"kept {url}" in shown
        process.kill()
        process.wait()
    s3.fault = lambda environ, answer: answer()
    assert bucket.cat_file("bucket/x.mag") == b"old"
    assert len(bucket.list_multipart_uploads("bucket")) == 1
    assert len(parts_in(tmp_path)) == (way == "later")
    shown = done("clean", str(tmp_path), "s3://bucket/x.mag", "--older-than=0s", *options_of(s3))
    uploaded = "removed s3://bucket/x.mag, "
    assert uploaded in shown
    assert ("1 file and 1 upload removed" in shown) == (way == "later")
    assert not bucket.list_multipart_uploads("bucket")
    assert not parts_in(tmp_path)
    assert bucket.cat_file("bucket/x.mag") == b"old"


@pytest.mark.parametrize("goes_on", [True, False], ids=["by another", "given up"])
def test_the_upload_of_a_lost_worker_is_aborted_by_who_has_its_file(
    s3: S3Store, bucket: Any, tmp_path: Path, goes_on: bool
) -> None:
    url = s3.put("x.mag", b"old")
    with writer_in_the_middle(s3, "later", tmp_path) as (process, _):
        process.kill()
        process.wait()
    s3.fault = lambda environ, answer: answer()
    assert len(bucket.list_multipart_uploads("bucket")) == 1
    (left,) = parts_in(tmp_path)
    source = tmp_path / "source.mag"  # is as long
    place = locate(url, s3.options, None)
    copy = LocalCopy(url, str(tmp_path / left), source.stat().st_size, True, place)
    if goes_on:  # as the scheduler lets another worker do it
        copy.publish()
    else:  # as the client does when the computation has failed
        assert copy.discard()
    assert bucket.list_multipart_uploads("bucket") == []
    assert not parts_in(tmp_path)
    if goes_on:
        xr.testing.assert_identical(opened(url, storage_options=s3.options), opened(source))
    else:
        assert bucket.cat_file("bucket/x.mag") == b"old"


@pytest.mark.parametrize(
    ("way", "number"),
    [("now", "SIGINT"), ("disk", "SIGINT"), ("convert", "SIGINT"), ("convert", "SIGTERM")],
)
def test_a_signal_in_an_upload_leaves_the_old_object_and_nothing_else(
    s3: S3Store, bucket: Any, tmp_path: Path, way: str, number: str
) -> None:
    s3.put("x.mag", b"old")
    with writer_in_the_middle(s3, way, tmp_path) as (process, go_on):
        process.send_signal(signal.Signals[number])
        go_on.set()
        process.wait(60)
        assert process.returncode != 0
    assert bucket.cat_file("bucket/x.mag") == b"old"
    assert bucket.list_multipart_uploads("bucket") == []
    assert not parts_in(tmp_path)


def test_clean_keeps_young_uploads_and_those_of_other_names(s3: S3Store, bucket: Any) -> None:
    for key in ("a.mag", "dir/b.mag", "dir/below/c.mag", "directory/d.mag"):
        bucket.call_s3("create_multipart_upload", Bucket="bucket", Key=key)

    def left() -> list[str]:
        return sorted(each["Key"] for each in bucket.list_multipart_uploads("bucket"))

    every = left()
    assert len(every) == 4
    shown = done("clean", "-r", "s3://bucket", *options_of(s3))
    assert shown.count("kept s3://bucket/") == 4
    assert shown.count("a process may be sending it (begun 20") == 4
    assert shown.count("; remove it with --older-than)") == 4
    assert shown.endswith("0 files removed, 0 B\n")
    assert done("clean", "s3://bucket", *options_of(s3)).count("kept") == 1
    shown = done("clean", "-r", "s3://bucket", "--older-than", "36500d", *options_of(s3))
    assert shown.count("kept") == 4
    shown = done("clean", "-rn", "s3://bucket", "--older-than", "0s", *options_of(s3))
    assert shown.endswith("4 uploads would be removed, 0 B\n")
    assert left() == every
    shown = done("clean", "s3://bucket/dir", "--older-than", "0s", *options_of(s3))
    assert "removed s3://bucket/dir/b.mag, 0 B\n1 upload removed" in shown
    assert "dir/b.mag" not in left()
    done("clean", "-r", "s3://bucket/dir/", "--older-than", "0s", *options_of(s3))
    assert left() == ["a.mag", "directory/d.mag"]
    done("clean", "s3://bucket/a.mag", "--older-than", "0s", *options_of(s3))
    assert left() == ["directory/d.mag"]


def test_clean_asks_for_all_pages(s3: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {
        None: {
            "Uploads": [
                {"Key": "a", "UploadId": "1", "Initiated": datetime(2026, 1, 1, tzinfo=UTC)}
            ],
            "IsTruncated": True,
            "NextKeyMarker": "a",
            "NextUploadIdMarker": "1",
        },
        "a": {"Uploads": [{"Key": "b", "UploadId": "2"}], "IsTruncated": False},
    }

    def answered(fs: Any, method: str, **request: Any) -> Any:
        if method == "list_parts":
            return {"Parts": [{"Size": 1000}]}
        return pages[request.get("KeyMarker")]

    monkeypatch.setattr(s3fs.S3FileSystem, "call_s3", answered)
    shown = done("clean", "s3://bucket", *options_of(s3))
    assert "kept s3://bucket/a, 1000 B: a process may be sending it (begun 2026-01-01" in shown
    assert "kept s3://bucket/b, 1000 B: a process may be sending it (begun at an unknown" in shown


def test_clean_removes_unfinished_files_of_other_stores(memory: Any) -> None:
    gone = int(run_python("-c", "import os; print(os.getpid())").stdout)
    own = suffix_of_unfinished()
    ended = own.replace(f"-{os.getpid()}-", f"-{gone}-")
    elsewhere = f".0123456789ab-{gone}-01234567.part"
    names = [f".a.mag{suffix}" for suffix in (own, ended, elsewhere)]
    for name in (*names, "b.mag", ".hidden.part", f"below/{names[1]}"):
        memory.pipe_file(f"/bucket/{name}", bytes(10))

    def left() -> set[str]:
        return {path.removeprefix("/bucket/") for path in memory.find("/bucket")}

    everything = left()
    shown = done("clean", "-n", "memory://bucket")
    assert shown.endswith("1 file would be removed, 10 B\n")
    assert left() == everything
    shown = done("clean", "memory://bucket")
    assert f"removed memory://bucket/{names[1]}, 10 B\n" in shown
    assert f"process {os.getpid()} is running" in shown
    assert left() == everything - {names[1]}
    done("clean", "-r", "memory://bucket", "--older-than", "1h")
    assert left() == everything - {names[1], f"below/{names[1]}"}
    done("clean", "-r", "memory://bucket", "--older-than", "0s")
    assert left() == {names[0], "b.mag", ".hidden.part"}


def test_old_files_of_other_hosts_are_removed_if_asked_for(tmp_path: Path) -> None:
    young, old = (tmp_path / f".a.mag.0123456789ab-7-0123456{n}.part" for n in (1, 2))
    for path in (young, old):
        path.write_bytes(bytes(10))
    os.utime(old, (0, 10**9))
    mine = tmp_path / f".a.mag{suffix_of_unfinished()}"
    mine.write_bytes(b"")
    os.utime(mine, (0, 10**9))
    shown = done("clean", str(tmp_path))
    assert "of another host or container" in shown
    assert "(last written to 2001-09-09 01:46:40 UTC; remove it with --older-than)" in shown
    done("clean", tmp_path.as_uri(), "--older-than", "7d")
    assert set(tmp_path.iterdir()) == {young, mine}


def test_clean_says_where_it_can_do_nothing(s3: S3Store, memory: Any) -> None:
    assert "give the URL after '::'" in run("clean", "simplecache::memory://bucket").stderr
    s3.refused = lambda environ: True
    try:
        shown = run("clean", "s3://bucket", *options_of(s3))
    finally:
        s3.refused = lambda environ: False
    assert shown.exit_code == 1
    assert shown.stderr.startswith("Error: s3://bucket: ")
    assert "secret" not in shown.stderr.replace("storage", "")
    assert run("clean", "nowhere://user:hunter2@host").exit_code == 1
    assert "hunter2" not in run("clean", "nowhere://user:hunter2@host").output
    assert "not a duration such as 36h or 7d" in failed("clean", ".", "--older-than", "x", code=2)


@pytest.mark.parametrize("package", ["gcsfs", "adlfs"])
def test_stores_that_cannot_list_uploads_say_so(package: str) -> None:
    fs = type("Store", (MemoryFileSystem,), {"__module__": f"{package}.core"})()
    place = Place("gs://bucket", fs, "bucket")
    with pytest.raises(ValueError, match="removes them after a week"):
        list(unfinished_at(place, recursive=False))
