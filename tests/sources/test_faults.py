"""Faults of stores: retries and errors."""

from __future__ import annotations

import json
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.memory import MemoryFileSystem

from tests import fault_server as faults
from tests import tensfiles as tf
from tests.fault_server import (
    DIRECT,
    HIDDEN,
    WAYS,
    Fault,
    FaultServer,
    Way,
    use_coroutines,
    use_http,
    use_s3,
)
from tests.opening import open_tensor
from tests.processes import run_script
from xr_tensorfmt import (
    SourceChangedError,
    StoreTimeoutError,
    StoreUnavailableError,
    to_file,
    validate,
)
from xr_tensorfmt.core.extents import Extents
from xr_tensorfmt.datasets.lazy_array import find_lazy_tensor
from xr_tensorfmt.sources.locations import locate, locate_for_reading
from xr_tensorfmt.sources.requests import MAX_ATTEMPTS, MAX_REQUESTS, MAX_TIMEOUTS
from xr_tensorfmt.sources.stores import HEAD_BYTES

VALUES = np.arange(60_000.0).reshape(300, 200)
CONTENT = tf.make_0_9(VALUES)
NAME = "bucket/t.bin"

ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
chunked = pytest.mark.parametrize("chunks", [None, {}], ids=["at-once", "threads"])


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer().running() as store:
        store.put(NAME, CONTENT)
        yield store


@pytest.fixture
def another() -> Iterator[FaultServer]:
    with FaultServer().running() as store:
        store.put(NAME, CONTENT)
        yield store


def open_from(server: FaultServer, way: Way, name: str = NAME, **options: Any) -> xr.DataArray:
    url, how = way(server, name)
    return open_tensor(url, **{"timeout": 30, **how, **options})


