"""Faults of stores during uploads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import ENOSPC, ETIMEDOUT
from functools import partial
from pathlib import Path
from threading import Event, Semaphore
from threading import enumerate as enumerate_threads
from typing import Any, ClassVar

import dask
import moto.s3.models
import numpy as np
import pytest
import s3fs
import xarray as xr
from fsspec.implementations.memory import MemoryFileSystem

from tests.opening import open_lazily
from tests.servers import S3Store
from xr_tensorfmt import to_file

ROW = 1 << 16
PART = 5 * ROW  # of 5 MiB at least in a real store
OLD = b"old"
UNCERTAIN = "the object is as before, unless its upload was complete"

OPERATIONS: dict[str, tuple[str, str]] = {
    "put": ("PUT", ""),
    "create": ("POST", "uploads"),
    "part": ("PUT", "partNumber=2"),
    "complete": ("POST", "uploadId="),
    "abort": ("DELETE", "uploadId="),
}
"""Method, and what the query contains."""

WRITING = [operation for operation in OPERATIONS if operation != "abort"]


class Faults:
    """Faults of a store in one operation: always, or only the first time."""

    def __init__(self, operation: str, kind: str, times: float = np.inf) -> None:
        self.method, self.query = OPERATIONS[operation]
        self.kind, self.times = kind, times
        self.seen = 0
        self.released = Event()

    def __call__(self, environ: dict, answer: Callable[[], list[bytes]]) -> Any:
        query = environ["QUERY_STRING"]
        is_it = environ["REQUEST_METHOD"] == self.method and self.query in query
        if not is_it or (not self.query and query) or self.seen >= self.times:
            return answer()
        self.seen += 1
        if self.kind == "latency":
            time.sleep(0.2)
            return answer()
        if self.kind == "lost answer":
            answer()
            return None
        if self.kind == "stall":
            self.released.wait(2)  # then close the connection, if the client has not
        return self.kind if self.kind[0] in "45" else None


@pytest.fixture
def bucket(s3: S3Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3fs.S3FileSystem]:
    """An empty bucket, with small parts and few retries."""
    monkeypatch.setattr(s3fs.core, "calculate_chunksize", lambda *_, **__: PART)
    monkeypatch.setattr(moto.s3.models, "S3_UPLOAD_PART_MIN_SIZE", PART)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 2)
    fs = s3fs.S3FileSystem(**s3.options)
    s3.put("first", b"")
    for path in fs.find("bucket"):
        fs.rm_file(path)  # `rm` would expand patterns
    yield fs
    check_healthy(s3)
    with suppress(FileNotFoundError):  # a thread of a stalled upload may abort it meanwhile
        fs.clear_multipart_uploads("bucket")


def check_healthy(s3: S3Store) -> None:
    faults, s3.fault = s3.fault, lambda environ, answer: answer()
    if isinstance(faults, Faults):
        faults.released.set()


def make_impatient(s3: S3Store, kind: str) -> dict[str, Any]:
    """Return options without retries. A short limit may end requests that are only slow."""
    limit = 0.5 if kind == "stall" else 60
    return {**s3.options, "config_kwargs": {"read_timeout": limit, "retries": {"max_attempts": 0}}}


def make_dataset(operation: str) -> xr.Dataset:
    """Return a Dataset that is uploaded in one request, or in three parts."""
    rows = 10 if operation == "put" else 12
    values = np.full((rows, 10 if operation == "put" else ROW // 4), 7, "f4")
    return xr.Dataset({"a": (("x", "y"), values)}).chunk(x=1)


def to_mag_later(data: xr.Dataset, url: str, **options: Any) -> None:
    to_file(data, url, "mag", compute=False, **options).compute()


WAYS = {"now": partial(to_file, format="mag"), "later": to_mag_later}

LASTING: dict[str, type[OSError] | None] = {
    "latency": None,
    "403 AccessDenied": PermissionError,
    "503 SlowDown": OSError,
    "reset": OSError,
    "stall": OSError,
    "lost answer": OSError,
}
CASES = [("now", operation, kind) for operation in WRITING for kind in LASTING]
CASES += [("later", operation, "lost answer") for operation in WRITING]
CASES += [("later", "part", kind) for kind in LASTING if kind != "lost answer"]


@pytest.mark.parametrize(("way", "operation", "kind"), CASES, ids=str)
def test_fault_that_lasts(
    s3: S3Store, bucket: Any, tmp_path: Path, way: str, operation: str, kind: str
) -> None:
    url, data, error = s3.put("x.mag", OLD), make_dataset(operation), LASTING[kind]
    s3.fault = Faults(operation, kind)
    options = s3.options if kind == "latency" else make_impatient(s3, kind)
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        failure = catch_error(lambda: WAYS[way](data, url, storage_options=options))
    check_healthy(s3)
    bucket.invalidate_cache()
    is_new = bucket.cat_file("bucket/x.mag") != OLD
    assert is_new == (kind == "latency" or (kind, operation) in APPEARS)
    if is_new:
        xr.testing.assert_identical(
            open_lazily(url, storage_options=s3.options).load(), data.compute()
        )
    if failure is None:
        assert is_new
    else:
        assert isinstance(failure, error)
        assert failure.filename == url
        assert UNCERTAIN in get_message(failure)
    # An upload that was never confirmed has no known ID, so it cannot be aborted.
    if (kind, operation) != ("lost answer", "create"):
        assert bucket.list_multipart_uploads("bucket") == []
    assert not list(tmp_path.iterdir())


APPEARS = {("lost answer", "put"), ("lost answer", "complete")}


def catch_error(call: Callable[[], Any]) -> OSError | None:
    try:
        call()
    except OSError as error:
        return error
    return None


def get_message(error: BaseException) -> str:
    return " ".join([str(error), *getattr(error, "__notes__", ())])


@pytest.mark.parametrize("operation", WRITING)
@pytest.mark.parametrize("kind", ["reset", "lost answer"])
def test_fault_that_passes(s3: S3Store, bucket: Any, operation: str, kind: str) -> None:
    url, data = "s3://bucket/new.mag", make_dataset(operation)
    s3.fault = Faults(operation, kind, times=1)
    to_file(data, url, "mag", storage_options=make_impatient(s3, kind))
    xr.testing.assert_identical(open_lazily(url, storage_options=s3.options).load(), data.compute())
    if (operation, kind) != ("create", "lost answer"):
        assert bucket.list_multipart_uploads("bucket") == []


def test_object_found_by_retry_is_uncertain(s3: S3Store, bucket: Any) -> None:
    url, data = "s3://bucket/new.mag", make_dataset("put")
    s3.fault = Faults("put", "lost answer", times=1)
    with pytest.raises(FileExistsError, match=f"exists already; .*; {UNCERTAIN}"):
        to_file(data, url, "mag", storage_options=make_impatient(s3, "lost answer"), mode="x")
    xr.testing.assert_identical(open_lazily(url, storage_options=s3.options).load(), data.compute())


@pytest.fixture
def short_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the time of an upload to that of a request."""
    monkeypatch.setattr("xr_tensorfmt.writing.upload.CLEANUP_TIMEOUT", 0.1)
    monkeypatch.setattr("xr_tensorfmt.writing.upload.MIN_RATE", 1e9)


