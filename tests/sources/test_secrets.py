"""No message, repr, traceback, pickle or log contains secrets."""

from __future__ import annotations

import json
import pickle
import time
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import fsspec
import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner
from fsspec.implementations.memory import MemoryFileSystem

from tests import tensfiles as tf
from tests.opening import open_lazily, open_tensor
from tests.processes import run_python
from tests.servers import HttpStore, S3Store
from xr_tensorfmt import SourceChangedError, StoreUnavailableError, explain, to_file, validate
from xr_tensorfmt.cli import main
from xr_tensorfmt.datasets.lazy_array import find_lazy_tensor
from xr_tensorfmt.errors import redact
from xr_tensorfmt.sources import find_source
from xr_tensorfmt.sources.store_errors import translate_error

pytestmark = [
    pytest.mark.filterwarnings("ignore:BasicAuth is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The 'auth' parameter is deprecated:DeprecationWarning"),
]

SECRET = "hunter2secret"
FORMS = (SECRET, b64encode(f"user:{SECRET}".encode()).decode())


def use_header(url: str) -> tuple[str, dict[str, Any]]:
    return url, {"headers": {"Authorization": f"Bearer {SECRET}"}}


def use_auth(url: str) -> tuple[str, dict[str, Any]]:
    return url, {"auth": aiohttp.BasicAuth("user", SECRET)}


def use_client(url: str) -> tuple[str, dict[str, Any]]:
    return url, {"client_kwargs": {"headers": {"Authorization": f"Bearer {SECRET}"}}}


def use_user(url: str) -> tuple[str, dict[str, Any]]:
    return url.replace("http://", f"http://user:{SECRET}@"), {}


def use_query(url: str) -> tuple[str, dict[str, Any]]:
    return f"{url}?X-Amz-Signature={SECRET}&n=1", {}


WAYS = [use_header, use_auth, use_client, use_user, use_query]
STATUSES = [
    (401, PermissionError),
    (403, PermissionError),
    (404, FileNotFoundError),
    (500, StoreUnavailableError),
]
ways = pytest.mark.parametrize("way", WAYS)
statuses = pytest.mark.parametrize(("status", "kind"), STATUSES)
Way = Callable[[str], tuple[str, dict[str, Any]]]


def iterate_chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def assert_silent(*things: object) -> None:
    for thing in things:
        texts = [repr(thing), str(thing)]
        if isinstance(thing, BaseException):
            texts += traceback.format_exception(thing)
            texts += [repr(pickle.dumps(error)) for error in iterate_chain(thing)]
            texts += [repr((error, vars(error))) for error in iterate_chain(thing)]
        for form in FORMS:
            assert not [text for text in texts if form in text]


@ways
@statuses
def test_http_status_at_opening(
    http: HttpStore, way: Way, status: int, kind: type[OSError], caplog: Any
) -> None:
    plain = http.put("t", tf.make_0_9(np.zeros(40)))
    url, options = way(plain)
    http.status = status
    with pytest.raises(kind, match=f"the server answered {status} ") as caught:
        open_tensor(url, storage_options=options)
    assert type(caught.value) is kind
    assert caught.value.filename.startswith(plain)
    assert_silent(caught.value, caplog.text)


@ways
@statuses
@pytest.mark.parametrize("chunks", [None, {}], ids=["at once", "threads"])
def test_http_status_at_reading(
    http: HttpStore, way: Way, status: int, kind: type[OSError], chunks: Any, caplog: Any
) -> None:
    plain = http.put("t", tf.make_0_9(np.zeros(40)))
    url, options = way(plain)
    tensor = open_tensor(url, storage_options=options, chunks=chunks)
    http.status = status
    with pytest.raises(kind, match="while bytes 40 to 359 were fetched") as caught:
        tensor.load(scheduler="threads") if chunks == {} else tensor.load()
    assert type(pickle.loads(pickle.dumps(caught.value))) is kind
    assert caught.value.filename.startswith(plain)
    assert_silent(caught.value, caplog.text)
    assert len(list(iterate_chain(caught.value))) == 1