@pytest.fixture
def no_extra_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow requests no extra time for their bytes."""
    monkeypatch.setattr("xr_tensorfmt.sources.requests.MIN_RATE", 1e9)


REPEATED: list[Fault] = [
    *map(faults.status, (408, 429, 500, 502, 503, 504)),
    faults.status(503, Retry_After="0"),
    faults.reset,
    faults.short_body,
]


@ways
def test_failed_request_is_retried(server: FaultServer, way: Way) -> None:
    server.methods = {"GET"}
    for fault in (faults.latency, *REPEATED):
        server.faults.append(fault)
        tensor = open_from(server, way)
        assert not server.faults
        server.faults.append(fault)
        np.testing.assert_array_equal(tensor[:3, 7], VALUES[:3, 7])
        assert not server.faults
    server.methods = {"HEAD"}
    for fault in (faults.latency, faults.status(503), faults.reset):
        server.faults.append(fault)
        open_from(server, way)
        assert not server.faults


LIMIT = 4
"""Seconds that a busy machine does not take for a request. All tests with it wait side by side."""


@pytest.mark.usefixtures("no_extra_time")
def test_stalled_request_is_retried(server: FaultServer) -> None:
    coming: dict[str, Fault] = {}
    server.always = lambda handler: coming.pop(handler.name, lambda _: True)(handler)

    def read(way: Way, fault: Fault) -> None:
        name = f"bucket/{way.__name__}-{fault.__name__}"
        server.put(name, CONTENT)
        tensor = open_from(server, way, name, timeout=LIMIT, chunks={}, chunk_bytes=200_000)
        coming[name] = fault
        np.testing.assert_array_equal(tensor, VALUES)
        assert name not in coming

    cases = [(way, fault) for way in WAYS for fault in (faults.silent, faults.stalled)]
    cases += [(way, faults.dripping) for way in WAYS if way not in HIDDEN]
    with ThreadPoolExecutor(len(cases)) as threads:
        list(threads.map(read, *zip(*cases, strict=True)))


@pytest.mark.parametrize("way", [*DIRECT, *HIDDEN], ids=lambda way: way.__name__)
@chunked
def test_repeated_failures_raise_one_error(
    server: FaultServer, way: Way, chunks: dict | None
) -> None:
    tensor = open_from(server, way, chunks=chunks)
    server.forget()
    server.always = faults.status(503)
    with pytest.raises(StoreUnavailableError, match="gave up after 5 attempts in") as caught:
        tensor[:3, 7].compute()
    assert len(server.requests) == MAX_ATTEMPTS
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert type(error) is StoreUnavailableError
        assert error.filename.endswith(NAME)
        assert error.span == (48 + 7 * 2400, 48 + 7 * 2400 + 24)
        assert error.attempts == MAX_ATTEMPTS
        assert error.seconds > 0
        assert f"while bytes {error.span[0]} to {error.span[1] - 1} were fetched" in str(error)
        assert error.__cause__ is error.__context__ is None


@ways
def test_request_without_progress_times_out(server: FaultServer, way: Way) -> None:
    # Such a short limit could also end the requests of opening.
    lazy = find_lazy_tensor(open_from(server, way).variable).array
    source = replace(lazy.source, location=replace(lazy.source.location, timeout=0.2))
    for fault in (faults.silent, faults.stalled, faults.dripping):
        server.forget()
        server.always = fault
        with pytest.raises(
            TimeoutError, match=r"3 attempts in .* larger timeout= or --storage-option"
        ) as got:
            source.read(Extents.single(48, 1648))
        assert type(got.value) is StoreTimeoutError
        assert got.value.attempts == MAX_TIMEOUTS == len(server.requests), fault.__name__
        assert pickle.loads(pickle.dumps(got.value)).span == got.value.span == (48, 1648)


@pytest.mark.usefixtures("no_extra_time")
def test_store_that_never_answers_at_opening_is_timeout(server: FaultServer) -> None:
    server.always = lambda handler: (
        faults.silent(handler) if handler.name.endswith(handler.command) else True
    )

    def open_object(way: Way, method: str) -> None:
        name = f"bucket/{way.__name__}-{method}"
        server.put(name, CONTENT)
        with pytest.raises(StoreTimeoutError, match="not complete in time") as caught:
            open_from(server, way, name, timeout=LIMIT)
        assert caught.value.span == ((0, HEAD_BYTES) if method == "GET" else None)

    with ThreadPoolExecutor(2 * len(WAYS)) as threads:
        list(threads.map(open_object, WAYS * 2, ["GET"] * len(WAYS) + ["HEAD"] * len(WAYS)))


FINAL: dict[Fault, tuple[type[Exception], str]] = {
    faults.status(403): (PermissionError, "403|Forbidden"),
    faults.status(404): (FileNotFoundError, "404|Not Found|no such object"),
    faults.other_range: (OSError, "sent 24 bytes from byte 16840, expected 24 from byte 16848"),
    faults.no_ranges: (OSError, "does not serve byte ranges"),
    faults.short_range: (OSError, "sent 23 bytes from byte 16848, expected 24 from byte 16848"),
    faults.no_content_range: (OSError, "sent 24 bytes from byte 0, expected 24 from byte 16848"),
    faults.too_long: (OSError, "sent more than 24 bytes"),
    faults.replaced: (SourceChangedError, "it has been replaced"),
    faults.truncated: (SourceChangedError, "it has been replaced"),
    faults.endless: (OSError, "sent more than 24 bytes"),
}


@chunked
@pytest.mark.parametrize("way", DIRECT, ids=lambda way: way.__name__)
def test_permanent_failures_are_not_retried(
    server: FaultServer, way: Way, chunks: dict | None
) -> None:
    tensor = open_from(server, way, chunks=chunks)
    for fault, (error, words) in FINAL.items():
        server.forget()
        server.always = fault
        with pytest.raises(error, match=words):
            tensor[:3, 7].compute()
        assert len(server.requests) == 1, fault.__name__


AT_OPENING: dict[Fault, tuple[type[Exception], str]] = {
    faults.status(500): (StoreUnavailableError, "the server answered 500 .* after 5 attempts"),
    faults.status(404): (FileNotFoundError, "404|no such object"),
    faults.short_range: (OSError, "sent 65535 bytes from byte 0, expected 65536 from byte 0"),
    faults.no_ranges: (OSError, "sent more than 65536 bytes .* does not serve byte ranges"),
    faults.too_long: (OSError, "sent more than 65536 bytes"),
    faults.endless: (OSError, "sent more than 65536 bytes"),
}


@pytest.mark.parametrize("way", DIRECT, ids=lambda way: way.__name__)
def test_fault_at_opening_is_clear_error(server: FaultServer, way: Way) -> None:
    server.methods = {"GET"}
    for fault, (error, words) in AT_OPENING.items():
        server.always = fault
        with pytest.raises(error, match=words) as caught:
            open_from(server, way)
        assert caught.value.filename.endswith(NAME)
        server.always = None
        np.testing.assert_array_equal(open_from(server, way), VALUES)


@pytest.mark.parametrize("way", HIDDEN, ids=lambda way: way.__name__)
@pytest.mark.parametrize(
    "fault", [faults.no_ranges, faults.truncated], ids=lambda item: item.__name__
)
def test_another_number_of_bytes_raises_over_any_file_system(
    server: FaultServer, way: Way, fault: Fault
) -> None:
    tensor = open_from(server, way)
    server.forget()
    server.always = fault
    with pytest.raises(OSError, match=r"the server sent .* bytes from byte 16848, expected 24"):
        tensor[:3, 7].values  # noqa: B018
    assert len(server.requests) == 1


@chunked
def test_without_conditions_version_is_compared_after_each_read(
    server: FaultServer, chunks: dict | None
) -> None:
    tensor = open_from(server, use_coroutines, chunks=chunks)
    unverified = open_from(server, use_coroutines, chunks=chunks, verify_unchanged=False)
    server.forget()
    np.testing.assert_array_equal(tensor[0], VALUES[0])
    np.testing.assert_array_equal(unverified[0], VALUES[0])
    assert [method for method, _ in server.requests].count("HEAD") == 1
    server.put(NAME, tf.make_0_9(VALUES + 1))
    for _ in range(2):
        with pytest.raises(SourceChangedError, match="it has been replaced since it was opened"):
            tensor[:3, 7].compute()
    np.testing.assert_array_equal(unverified, VALUES + 1)


def test_own_write_is_noticed_at_once(memory: MemoryFileSystem) -> None:
    url = "memory://own.tens"
    to_file(xr.DataArray(VALUES, name="tensor"), url)
    before = open_tensor(url)
    np.testing.assert_array_equal(before[0], VALUES[0])
    to_file(xr.DataArray(VALUES + 1, name="tensor"), url)
    with pytest.raises(SourceChangedError, match="it has been replaced since it was opened"):
        before.load()


@pytest.mark.parametrize("way", [use_http, use_s3], ids=lambda way: way.__name__)
def test_retries_and_replaced_objects_are_logged(
    server: FaultServer, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    tensor = open_from(server, way)
    server.faults.append(faults.status(503))
    with caplog.at_level("INFO", "xr_tensorfmt"):
        np.testing.assert_array_equal(tensor[:3, 7], VALUES[:3, 7])
        assert re.search(r"the server answered 503.*; next attempt in [\d.e-]+ s", caplog.text)
        server.put(NAME, tf.make_0_9(VALUES + 1))
        with pytest.raises(SourceChangedError):
            tensor[:3, 7].load()
    assert "replaced since it was opened" in caplog.text


@pytest.mark.parametrize("value", [np.float32(0.5), np.int64(7)])
def test_limit_may_be_number_of_numpy(value: Any) -> None:
    assert locate_for_reading("memory://x", None, None, value).timeout == value
    assert locate_for_reading("memory://x", {"timeout": value}, None, 1).timeout == value


@pytest.mark.parametrize("way", [use_http, use_s3], ids=lambda way: way.__name__)
def test_pause_longer_than_limit_is_not_waited_for(server: FaultServer, way: Way) -> None:
    tensor = open_from(server, way)
    server.forget()
    server.always = faults.status(503, Retry_After="3600")
    with pytest.raises(
        StoreUnavailableError, match=r"1 attempt in .* requests a pause of 3.6e.03 s"
    ):
        tensor[:3, 7].values  # noqa: B018
    assert len(server.requests) == 1


def test_timeout_can_be_a_storage_option(server: FaultServer, tmp_path: Path) -> None:
    for way in (use_http, use_s3):
        url, how = way(server, NAME)
        options = {**how.get("storage_options", {}), "timeout": 60}
        server.always = None
        assert validate(url, storage_options=options) == []
        options["timeout"] = 0.2
        server.always = faults.silent
        with pytest.raises(StoreTimeoutError, match=r"not complete in time; .* 3 attempts in"):
            validate(url, storage_options=options)


@pytest.mark.parametrize("value", ["1", True, b"1"])
def test_limit_that_is_no_number_raises(value: object) -> None:
    with pytest.raises(ValueError, match="must be a positive number of seconds, or None"):
        open_tensor("memory://x", timeout=value)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_limit_that_is_not_positive_raises(value: float) -> None:
    for options in ({"timeout": value}, {"storage_options": {"timeout": value}}):
        with pytest.raises(ValueError, match="must be a positive number of seconds, or None"):
            open_tensor("memory://x", **options)


def test_s3_requests_are_retried_by_one_layer(server: FaultServer) -> None:
    url, how = use_s3(server, NAME)
    options = how["storage_options"]
    fs = fsspec.filesystem("s3", **options, config_kwargs={"retries": {"max_attempts": 1}})
    tensor = open_tensor(NAME, fs=fs)
    server.forget()
    server.always = faults.status(503)
    with pytest.raises(StoreUnavailableError) as caught:
        tensor[:3, 7].values  # noqa: B018
    assert caught.value.attempts == 1
    assert len(server.requests) == 2
    reading, writing = locate_for_reading(url, options, None, 7), locate(url, options, None)
    assert reading.fs.config_kwargs["read_timeout"] == 7
    assert "retries" not in writing.fs.config_kwargs


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_dead_store_does_not_block_another(
    server: FaultServer, another: FaultServer, way: Way
) -> None:
    dead, alive = open_from(server, way), open_from(another, way)
    server.forget()
    server.always = faults.silent
    with ThreadPoolExecutor(2 * MAX_REQUESTS) as threads:
        reads = [threads.submit(dead[:, n].load) for n in range(2 * MAX_REQUESTS)]
        server.wait_for(MAX_REQUESTS)
        np.testing.assert_array_equal(alive, VALUES)
        assert not any(read.done() for read in reads)
        server.stopped.set()
        server.always = None
        for read in reads:
            read.result()


READERS = {
    "at-once": "xr.open_dataset(url, engine='tensorfmt', **how).load()",
    "threads": "xr.open_dataset(url, engine='tensorfmt', chunks={}, **how).load()",
    "pool": "dask.config.set(scheduler='threads', num_workers=3)\n"
    "xr.open_dataset(url, engine='tensorfmt', chunks={}, chunk_bytes=50_000, **how).load()",
    "async": "asyncio.run(xr.open_dataset(url, engine='tensorfmt', **how).load_async())",
}
# It imports everything before it forks, and has no threads then. A process ends as Python ends.
NURSERY = """
import asyncio, os, pickle, signal, sys, threading, time, traceback
import aiohttp, dask.array, s3fs, xarray as xr
import xr_tensorfmt.backend
from xr_tensorfmt.cli import main