@pytest.mark.parametrize("name", ["x.mag", "x.safetensors.index.json"])
def test_write_without_answer_times_out(
    s3: S3Store, bucket: Any, short_uploads: None, name: str
) -> None:
    url, data, options = f"s3://bucket/{name}", make_dataset("put"), make_impatient(s3, "")
    to_file(data, url, storage_options=options)
    threads, released = set(enumerate_threads()), Event()

    def stall(environ: dict, answer: Callable[[], list[bytes]]) -> list[bytes] | None:
        return None if environ["REQUEST_METHOD"] == "PUT" and released.wait(60) else answer()

    s3.fault = stall
    try:
        with pytest.raises(TimeoutError, match=r"after 1\.5 s; pass a larger timeout="):
            to_file(data, url, storage_options={**options, "timeout": 0.5})
    finally:
        released.set()
        for thread in set(enumerate_threads()) - threads:
            thread.join(30)


@pytest.mark.parametrize("mode", ["w", "x"])
def test_index_that_appears_after_the_time_limit_has_its_files(
    s3: S3Store, bucket: Any, short_uploads: None, mode: str
) -> None:
    url, options = "s3://bucket/x.safetensors.index.json", make_impatient(s3, "")
    if mode == "w":
        to_file(make_dataset("put"), url, storage_options=options)
    threads, released = set(enumerate_threads()), Event()

    def delay(environ: dict, answer: Callable[[], list[bytes]]) -> list[bytes]:
        if environ["REQUEST_METHOD"] == "PUT" and environ["PATH_INFO"].endswith("index.json"):
            released.wait(60)
        return answer()

    s3.fault = delay
    try:
        with pytest.raises(TimeoutError) as caught:
            to_file(
                make_dataset("put") + 1,
                url,
                storage_options={**options, "timeout": 0.5},
                mode=mode,
            )
    finally:
        released.set()
        for thread in set(enumerate_threads()) - threads:
            thread.join(30)
    assert caught.value.__notes__[0].endswith(f"these files are not restored: {url}.")
    back = open_lazily(url, storage_options=s3.options).load()
    xr.testing.assert_identical(back, make_dataset("put").compute() + 1)


@pytest.mark.parametrize("kind", ["503 SlowDown", "reset", "stall", "lost answer"])
def test_fault_of_abort_leaves_old_object(s3: S3Store, bucket: Any, kind: str) -> None:
    url = s3.put("x.mag", OLD)
    refused, fault = Faults("complete", "403 AccessDenied"), Faults("abort", kind)
    s3.fault = lambda environ, answer: refused(environ, lambda: fault(environ, answer))
    with pytest.raises(OSError, match=UNCERTAIN):
        to_file(make_dataset("abort"), url, "mag", storage_options=make_impatient(s3, kind))
    fault.released.set()
    check_healthy(s3)
    assert bucket.cat_file("bucket/x.mag") == OLD
    assert len(bucket.list_multipart_uploads("bucket")) == (kind != "lost answer")