@ways
def test_unreachable_server(http: HttpStore, way: Way) -> None:
    plain = http.put("t", tf.make_0_9(np.zeros(40)))
    url, options = way(plain)
    tensor = open_tensor(url, storage_options=options)
    http.cut = True
    with pytest.raises(OSError, match=r"Disconnected") as caught:
        tensor.load()
    assert_silent(caught.value)
    url, options = way(plain.replace(f":{http.server.server_port}", ":9"))
    with pytest.raises(OSError, match=r"Cannot connect|Connect call failed") as caught:
        open_tensor(url, storage_options=options)
    assert_silent(caught.value)


@ways
def test_object_that_changed_or_is_corrupt(http: HttpStore, way: Way) -> None:
    plain = http.put("t", tf.make_0_9(np.zeros(40)))
    url, options = way(plain)
    tensor = open_tensor(url, storage_options=options)
    http.put("t", tf.make_0_9(np.ones(41)))
    with pytest.raises(SourceChangedError) as caught:
        tensor.load()
    assert caught.value.path.startswith(plain)
    assert_silent(caught.value)
    http.put("t", b"TENS" + bytes(90))
    with pytest.raises(ValueError, match="expected") as damaged:
        open_tensor(url, storage_options=options)
    assert_silent(damaged.value, *validate(url, storage_options=options))
    http.trouble = lambda handler, content, *_: not handler.answer(200, content + bytes(1 << 17))
    with pytest.raises(OSError, match="does not serve byte ranges") as refused:
        open_tensor(url, storage_options=options)
    assert_silent(refused.value)


@ways
def test_repr_of_tensor_has_no_secrets(http: HttpStore, way: Way) -> None:
    url, options = way(http.put("t", tf.make_0_9(np.zeros(40))))
    source, _ = find_source(url, storage_options=options)
    tensor = open_tensor(url, storage_options=options)
    lazy = find_lazy_tensor(tensor.variable)
    chunked = open_tensor(url, storage_options=options, chunks={})
    explained = explain(chunked)
    assert_silent(source, source.name, tensor, lazy.array, lazy.key, tensor.variable._data, chunked)
    assert_silent(explained, explained.reads, explained.reads[0].request_ranges)
    assert_silent(chunked.data, dict(chunked.__dask_graph__()), tensor._repr_html_())


def test_query_of_url_distinguishes_objects_in_dask(http: HttpStore) -> None:
    http.etags = False
    url = http.put("t", tf.make_0_9(np.zeros(40)))
    names = {open_tensor(f"{url}?id={n}", storage_options={}, chunks={}).data.name for n in (1, 2)}
    assert len(names) == 2


@ways
@pytest.mark.parametrize("cache", ["simplecache", "filecache", "blockcache"])
def test_cache_before_url(http: HttpStore, way: Way, cache: str, tmp_path: Path) -> None:
    url, options = way(http.put("t", tf.make_0_9(np.zeros(40))))
    http.status = 401
    options = {"http": options, cache: {"cache_storage": str(tmp_path)}}
    with pytest.raises(OSError) as caught:  # messages differ
        open_tensor(f"{cache}::{url}", storage_options=options)
    assert_silent(caught.value)


@ways
def test_missing_sibling_file(http: HttpStore, way: Way) -> None:
    url, options = way(http.put("folder/t", tf.make_0_9(np.zeros(40))))
    source, _ = find_source(url, storage_options=options)
    with pytest.raises(FileNotFoundError, match="404 Not Found") as caught:
        source.sibling("missing")
    assert_silent(caught.value)