def interrupt():
    # Only when the main thread waits: Python itself waits for ever for a thread that a pool was
    # starting when it was interrupted.
    sys.stdin.readline()
    main, names = threading.main_thread().ident, ["start"]
    while "start" in names or names[-1] not in ("wait", "select"):
        time.sleep(0.01)
        names = [frame.name for frame in traceback.extract_stack(sys._current_frames()[main])]
    os.kill(os.getpid(), signal.SIGINT)

while line := sys.stdin.readline():
    child = os.fork()
    if not child:
        signal.alarm(30)  # the limit of a request is 60 s
        threading.Thread(target=interrupt, daemon=True).start()
        code, url, how, errors = pickle.loads(bytes.fromhex(line))
        os.dup2(os.open(errors, os.O_CREAT | os.O_WRONLY), 2)
        exec(code)
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def nursery() -> Iterator[subprocess.Popen[str]]:
    if sys.platform == "win32":
        pytest.skip("sends a signal")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", NURSERY], **pipes) as process:
        yield process


def end_by_interrupt(nursery: Any, server: FaultServer, count: int, *what: Any) -> int:
    """Interrupt a process after a number of requests, and return its exit code."""
    server.always = faults.silent
    for line in (pickle.dumps(what).hex(), "now"):
        print(line, file=nursery.stdin, flush=True)
        server.wait_for(count)
    return int(nursery.stdout.readline())