WRITES = """
import sys, json
import dask, dask.array, xarray
from xr_tensorfmt import to_file
import s3fs.core

s3fs.core.calculate_chunksize = lambda *_, **__: 5 << 16
way, url, options, folder, source = json.loads(sys.argv[1])
dask.config.set({"temporary-directory": folder})
if way == "convert":
    from xr_tensorfmt.cli import main
    stored = [f"--storage-option={key}={value}" for key, value in options.items()]
    main(["convert", "--overwrite", source, url, *stored])
array = dask.array.full((4, 1 << 16), 9, chunks=(1, -1), dtype="f4")
tasks = to_file(
    xarray.Dataset({"a": (("x", "y"), array)}), url, storage_options=options, compute=way == "now"
)
tasks.compute()
"""


@contextmanager
def run_stalled_writer(s3: S3Store, way: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that only waits for the answer to the third part of an upload."""
    others, released = Semaphore(0), Event()

    def stall(environ: dict, answer: Any) -> Any:
        if "partNumber=3" in environ["QUERY_STRING"]:
            released.wait(120)
            return None
        result = answer()
        if "partNumber" in environ["QUERY_STRING"]:
            others.release()
        return result

    source = folder / "source.mag"
    to_file(xr.Dataset({"a": (("x", "y"), np.full((4, 1 << 16), 9, "f4"))}), source, "mag")
    s3.fault = stall
    arguments = json.dumps([way, "s3://bucket/x.mag", s3.options, str(folder), str(source)])
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        [sys.executable, "-c", WRITES, arguments],
        stderr=subprocess.PIPE,
        cwd=folder,
        env=environment,
    ) as process:
        try:
            for _ in range(3):  # the other parts
                while not others.acquire(timeout=0.05):
                    assert process.poll() is None, process.stderr.read()
            released.wait(0.5)  # the answers arrive
            yield process
        finally:
            process.kill()
            released.set()


def send_until_end(process: subprocess.Popen[bytes], number: signal.Signals, attempts: int) -> str:
    """Send a signal until the process ends, and return what it printed."""
    for _ in range(attempts):
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=60 / attempts)[1].decode()
    pytest.fail("the process does not end")


NEEDS_THREADS_AT_EXIT = pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 2), reason="this Python starts no threads at exit"
)


@pytest.mark.parametrize(
    ("way", "number"),
    [
        ("now", "SIGINT"),
        pytest.param("later", "SIGINT", marks=NEEDS_THREADS_AT_EXIT),
        pytest.param("convert", "SIGINT", marks=pytest.mark.nightly),
        ("convert", "SIGTERM"),
    ],
)
def test_signal_in_stalled_upload_ends_it(
    s3: S3Store, bucket: Any, tmp_path: Path, way: str, number: str
) -> None:
    s3.put("x.mag", OLD)
    # In "later", the main thread waits for dask without a limit. Python does not wake it if Linux
    # hands the signal to another thread, as it may while that thread starts a third.
    attempts = 6 if way == "later" else 1
    with run_stalled_writer(s3, way, tmp_path) as process:
        said = send_until_end(process, signal.Signals[number], attempts)
        assert process.returncode != 0
        if way == "now":
            assert "KeyboardInterrupt" in said
            assert f"s3://bucket/x.mag was cancelled; {UNCERTAIN}" in said
    check_healthy(s3)
    assert bucket.cat_file("bucket/x.mag") == OLD
    assert os.listdir(tmp_path) == ["source.mag"]


WHOLE = 4496
"""Bytes of the object that is written."""


class LosesAnswers(MemoryFileSystem):
    """A store whose move fails, before or after moving."""

    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    moves = True

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        if self.moves:
            super().mv(path1, path2)
        raise TimeoutError(ETIMEDOUT, "no answer")


@pytest.mark.parametrize("moves", [True, False])
def test_move_without_answer(moves: bool) -> None:
    fs = LosesAnswers()
    fs.pipe_file("/bucket/x.mag", OLD)
    fs.moves = moves
    with pytest.raises(TimeoutError, match=f"no answer; {UNCERTAIN}"):
        to_file(make_dataset("put"), "/bucket/x.mag", fs=fs)
    assert fs.find("/bucket") == ["/bucket/x.mag"]
    assert len(fs.cat_file("/bucket/x.mag")) == (WHOLE if moves else len(OLD))


class TakesNoBytes(MemoryFileSystem):
    """A store that refuses every file."""

    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def put_file(self, *_: Any, **__: Any) -> None:
        raise OSError(ENOSPC, "the quota is used up")


def test_object_is_unchanged_until_move() -> None:
    fs = TakesNoBytes()
    fs.pipe_file("/bucket/x.mag", bytes(WHOLE))
    with pytest.raises(OSError, match=f"quota is used up; {UNCERTAIN}") as caught:
        to_file(make_dataset("put"), "/bucket/x.mag", fs=fs)
    assert caught.value.errno == ENOSPC
    assert fs.find("/bucket") == ["/bucket/x.mag"]