@ways
def test_writing_to_read_only_server(http: HttpStore, way: Way) -> None:
    url, options = way(http.put("t.mag", b""))
    ds = xr.Dataset({"a": ("x", np.zeros(3, "f4"))})
    for mode in ("w", "x"):
        with pytest.raises(OSError, match=r"is read-only|exists already") as caught:
            to_file(ds, url, "mag", storage_options=options, mode=mode)
        assert_silent(caught.value)
    with pytest.raises(ValueError, match="region=") as refused:
        to_file(ds, url, "mag", storage_options=options, region={"x": slice(0, 1)})
    assert_silent(refused.value)
    with pytest.raises(ValueError, match="the suffix names no format") as unknown:
        to_file(ds, url.replace("t.mag", "t.xyz"), storage_options=options)
    assert_silent(unknown.value)
    with pytest.raises(OSError, match="is read-only") as delayed:
        to_file(ds, url, "mag", storage_options=options, compute=False)
    assert_silent(delayed.value)


def test_upload_that_s3_refuses(s3: S3Store) -> None:
    s3.put("first", b"")
    options = {**s3.options, "key": "user", "secret": SECRET}
    ds = xr.Dataset({"a": ("x", np.zeros(3, "f4"))})
    s3.refused = lambda environ: True
    try:
        with pytest.raises(PermissionError, match=r"403 not you; .*'s3://bucket/x.mag'") as caught:
            to_file(ds, "s3://bucket/x.mag", storage_options=options)
        tasks = to_file(ds, "s3://bucket/x.mag", storage_options=options, compute=False)
        assert_silent(caught.value, dict(tasks.__dask_graph__()))
        assert len(list(iterate_chain(caught.value))) == 1
        with pytest.raises(PermissionError, match="s3://bucket/first") as refused:
            open_tensor("s3://bucket/first", storage_options=options)
        assert_silent(refused.value)
    finally:
        s3.refused = lambda environ: False


def test_secrets_in_messages_of_stores_are_removed() -> None:
    class Talkative(MemoryFileSystem):
        cachable = False
        notes: Any = None

        def cat_file(self, path: str, **_: Any) -> bytes:
            error = RuntimeError(f"GET /t?sig=x with {self.storage_options} failed for {SECRET}")
            error.add_note(SECRET)
            raise error from KeyError(SECRET)

    fs = Talkative(target_options={"password": SECRET})
    MemoryFileSystem().pipe_file("/talk", tf.make_0_9(np.zeros(40)))
    with pytest.raises(OSError, match=r"RuntimeError: GET .*\*\*\*.* failed") as caught:
        open_lazily("/talk", fs=fs)
    fs.rm("/talk")
    assert_silent(caught.value)


def test_memory_error_keeps_its_type() -> None:
    assert type(translate_error(MemoryError(), "a", "a", {})) is MemoryError


@pytest.mark.parametrize("word", ["nowhere", "http+nowhere"])
def test_url_that_cannot_be_reached_at_all(word: str) -> None:
    with pytest.raises(FileNotFoundError, match="fsspec knows no protocol") as caught:
        open_tensor(f"{word}://user:{SECRET}@host/x?sig={SECRET}", storage_options={})
    assert_silent(caught.value)


@ways
@pytest.mark.parametrize("command", ["info", "info --json", "validate", "convert"])
def test_command_output_has_no_secrets(
    http: HttpStore, way: Way, command: str, tmp_path: Path
) -> None:
    good = http.put("good.bin", tf.make_0_9(np.zeros(40)))
    bad = http.put("bad.bin", b"TENS" + bytes(90))
    missing = f"{http.url}/missing.bin"
    for plain in (good, bad, missing):
        url, options = way(plain)
        name, *flags = command.split()
        arguments = [name, *flags, url]
        if name == "convert":
            arguments.append(str(tmp_path / "out.bin"))
        if isinstance(options.get("auth"), tuple):
            continue  # not JSON
        for key, value in options.items():
            arguments += ["--storage-option", f"{key}={json.dumps(value)}"]
        answer = CliRunner().invoke(main, arguments)
        assert answer.exit_code == (plain != good)
        is_quiet = (plain, name) == (good, "convert")
        assert is_quiet or plain.rpartition("/")[2] in answer.output
        assert_silent(answer.output)