@pytest.mark.parametrize(
    ("reader", "way"),
    [*((reader, use_http) for reader in READERS), *(("threads", way) for way in WAYS[1:])],
)
def test_interrupt_ends_process(
    nursery: Any, server: FaultServer, way: Way, reader: str, tmp_path: Path
) -> None:
    url, how = way(server, NAME)
    # Reads after opening stall.
    server.faults += [lambda _: True] * 2
    code = end_by_interrupt(nursery, server, 3, READERS[reader], url, how, tmp_path / "errors")
    assert code == -signal.SIGINT


@pytest.mark.parametrize("command", ["info", "validate", "convert"])
def test_interrupt_ends_command(
    nursery: Any, server: FaultServer, command: str, tmp_path: Path
) -> None:
    more = [str(tmp_path / "copy.tens"), "--to", "tens"] if command == "convert" else []
    # The command converts after it has opened the file, the others wait at once.
    server.faults += [lambda _: True] * (2 if command == "convert" else 0)
    url, _ = use_http(server, NAME)
    errors, code = tmp_path / "errors", f"main({[command, url, *more]})"
    count = 3 if command == "convert" else 1
    assert end_by_interrupt(nursery, server, count, code, url, {}, errors) == 130
    assert "Aborted!" in errors.read_text()
    assert "Traceback" not in errors.read_text()
    assert list(tmp_path.iterdir()) == [errors]