@ways
@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "chunks"])
def test_source_in_encoding_is_without_secrets(http: HttpStore, way: Way, chunks: Any) -> None:
    plain = http.put("t", tf.make_0_9(np.zeros(40)))
    url, options = way(plain)
    for file, given in (
        (url, {"storage_options": options}),
        (fsspec.open(url, **options), {}),
        (fsspec.open(url, **options).open(), {}),
    ):
        ds = xr.open_dataset(file, engine="tensorfmt", chunks=chunks, **given)
        assert_silent(ds.encoding)
        assert ds.encoding.get("source", plain).startswith(plain)
        ds.close()
    tree = xr.open_datatree(url, engine="tensorfmt", storage_options=options)
    assert_silent(tree.encoding)
    assert tree.encoding["source"].startswith(plain)


@ways
def test_file_object_is_no_target(http: HttpStore, way: Way) -> None:
    url, options = way(http.put("t", tf.make_0_9(np.zeros(40))))
    with fsspec.open(url, **options) as file, pytest.raises(TypeError, match="URL") as caught:
        to_file(xr.Dataset({"a": ("x", np.zeros(3, "f4"))}), file, "mag")
    assert_silent(caught.value)


@pytest.mark.parametrize("secret", [SECRET.encode(), [SECRET], {"a": {"b": SECRET}}])
def test_secrets_of_any_form_are_omitted(secret: Any) -> None:
    error = translate_error(RuntimeError(f"refused {SECRET}"), "a", "a", {"token": secret})
    assert "refused ***" in str(error)
    assert_silent(error)


def test_invalid_option_is_not_repeated() -> None:
    answer = CliRunner().invoke(main, ["info", "--storage-option", f"secret:{SECRET}", "a"])
    assert answer.exit_code == 2
    assert "must have the form KEY=VALUE" in answer.output
    assert_silent(answer.output)


URLS = {
    "http://host/x": "http://host/x",
    "http://host:80/a@b": "http://host:80/a@b",
    "http://u@host/x": "http://host/x",
    "http://u:p@host:80/x": "http://host:80/x",
    "http://u:p@ss@host/x": "http://host/x",
    "http://u:p/?@host/x": "http://host/x",
    "http://[::1]:80/a@b": "http://[::1]:80/a@b",
    "http://u:p@[::1]:80/x": "http://[::1]:80/x",
    "http://host/x?a=1&b=2": "http://host/x?...",
    "http://host/x?...": "http://host/x?...",
    "s3://bucket/a:b@c/x": "s3://bucket/a:b@c/x",
    "simplecache::http://u:p@host/x?s": "simplecache::http://host/x?...",
    "'http://u:p@host/x?s'; or http://h/?t, or": "'http://host/x?...'; or http://h/?..., or",
    "/what?/x@y": "/what?/x@y",
    "http://host/x;sig=1": "http://host/x;...",
    "http://host/x#token=1": "http://host/x#...",
    "http://host/x;a=1?b#c": "http://host/x;...",
    "http://host/x; omit it": "http://host/x; omit it",
    "http://u::x@host": "http://host",
    "http://a/http://u:p@h/x": "http://a/http://h/x",
    "memory://Li@V.yaml": "memory://Li@V.yaml",
    "abfs://raw@account.dfs/x": "abfs://raw@account.dfs/x",
    "s3://key:secret@bucket/x": "s3://bucket/x",
    "zip://a@b::http://u:p@h/x?s": "zip://a@b::http://h/x?...",
    "what? not user:password@host": "what? not user:password@host",
}


@pytest.mark.parametrize("url", URLS)
def test_urls_lose_users_and_queries(url: str) -> None:
    assert redact(url) == URLS[url]
    assert redact(redact(url)) == redact(url)