CLUSTER = """
import json, sys
import xarray as xr
from distributed import Client, LocalCluster

def repeat_at_once():
    from xr_tensorfmt.sources import requests as retries
    retries.FIRST_PAUSE = 0.001

if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=2, processes=True, dashboard_address=None,
                      silence_logs=50) as cluster, Client(cluster) as client:
        client.run(repeat_at_once)
        for url, options in json.loads(sys.argv[1]):
            ds = xr.open_dataset(url, engine="tensorfmt", chunks={}, **options)
            print(json.dumps(float(ds.tensor.sum().compute())))
            try:
                ds.tensor.sum().compute()
            except OSError as error:
                print(json.dumps([type(error).__name__, error.filename, error.span,
                                  error.attempts, error.seconds > 0, str(error)]))
"""


def test_worker_repeats_and_raises_same_error(
    server: FaultServer, another: FaultServer, tmp_path: Path
) -> None:
    places = [use_http(server, NAME), use_s3(another, NAME)]
    for item in (server, another):
        # Opening sends two. Then one is repeated, and the next computation fails.
        item.faults += [lambda _: True] * 2 + [faults.status(503), lambda _: True]
        item.always = faults.status(503)
    output = run_script(CLUSTER, json.dumps(places), directory=tmp_path)
    answers = list(map(json.loads, output.splitlines()))
    assert answers[::2] == [VALUES.sum()] * 2
    for (url, _), error in zip(places, answers[1::2], strict=True):
        kind, filename, span, attempts, took_time, words = error
        assert (kind, filename, attempts) == ("StoreUnavailableError", url, MAX_ATTEMPTS)
        assert span == [48, len(CONTENT)]
        assert took_time
        assert "while bytes 48 to 480047 were fetched; gave up after 5 attempts in" in words