@pytest.mark.parametrize(
    "part", ["a", "a://", "http://a:b", "http://a:b@", "?:", ";a", "a@", "1:", "http://"]
)
def test_long_text_is_redacted_in_linear_time(part: str) -> None:
    start = time.process_time()  # others may use the processor
    redact(f"http://x{part * (200_000 // len(part))}")
    assert time.process_time() - start < 2


CLUSTER = """
import json, pickle, sys, traceback
from urllib.request import urlopen
import aiohttp, xarray as xr
from distributed import Client, LocalCluster
from xr_tensorfmt import to_file

def tried(call):
    try:
        call()
    except BaseException as error:
        print(json.dumps([type(error).__module__, type(error).__name__, str(error), repr(error),
            repr(vars(error)), repr([error.__cause__, error.__context__]),
            "".join(traceback.format_exception(error)), repr(pickle.dumps(error))]))
    else:
        raise AssertionError("no error")

def repeat_at_once():
    from xr_tensorfmt.sources import requests as retries
    retries.FIRST_PAUSE = 0.001

if __name__ == "__main__":
    ways, switch, processes, folder, s3 = json.loads(sys.argv[1])
    import dask
    dask.config.set({"temporary-directory": folder})
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=processes,
                      dashboard_address=None) as cluster, Client(cluster) as client:
        client.run(repeat_at_once)
        for url, options in ways:
            if "auth" in options:
                options = {"auth": aiohttp.BasicAuth(*options["auth"])}
            urlopen(switch + "/status-0").close()
            ds = xr.open_dataset(url, engine="tensorfmt", chunks={}, storage_options=options)
            for status in (401, 404, 500):
                urlopen(f"{switch}/status-{status}").close()
                tried(lambda: ds.tensor.compute())
                tried(lambda: (ds.tensor + 1).mean().compute())
            urlopen(switch + "/status-0").close()
            tried(lambda: to_file(ds.astype("f4"), url + ".mag", storage_options=options))
        ds = xr.Dataset({"a": ("x", [1.0])}).astype("f4").chunk(x=1)
        tried(lambda: to_file(ds, "s3://bucket/x.mag", storage_options=s3))
        tried(lambda: to_file(ds, "s3://bucket/x.mag", storage_options=s3, compute=False).compute())
        print(json.dumps(["logs", *client.get_worker_logs().values()]))
"""


@pytest.mark.parametrize(
    "processes",
    [
        pytest.param(False, marks=pytest.mark.nightly, id="threads"),
        pytest.param(True, id="processes"),
    ],
)
def test_errors_on_cluster(http: HttpStore, s3: S3Store, tmp_path: Path, processes: bool) -> None:
    plain = http.put("t", tf.make_0_9(np.zeros(40)))
    ways = [way(plain) for way in WAYS]
    script = tmp_path / "script.py"
    script.write_text(CLUSTER)
    s3.refused = lambda environ: True
    options = {**s3.options, "secret": SECRET}
    arguments = json.dumps([ways, http.url, processes, str(tmp_path), options])
    try:
        done = run_python(script, arguments)
    finally:
        s3.refused = lambda environ: False
    *errors, written, later, (_, *logs) = map(json.loads, done.stdout.splitlines())
    assert written[:2] == later[:2] == ["builtins", "PermissionError"]
    kinds = [PermissionError, FileNotFoundError, StoreUnavailableError]
    reads = [kind.__name__ for kind in kinds for _ in range(2)]
    assert [name for _, name, *_ in errors] == [*reads, "OSError"] * len(WAYS)
    assert {module for module, *_ in errors} == {"builtins", "xr_tensorfmt.errors"}
    assert all(plain in text for _, _, text, *_ in errors)
    assert "Compute Failed" in done.stderr + repr(logs)
    assert_silent(done.stdout, done.stderr)
